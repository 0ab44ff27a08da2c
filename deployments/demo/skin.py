"""`make demo-skin`: synthetic photographs of skin lesions, eight classes, the whole pipeline, a table and one HTML report.

    make demo-skin [CASES=N] [STEPS=N]

Everything lies below build/demo-skin/; an earlier demo's folder is replaced. The figures go to build/demo-skin/summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from demo import ROOT, begin, command, number, run, run_workflow, write_summary
from ruamel.yaml import YAML

DEMO = ROOT / "build" / "demo-skin"
COHORT, REPORT = DEMO / "cohort", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-image.yml"
JOB = ROOT / "workflows" / "image-classification" / "jobs" / "demo-train.yml"

CASES, HELD_OUT_CASES, FEWEST_CASES = 560, 160, 90
SEED, HELD_OUT_SEED = 31, 52711
IMAGE_SIZE = 64


def make_cohort(environment: Mapping[str, str], cases: int) -> None:
    """Write photographs of skin lesions with their classes, in the format of ISIC 2019."""
    held_out = max(16, round(cases * HELD_OUT_CASES / (CASES + HELD_OUT_CASES)))
    print(
        f"make demo-skin: writing photographs of {cases - held_out} + {held_out} patients to build/demo-skin/cohort",
        flush=True,
    )
    words = [command("medweave-step"), "phantom", "skin", "--output", str(COHORT), "--image-size", str(IMAGE_SIZE)]
    words += ["--cases", str(cases - held_out), "--seed", str(SEED)]
    words += ["--held-out-cases", str(held_out), "--held-out-seed", str(HELD_OUT_SEED)]
    run([*words, "--run-report", str(DEMO / "phantom_report.json")], environment=environment)


def bound_file(steps: int | None) -> Path:
    """Write the laptop's bound file and the job file of the demo into its folder; return the first."""
    job = YAML(typ="safe").load(JOB)
    job |= {"cohort": {"class": "Directory", "path": str(COHORT)}}
    if steps:
        job |= {"training_steps": steps}
    (DEMO / "job.yml").write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
    document = YAML(typ="safe").load(BOUND)
    for workflow in document["workflows"].values():
        workflow["config"] = {
            "file": str((BOUND.parent / workflow["config"]["file"]).resolve()), "settings": str(DEMO / "job.yml"),
        }  # fmt: skip
    path = DEMO / "streamflow.yml"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    return {
        "accuracy": metrics["accuracy"],
        "balanced_accuracy": metrics["balanced_accuracy"],
        "macro_f1": metrics["macro_f1"],
        "baseline_accuracy": metrics["baseline"]["accuracy"],
        "patients": metrics["patients"],
        "images": metrics["cases"],
        "synthetic_data": metrics["synthetic"],
        "held_out_seed": HELD_OUT_SEED,
        "report": str(REPORT.relative_to(ROOT)),
        "seconds": round(seconds, 1),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(f"\nSynthetic data: {summary['images']} images of {summary['patients']} held-out patients")
    rows = (
        ("accuracy", "accuracy"),
        ("balanced_accuracy", "balanced accuracy"),
        ("macro_f1", "F1, mean over eight classes"),
        ("expected_calibration_error", "expected calibration error"),
    )
    figures = [(label, metrics[key], metrics[f"{key}_ci"]) for key, label in rows]
    baseline = metrics["baseline"]
    figures.insert(1, ("color-histogram baseline: accuracy", baseline["accuracy"], baseline["accuracy_ci"]))
    for label, value, interval in figures:
        shown = f"   95 % CI {interval[0]:.2f} to {interval[1]:.2f}" if interval else ""
        print(f"  {label:<44} {'   n/a' if value is None else f'{value:6.2f}'}{shown}")
    print(f"\n  report   {summary['report']}   (open it in a browser; it needs no network)")
    print("  figures  build/demo-skin/summary.json")
    print(f"  {summary['seconds']:.0f} s in all. Research use only, not a medical device.")


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases",
        type=partial(number, least=FEWEST_CASES, example=120),
        default=CASES + HELD_OUT_CASES,
        help="patients, about a fifth of them for the test (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=partial(number, least=1, example=100),
        help="training steps instead of the job's; fewer find less",
    )
    options = parser.parse_args()
    started = time.monotonic()
    environment = begin(DEMO)
    make_cohort(environment, options.cases)
    file = str(bound_file(options.steps).relative_to(ROOT))
    metrics = run_workflow(DEMO, file, environment)
    summary = summary_of(metrics, time.monotonic() - started)
    write_summary(DEMO, summary)
    print_table(metrics, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
