"""`make demo-care`: synthetic inpatients, a part of a grid of networks for their care purpose, a table and one HTML report.

    make demo-care [CASES=N]

CASES is the number of inpatients. Everything lies below build/demo-care/; an earlier demo's folder is replaced. The figures go to
build/demo-care/summary.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from demo import ROOT, classification_summary, line, parse_options, print_end, run_demo, write_phantom

DEMO = ROOT / "build" / "demo-care"
COHORT, RESULTS, REPORT = DEMO / "cohort", DEMO / "output", DEMO / "report.html"
BOUND = ROOT / "deployments" / "bindings" / "streamflow.laptop-care-search.yml"
JOB = ROOT / "workflows" / "care-purpose" / "jobs" / "demo-search.yml"

PATIENTS, FEWEST_PATIENTS, SEED = 3_000, 1_000, 31


def make_cohort(environment: Mapping[str, str], patients: int) -> None:
    """Write inpatients with 14,637 codes and 14 care purposes."""
    words = ["inpatients", "--rows", str(patients), "--seed", str(SEED)]
    write_phantom(COHORT, words, what=f"{patients} inpatients", environment=environment)


def summary_of(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return what machines read of a demo; the keys are part of the project's contract."""
    table = json.loads((RESULTS / "search" / "search.json").read_text(encoding="utf-8"))
    rows, groups = table["rows"], {one["group"]: one for one in table["planned"]}
    totals = {key: sum(one[key] for one in groups.values()) for key in ("planned", "selected", "skipped")}
    return {
        **totals,
        "groups": groups,
        "trials": [
            {
                "group": row["group"],
                **row["varied"],
                **{
                    key: row.get(key) for key in ("state", "parameters", "score", "seconds", "energy_wh", "energy_kind")
                },
                "selected": row["trial_id"] == table["best"],
            }
            for row in rows
        ],
        "test_patients": metrics["cases"],
        **classification_summary(metrics, report=REPORT, seconds=seconds),
    }


def print_table(metrics: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Print the end of a demo, as a person reads it."""
    print(
        f"\nGrid: {summary['planned']} combinations, {summary['selected']} trained, {summary['skipped']} not selected"
    )
    for trial in summary["trials"]:
        network = f"{trial['group']}, {trial['units']} x {trial['hidden-layers']}, workers: {trial['ranks'] - 1}"
        end = f"{trial['seconds']:5.0f} s{'   selected' if trial['selected'] else ''}"
        print(f"{line(f'validation F1, {network}', trial['score'])}   {end}")
    print(f"\nSynthetic data: {summary['test_patients']} held-out inpatients, the selected model")
    baseline = metrics["baseline"]
    print(line("F1, mean over the care purposes", metrics["macro_f1"], metrics["macro_f1_ci"]))
    print(line("logistic regression: F1", baseline["macro_f1"], baseline["macro_f1_ci"]))
    print(line("F1, weighted", metrics["weighted_f1"], metrics["weighted_f1_ci"]))
    print(line("accuracy (micro-F1)", metrics["accuracy"], metrics["accuracy_ci"]))
    print(line("ROC-AUC, mean over the care purposes", metrics["macro_roc_auc"], metrics["macro_roc_auc_ci"]))
    print()
    print_end(DEMO, summary)


def main() -> int:
    """Run the demo; return the exit code."""
    options = parse_options(__doc__, cases=PATIENTS, fewest=FEWEST_PATIENTS, example=2_000, what="inpatients")
    print_table(*run_demo(DEMO, BOUND, JOB, options, make_cohort=make_cohort, summary_of=summary_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
