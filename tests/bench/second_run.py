"""What a second run costs: the lung pipeline, the same again with nothing changed, then with another `threshold` of `segment`.

    python tests/bench/second_run.py [--cases 8] [--steps 20] [--again 3]

A small cohort and a short training: it is not about what the first run takes. Writes build/bench/second_run.json, with the jobs
that each run did by its event log, and exits with 1 if a job ran that should have been a cache hit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
from ruamel.yaml import YAML

from medweave_core.runlog.history import read_runs

BAR_S = 5.0
FOLDER = harness.RESULTS / "second_run"
BEHIND_THRESHOLD = {"/segment", "/evaluate", "/report"}
THRESHOLD = 0.4


def command(name: str) -> str:
    """Return the program of that name in the environment that runs this script."""
    return str(Path(sys.executable).parent / name)


def make_cohort(cases: int) -> None:
    """Write chest CT of synthetic patients, a third of them for testing."""
    held_out = max(cases // 3, 2)
    words = [command("medweave-step"), "phantom", "lung", "--output", str(FOLDER / "cohort"), "--grid", "demo"]
    words += ["--format", "dicom", "--cases", str(cases - held_out), "--held-out-cases", str(held_out)]
    subprocess.run([*words, "--run-report", str(FOLDER / "phantom.json")], check=True, stdout=subprocess.DEVNULL)


def write_file(steps: int, **values: Any) -> None:
    """Write the repository's own StreamFlow file, with the cohort of this benchmark and a short training."""
    document = YAML(typ="safe").load(harness.ROOT / "streamflow.yml")
    config = document["workflows"]["lung"]["config"]
    job = YAML(typ="safe").load(harness.ROOT / config["settings"])
    job |= {"cohort": {"class": "Directory", "path": str(FOLDER / "cohort")}, "training_steps": steps, **values}
    (FOLDER / "job.yml").write_text(json.dumps(job, indent=2), encoding="utf-8")
    config |= {"file": str(harness.ROOT / config["file"]), "settings": "job.yml"}
    (FOLDER / "streamflow.yml").write_text(json.dumps(document, indent=2), encoding="utf-8")


def run(name: str) -> dict[str, Any]:
    """Run once by the command line; return its figures. Exit if it fails."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("MEDWEAVE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    began = time.perf_counter()
    ended = subprocess.run(
        [command("streamflow"), "run", "--quiet", "--outdir", name, "streamflow.yml"],
        cwd=FOLDER, check=False, capture_output=True, text=True, env=own | {"PATH": path},
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if ended.returncode:
        sys.exit(ended.stderr[-4000:])
    latest = max(read_runs(FOLDER / "runs"), key=lambda run: run.started)
    did = [job for job in latest.jobs if not job.reused_from]
    figures = {
        "seconds": round(seconds, 3),
        "jobs": len(latest.jobs),
        "jobs_run": len(did),
        "steps_run": sorted({job.step for job in did}),
    }
    harness.say("second_run", f"{name}: {seconds:.2f} s, {len(did)} of {len(latest.jobs)} jobs run")
    return figures


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=8, metavar="N", help="patients, a third of them for testing")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="training steps")
    parser.add_argument("--again", type=int, default=3, metavar="N", help="runs with nothing changed")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    make_cohort(options.cases)
    write_file(options.steps)
    first = run("first")
    unchanged = [run(f"unchanged-{number}") for number in range(options.again)]
    write_file(options.steps, threshold=THRESHOLD)
    changed = run("threshold")
    harness.single_figure(
        "second_run", statistics.median(figures["seconds"] for figures in unchanged), unit="s", bar=BAR_S,
        notes={
            "cases": options.cases, "training_steps": options.steps,
            "first": first, "unchanged": unchanged, "threshold": changed,
        },
    )  # fmt: skip
    wrong = [figures for figures in unchanged if figures["jobs_run"]]
    if set(changed["steps_run"]) != BEHIND_THRESHOLD:
        wrong.append(changed)
    for figures in wrong:
        print(
            f"second_run: these steps should have been cache hits: {', '.join(figures['steps_run'])}", file=sys.stderr
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
