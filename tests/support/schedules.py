"""Schedules of tiny workflows, and the commands that fire them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from medweave.schedule.state import ScheduleState, read_state
from support.driver_calls import call
from support.engine_file import LOCAL, OURS

PROGRAM = Path(sys.executable).parent / "medweave"
COPY = {
    "cwlVersion": "v1.2",
    "class": "CommandLineTool",
    "baseCommand": ["sh", "-c"],
    "inputs": {"scans": "Directory"},
    "outputs": {"result": {"type": "File", "outputBinding": {"glob": "result.txt"}}},
}


def write_schedule(folder: Path, script: str, *, scans: Path | None = None, **keys: Any) -> Path:
    """Write a workflow of one step, whose shell script gets a folder of scans as $0, and the files to schedule it.

    Args:
        scans: the folder; by default `scans/` next to them, with one file.
        keys: further keys of the schedule.
    """
    (folder / "tools").mkdir(parents=True)
    if scans is None:
        scans = folder / "scans"
        scans.mkdir()
        (scans / "one").write_text("1")
    tool = COPY | {"arguments": [script, {"valueFrom": "$(inputs.scans.path)"}]}
    step = {"run": "tools/copy.cwl", "in": {"scans": "scans"}, "out": ["result"]}
    workflow = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"scans": "Directory"},
        "outputs": {"result": {"type": "File", "outputSource": "copy/result"}},
        "steps": {"copy": step},
    }
    bound = {
        "version": "v1.0",
        "workflows": {
            "tiny": {
                "type": "cwl",
                "config": {"file": "tiny.cwl", "settings": "job.yml"},
                "bindings": [{"step": "/", "target": {"deployment": "here"}}],
            }
        },
        "deployments": {"here": LOCAL},
        **OURS,
    }
    schedule = {"name": "nightly", "file": "streamflow.yml", **keys}
    texts = {"tools/copy.cwl": tool, "tiny.cwl": workflow, "streamflow.yml": bound, "schedule.yml": schedule}
    texts["job.yml"] = {"scans": {"class": "Directory", "path": str(scans)}}
    for name, document in texts.items():
        (folder / name).write_text(
            yaml.safe_dump(document, sort_keys=False) if name.endswith(".yml") else json.dumps(document)
        )
    return folder / "schedule.yml"


def start(*words: str | Path, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Start `medweave schedule …` as a user whose state folder is `state/`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MEDWEAVE_")}
    environment |= {"XDG_STATE_HOME": str(cwd / "state")} | variables
    return subprocess.Popen(
        [PROGRAM, "schedule", *map(str, words)],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(*words: str | Path, cwd: Path, **variables: str) -> tuple[int, str, str]:
    """Run `medweave schedule …`; return its exit code, standard output and standard error."""
    process = start(*words, cwd=cwd, **variables)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def call_schedule(*words: str | Path, cwd: Path, **variables: str) -> tuple[int, str, str]:
    """Run `medweave schedule` in the test's process; return its exit code, standard output and standard error."""
    return call("schedule", *words, cwd=cwd, XDG_STATE_HOME=str(cwd / "state"), **variables)


def memory(folder: Path) -> ScheduleState:
    return read_state(folder / "schedules" / "nightly")


def results(folder: Path) -> list[Path]:
    return sorted((folder / "schedules" / "nightly" / "results").glob("*/result.txt"))
