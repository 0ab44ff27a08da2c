"""How a run over all three sites ends before its time: by Ctrl-C, and by a fault that shows when a Slurm job runs already."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engine import Run, wait_until
from support.hybrid_runs import INFERENCE, PROGRESS, TRAINING, Shape, assert_undone, jobs, laptop, shape
from support.slurm_runs import sacct
from support.testbed import Sites, wait_for

ENDED_S = 20.0  # from Ctrl-C to the end, with nothing left
TRAINS = {"train": f"{PROGRESS}; sleep 1000"}
TOO_LARGE = {"requests": {"cpu": "100", "memory": "64Mi"}, "limits": {"cpu": "100", "memory": "64Mi"}}


@contextmanager
def in_a_terminal(made: Shape) -> Iterator[tuple[Run, subprocess.Popen[str]]]:
    """Yield the run as a shell's foreground job, whose processes get the terminal's signals; the shell prints its exit code."""
    streamflow = Path(sys.executable).with_name("streamflow")
    line = f"trap : INT; {streamflow} run --quiet streamflow.yml --outdir results 2> stderr.txt; echo exit $?"
    environment = {**os.environ, **laptop(made.testbed), "MEDWEAVE_RUN_ID": made.run_id}
    (made.folder / "stderr.txt").touch()
    shell = subprocess.Popen(
        ["bash", "-c", line],
        cwd=made.folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Run(made.folder, shell), shell
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def interrupted(made: Shape, *lines: str) -> Run:
    """Interrupt a run after these lines; it must end in time, cancel its job and leave nothing; return it."""
    with in_a_terminal(made) as (going, shell):
        for line in lines:
            wait_until(lambda line=line: line in going.stderr or shell.poll() is not None, 90)
            assert line in going.stderr, going.stderr
        (job,) = jobs(made)
        assert job.endswith(" RUNNING")
        before = time.monotonic()
        os.killpg(shell.pid, signal.SIGINT)
        printed, _ = shell.communicate(timeout=60)
        ended_s = time.monotonic() - before
    # The files of a stopped job stay, as on the laptop.
    undone_s = ended_s + assert_undone(made, within_s=ENDED_S, but="scratch")
    print(f"ended {ended_s:.1f} s after Ctrl-C, nothing left after {undone_s:.1f} s\n{going.stderr}")
    assert undone_s < ENDED_S
    assert printed.splitlines()[-1] == "exit 130"
    assert_cancelled(made, job)
    assert "Traceback" not in going.stderr
    assert "ERROR" not in going.stderr
    assert going.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    made.testbed.hpc("rm", "-rf", made.scratch)
    return going


def assert_cancelled(made: Shape, job: str) -> None:
    number = job.split()[0]
    wait_for(
        lambda: sacct(made.testbed, number)[0].startswith("CANCELLED") or None,
        f"job {number} CANCELLED in the accounting",
    )
    assert made.testbed.hpc("squeue", "--me", "--noheader", "--steps", f"--jobs={number}").stdout.strip() == ""


def test_ctrl_c_during_training_with_the_releases_up(tmp_path: Path, testbed: Sites) -> None:
    made = shape(tmp_path, testbed, scripts=TRAINS)
    up = [f"medweave: {name}: release {name}-" for name in (TRAINING, INFERENCE)]
    going = interrupted(made, "step 1/2", *up)
    assert len(re.findall(r"2 pods ready after", going.stderr)) == 2


def test_ctrl_c_during_training_while_a_release_comes_up(tmp_path: Path, testbed: Sites) -> None:
    change = {f"deployments.{INFERENCE}.config.values.resources": TOO_LARGE}
    made = shape(tmp_path, testbed, change=change, scripts=TRAINS)
    going = interrupted(made, "step 1/2")
    assert f"{INFERENCE}: release" not in going.stderr, "it was up before Ctrl-C"


def test_a_fault_that_shows_during_training_cancels_the_job(tmp_path: Path, testbed: Sites) -> None:
    place = f"deployments.{INFERENCE}.config"
    change = {f"{place}.values.resources": TOO_LARGE, f"{place}.pendingTimeout": 20}
    made = shape(tmp_path, testbed, change=change, scripts=TRAINS)
    going = made.begin()
    going.wait_for_line("step 1/2", 60)
    (job,) = jobs(made)
    going.wait_for_line(f"{place}.pendingTimeout: its pods could not start within 20 s.", 60)
    error_time = time.monotonic()
    going.wait(60)
    print(f"ended {time.monotonic() - error_time:.1f} s after the error\n{going.stderr}")
    assert going.exit_code == 1
    assert going.stderr.count("ERROR") == 1
    assert "Insufficient cpu" in going.stderr
    assert_undone(made, within_s=ENDED_S, but="scratch")
    assert_cancelled(made, job)
    testbed.hpc("rm", "-rf", made.scratch)
