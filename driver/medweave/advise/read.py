"""Read the files of `medweave advise`: files of measurements, and run reports of medweave's trainings."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.advise.document import MEASURED, STRATEGIES, Measured, MeasuredRow, StrategyName, schema
from medweave_core.contracts import codec
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.search import SearchTable
from medweave_core.documents.field_errors import check
from medweave_core.documents.line_numbers import FieldPath, Where, shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import UserInputError

DEFAULT_GPUS = (1, 2, 4, 8, 16, 32)
REPORTS = ("train", "search")
"""Verbs whose run reports contain a row."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of the command line that override the files; None for an absent option.

    Attributes:
        gpus: numbers of GPUs to judge.
        num_trials: trainings of the workload.
    """

    gpus: tuple[int, ...] | None
    num_trials: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """A training of medweave by its report.

    Attributes:
        seconds: wall time, s.
        data_wait_s: part of it in which the first rank waited for its patches, s; None if it was not measured.
        num_samples: steps times patches per step.
    """

    row: MeasuredRow
    seconds: float
    data_wait_s: float | None
    num_steps: int
    num_samples: int
    ranks_per_node: int
    shown: str


def read_measured(paths: Sequence[Path], overrides: Overrides) -> Measured:
    """Return the measurements of all files together.

    Raises:
        UserInputError: a file is of neither kind, two files are about different workloads, or a number is invalid.
    """
    documents: list[tuple[Measured, Path]] = []
    trainings: list[_Training] = []
    for path in paths:
        content = _read(path)
        if isinstance(content, Measured):
            documents.append((content, path))
        else:
            trainings.append(content)
    if len(documents) > 1:
        raise UserInputError(
            "more than one measurements file or search report given.",
            seen=", ".join(shown(path) for _, path in documents),
            expected="one of them, and any number of training reports",
            do="merge their rows into one file",
        )
    _check_same_work(trainings)
    measured = documents[0][0] if documents else _of_trainings(trainings)
    if overrides.num_trials is not None:
        measured = dataclasses.replace(measured, num_trials=overrides.num_trials)
    measured = dataclasses.replace(measured, gpus=overrides.gpus or measured.gpus)
    measured = dataclasses.replace(measured, rows=(*measured.rows, *_rows_of(trainings, measured)))
    _check(measured, Where(documents[0][1]) if documents else None)
    return measured


def _read(path: Path) -> Measured | _Training:
    document = read_mapping(path, "measurements file or run report")
    if "verb" not in document:
        check(document, schema(MEASURED), path, ())
        return codec.from_json(Measured, document, where=shown(path))
    report = codec.from_json(RunReport, document, where=shown(path))
    if report.verb not in REPORTS:
        raise UserInputError(
            f"{shown(path)}: this run report is not from a training.",
            seen=f"verb {report.verb!r}",
            expected=f"a report of {' or '.join(REPORTS)}",
            do="pass the run_report.json of the training",
        )
    if report.verb == "search":
        return _search(report, shown(path))
    return _training(report, shown(path))


def _search(report: RunReport, name: str) -> Measured:
    """Return all trials of a search, each of which ran on one GPU."""
    table = codec.from_json(SearchTable, dict(report.results), where=f"results of {name}")
    if not table.best or any(row.state != "completed" for row in table.rows):
        raise UserInputError(
            f"{name}: this search report does not cover all trials.",
            seen=", ".join(f"{state}: {number}" for state, number in Counter(row.state for row in table.rows).items()),
            expected="the report of --part all or --part collect, with all trials completed",
            do="repeat the search without the failing trials, and with --scheduler all",
        )
    at_once = max(1, table.most_at_once)
    return Measured(
        title="search, from its run report",
        gpus=DEFAULT_GPUS,
        gpus_per_node=at_once,
        rows=(MeasuredRow(strategy="search", gpus=at_once, elapsed_s=table.seconds),),
        num_trials=len(table.rows),
        trial_s=tuple(row.seconds for row in table.rows),
    )


def _training(report: RunReport, name: str) -> _Training:
    training: Mapping[str, Any] = report.results.get("training") or {}
    try:
        world_size = int(training["world_size"])
        seconds, wait = float(training["seconds"]), training.get("data_wait_seconds")
        row = MeasuredRow(
            strategy=_known(training["strategy"] if world_size > 1 else "single", name),
            gpus=world_size,
            elapsed_s=seconds,
            samples_per_step=int(training["batch_size"]),
        )
        num_steps = int(training["steps_done"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserInputError(
            f"{name}: values are missing in this run report.",
            seen=f"{type(error).__name__}: {error}",
            expected="results.training with strategy, world_size, seconds, steps_done and batch_size",
            do="repeat the training with this version of medweave",
        ) from error
    per_host = Counter(rank.host for rank in report.ranks)
    assert row.samples_per_step is not None, "set above"
    return _Training(
        row=row,
        seconds=seconds,
        data_wait_s=None if wait is None else float(wait),
        num_steps=num_steps,
        num_samples=num_steps * row.samples_per_step,
        ranks_per_node=max(per_host.values(), default=1),
        shown=name,
    )


def _known(strategy: str, name: str) -> StrategyName:
    for known in STRATEGIES:
        if known == strategy:
            return known
    raise UserInputError(
        f"{name}: there is no scaling model for this training strategy.",
        seen=f"strategy {strategy}",
        expected=f"one of {', '.join(STRATEGIES)}",
        do="remove this report from the command",
    )


def _by_parts(trainings: Sequence[_Training]) -> list[MeasuredRow] | None:
    """Return the trainings by the parts of a step; None if one lacks the wait for data, or none ran on one rank.

    Time that is neither waiting for data nor the time of one rank divided by the ranks counts as communication.
    """
    single = [
        (training.seconds - training.data_wait_s) / training.num_steps
        for training in trainings
        if training.row.gpus == 1 and training.data_wait_s is not None
    ]
    if not single or min(single) <= 0 or any(training.data_wait_s is None for training in trainings):
        return None
    compute_s = sum(single) / len(single)
    rows = []
    for training in trainings:
        data_s = (training.data_wait_s or 0.0) / training.num_steps
        rest_s = training.seconds / training.num_steps - data_s
        own_s = rest_s if training.row.gpus == 1 else compute_s / training.row.gpus
        rows.append(
            dataclasses.replace(
                training.row, elapsed_s=None, compute_s=own_s, communication_s=max(0.0, rest_s - own_s), data_s=data_s
            )
        )
    return rows


def _of_trainings(trainings: Sequence[_Training]) -> Measured:
    return Measured(
        title="trainings, from their run reports",
        gpus=DEFAULT_GPUS,
        gpus_per_node=max(training.ranks_per_node for training in trainings),
        rows=(),
        samples_per_trial=trainings[0].num_samples,
    )


def _rows_of(trainings: Sequence[_Training], measured: Measured) -> Sequence[MeasuredRow]:
    """Return the rows of trainings, by parts if these are known; else with the time of all trainings of the workload."""
    expected = measured.samples_per_trial
    for training in trainings:
        if expected is not None and training.num_samples != expected:
            raise UserInputError(
                f"{training.shown} has another workload than the measurements.",
                seen=f"{training.num_samples} samples (steps_done times batch_size)",
                expected=f"{expected} samples, as in samples_per_trial",
                do="pass trainings of the same length, or correct samples_per_trial",
            )
    by_parts = _by_parts(trainings) if expected is not None else None
    return by_parts or [
        dataclasses.replace(training.row, elapsed_s=training.seconds * measured.num_trials) for training in trainings
    ]


def _check_same_work(trainings: Sequence[_Training]) -> None:
    if len({training.num_samples for training in trainings}) > 1:
        raise UserInputError(
            "the trainings have different lengths.",
            seen="; ".join(f"{training.shown}: {training.num_samples} samples" for training in trainings),
            expected="the same number of steps times patches per step in each report",
            do="pass trainings that differ only in --strategy and --ranks",
        )


def _check(measured: Measured, file: Where | None) -> None:
    for field, fault, expected in _faults(measured):
        place = dataclasses.replace(file, field=field) if file else "the reports"
        raise UserInputError(f"{place}: the measurements are not sufficient.", seen=fault, expected=expected)


def _faults(measured: Measured) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield the errors that the schema does not find: field, value and expectation."""
    if not measured.rows:
        yield ("rows",), "no rows", "at least one measurement"
    if not measured.gpus or min(measured.gpus) < 1:
        yield ("gpus",), f"gpus: {list(measured.gpus)}", "numbers of GPUs to predict for, each at least 1"
    for key in ("gpus_per_node", "num_trials"):
        if getattr(measured, key) < 1:
            yield (key,), f"{key}: {getattr(measured, key)}", "1 or more"
    if measured.trial_s and (len(measured.trial_s) != measured.num_trials or not all(map(_is_time, measured.trial_s))):
        yield (
            ("trial_s",),
            f"trial_s: {len(measured.trial_s)} values",
            f"a duration above 0 s for each of the {measured.num_trials} trials",
        )
    if (measured.samples_per_trial or 1) < 1:
        yield ("samples_per_trial",), f"samples_per_trial: {measured.samples_per_trial}", "1 or more"
    for number, row in enumerate(measured.rows):
        for key, fault, expected in _faults_of_row(row, measured):
            yield ("rows", number, key), fault, expected


def _faults_of_row(row: MeasuredRow, measured: Measured) -> Iterator[tuple[str, str, str]]:
    if row.gpus < 1 or (row.strategy == "single" and row.gpus != 1):
        yield "gpus", f"{row.strategy} on {row.gpus} GPUs", "at least 1; exactly 1 for single"
    if (row.elapsed_s is None) == (row.compute_s is None):
        yield (
            "compute_s",
            "both or neither of elapsed_s and compute_s",
            "elapsed_s (whole workload), or compute_s (computing time of one step)",
        )
    for key in ("elapsed_s", "compute_s"):
        if getattr(row, key) is not None and not _is_time(getattr(row, key)):
            yield key, f"{key}: {getattr(row, key)}", "more than 0 s"
    for key in ("communication_s", "data_s", "queue_wait_s"):
        if not 0 <= getattr(row, key) < math.inf:
            yield key, f"{key}: {getattr(row, key)}", "0 s or more"
    if row.compute_s is not None and (row.samples_per_step is None or measured.samples_per_trial is None):
        yield (
            "compute_s",
            "compute_s without the number of steps",
            "samples_per_step in the row, samples_per_trial in the file",
        )
    if (row.samples_per_step or 1) < 1:
        yield "samples_per_step", f"samples_per_step: {row.samples_per_step}", "1 or more"


def _is_time(seconds: float) -> bool:
    return 0 < seconds < math.inf
