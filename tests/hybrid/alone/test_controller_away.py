"""A controller that is away for more than a minute: while a job ends, while one is submitted, when a run looks at the site."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.engine import Run
from support.slurm_control import configured, freeze_controller, start_controller, stop_controller
from support.slurm_runs import begin, jobs_of, resources, write
from support.testbed import Sites, unique, wait_for

AWAY_S = 80.0  # an unresponsive controller is reported after 60 s
WORK_S = 20
READY = 'echo \'medweave-progress {"unit":"case","done":1,"total":2}\' >&2'


@pytest.fixture(autouse=True)
def clean(testbed: Sites) -> None:
    """Empty the folder of the tests before each test."""
    testbed.hpc("sh", "-c", f"rm -rf {testbed.layout.hpc}/scratch/tests {testbed.layout.hpc}/scratch/began-*")


@contextlib.contextmanager
def controller_unreachable(testbed: Sites, how: str) -> Iterator[None]:
    """Make the controller unreachable during the block, and for a minimum time."""
    begun = time.monotonic()
    if how == "frozen":
        freeze_controller(testbed, frozen=True)
    else:
        stop_controller()
    try:
        yield
        time.sleep(max(0.0, begun + AWAY_S - time.monotonic()))
    finally:
        if how == "frozen":
            freeze_controller(testbed, frozen=False)
        else:
            start_controller()


def write_three(folder: Path, began: str) -> None:
    """Write a step on Slurm, and another one that is submitted when the file `go` is created."""
    folder.mkdir()
    work = f"echo %s began >> {began}; {READY}; sleep %d; echo %s ended >> {began}; echo done > result.txt"
    tools = {
        "first": (work % ("first", WORK_S, "first"), resources()),
        "gate": f"while [ ! -e {folder}/go ]; do sleep 0.2; done; echo open > result.txt",
        "second": (
            work % ("second", 1, "second"),
            resources() | {"inputs": {"after": {"type": "File"}}},
        ),
    }
    write(folder, tools)
    workflow = json.loads((folder / "tiny.cwl").read_text())
    workflow["steps"]["second"]["in"] = {"after": "gate/result"}
    (folder / "tiny.cwl").write_text(json.dumps(workflow))
    file = yaml.safe_load((folder / "streamflow.yml").read_text())
    file["workflows"]["tiny"]["bindings"].append({"step": "/gate", "target": {"deployment": "here"}})
    (folder / "streamflow.yml").write_text(yaml.safe_dump(file))


def assert_well(testbed: Sites, ended: Run, num_jobs: int) -> None:
    """Assert that all jobs completed, and that there are exactly so many."""
    assert ended.exit_code == 0, ended.stderr
    assert [state for _, state in jobs_of(testbed, ended.record.name)] == ["COMPLETED"] * num_jobs
    assert "Traceback" not in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_unreachable_controller_is_waited_for_in_every_phase(tmp_path: Path, testbed: Sites, how: str) -> None:
    going, coming = tmp_path / "going", tmp_path / "coming"
    began = f"{testbed.layout.hpc}/scratch/{unique('began')}"
    write_three(going, began)
    coming.mkdir()
    write(coming, {"third": (f"echo third began >> {began}; echo done > result.txt", resources())})
    # A controller that wakes up finds its nodes silent for longer than it allows, and takes them for lost: that is another fault.
    with configured(testbed, "CANCEL", SlurmdTimeout="300"):
        early = begin(going, testbed)
        early.wait_for_line("case 1/2")
        with controller_unreachable(testbed, how):
            (going / "go").touch()
            late = begin(coming, testbed)
            late.wait_for_line("medweave: hpc: Slurm does not answer; the run waits for it (")
            wait_for(lambda: "first ended" in testbed.hpc("cat", began).stdout or None, "the end of the first job")
            for step in ("first", "second"):
                early.wait_for_line(f"{step:<12} note: Slurm does not answer; the job stays submitted (", AWAY_S)
            assert {run.process.exitcode for run in (early, late)} == {None}
        for run in (early, late):
            run.wait(240)
        assert_well(testbed, early, 2)
        assert_well(testbed, late, 1)
    assert early.stderr.count("note: Slurm answers again") == 2
    assert late.stderr.count("medweave: hpc: Slurm answers again") == 1
    assert sorted(line for line in testbed.hpc("cat", began).stdout.splitlines() if "began" in line) == [
        "first began", "second began", "third began",
    ]  # fmt: skip
