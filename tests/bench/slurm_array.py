"""A scatter of one-second jobs on the testbed's Slurm, compared with a hand-written array of the same jobs.

    make testbed
    python tests/bench/slurm_array.py [--jobs 50] [--pairs 7]

The figure is the time from the first Submit to the last End, as sacct gives it. Writes build/bench/slurm_array.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

BAR = 1 / 1.2  # ours may take 1.2 times as long
# Drivers are forked from a process that reads this file again: nothing is imported here that they do not need.
for _folder in (harness.ROOT / "tests", harness.ROOT / "deployments" / "testbed"):
    sys.path.insert(0, str(_folder))


def write_scatter(folder: Path, num_jobs: int) -> None:
    """Write the workflow and its streamflow.yml."""
    from support.slurm_runs import write

    write(folder, {}, service={"time": "00:10:00"})
    tool = {
        "class": "CommandLineTool",
        "baseCommand": ["sleep", "1"],
        "requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 64}},
        "inputs": {"number": "int"},
        "outputs": {},
    }
    step = {"run": tool, "scatter": "number", "in": {"number": "numbers"}, "out": []}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"numbers": "int[]"},
        "outputs": {},
        "steps": {"short": step},
    }
    (folder / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / "job.yml").write_text(json.dumps({"numbers": list(range(num_jobs))}), encoding="utf-8")


def ours(testbed: Any, num_jobs: int) -> float:
    """Run once; return the seconds of the jobs."""
    from support.slurm_runs import begin

    with tempfile.TemporaryDirectory(prefix="medweave-array-") as name:
        folder = Path(name)
        write_scatter(folder, num_jobs)
        ended = begin(folder, testbed).wait(600)
        assert ended.exit_code == 0, ended.stderr
        ids = [event["data"]["site"]["slurm_job_id"] for event in ended.of_type("job.ended")]
    assert len(ids) == num_jobs
    return window_s(testbed, ids, num_jobs)


def by_hand(testbed: Any, num_jobs: int) -> float:
    """Submit one array of the same jobs; return their seconds."""
    words = ["sbatch", "--parsable", f"--array=1-{num_jobs}", "--ntasks=1", "--cpus-per-task=1", "--mem=64M"]
    words += ["--time=10", "--partition=normal", "--output=/dev/null", "--wrap=sleep 1"]
    job_id = testbed.hpc(*words).stdout.strip().partition(";")[0]
    return window_s(testbed, [job_id], num_jobs)


def window_s(testbed: Any, job_ids: list[str], num_jobs: int) -> float:
    """Return the seconds from the first Submit to the last End, once accounting has all jobs."""
    words = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={','.join(job_ids)}", "--format=State,Submit,End"]
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        outcome = testbed.hpc(*words)
        if outcome.returncode:
            sys.exit(f"sacct failed: {outcome.stderr.strip()}")
        rows = [line.split("|") for line in outcome.stdout.split()]
        if len(rows) == num_jobs and all(state == "COMPLETED" for state, _, _ in rows):
            begun, ended = ([datetime.datetime.fromisoformat(row[place]) for row in rows] for place in (1, 2))
            return (max(ended) - min(begun)).total_seconds()
        time.sleep(1)
    sys.exit(f"not all {num_jobs} jobs are COMPLETED in the accounting")


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50, metavar="N", help="jobs of a scatter, and of an array")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs")
    options = parser.parse_args()
    from support.testbed import down_parts, sites

    if os.geteuid() != 0 or (down := down_parts()):
        sys.exit(f"this benchmark needs root, and the testbed up: make testbed ({', '.join(down)})")
    testbed = sites()
    version = testbed.hpc("sbatch", "--version").stdout.strip()
    harness.run_pairs(
        "slurm_array",
        lambda: ours(testbed, options.jobs),
        lambda: by_hand(testbed, options.jobs),
        reference_tool=f"sbatch --array, {version}",
        pairs=options.pairs,
        bar=BAR,
        notes={"jobs": options.jobs, "clock": "first Submit to last End, sacct"},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
