"""`make demo-ecg`: synthetic ECG recordings of four rhythms, the whole pipeline, a table and one HTML report.

    make demo-ecg [CASES=N] [STEPS=N]

CASES is the number of recordings. Everything lies below build/demo-ecg/; an earlier demo's folder is replaced. The figures go to
build/demo-ecg/summary.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from demo import ROOT, classification_summary, line, parse_options, print_end, run_demo, write_phantom

DEMO = ROOT / "build" / "demo-ecg"
COHORT, REPORT = DEMO / "cohort", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-atrial.yml"
JOB = ROOT / "workflows" / "atrial-fibrillation" / "jobs" / "demo-train.yml"

RECORDINGS, FEWEST_RECORDINGS, SEED = 240, 100, 31


def make_cohort(environment: Mapping[str, str], recordings: int) -> None:
    """Write recordings of four rhythms in the format of the PhysioNet/CinC Challenge 2017."""
    words = ["ecg", "--recordings", str(recordings), "--seed", str(SEED)]
    write_phantom(COHORT, words, what=f"{recordings} ECG recordings", environment=environment)


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    return {
        "recording_macro_f1": metrics["by_recording"]["macro_f1"],
        "recording_macro_f1_ci": metrics["by_recording"]["macro_f1_ci"],
        "recording_accuracy": metrics["by_recording"]["accuracy"],
        "recording_f1_by_class": {one["name"]: one["f1"] for one in metrics["by_recording"]["by_class"]},
        "test_recordings": metrics["patients"],
        "test_samples": metrics["cases"],
        **classification_summary(metrics, report=REPORT, seconds=seconds),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(f"\nSynthetic data: {summary['test_samples']} samples of {summary['test_recordings']} held-out recordings")
    baseline = metrics["baseline"]
    print(line("F1, mean over four rhythms", metrics["macro_f1"], metrics["macro_f1_ci"]))
    print(line("amplitude-histogram baseline: F1", baseline["macro_f1"], baseline["macro_f1_ci"]))
    print(line("accuracy (micro-F1)", metrics["accuracy"], metrics["accuracy_ci"]))
    print(line("ROC-AUC, mean over four rhythms", metrics["macro_roc_auc"], metrics["macro_roc_auc_ci"]))
    for one in metrics["by_class"]:
        print(line(f"F1 of {one['name']}", one["f1"], one["f1_ci"]))
    recordings = metrics["by_recording"]
    scored = ", ".join(recordings["scored_classes"])
    print(line(f"whole recordings: F1, mean over {scored}", recordings["macro_f1"], recordings["macro_f1_ci"]))
    print(line("whole recordings: accuracy", recordings["accuracy"], recordings["accuracy_ci"]))
    print()
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(
        __doc__, cases=RECORDINGS, fewest=FEWEST_RECORDINGS, example=FEWEST_RECORDINGS, tested="about a quarter"
    )
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
