"""Faults D3 to D6, D8 and D9 of the engine's data at sites: each is shown on stock StreamFlow, and is not there with medweave."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import streamflow.data.remotepath
from streamflow.core.deployment import ExecutionLocation
from streamflow.data.manager import DefaultDataManager
from streamflow.data.remotepath import download

from support.engine import FILE, run, write_workflow
from support.engine_faults import outcome, run_stock, shown, stock_file
from support.engine_file import OURS, STOCK, engine_file, ssh_site
from support.ssh_server import SSHServer, ssh_server

BLANK = "the result.txt"
ODD = (
    BLANK,
    "-dash.txt",
    "quo'te\"s.txt",
    "$HOME `id` \\n;#&.txt",
    "two\nlines.txt",
    "tail \n.txt",
    "ümläut.txt",
    "100%41.txt",
    "[a]*.txt",
    "x" * 251 + ".txt",
)
Remote = Callable[..., Any]
ENDLESS = 40  # folders of a walk that has three


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with ssh_server(tmp_path / "server") as started:
        yield started


def stock_site(server: SSHServer, workdir: Path) -> dict[str, Any]:
    config = {"nodes": [f"127.0.0.1:{server.port}"], "username": "me", "sshKey": str(server.key), "checkHostKey": False}
    return {"type": "ssh", "workdir": str(workdir), "config": config}


def bound(folder: Path, server: SSHServer, *, ours: bool) -> str:
    """Return the text of a file whose steps all run at a site; the keys are next to the folder."""
    if ours:
        site = ssh_site(server.port, f"{folder}/site", key="../server/id_ed25519")
        site["config"]["knownHosts"] = "../server/known_hosts"
        return engine_file(
            {"there": site}, managers=OURS | {"dataManager": {"type": "medweave.transfer", "config": {}}}
        )
    return engine_file({"there": stock_site(server, folder / "site")}, managers=STOCK)


def files_and_a_second_step(folder: Path, names: tuple[str, ...], file: str) -> None:
    """Write a workflow: a step that makes these files, and a second one that reads all of them."""
    make = "import sys\nfor n, name in enumerate(sys.argv[1:]):\n    open(name, 'w').write(f'scan {n}')\n"
    (folder / "make.py").write_text(make)
    made = {
        "class": "CommandLineTool",
        "baseCommand": ["python3", str(folder / "make.py"), *[f"./{name}" for name in names]],
        "inputs": {},
        "outputs": {"scans": {"type": "File[]", "outputBinding": {"glob": "*.txt", "loadContents": True}}},
    }
    read = {
        "class": "CommandLineTool",
        "baseCommand": ["cat"],
        "inputs": {"scans": {"type": "File[]", "inputBinding": {}}},
        "outputs": {"all": {"type": "stdout"}},
        "stdout": "all of them",
    }
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {},
        "outputs": {
            "scans": {"type": "File[]", "outputSource": "made/scans"},
            "all": {"type": "File", "outputSource": "read/all"},
        },
        "steps": {
            "made": {"run": made, "in": {}, "out": ["scans"]},
            "read": {"run": read, "in": {"scans": "made/scans"}, "out": ["all"]},
        },
    }
    write_workflow(folder, {}, file=file)
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")


def test_d3_outputs_at_a_site_may_have_any_name(server: SSHServer, stock: Path, ours: Path, stock_only: bool) -> None:
    files_and_a_second_step(stock, (BLANK,), bound(stock, server, ours=False))
    ended = run_stock(stock)
    shown(ended.exit_code == 1 and "result.txt" in ended.stderr, ended.stderr)
    if stock_only:
        return
    files_and_a_second_step(ours, ODD, bound(ours, server, ours=True))
    ended = run(ours)
    assert ended.exit_code == 0, ended.stderr
    results = {path.name: path.read_text() for path in (ours / "results").iterdir()}
    together = results.pop("all of them")
    assert results == {name: f"scan {n}" for n, name in enumerate(ODD)}
    assert sorted(together.replace("scan ", "")) == sorted("".join(str(n) for n in range(len(ODD))))


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Remote:
    """Return a function that makes a remote path of a class at a site whose files are on this machine."""

    def made(folder: Path, kind: Any = None) -> Any:
        if kind is None:
            kind = streamflow.data.remotepath.RemoteStreamFlowPath
            while kind.__module__ != "streamflow.data.remotepath":  # another test has loaded our plug-in
                kind = kind.__base__
        monkeypatch.setattr(streamflow.data.remotepath, "RemoteStreamFlowPath", kind)
        return path_at_site(kind, folder)

    return made


def path_at_site(kind: Any, folder: Path) -> Any:
    from streamflow.deployment.connector.local import LocalConnector

    class Shell(LocalConnector):  # type: ignore[misc]
        async def run(self, location: Any, command: list[str], **keywords: Any) -> tuple[str, int]:
            process = await asyncio.create_subprocess_exec(
                "sh", "-c", " ".join(command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            output, _ = await process.communicate()
            return output.decode(errors="replace"), process.returncode or 0

    connector = Shell("site", "/")
    context: Any = SimpleNamespace(
        deployment_manager=SimpleNamespace(get_connector=lambda _: connector),
        checkpoint_manager=SimpleNamespace(register=lambda _: None),
    )
    context.data_manager = DefaultDataManager(context)
    return kind(str(folder), context=context, location=ExecutionLocation(name="there", deployment="site"))


async def walked(path: Any, **keywords: Any) -> list[tuple[str, set[str], set[str]]]:
    """Return the entries of a walk, up to the number at which it must have ended."""
    entries: list[tuple[str, set[str], set[str]]] = []
    async for folder, folders, names in path.walk(**keywords):
        entries.append((str(folder), set(folders), set(names)))
        if len(entries) == ENDLESS:
            break
    return entries


def test_d4_a_walk_goes_down_and_ends(tmp_path: Path, remote: Remote, stock_only: bool) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "one", tmp_path / "one" / "two"):
        (folder / "scan").touch()
    entries = asyncio.run(walked(remote(tmp_path)))
    shown(len(entries) == ENDLESS, entries)
    if stock_only:
        return
    from medweave_connectors.engine.data.remote_path import MedweaveRemotePath

    (tmp_path / "one" / "a\nb").mkdir()
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "-odd\n name ").touch()
    for top_down in (True, False):
        entries = asyncio.run(walked(remote(tmp_path, MedweaveRemotePath), top_down=top_down))
        # The engine omits a link that is not followed; Python lists it as a folder.
        truth = [(top, set(dirs) - {"link"}, set(files)) for top, dirs, files in os.walk(tmp_path, topdown=top_down)]
        assert sorted(entries) == sorted(truth)
        assert entries[0 if top_down else -1][0] == str(tmp_path)
    entries = asyncio.run(walked(remote(tmp_path, MedweaveRemotePath), follow_symlinks=True))
    assert sorted(entries) == sorted(
        (top, set(dirs), set(files)) for top, dirs, files in os.walk(tmp_path, followlinks=True)
    )
    shutil.rmtree(tmp_path / "one")
    gone = asyncio.run(outcome(walked(remote(tmp_path / "one", MedweaveRemotePath))))
    assert "site: a file or folder: " in str(gone), "no error is taken for an empty folder"
    assert str(tmp_path) not in str(gone)


LISTED = """
set -e
mkdir -p 'result/part 1/deep' result/empty
echo one > 'result/part 1/deep/the scan'
echo two > result/two
"""


def test_a_folder_with_folders_is_listed_to_its_depth_at_a_site(server: SSHServer, ours: Path) -> None:
    # What the engine asks `walk` for, level by level (fault D4 is of the whole of it).
    made = {
        "outputs": {"result": {"type": "Directory", "outputBinding": {"glob": "result", "loadListing": "deep_listing"}}}
    }
    write_workflow(ours, {"first": (LISTED, made)}, file=bound(ours, server, ours=True))
    document = json.loads((ours / "tiny.cwl").read_text())
    read = {
        "class": "CommandLineTool",
        "requirements": {"InlineJavascriptRequirement": {}},
        "baseCommand": ["echo"],
        "inputs": {"folder": {"type": "Directory", "loadListing": "deep_listing"}},
        "arguments": [
            "${const all = e => e.class == 'File' ? [e.basename] : [e.basename].concat(...e.listing.map(all));"
            "return all(inputs.folder).join('/')}"
        ],
        "outputs": {"names": {"type": "stdout"}},
        "stdout": "names",
    }
    document["steps"]["second"] = {"run": read, "in": {"folder": "first/result"}, "out": ["names"]}
    document["outputs"]["first_result"]["type"] = "Directory"
    document["outputs"]["names"] = {"type": "File", "outputSource": "second/names"}
    (ours / "tiny.cwl").write_text(json.dumps(document))
    ended = run(ours)
    assert ended.exit_code == 0, ended.stderr
    assert (ours / "results" / "names").read_text() == "result/empty/part 1/deep/the scan/two\n"
    assert (ours / "results" / "result" / "part 1" / "deep" / "the scan").read_text() == "one\n"
    assert list((ours / "results" / "result" / "empty").iterdir()) == []


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a file."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "Mustermann.txt").write_text("scan")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/Mustermann.txt"
        server.shutdown()


@pytest.mark.parametrize("where", ["job", "default"])
def test_d5_a_failed_download_is_an_error(
    web: str, remote: Remote, tmp_path: Path, ours: Path, where: str, monkeypatch: pytest.MonkeyPatch, stock_only: bool
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in ("sh", "mkdir", "curl"):  # a site without wget
        (programs / program).symlink_to(str(shutil.which(program) or "/bin/false"))
    path = remote(tmp_path / "fetched")
    with monkeypatch.context() as at_site:
        at_site.setenv("PATH", str(programs))
        fetched = asyncio.run(outcome(download(path.context, path.location, web, str(path))))
    shown(str(fetched) == str(tmp_path / "fetched" / "Mustermann.txt") and not Path(str(fetched)).exists(), fetched)
    if stock_only:
        return
    tool = {
        "class": "CommandLineTool",
        "baseCommand": ["cat"],
        "inputs": {"scan": {"type": "File", "inputBinding": {}}},
        "outputs": {"out": {"type": "stdout"}},
        "stdout": "out",
    }
    scan = {"class": "File", "location": web, "basename": "scan"}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"InlineJavascriptRequirement": {}, "StepInputExpressionRequirement": {}},
        "inputs": {"scan": "File"} if where == "job" else {},
        "outputs": {"out": {"type": "File", "outputSource": "first/out"}},
        "steps": {
            "first": {
                "run": tool,
                "in": {"scan": "scan" if where == "job" else {"valueFrom": f"$({json.dumps(scan)})"}},
                "out": ["out"],
            }
        },
    }
    write_workflow(ours, {}, job={"scan": scan} if where == "job" else {})
    (ours / "tiny.cwl").write_text(json.dumps(document))
    if where == "job":
        assert run(ours, "--validate").exit_code == 1
    ended = run(ours)
    assert ended.exit_code == 1
    assert (
        "job.yml, scan" if where == "job" else "/first/0"
    ) + ": medweave fetches nothing from the web" in ended.stderr
    assert "Mustermann" not in ended.stderr
    assert list((ours / "results").glob("*")) == []


# Each transfer of the scattered step waits for another one, or says that none has begun; the first one ends last. Whoever gets
# the input of another job says so.
TOGETHER = """
import asyncio, pathlib
from streamflow.cwl.step import CWLTransferStep
from streamflow.workflow.step import ExecuteStep

begun, ended, transfer, run_job = [], [], CWLTransferStep.transfer, ExecuteStep._run_job

async def waited(for_them, count):
    for _ in range(30):
        if len(for_them) >= count:
            return True
        await asyncio.sleep(0.1)

async def together(self, job, token):
    if self.name.startswith("/each"):
        begun.append(job.name)
        if not await waited(begun, 2):
            pathlib.Path("alone").touch()
        elif job.name.endswith("0.0"):
            await waited(ended, 1)
    sent = await transfer(self, job, token)
    ended.append(job.name)
    return sent

async def paired(self, job, inputs, connectors):
    if any(job.name != f"{self.name}/{token.tag}" for token in inputs.values()):
        pathlib.Path("of another").touch()
    return await run_job(self, job, inputs, connectors)

CWLTransferStep.transfer, ExecuteStep._run_job = together, paired
"""


def test_d6_inputs_of_a_scatter_are_sent_at_the_same_time(stock: Path, ours: Path, stock_only: bool) -> None:
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"scans": "File[]"},
        "outputs": {"all": {"type": "File[]", "outputSource": "each/out"}},
        "steps": {
            "each": {
                "run": {
                    "class": "CommandLineTool",
                    "requirements": {"ResourceRequirement": {"coresMin": 0.1, "ramMin": 16}},
                    "baseCommand": ["cat"],
                    "inputs": {"scan": {"type": "File", "inputBinding": {}}},
                    "outputs": {"out": {"type": "stdout"}},
                    "stdout": "$(inputs.scan.basename).out",
                },
                "scatter": "scan",
                "in": {"scan": "scans"},
                "out": ["out"],
            }
        },
    }

    def alone(folder: Path, *, is_ours: bool) -> bool:
        scans = [{"class": "File", "path": f"scan{n}"} for n in range(2)]
        write_workflow(folder, {}, job={"scans": scans}, file=FILE if is_ours else stock_file(folder))
        (folder / "tiny.cwl").write_text(json.dumps(document))
        (folder / "together.py").write_text(TOGETHER)
        for n in range(2):
            (folder / f"scan{n}").write_text(f"scan {n}")
        ended = run(folder, preload=folder / "together.py") if is_ours else run_stock(folder, preload=TOGETHER)
        assert ended.exit_code == 0, ended.stderr
        # Ours have the names of pseudonyms.
        assert sorted(path.read_text() for path in (folder / "results").glob("*.out")) == ["scan 0", "scan 1"]
        assert not (folder / "of another").exists()
        return (folder / "alone").exists()

    shown(alone(stock, is_ours=False))
    if stock_only:
        return
    assert not alone(ours, is_ours=True)


async def using(config: Mapping[str, Any], act: Callable[[Any, list[ExecutionLocation]], Awaitable[Any]]) -> Any:
    """Run an act with a stock ssh connector without host key checks; return its result."""
    from streamflow.deployment.connector.ssh import SSHConnector

    connector = SSHConnector("login", "/", username="me", checkHostKey=False, retries=1, **config)
    try:
        locations = [ExecutionLocation(name=name, deployment="login") for name in config["nodes"]]
        return await asyncio.wait_for(act(connector, locations), 60)
    finally:
        await connector.undeploy(False)


def refused(folder: Path, server: SSHServer, **keys: Any) -> bool:
    """Return whether keys of the engine's are refused in a site of ours, which is accepted without them."""
    (folder / "server").symlink_to(Path(server.key).parent)
    codes = []
    for more in ({}, keys):
        site = ssh_site(server.port, f"{folder}/site")
        site["config"] |= more
        write_workflow(folder, {"first": "touch result.txt"}, file=engine_file({"there": site}))
        codes.append(run(folder, "--validate").exit_code)
    return codes == [0, 1] and next(iter(keys)) in (folder / "stderr.txt").read_text()


def test_d8_commands_go_to_the_login_node(server: SSHServer, tmp_path: Path, ours: Path, stock_only: bool) -> None:
    with ssh_server(tmp_path / "data") as data:
        other = {"hostname": f"127.0.0.1:{data.port}", "sshKey": str(data.key)}
        config = {"nodes": [f"127.0.0.1:{server.port}"], "sshKey": str(server.key), "dataTransferConnection": other}
        asyncio.run(using(config, lambda site, at: site.run(at[0], ["true"], capture_output=True)))
        shown(len(data.commands) > 0 and server.commands == [], (data.commands, server.commands))
    if stock_only:
        return
    assert refused(ours, server, dataTransferConnection="data.example.org"), "no key of ours: one connection for both"


def test_d9_no_setting_without_an_effect(server: SSHServer, tmp_path: Path, ours: Path, stock_only: bool) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "scan").write_text("scan")
    nodes = [f"{name}:{server.port}" for name in ("127.0.0.1", "localhost")]
    config = {"nodes": nodes, "sshKey": str(server.key), "sharedPaths": [str(tmp_path / "shared")]}
    paths = (str(tmp_path / "shared" / "scan"), str(tmp_path / "shared" / "again"))
    asyncio.run(using(config, lambda site, at: site.copy_remote_to_remote(*paths, [at[1]], at[0])))
    shown(
        any(command.startswith("tar c") for command in server.commands), server.commands
    )  # sent, from itself to itself
    if stock_only:
        return
    assert refused(ours, server, sharedPaths=[str(tmp_path / "shared")])


def test_d9_a_link_points_to_the_requested_file(tmp_path: Path, stock_only: bool) -> None:
    from streamflow.deployment.connector.local import LocalConnector

    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scan").write_text(name)
    here = ExecutionLocation(name="__LOCAL__", deployment="here", local=True)

    def linked(connector: Any, name: str, *, folder: bool) -> str:
        """Copy onto a name that is already a link to another file or folder; return the content behind it."""
        old, new = ((tmp_path / name) if folder else (tmp_path / name / "scan") for name in ("old", "new"))
        link = tmp_path / name
        link.symlink_to(old)
        for copy in (
            connector.copy_local_to_remote(str(new), str(link), [here], True),
            connector.copy_remote_to_local(str(new), str(link), here, True),
            connector.copy_remote_to_remote(str(new), str(link), [here], here, None, True),
        ):
            asyncio.run(copy)
        return (link / "scan" if folder else link).read_text()

    stock = LocalConnector("here", "/")
    contents = [linked(stock, "stock", folder=False), linked(stock, "stock folder", folder=True)]
    shown(contents == ["old", "old"], contents)
    (tmp_path / "old" / "new").unlink()  # the link that went into the old folder
    if stock_only:
        return
    from medweave_connectors.sites.local.connector import MedweaveLocalConnector

    ours = MedweaveLocalConnector("here", "/")
    assert [linked(ours, "ours", folder=False), linked(ours, "our folder", folder=True)] == ["new", "new"]
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["scan"], (
        "no link was created inside the other folder"
    )
    asyncio.run(ours.copy_local_to_remote(str(tmp_path / "new" / "scan"), str(tmp_path / "old"), [here], True))
    assert (tmp_path / "old" / "scan").read_text() == "new", "below a folder, under its own name"
    assert not list(tmp_path.glob(".*"))
