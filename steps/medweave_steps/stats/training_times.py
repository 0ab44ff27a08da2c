"""Measurements from the run reports of repeated trainings: one row for each, with its times and what it was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.report import RunReport
from medweave_core.errors import UserInputError

COLUMNS = ("ratio", "rows", "ranks", "strategy", "seed", "seconds", "step_seconds")
"""Names of the columns.

ratio: training cases of each class for one of the rarest class, such as 1:5; rows: number of training cases; ranks: processes;
seconds: from the start of the ranks to the finished model; step_seconds: of the optimizer steps alone.
"""


def rows_of_reports(paths: Iterable[Path]) -> list[dict[str, str]]:
    """Return a row for each run report of `train`, ordered by its numbers of cases and ranks and by seed.

    Raises:
        UserInputError: a file is not the run report of a training with classes.
    """
    reports = [_read(path) for path in paths]
    rows = [_row(report) for report in reports]
    return sorted(rows, key=lambda row: (int(row["rows"]), int(row["ranks"]), int(row["seed"])))


def _row(report: RunReport) -> dict[str, str]:
    training: Mapping[str, Any] = report.results["training"]
    counts = sorted(training["num_training_cases_by_class"].values())
    values = {
        "ratio": ":".join(f"{count / counts[0]:g}" for count in counts),
        "rows": sum(counts),
        "ranks": training["world_size"],
        "strategy": training["strategy"],
        "seed": training["seed"],
        "seconds": training["seconds"],
        "step_seconds": training["step_seconds"],
    }
    return {name: str(values[name]) for name in COLUMNS}


def _read(path: Path) -> RunReport:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _no_training(f"{path.name}: {type(error).__name__}") from error
    report = codec.from_json(RunReport, document, where="a file of --run-reports")
    if report.verb != "train" or not report.results.get("training", {}).get("num_training_cases_by_class"):
        raise _no_training(f"{path.name}: a report of {report.verb} without classes")
    return report


def _no_training(seen: str) -> UserInputError:
    return UserInputError(
        "a file of --run-reports is not the run report of a training of classes.",
        seen=seen,
        expected="run_report.json of `train --task classification`",
        do="give the run reports of trainings only",
    )
