"""Runs of the engine whose steps are jobs of the testbed's Slurm, over real ssh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.engine import Run, start, write_workflow
from support.engine_file import LOCAL, engine_file
from support.fake_cluster import NEVER_AGAIN
from support.testbed import Sites

TRAIN = Path(__file__).parents[2] / "workflows" / "tools" / "train.cwl"
GANG = {"hints": {"urn:medweave:cwl#Gang": {}}}


def resources(cores: int = 1, memory_mib: int = 256, **others: Any) -> dict[str, Any]:
    """Return the keys of a tool that requests these resources."""
    requirement = {"ResourceRequirement": {"coresMin": cores, "ramMin": memory_mib}}
    return {"requirements": requirement | others}


def write(
    folder: Path,
    tools: Mapping[str, Any],
    *,
    target: Mapping[str, Any] | None = None,
    service: Mapping[str, Any] | None = None,
    login: Mapping[str, Any] | None = None,
    reactions: Mapping[str, Any] = NEVER_AGAIN,
) -> None:
    """Write a workflow whose steps are bound to Slurm.

    Args:
        tools: as `support.engine.write_workflow`.
        target: keys of the binding's target.
        service: keys of the one service, `usual`.
        login: keys of the login node's settings.
        reactions: what failures lead to.
    """
    there = {}  # the site has no view of this folder, so the scripts go inside the commands
    for name, tool in tools.items():
        script, keys = tool if isinstance(tool, tuple) else (tool, {})
        there[name] = script, keys | {"baseCommand": ["sh", "-c", script]}
    placed = {"deployment": "hpc", "service": "usual", **(target or {})}
    write_workflow(folder, there, file=_file(placed, service or {}, login or {}, reactions))


def write_training(
    folder: Path,
    options: Mapping[str, Any],
    *,
    target: Mapping[str, Any],
    service: Mapping[str, Any] | None = None,
    reactions: Mapping[str, Any] = NEVER_AGAIN,
) -> None:
    """Write a workflow of one step, `train`, with the tool of this repository.

    Args:
        options: the tool's inputs.
        target: of the binding; deployments are `hpc` and `here`.
        service, reactions: as `write`.
    """
    tool = yaml.safe_load(TRAIN.read_text(encoding="utf-8"))
    inputs = {name: {"type": tool["inputs"][name]["type"]} for name in options}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": inputs,
        "outputs": {"trained_model": {"type": "Directory", "outputSource": "train/trained_model"}},
        "steps": {"train": {"run": str(TRAIN), "in": {name: name for name in options}, "out": ["trained_model"]}},
    }
    write_workflow(folder, {}, job=options, file=_file(target, {"time": "00:10:00", **(service or {})}, {}, reactions))
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")


def _file(
    target: Mapping[str, Any], service: Mapping[str, Any], login: Mapping[str, Any], reactions: Mapping[str, Any]
) -> str:
    site = {
        "nodes": ["${MEDWEAVE_TESTBED_LOGIN_HOST}:${MEDWEAVE_TESTBED_LOGIN_PORT}"],
        "username": "${MEDWEAVE_TESTBED_LOGIN_USER}",
        "sshKey": "~/.ssh/id_ed25519",
        "knownHosts": "known_hosts",  # next to the file
    }
    config = {"services": {"usual": {"partition": "normal", **service}}, "reactions": dict(reactions)}
    deployments = {
        "here": LOCAL,
        "login": {
            "type": "medweave.ssh",
            "workdir": "${MEDWEAVE_TESTBED_SCRATCH}/tests",
            "config": site | dict(login),
        },
        "hpc": {"type": "medweave.slurm", "wraps": "login", "config": config},
    }
    return engine_file(deployments, {"/": target})


def begin(folder: Path, testbed: Sites, **environment: str) -> Run:
    """Start the engine as the laptop's user, with the site's variables and these in addition."""
    layout = testbed.layout
    (folder / "known_hosts").write_text((layout.laptop_home / ".ssh" / "known_hosts").read_text())
    variables = testbed.laptop("env").stdout.splitlines()
    facts = dict(line.split("=", 1) for line in variables if line.startswith("MEDWEAVE_TESTBED"))
    return start(folder, environment=facts | {"HOME": str(layout.laptop_home)} | environment)


def go(folder: Path, testbed: Sites, timeout_s: float = 120) -> Run:
    """Start the engine as `begin` does, and wait for the end."""
    return begin(folder, testbed).wait(timeout_s)


def site_of(ended: Run, job: str = "/first/0") -> dict[str, Any]:
    """Return the site's facts about a job: its id, state, nodes."""
    (event,) = [event for event in ended.of_type("job.ended") if event["job"] == job]
    return dict(event["data"]["site"])


def sacct(testbed: Sites, job_id: str, fields: str = "State,ExitCode,NNodes") -> list[str]:
    """Return a row of the accounting, queried at the site itself."""
    output = testbed.hpc("sacct", "-X", "--noheader", "--parsable2", f"--jobs={job_id}", f"--format={fields}").stdout
    return output.strip().split("|")


def jobs_of(testbed: Sites, run_id: str) -> list[tuple[str, str]]:
    """Return (id, state) of all jobs of a run at the controller, by the key in their comments."""
    output = testbed.hpc("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%k").stdout
    rows = [line.split("|", 2) for line in output.splitlines()]
    return [(job_id, state) for job_id, state, key in rows if f":{run_id}." in key]  # run, token, job
