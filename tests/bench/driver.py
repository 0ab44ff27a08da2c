"""What medweave adds to StreamFlow: a scatter of local jobs that each read a file and write one.

    python tests/bench/driver.py [--jobs 300] [--pairs 5]

The figure is the processor time of the driver and of its jobs, compared with StreamFlow without medweave and with cwltool; the
tools take turns. The notes have wall time and the driver's peak memory, and the same for medweave without cache and event log.
Writes build/bench/driver_<jobs>.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import harness

BAR = 1 / 1.2  # ours may use 1.2 times the processor time
MAIN = "import sys, streamflow.main; sys.exit(streamflow.main.main(sys.argv[1:]))"
OURS, BARE = "medweave", "medweave without cache and event log"
STOCK = f"StreamFlow {importlib.metadata.version('streamflow')}"
CWLTOOL = f"cwltool {importlib.metadata.version('cwltool')}"
PROGRAMS = {
    OURS: MAIN,
    BARE: "from medweave_connectors.runlog.event_log import EventLog; EventLog.append = lambda *_, **__: None\n" + MAIN,
    STOCK: "import streamflow.main; streamflow.main.load_extensions = lambda: None\n" + MAIN,
}
TOOL = {
    "class": "CommandLineTool",
    "baseCommand": ["sh", "-c", 'read line < "$0"; echo "read $line" > "$1"'],
    "requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 16}},
    "inputs": {
        "source": {"type": "File", "inputBinding": {"position": 1}},
        "name": {"type": "string", "inputBinding": {"position": 2}},
    },
    "outputs": {"result": {"type": "File", "outputBinding": {"glob": "$(inputs.name)"}}},
}
SITES = {
    "medweave": (
        "deployments: {here: {type: medweave.local, config: {}}}\n"
        "scheduling: {scheduler: {type: medweave.scheduler, config: {}}}\n"
        "database: {type: medweave.database, config: {}}\n"
    ),
    "StreamFlow": (
        'deployments: {here: {type: local, config: {}}}\ndatabase: {type: default, config: {connection: ":memory:"}}\n'
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run used: processor time and wall time in s, and the largest process's memory in MiB."""

    processor_s: float
    wall_s: float
    memory_mib: float


def write(folder: Path, num_jobs: int) -> None:
    """Write the inputs, the workflow, its job file, and a streamflow.yml of each kind."""
    step = {
        "run": TOOL,
        "scatter": ["source", "name"],
        "scatterMethod": "dotproduct",
        "in": {"source": "sources", "name": "names"},
        "out": ["result"],
    }
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"sources": "File[]", "names": "string[]"},
        "outputs": {"results": {"type": "File[]", "outputSource": "copy/result"}},
        "steps": {"copy": step},
    }
    (folder / "inputs").mkdir()
    for number in range(num_jobs):
        (folder / "inputs" / f"case-{number}.txt").write_text(f"{number}\n", encoding="utf-8")
    values = {
        "sources": [{"class": "File", "path": f"inputs/case-{number}.txt"} for number in range(num_jobs)],
        "names": [f"result-{number}.txt" for number in range(num_jobs)],
    }
    (folder / "copy.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / "job.yml").write_text(json.dumps(values), encoding="utf-8")
    for name, sites in SITES.items():
        (folder / f"{name}.yml").write_text(
            "version: v1.0\n"
            "workflows: {copy: {type: cwl, config: {file: copy.cwl, settings: job.yml}, "
            "bindings: [{step: /, target: {deployment: here}}]}}\n" + sites,
            encoding="utf-8",
        )


def run(folder: Path, tool: str, num_jobs: int) -> Cost:
    """Run once in a separate process, from an empty cache; exit if it fails or an output is missing."""
    output, cache = folder / "output", folder / "cache"
    if tool == CWLTOOL:
        words = [
            str(Path(sys.executable).with_name("cwltool")),
            "--quiet",
            "--outdir",
            str(output),
            "copy.cwl",
            "job.yml",
        ]
    else:
        file = "StreamFlow.yml" if tool == STOCK else "medweave.yml"
        words = [sys.executable, "-c", PROGRAMS[tool], "run", "--quiet", "--outdir", str(output), file]
    environment = os.environ | {
        "MEDWEAVE_REUSE": "0" if tool == BARE else "1", "XDG_CACHE_HOME": str(cache), "TMPDIR": str(folder / "tmp"),
    }  # fmt: skip
    (folder / "tmp").mkdir()
    with (folder / "log").open("w+b") as log:
        started = time.perf_counter()
        child = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or len(list(output.iterdir())) != num_jobs:
        sys.exit(
            f"{tool} ended with exit code {child.returncode}:\n{(folder / 'log').read_text(errors='replace')[-4000:]}"
        )
    for left in (output, cache, folder / "tmp", folder / "runs"):
        shutil.rmtree(left, ignore_errors=True)
    return Cost(processor_s=usage.ru_utime + usage.ru_stime, wall_s=wall_s, memory_mib=usage.ru_maxrss / 1024)


def medians(costs: Sequence[Cost]) -> dict[str, float]:
    """Return the median of each figure."""
    names = [field.name for field in dataclasses.fields(Cost)]
    return {name: round(statistics.median(getattr(cost, name) for cost in costs), 3) for name in names}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300, metavar="N", help="jobs of the scatter")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="alternating rounds of all tools")
    options = parser.parse_args()
    name, tools = f"driver_{options.jobs}", (OURS, STOCK, BARE, CWLTOOL)
    costs: dict[str, list[Cost]] = {tool: [] for tool in tools}
    with tempfile.TemporaryDirectory(prefix="medweave-driver-") as folder:
        write(Path(folder), options.jobs)
        for number in range(options.pairs):
            turn = number % len(tools)
            for tool in tools[turn:] + tools[:turn]:
                cost = run(Path(folder), tool, options.jobs)
                costs[tool].append(cost)
                harness.say(
                    name,
                    f"round {number + 1}/{options.pairs}: {tool}: {cost.processor_s:.2f} s of processor time, "
                    f"{cost.wall_s:.2f} s, {cost.memory_mib:.0f} MiB",
                )
    ours, stock, bare = ([cost.processor_s for cost in costs[tool]] for tool in (OURS, STOCK, BARE))
    ratios = [reference / own for own, reference in zip(ours, stock, strict=True)]
    bare_ratios = [reference / own for own, reference in zip(bare, stock, strict=True)]
    middle = statistics.median(ratios)
    harness.write_result(
        harness.Result(
            name=name,
            ours=statistics.median(ours),
            reference=statistics.median(stock),
            unit="s of processor time",
            ratio=middle,
            quartiles=harness.quartiles(ratios),
            pairs=options.pairs,
            bar=BAR,
            meets_bar=middle >= BAR,
            reference_tool=f"{STOCK} without medweave, database in memory",
            higher_is_better=False,
            measurements=tuple(zip(ours, stock, strict=True)),
            machine=harness.machine(),
            measured_at=harness.now(),
            notes={
                "jobs": options.jobs,
                "medians": {tool: medians(costs[tool]) for tool in tools},
                "ratio_without_cache_and_event_log": round(statistics.median(bare_ratios), 3),
                "milliseconds_per_job": {
                    tool: round(1000 * medians(costs[tool])["processor_s"] / options.jobs, 2) for tool in tools
                },
            },
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
