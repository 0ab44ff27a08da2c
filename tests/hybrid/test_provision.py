"""`medweave provision` at the testbed's login node, which reaches no package index, and real jobs that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from medweave.cli.main_command import main
from medweave.provision.wheels import build, checkout
from support.slurm_runs import GANG, go, site_of, write
from support.testbed import Sites


def site_file(path: Path, testbed: Sites, link: Path) -> Path:
    """Write a site file that places `check`, whose extra is small, at the cluster."""
    facts = dict(line.split("=", 1) for line in testbed.laptop("env").stdout.splitlines() if "=" in line)
    name = "MEDWEAVE_TESTBED_LOGIN_"
    config = {
        "nodes": [f"{facts[f'{name}HOST']}:{facts[f'{name}PORT']}"],
        "username": facts[f"{name}USER"],
        "sshKey": str(testbed.layout.laptop_home / ".ssh" / "id_ed25519"),
        "knownHosts": str(testbed.layout.laptop_home / ".ssh" / "known_hosts"),
    }
    services = {"usual": {"partition": "normal", "environment": {"virtualEnvironment": str(link)}}}
    document: dict[str, Any] = {
        "title": "the testbed's cluster",
        "deployments": {
            "login": {"type": "medweave.ssh", "workdir": str(link.parent), "config": config},
            "hpc": {"type": "medweave.slurm", "wraps": "login", "config": {"services": services}},
        },
        "roles": {"check": {"deployment": "hpc", "service": "usual"}},
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_jobs_run_in_the_environment_built_without_a_network(
    tmp_path: Path, testbed: Sites, shared_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = shared_folder / "worker"
    site = site_file(tmp_path / "site.yml", testbed, link)
    root = checkout()
    assert root is not None
    wheel = build(root, tmp_path)  # once: the source may be edited during the test
    words = ["provision", "--site", str(site), "--wheel", str(wheel)]
    assert main(words) == 0, capsys.readouterr().err
    output = capsys.readouterr()
    assert f"login: {link} updated: 0.1.0-" in output.out
    assert "with check, signals; " in output.out
    before = testbed.hpc("readlink", str(link)).stdout
    assert main(words) == 0
    assert "nothing sent" in capsys.readouterr().out
    assert testbed.hpc("readlink", str(link)).stdout == before

    # On the PATH of a job is another medweave-step; this one is found first, on each node.
    script = (
        f'[ "$(command -v medweave-step)" = "$(readlink -f {link})/bin/medweave-step" ] || exit 9; '
        'python -c "import pydicom" && medweave-step --version > version.$SLURM_PROCID; '
        'case "$SLURM_PROCID" in 0) mv version.0 result.txt;; esac'
    )
    for target, keys in (({}, {}), ({"locations": 2}, GANG)):
        run = tmp_path / f"run-{len(target)}"
        run.mkdir()
        service = {"environment": {"virtualEnvironment": str(link)}, "options": ["--export=NONE"]}
        write(run, {"first": (script, keys)}, target=target, service=service)
        ended = go(run, testbed)
        assert ended.exit_code == 0, ended.stderr
        assert (run / "results" / "result.txt").read_text() == "medweave-step 0.1.0\n"
        assert site_of(ended)["state"] == "COMPLETED"

    missing = tmp_path / "missing"
    missing.mkdir()
    write(missing, {"first": "true"}, service={"environment": {"virtualEnvironment": f"{shared_folder}/other"}})
    ended = go(missing, testbed)
    assert ended.exit_code != 0
    assert f"no {shared_folder}/other/bin/activate on n" in ended.stderr
