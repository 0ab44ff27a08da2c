"""A scatter of a thousand one-second jobs on the testbed's Slurm: how often Slurm is called, and the memory of the driver.

    make testbed
    python tests/bench/slurm_many.py [--jobs 1000]

All jobs may be in the queue at once (`maxConcurrentJobs`). The figure is the driver's peak memory; the notes have the calls of
Slurm's programs per minute, from the debug log of the connectors. Writes build/bench/slurm_<jobs>.json.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import yaml
from slurm_array import write_scatter

BAR_MIB = 300.0
QUERIES, SUBMISSION = ("sacct", "scontrol", "squeue"), "sbatch"
PARTS = {"slurmdbd", "slurmctld", "slurmd-n1", "slurmd-n2", "account", "login", "laptop"}  # of the testbed
_LINE = re.compile(r"^(\S+)Z medweave\.connectors\.slurm site=\S+ command=(\w+)")


def run(folder: Path, testbed: Any, num_jobs: int) -> tuple[float, float]:
    """Run the workflow; return its wall time in s and the driver's peak memory in MiB."""
    layout = testbed.layout
    (folder / "known_hosts").write_text((layout.laptop_home / ".ssh" / "known_hosts").read_text())
    file = folder / "streamflow.yml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["deployments"]["hpc"]["config"]["maxConcurrentJobs"] = num_jobs
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    facts = [line.split("=", 1) for line in testbed.laptop("env").stdout.splitlines() if line.startswith("MEDWEAVE_")]
    environment = os.environ | dict(facts) | {"HOME": str(layout.laptop_home), "MEDWEAVE_LOG": "debug"}
    words = [str(Path(sys.executable).with_name("streamflow")), "run", "--quiet", "streamflow.yml"]
    with (folder / "log").open("w+b") as log:
        started = time.monotonic()
        child = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"the run ended with {child.returncode}:\n{(folder / 'log').read_text(errors='replace')[-4000:]}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def calls_per_minute(log: Path) -> tuple[list[int], list[int]]:
    """Return the queries and the submissions in each minute of the run, from the debug log."""
    moments: dict[bool, list[float]] = {True: [], False: []}
    for line in log.read_text(encoding="utf-8").splitlines():
        if (found := _LINE.match(line)) and found[2] in (*QUERIES, SUBMISSION):
            moments[found[2] == SUBMISSION].append(datetime.datetime.fromisoformat(found[1]).timestamp())
    begin = min(moments[False] + moments[True])
    return _by_minute(moments[False], begin), _by_minute(moments[True], begin)


def _by_minute(moments: Sequence[float], begin: float) -> list[int]:
    counts = collections.Counter(int((moment - begin) / 60) for moment in moments)
    return [counts[minute] for minute in range(max(counts, default=-1) + 1)]


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="jobs of the scatter")
    options = parser.parse_args()
    from support.testbed import down_parts, sites

    if os.geteuid() != 0 or (down := PARTS & down_parts().keys()):
        sys.exit(f"this benchmark needs root, and the testbed up: make testbed ({', '.join(down)})")
    testbed = sites()
    with tempfile.TemporaryDirectory(prefix="medweave-many-") as name:
        folder = Path(name)
        write_scatter(folder, options.jobs)
        wall_s, memory_mib = run(folder, testbed, options.jobs)
        (run_folder,) = (folder / "runs").glob("[!.]*/")
        queries, submissions = calls_per_minute(run_folder / "connector.log")
        events = [json.loads(line) for line in (run_folder / "events.jsonl").read_text().splitlines()]
    completed = sum(event["type"] == "job.ended" and event["data"]["state"] == "completed" for event in events)
    if completed != options.jobs:
        sys.exit(f"{completed} of {options.jobs} jobs completed")
    harness.single_figure(
        f"slurm_{options.jobs}",
        memory_mib,
        unit="MiB, peak of the driver",
        bar=BAR_MIB,
        notes={
            "jobs": options.jobs,
            "wall_s": round(wall_s, 1),
            "queries_per_minute": queries,
            "submissions_per_minute": submissions,
            "slurm": testbed.hpc("sbatch", "--version").stdout.strip(),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
