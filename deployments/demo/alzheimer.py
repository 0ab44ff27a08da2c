"""`make demo-alzheimer`: synthetic T1-weighted heads, AD against NC, with explanations; a table and one HTML report.

    make demo-alzheimer [CASES=N] [STEPS=N]

Everything lies below build/demo-alzheimer/; an earlier demo's folder is replaced. The figures go to
build/demo-alzheimer/summary.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
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


def mass_ratio_in_brain(case: Mapping[str, Any]) -> float | None:
    """Return the same ratio with the brain instead of the whole volume: 1 for a map that is uniform over the brain."""
    ratio, mass_share = mass_ratio(case), case["brain_mass_share"]
    if ratio is None or not mass_share:
        return None  # no label map, no brain mask, or no mass inside of it
    in_brain: float = ratio * case["brain_volume_share"] / mass_share
    return in_brain


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, rounded; None if there is none."""
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    cases = explained_cases()
    ratios = [mass_ratio(case) for case in cases]
    brain_shares = [case["brain_volume_share"] for case in cases]
    verdict = judge([case.get("sanity_correlation") for case in cases], seed=0)  # the workflow's seed
    return {
        "accuracy": metrics["accuracy"],
        "auc": metrics["macro_roc_auc"],
        "explanation_mass_ratio": mean_of(ratios),
        "explanation_mass_ratio_of_uniform_brain": mean_of(1 / share if share else None for share in brain_shares),
        "explanation_mass_ratio_in_brain": mean_of(mass_ratio_in_brain(case) for case in cases),
        "explanation_mass_in_brain": mean_of(case["brain_mass_share"] for case in cases),
        "explanations_not_empty": sum(ratio is not None for ratio in ratios),
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
    print("  Grad-CAM in ventricles and hippocampi:")
    print(line("  density relative to the whole volume", summary["explanation_mass_ratio"]))
    print(line("  of a map that is uniform over the brain", summary["explanation_mass_ratio_of_uniform_brain"]))
    print(line("  density relative to the brain", summary["explanation_mass_ratio_in_brain"]))
    print(line("  share of the maps inside the brain", summary["explanation_mass_in_brain"]))
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
