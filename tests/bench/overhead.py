"""What medweave adds to StreamFlow: a scatter of empty local steps, with our plug-in and managers and with the engine alone.

    python tests/bench/overhead.py [--steps 200] [--pairs 7]

Writes build/bench/overhead.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

BAR = 1 / 1.05  # ours may take 1.05 times as long
STOCK = "import streamflow.main; streamflow.main.load_extensions = lambda: None\n"
MAIN = "import sys, streamflow.main; sys.exit(streamflow.main.main(sys.argv[1:]))"
TOOL = {
    "class": "CommandLineTool",
    "baseCommand": ["true"],
    "requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 16}},
    "inputs": {"number": "int"},
    "outputs": {},
}
KINDS = {
    "ours": (
        "deployments: {here: {type: medweave.local, config: {}}}\n"
        "scheduling: {scheduler: {type: medweave.scheduler, config: {}}}\n"
        "database: {type: medweave.database, config: {}}\n"
    ),
    "stock": "deployments: {here: {type: local, config: {}}}\n"
    'database: {type: default, config: {connection: ":memory:"}}\n',
}


def write(folder: Path, num_steps: int) -> None:
    """Write the workflow, its job file, and a streamflow.yml of each kind."""
    steps = {"empty": {"run": TOOL, "scatter": "number", "in": {"number": "numbers"}, "out": []}}
    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {"ScatterFeatureRequirement": {}},
        "inputs": {"numbers": "int[]"},
        "outputs": {},
        "steps": steps,
    }
    (folder / "empty.cwl").write_text(json.dumps(document), encoding="utf-8")
    (folder / "job.yml").write_text(json.dumps({"numbers": list(range(num_steps))}), encoding="utf-8")
    for name, sites in KINDS.items():
        (folder / f"{name}.yml").write_text(
            "version: v1.0\n"
            "workflows: {empty: {type: cwl, config: {file: empty.cwl, settings: job.yml}, "
            "bindings: [{step: /, target: {deployment: here}}]}}\n" + sites,
            encoding="utf-8",
        )


def run(folder: Path, kind: str) -> None:
    """Run once in a separate process; exit if it fails."""
    code = MAIN if kind == "ours" else STOCK + MAIN
    ended = subprocess.run(
        [sys.executable, "-c", code, "run", "--quiet", f"{kind}.yml"],
        cwd=folder, check=False, capture_output=True, text=True, env=os.environ | {"MEDWEAVE_REUSE": "1"},  # as it comes
    )  # fmt: skip
    if ended.returncode:
        sys.exit(ended.stderr[-4000:])
    shutil.rmtree(folder / "runs", ignore_errors=True)


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="empty steps of a run")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="medweave-overhead-") as name:
        folder = Path(name)
        write(folder, options.steps)
        harness.run_pairs(
            "overhead",
            lambda: run(folder, "ours"),
            lambda: run(folder, "stock"),
            reference_tool=f"StreamFlow {importlib.metadata.version('streamflow')} without medweave, database in memory",
            pairs=options.pairs,
            bar=BAR,
            notes={"steps": options.steps},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
