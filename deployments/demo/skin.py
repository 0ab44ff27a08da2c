"""`make demo-skin`: synthetic photographs of skin lesions, eight classes, the whole pipeline, a table and one HTML report.

    make demo-skin [CASES=N] [STEPS=N]

Everything lies below build/demo-skin/; an earlier demo's folder is replaced. The figures go to build/demo-skin/summary.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from demo import ROOT, line, parse_options, print_end, run_demo, write_phantom

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
    words = ["skin", "--image-size", str(IMAGE_SIZE), "--cases", str(cases - held_out), "--seed", str(SEED)]
    words += ["--held-out-cases", str(held_out), "--held-out-seed", str(HELD_OUT_SEED)]
    what = f"photographs of {cases - held_out} + {held_out} patients"
    write_phantom(COHORT, words, what=what, environment=environment)


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
    print(*(line(*row) for row in figures), sep="\n")
    print()
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(
        __doc__, cases=CASES + HELD_OUT_CASES, fewest=FEWEST_CASES, example=120, tested="about a fifth"
    )
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
