"""The table of a search: gather the rows, choose the best trial, write all as JSON and CSV."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.search import Objective, SearchTable, Trial, TrialRow
from medweave_core.errors import UserInputError
from medweave_steps.runtime.tables import csv_text
from medweave_steps.search.choice import SCORE, candidates_of, choose_best, pareto_front, repeated_trial
from medweave_steps.search.grid import text_of
from medweave_steps.search.trial import failed_row

TABLE, SHEET, REPEATS, TRIALS = "search.json", "trials.csv", "repeats.csv", "trials"
NO_RESULT = "no result: the job of this trial failed; see the report of the run"


SCORE_ALONE = (Objective(name=SCORE, direction="max"),)


def table_of(
    rows: Sequence[TrialRow], metric: str, *, choose: bool, repeats: int = 1,
    objectives: tuple[Objective, ...] = SCORE_ALONE,
) -> SearchTable:  # fmt: skip
    """Return the table; of equal scores the first in the order of the grid is the best.

    Args:
        choose: name the best, and the Pareto front of several objectives.
        repeats: number of trials of each combination.
    Raises:
        UserInputError: no trial was completed, so none can be chosen.
    """
    candidates = candidates_of(rows, repeats)
    if choose and not any(candidate.completed for candidate in candidates):
        raise UserInputError(
            "no trial of the search completed.",
            seen="; ".join(dict.fromkeys(row.cause or row.state for row in rows)),
            expected="at least one trained model",
            do="fix the causes listed for the trials, or run a single trial: `medweave-step search --part trial`",
        )
    times = [(_time(row.started_at), _time(row.ended_at)) for row in rows if row.started_at]
    seconds = max(end for _, end in times) - min(start for start, _ in times) if times else 0.0
    has_objectives = choose and objectives != SCORE_ALONE
    return SearchTable(
        metric=metric,
        rows=tuple(rows),
        best=choose_best(candidates, objectives[0]) if choose else "",
        most_at_once=most_at_once(times),
        seconds=round(seconds, 3),
        repeated=tuple(map(repeated_trial, candidates)) if choose and repeats > 1 else (),
        objectives=objectives if has_objectives else (),
        front=pareto_front(candidates, objectives) if has_objectives else (),
    )


def most_at_once(times: Sequence[tuple[float, float]]) -> int:
    """Return the most intervals that have a moment in common.

    Args:
        times: start and end of each, s.
    """
    changes = sorted([*((start, 1) for start, _ in times), *((end, -1) for _, end in times)])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def read_rows(folders: Iterable[Path]) -> dict[str, tuple[TrialRow, Path]]:
    """Return the rows of earlier results, each with the folder of the trial's files.

    Raises:
        UserInputError: a folder is not a result of a search, or two are of the same trial.
    """
    found: dict[str, tuple[TrialRow, Path]] = {}
    for folder in folders:
        try:
            document = json.loads((folder / TABLE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise UserInputError(
                "a folder of --results is not the result of a search.",
                seen=f"{type(error).__name__} while reading {TABLE}",
                expected=f"a folder with {TABLE}, written by --part trial",
                do="use the output folders of --part trial",
            ) from error
        for row in codec.from_json(SearchTable, document, where=f"{TABLE} of a result").rows:
            if row.trial_id in found:
                raise UserInputError(
                    "two folders of --results belong to the same trial.", seen=row.trial_id, expected="each trial once"
                )
            found[row.trial_id] = row, folder / TRIALS / row.trial_id
    return found


def in_order(trials: Sequence[Trial], found: Mapping[str, tuple[TrialRow, Path]]) -> list[TrialRow]:
    """Return the rows of a grid's trials; a trial without a result is a failed one.

    Raises:
        UserInputError: a result is of no trial of the grid.
    """
    strange = sorted(found.keys() - {trial.trial_id for trial in trials})
    if strange:
        raise UserInputError(
            "a result does not belong to a trial of this grid.",
            seen=", ".join(strange),
            expected="results of the trials of this grid, with the same options",
            do="use the grid that the trials were planned from",
        )
    return [found[trial.trial_id][0] if trial.trial_id in found else failed_row(trial, NO_RESULT) for trial in trials]


def write_table(folder: Path, table: SearchTable) -> None:
    """Write search.json, and trials.csv for spreadsheets; with repeats also repeats.csv.

    trials.csv has the group, parameters, further metrics and electricity where one of the trials has them, and with objectives the
    electricity and the Pareto front.
    """
    (folder / TABLE).write_text(codec.dumps(table), encoding="utf-8")
    names = list(dict.fromkeys(name for row in table.rows for name in row.varied if name != "seed"))
    text = io.StringIO()
    sheet = csv.writer(text, lineterminator="\n")
    header = ("trial", *names, "state", table.metric, "seed", "started_at", "ended_at", "seconds", "epochs", "cause")
    more = _more_columns(table)
    sheet.writerow((*header, *more))
    for row in table.rows:
        values = [text_of(row.varied.get(name, "")) for name in names]
        score = "" if row.score is None else row.score
        facts = (row.seed, row.started_at, row.ended_at, row.seconds, row.epochs, row.cause)
        sheet.writerow(
            [row.trial_id, *values, row.state, score, *facts, *(value_of(row) for value_of in more.values())]
        )
    (folder / SHEET).write_text(text.getvalue(), encoding="utf-8")
    if table.repeated:
        (folder / REPEATS).write_text(_repeats_csv(table, names), encoding="utf-8")


def _more_columns(table: SearchTable) -> dict[str, Callable[[TrialRow], Any]]:
    """Return the columns that not every search has, by name, with what gives the value of a row."""
    columns: dict[str, Callable[[TrialRow], Any]] = {}
    if any(row.group for row in table.rows):
        columns["group"] = lambda row: row.group
    if any(row.parameters is not None for row in table.rows):
        columns["parameters"] = lambda row: row.parameters
    for name in table.further_metrics:
        columns[name] = partial(_metric, name=name)
    if table.objectives or any(row.energy_wh is not None for row in table.rows):
        columns |= {"energy_wh": lambda row: row.energy_wh, "energy_kind": lambda row: row.energy_kind}
    if table.objectives:
        columns["front"] = lambda row: row.trial_id in table.front
    return columns


def _metric(row: TrialRow, *, name: str) -> float | None:
    return row.metrics.get(name)


def _repeats_csv(table: SearchTable, names: Sequence[str]) -> str:
    header = ["trial", *names, "repeats", "completed", "score_mean", "score_sd", "seconds_mean", "energy_wh_mean"]
    rows = [
        (one.trial_ids[0], *(text_of(one.varied.get(name, "")) for name in names), len(one.trial_ids), one.completed,
         one.score_mean, one.score_sd, one.seconds_mean, one.energy_wh_mean)
        for one in table.repeated
    ]  # fmt: skip
    return csv_text(header, rows)


def _time(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()
