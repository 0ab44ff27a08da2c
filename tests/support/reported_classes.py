"""What `report` reads of a classification besides the evaluation: curves and run reports."""

from __future__ import annotations

import json
from pathlib import Path

from medweave_core.contracts import codec
from support.evaluated_classes import Made
from support.reported import run_report

TRAINED = {
    "metrics": {"validation_macro_f1": 0.71, "validation_accuracy": 0.72},
    "training": {
        "task": "classification", "network": "mobilenet", "width": 0.25, "strategy": "single", "seed": 5, "steps_done": 90,
        "best_step": 60, "seconds": 61.0, "step_seconds": 40.0, "data_wait_seconds": 1.0, "patches_per_second": 100.0,
        "num_threads": 2, "num_training_cases": 30, "num_validation_cases": 6,
        "num_training_cases_by_class": {"MEL": 12, "NV": 10, "BCC": 8},
    },
}  # fmt: skip


def write_class_inputs(root: Path, made: Made, *evaluate_options: str) -> list[str]:
    """Evaluate a classified batch and write curves and run reports; return the options of `report` except --output."""
    assert made.evaluate(*evaluate_options)[0] == 0
    log = root / "training_log"
    log.mkdir()
    points: list[dict[str, float]] = [{"step": step, "loss": 1 / step} for step in (30, 60, 90)]
    points += [{"step": step, "macro_f1": step / 100, "accuracy": 0.5, "log_loss": 1.0} for step in (30, 60, 90)]
    (log / "curves.json").write_text(json.dumps(points))
    (root / "train.json").write_text(codec.dumps(run_report("train", TRAINED)))
    return [
        "--evaluation", str(root / "evaluation"), "--classifications", str(root / "classifications"),
        "--case-batches", str(root / "batch"), "--training-log", str(log), "--run-reports", str(root / "train.json"),
        "--run-report", str(root / "report-run_report.json"),
    ]  # fmt: skip
