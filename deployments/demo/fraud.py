"""`make demo-fraud`: synthetic claims of providers and a list of excluded ones; a table and one HTML report.

    make demo-fraud [CASES=N]

CASES is the number of claims. Everything lies below build/demo-fraud/; an earlier demo's folder is replaced. The figures go to
build/demo-fraud/summary.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from demo import ROOT, classification_summary, line, parse_options, print_end, run_demo, write_phantom

DEMO = ROOT / "build" / "demo-fraud"
COHORT, REPORT = DEMO / "cohort", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-provider.yml"
JOB = ROOT / "workflows" / "provider-fraud" / "jobs" / "demo-train.yml"

ROWS, FEWEST_ROWS, LISTED_SHARE, SEED = 20_000, 2_000, 0.07, 31


def make_cohort(environment: Mapping[str, str], rows: int) -> None:
    """Write claims in the columns of Medicare Part B, and an exclusion list."""
    words = ["claims", "--rows", str(rows), "--listed-rows", str(round(rows * LISTED_SHARE)), "--seed", str(SEED)]
    write_phantom(COHORT, words, what=f"{rows} claims", environment=environment)


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    excluded = next(one for one in metrics["by_class"] if one["name"] == "excluded")
    return {
        "roc_auc": excluded["roc_auc"],
        "average_precision": excluded["average_precision"],
        "f1": excluded["f1"],
        "test_rows": metrics["cases"],
        **classification_summary(metrics, report=REPORT, seconds=seconds),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(f"\nSynthetic data: {summary['test_rows']} test rows, half of them of excluded providers")
    print(line("area under the ROC curve", metrics["macro_roc_auc"], metrics["macro_roc_auc_ci"]))
    print(line("average precision (PR-AUC)", summary["average_precision"]))
    print(line("accuracy", metrics["accuracy"], metrics["accuracy_ci"]))
    baseline = metrics["baseline"]
    print(line("logistic regression: accuracy", baseline["accuracy"], baseline["accuracy_ci"]))
    print()
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(__doc__, cases=ROWS, fewest=FEWEST_ROWS, example=5_000, what="claims")
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
