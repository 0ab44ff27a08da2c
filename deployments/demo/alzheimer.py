"""`make demo-alzheimer`: synthetic T1-weighted heads, AD against NC, with explanations; a table and one HTML report.

    make demo-alzheimer [CASES=N] [STEPS=N]

Everything lies below build/demo-alzheimer/; an earlier demo's folder is replaced. The figures go to
build/demo-alzheimer/summary.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from demo import ROOT, line, parse_options, print_end, run_demo, write_phantom

from medweave_steps.explain.sanity import judge

DEMO = ROOT / "build" / "demo-alzheimer"
COHORT, RESULTS, REPORT = DEMO / "cohort", DEMO / "output", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-alzheimer.yml"
JOB = ROOT / "workflows" / "alzheimer-classification" / "jobs" / "demo-train.yml"

SUBJECTS, FEWEST_SUBJECTS, SEED = 120, 36, 31


def make_cohort(environment: Mapping[str, str], subjects: int) -> None:
    """Write heads of four groups in the layout of BIDS; the workflow uses two of the groups."""
    words = ["t1", "--grid", "demo", "--subjects", str(subjects), "--seed", str(SEED)]
    write_phantom(COHORT, words, what=f"T1-weighted heads of {subjects} subjects", environment=environment)


def explained_cases() -> list[Mapping[str, Any]]:
    """Return the records of all explained test scans."""
    paths = sorted(RESULTS.glob("explanations-*/explanations.json"))
    return [case for path in paths for case in json.loads(path.read_text(encoding="utf-8"))["cases"]]


def mass_ratio(case: Mapping[str, Any]) -> float | None:
    """Return the share of a map's mass in the labelled regions together, divided by their share of the volume."""
    regions = case["regions"]
    shares = [region["mass_share"] for region in regions]
    if not regions or None in shares:
        return None  # no label map, or an empty map
    total: float = sum(shares) / sum(region["volume_share"] for region in regions)
    return total


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    cases = explained_cases()
    ratios = [ratio for case in cases if (ratio := mass_ratio(case)) is not None]
    verdict = judge([case.get("sanity_correlation") for case in cases], seed=0)  # the workflow's seed
    return {
        "accuracy": metrics["accuracy"],
        "auc": metrics["macro_roc_auc"],
        "explanation_mass_ratio": round(fmean(ratios), 3) if ratios else None,
        "explanations_not_empty": len(ratios),
        "sanity_check_passed": bool(verdict.passed),
        "subjects": metrics["patients"],
        "synthetic_data": metrics["synthetic"],
        "report": str(REPORT.relative_to(ROOT)),
        "seconds": round(seconds, 1),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(f"\nSynthetic data: {summary['subjects']} test subjects, AD or NC")
    print(line("accuracy", metrics["accuracy"], metrics["accuracy_ci"]))
    print(line("area under the ROC curve", metrics["macro_roc_auc"], metrics["macro_roc_auc_ci"]))
    print(line("Grad-CAM: density in ventricles and hippocampi", summary["explanation_mass_ratio"]))
    print(f"  sanity check of the maps                     {'passed' if summary['sanity_check_passed'] else 'FAILED'}")
    print()
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(__doc__, cases=SUBJECTS, fewest=FEWEST_SUBJECTS, example=60, tested="about a tenth")
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
