"""`medweave provision`: a worker environment at a site that has no network, over a real sshd, with wheels of a few lines."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave.project.sites import read_site, schema
from medweave.provision import command, on_site
from medweave.provision.command import choose
from medweave.provision.site_session import SiteSession
from medweave.provision.wheels import Python, pinned_blocks, read_wheel, requirement_of
from medweave.provision.workers import EXTRAS, workers_of
from medweave_core.errors import InternalError, StorageError, TryAgainError, UserInputError
from support.cwl_files import ROOT
from support.engine import wait_until
from support.small_wheels import constraints_of, index_of, make_wheel, own_wheel
from support.sshd import USER, make_key, sshd

LINUX = {
    "python_version": "3.11",
    "python_full_version": "3.11.2",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
PYTHON = Python(
    executable="/usr/bin/python3", version=(3, 11, 2), markers=LINUX, machine="x86_64", glibc="2.17", has_venv=True
)


@dataclass
class RemoteSite:
    """A login node on this machine, and a site file that names an environment on it."""

    folder: Path
    login: dict[str, Any]

    @property
    def link(self) -> Path:
        return self.folder / "it's home" / "worker"

    @property
    def environments(self) -> list[str]:
        return sorted(path.name for path in self.link.with_name("worker.provisioned").glob("*-*"))

    def write(self, roles: dict[str, Any] | None = None, **environment: Any) -> Path:
        keys = {"virtualEnvironment": str(self.link), **environment}
        services = {"gpu": {"environment": keys}, "cpu": {"environment": keys}}
        document = {
            "title": "a cluster",
            "deployments": {
                "login": {"type": "medweave.ssh", "workdir": "/scratch", "config": self.login},
                "hpc": {"type": "medweave.slurm", "wraps": "login", "config": {"services": services}},
                "here": {"type": "medweave.local", "config": {}},
            },
            "roles": roles or {"segment": {"deployment": "hpc", "service": "cpu"}, "report": {"deployment": "here"}},
        }
        path = self.folder / "site.yml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def provision(self, wheel: Path) -> int:
        words = ["--site", str(self.folder / "site.yml"), "--wheel", str(wheel)]
        return main(["provision", *words, "--constraints", str(self.folder / "constraints.txt")])

    def run_step(self, *words: str) -> str:
        program = self.link / "bin" / "medweave-step"
        return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteSite]:
    key = make_key(tmp_path / "key")
    index = index_of(tmp_path / "index")
    (tmp_path / "constraints.txt").write_text(constraints_of(index))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("HOME", str(tmp_path))
    with sshd(tmp_path / "server", [key]) as server:
        (tmp_path / "known").write_text(server.known_host)
        login = {"nodes": [f"127.0.0.1:{server.port}"], "username": USER, "sshKey": "key", "knownHosts": "known"}
        site = RemoteSite(tmp_path, login)
        site.link.parent.mkdir()
        site.write()
        yield site


@pytest.mark.slow
def test_an_environment_is_installed_once_and_a_new_version_next_to_it(
    site: RemoteSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = own_wheel(tmp_path, "1.0")

    # An interrupted call leaves nothing incomplete; a complete wheel is not sent again.
    sent = []

    def stopped(self: SiteSession, path: Path, target: str, on_progress: object) -> None:
        if sent:
            (Path(target).with_name(f".{Path(target).name}.part")).write_text("half")
            raise KeyboardInterrupt
        sent.append(path)
        send(self, path, target, lambda _: None)

    send = SiteSession.send
    with monkeypatch.context() as patch:
        patch.setattr(SiteSession, "send", stopped)
        assert site.provision(first) == 130
    output = capsys.readouterr()
    assert "removing the incomplete environment" in output.err
    assert "sending 1 of 4: medweave-1.0-py3-none-any.whl (0.0 MB)" in output.err
    wheels = site.link.with_name("worker.provisioned") / "wheels"
    assert [path.name for path in wheels.iterdir()] == ["medweave-1.0-py3-none-any.whl"]
    assert not site.link.is_symlink()
    assert site.environments == []
    assert site.provision(first) == 0, capsys.readouterr().err
    output = capsys.readouterr()
    assert "3 wheels sent" in output.out
    assert "sending 1 of 3: " in output.err
    assert site.run_step("--version") == "medweave-step 1.0\n"
    assert site.run_step() == "medweave-step helped\n"
    assert "small_trainer" not in output.err, "no role of the site trains"

    # A second call installs nothing.
    assert site.provision(first) == 0
    output = capsys.readouterr()
    assert "is up to date" in output.out
    assert "nothing sent" in output.out
    assert "sending" not in output.err
    (first_name,) = site.environments

    # A running job keeps its environment; the next job uses the new one.
    with subprocess.Popen(
        [site.link.resolve() / "bin" / "python", "-c", "input(); import small_helper; print(small_helper.WORD)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        assert site.provision(own_wheel(tmp_path, "1.1")) == 0
        output = capsys.readouterr()
        assert "; 1 wheels sent" in output.out
        assert job.communicate("\n")[0] == "helped\n"
    assert site.run_step("--version") == "medweave-step 1.1\n"
    assert first_name in site.environments
    assert len(site.environments) == 2

    # Back to the first version, which is still installed.
    assert site.provision(first) == 0
    assert "; 0 wheels sent" in capsys.readouterr().out
    assert site.run_step("--version") == "medweave-step 1.0\n"


@pytest.mark.slow
def test_an_environment_that_cannot_be_installed_is_an_error_and_leaves_nothing(
    site: RemoteSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = own_wheel(tmp_path, "1.0", ['small-quick; extra == "segment"'])
    where = "site.yml: deployments.hpc.config.services.gpu.environment"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unpinned").mkdir()

    (tmp_path / "index" / "small_quick-0.1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl").unlink()
    make_wheel(tmp_path / "index", "small-quick", "0.1", tag="cp311-cp311-win_amd64")
    (tmp_path / "constraints.txt").write_text(constraints_of(tmp_path / "index"))
    assert site.provision(own) == 65
    assert "No matching distribution found for small-quick==0.1" in capsys.readouterr().err
    assert site.environments == []

    unpinned = own_wheel(tmp_path / "unpinned", "1.0", ['small-other; extra == "segment"'])
    assert site.provision(unpinned) == 65
    assert "the package 'small-other' is not pinned." in capsys.readouterr().err

    site.link.mkdir()
    assert site.provision(own) == 65
    err = capsys.readouterr().err
    assert f"{where}.virtualEnvironment: the path is in use.\n  seen:     a folder or file at {site.link}" in err

    site.write(modules=["python/3.12"])
    assert site.provision(own) == 65
    err = capsys.readouterr().err  # this machine is the site: it may have modules, though not this one
    assert f"medweave provision: {where}.modules" in err
    assert "seen:     no command `module` on " in err or "seen:     `module load python/3.12` failed on " in err

    site.login["sshKey"] = "other"
    make_key(tmp_path / "other")
    site.write()
    assert site.provision(own) == 65
    assert "deployments.login.config.sshKey" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_is_reported(
    site: RemoteSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    monkeypatch.setattr(SiteSession, "work", lambda self, script, folder: (1, full))
    assert site.provision(own_wheel(tmp_path, "1.0", ())) == StorageError.exit_code
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "MiB were free before" in err
    assert site.environments == []


@pytest.mark.slow
def test_a_site_that_does_not_answer_is_a_retryable_error(site: RemoteSite, tmp_path: Path) -> None:
    site.login |= {"nodes": ["127.0.0.1:1"], "connectTimeout": 1}
    site.write()
    assert site.provision(own_wheel(tmp_path, "1.0")) == TryAgainError.exit_code


INTERRUPTED = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run with INT ignored
from medweave.provision.site_session import SiteSession
with SiteSession("login", json.loads(sys.argv[1])) as session:
    try:
        session.work(f"echo $$ > {sys.argv[2]}; sleep 300 & wait", "/")
    except KeyboardInterrupt:
        print(session.ask("echo still there"))
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_process_at_the_site(site: RemoteSite, tmp_path: Path) -> None:
    (worker,) = workers_of(read_site(site.folder / "site.yml"), None)
    words = [sys.executable, "-c", INTERRUPTED, json.dumps(worker.config), str(tmp_path / "pid")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as driver:
        wait_until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()), 60)
        pid = int((tmp_path / "pid").read_text())
        driver.send_signal(signal.SIGINT)
        try:
            assert driver.communicate(timeout=60)[0] == "(0, 'still there')\n"
        finally:
            driver.kill()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_a_connection_whose_process_has_died_is_an_error(site: RemoteSite) -> None:
    (worker,) = workers_of(read_site(site.folder / "site.yml"), None)
    with SiteSession("login", worker.config) as session:
        session._process.kill()
        with pytest.raises(InternalError, match="has exited"):
            session.ask("true")


def test_old_environments_are_removed(tmp_path: Path) -> None:
    link = tmp_path / "worker"
    folder = on_site.folder_of(link)
    for name, days in (("1-old", 40), ("2-young", 3), ("3-before", 40), ("4-new", 0)):
        (folder / name).mkdir(parents=True)
        (folder / name / on_site.MARKER).write_text("{}")
        then = time.time() - days * 86400
        os.utime(folder / name / on_site.MARKER, (then, then))
    (folder / "wheels").mkdir()
    for name in ("a.whl", "b.whl"):
        (folder / "wheels" / name).write_text(name)
    link.symlink_to(Path(folder.name) / "3-before")
    assert on_site.state(link)["current"] == "3-before"
    assert on_site.switch(link, "4-new", ["a.whl"]) == {"before": "3-before"}
    assert link.resolve() == folder / "4-new"
    assert on_site.state(link)["whole"] == ["2-young", "3-before", "4-new"], (
        "replaced just now: its jobs may run for days"
    )
    assert list(on_site.prepare(link)["wheels"]) == ["a.whl"]


def test_platforms_are_those_of_the_sites_glibc() -> None:
    assert PYTHON.platforms[:3] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64"]
    assert PYTHON.platforms[-2:] == ["manylinux1_x86_64", "linux_x86_64"]


def test_the_version_is_chosen_by_the_sites_python() -> None:
    text = (
        'a-b==1 ; python_full_version < "3.12" \\\n    --hash=sha256:11 \\\n    --hash=sha256:12\n'
        'a-b==2 ; python_full_version >= "3.12" \\\n    --hash=sha256:2\n'
        'win==3 ; sys_platform == "win32" \\\n    --hash=sha256:3\n'
    )
    blocks = pinned_blocks(text)
    assert requirement_of("a-b", blocks, LINUX) == "a-b==1 --hash=sha256:11 --hash=sha256:12"
    assert requirement_of("a-b", blocks, LINUX | {"python_full_version": "3.13.1"}) == "a-b==2 --hash=sha256:2"
    assert requirement_of("win", blocks, LINUX) is None


def probed(**changes: Any) -> str:
    usual = {"executable": "/usr/bin/python3", "version": [3, 11, 2], "markers": LINUX, "machine": "x86_64"}
    return json.dumps(usual | {"glibc": "2.36", "has_venv": True} | changes)


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        ("", "no python3, python3.13, python3.12, python3.11"),
        (probed(version=[3, 9, 16]), "/usr/bin/python3 3.9.16"),
        (probed(has_venv=False), "/usr/bin/python3 without venv and pip"),
        (probed(glibc=""), "/usr/bin/python3 with a C library other than glibc"),
    ],
)
def test_a_site_without_a_suitable_python(site: RemoteSite, tmp_path: Path, output: str, seen: str) -> None:
    (worker,) = workers_of(read_site(site.folder / "site.yml"), None)
    with pytest.raises(UserInputError) as caught:
        choose(f"a banner of the login\n{output}\n", read_wheel(own_wheel(tmp_path, "1.0")), worker)
    assert caught.value.seen == seen
    assert caught.value.do.endswith("deployments.hpc.config.services.gpu.environment.modules")


def test_the_first_suitable_python_is_used(site: RemoteSite, tmp_path: Path) -> None:
    (worker,) = workers_of(read_site(site.folder / "site.yml"), None)
    output = "\n".join((probed(version=[3, 9, 1]), probed(executable="/opt/python3.12", version=[3, 12, 1]), probed()))
    assert choose(output, read_wheel(own_wheel(tmp_path, "1.0")), worker).executable == "/opt/python3.12"


def test_every_role_has_an_extra() -> None:
    roles = schema()["properties"]["roles"]["properties"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for role in roles for extra in EXTRAS.get(role, (role,))} <= set(extras)


def test_roles_determine_the_extras_of_an_environment(site: RemoteSite) -> None:
    roles = {
        "bundle": {"deployment": "hpc", "service": "cpu"},
        "check": {"deployment": "hpc", "service": "cpu"},
        "preprocess": {"deployment": "hpc", "service": "cpu"},
        "train": {"deployment": "hpc", "service": "gpu"},
        "train-distributed": {"deployment": "hpc", "service": "gpu"},
        "segment": {"deployment": "here"},
    }
    (worker,) = workers_of(read_site(site.write(roles)), "hpc")
    assert (worker.machine, worker.path) == ("login", str(site.link))
    assert worker.extras == ("check", "export", "preprocess", "signals", "train")
    assert worker.config["sshKey"] == str(site.folder / "key")


def test_each_host_of_a_deployment_has_an_environment(site: RemoteSite) -> None:
    site.login["nodes"] = ["ws-1", "ws-2:2222"]
    workers = workers_of(read_site(site.write({"train": {"deployment": "hpc", "service": "gpu"}})), None)
    assert [worker.machine for worker in workers] == ["login ws-1", "login ws-2:2222"]
    assert [worker.config["nodes"] for worker in workers] == [["ws-1"], ["ws-2:2222"]]
    assert {(worker.deployment, worker.extras) for worker in workers} == {("login", ("train",))}


@pytest.mark.parametrize(
    ("deployments", "message"),
    [
        ({"hpc": {"wraps": "here"}}, "deployments.hpc.config.services.gpu.environment: this machine is not reached by ssh"),
        ({"hpc": {"config": {"services": {"cpu": {}}}}}, "no virtual environment is declared"),
        (
            {"hpc": {"config": {"services": {
                "cpu": {"environment": {"virtualEnvironment": "/e", "modules": ["a"]}},
                "gpu": {"environment": {"virtualEnvironment": "/e", "modules": ["b"]}},
            }}}},
            "services.gpu.environment.modules: the same virtual environment is declared with different modules",
        ),
    ],
)  # fmt: skip
def test_a_contradictory_site_file_is_refused(site: RemoteSite, deployments: dict[str, Any], message: str) -> None:
    path = site.write()
    document = yaml.safe_load(path.read_text())
    for name, keys in deployments.items():
        document["deployments"][name] |= keys
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(UserInputError) as caught:
        workers_of(read_site(path), None)
    assert message in str(caught.value)


def test_the_probe_finds_this_python() -> None:
    result = subprocess.run([sys.executable, "-I", "-c", command.PROBE], capture_output=True, text=True, check=True)
    python = json.loads(result.stdout)
    assert (python["executable"], python["machine"]) == (sys.executable, platform.machine())
    assert python["markers"]["python_full_version"] == platform.python_version()
