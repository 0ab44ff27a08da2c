"""Inference alone: `streamflow run` of infer.cwl over 8 series of the demo's cohort, with the model the demo accepted; second run.

    make demo && python tests/bench/inference.py

Writes build/bench/inference-warm.json. The bar is 30 s on 2 cores for everything: engine, check, preprocess, segment, delivery.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import harness

DATA = harness.ROOT / "build" / "bench" / "inference"
DEMO = harness.ROOT / "build" / "demo"
NUM_CASES, BAR_S = 8, 30.0


def prepare() -> None:
    """Write a cohort of 8 test series, and a streamflow file for it."""
    if not (DEMO / "output" / "accepted_model").exists():
        sys.exit("tests/bench/inference.py: there is no model of a demo; run `make demo` first")
    shutil.rmtree(DATA, ignore_errors=True)
    (DATA / "cohort").mkdir(parents=True)
    for series in sorted((DEMO / "cohort").glob("series-h*"))[:NUM_CASES]:
        shutil.copytree(series, DATA / "cohort" / series.name)
    job = {
        "identified": False,
        "cohort": {"class": "Directory", "path": str(DATA / "cohort")},
        "segmentation_model": {"class": "Directory", "path": str(DEMO / "output" / "accepted_model")},
    }
    (DATA / "job.yml").write_text(json.dumps(job), encoding="utf-8")  # JSON is YAML
    text = (harness.ROOT / "streamflow-infer.yml").read_text(encoding="utf-8")
    text = text.replace("workflows/lung-nodule-segmentation/jobs/demo-infer.yml", str(DATA / "job.yml"))
    text = text.replace("file: workflows/", f"file: {harness.ROOT}/workflows/")
    (DATA / "streamflow.yml").write_text(text, encoding="utf-8")


def run() -> float:
    """Run once; return the wall time, s."""
    results = DATA / "results"
    shutil.rmtree(results, ignore_errors=True)
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    started = time.monotonic()
    command = [programs / "streamflow", "run", "--quiet", "--outdir", results, DATA / "streamflow.yml"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    delivered = len(list(results.rglob("lesion_mask.dcm")))
    if delivered != NUM_CASES:
        sys.exit(f"tests/bench/inference.py: {delivered} of {NUM_CASES} cases were delivered")
    return seconds


def main() -> int:
    """Measure; return the exit code."""
    prepare()
    first, second = run(), run()
    notes = {"first_run_s": round(first, 2), "cases": NUM_CASES, "data": "synthetic, demo grid"}
    harness.single_figure("inference-warm", second, unit="s", bar=BAR_S, notes=notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
