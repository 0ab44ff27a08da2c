"""The table of a search's trials: options, results, times and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.energy import spelled
from medweave_core.contracts.progress import duration
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.search import RepeatedTrial, SearchTable, TrialRow
from medweave_steps.report.pareto import pareto_charts
from medweave_steps.report.words import figure, plural
from medweave_steps.runtime.svg import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The table of one search.

    Attributes:
        caption: its mode, and how much of it overlapped.
        metric: what its trials were chosen by.
        rows: options, state, score, ranks, start, end, time and machine of each trial, as texts.
        best: place of the chosen one.
        more: further columns by heading, with a text for each trial: group, parameters, metrics and electricity, where one of the
            trials has them.
        front: places of the rows on the Pareto front; with repeats of rows of `repeated`.
        planned: group, planned, selected and skipped combinations and the reason, as texts; empty without groups and selection.
        repeated: options, completed trials, score, time and electricity of each combination, as texts; empty without repeats.
        charts: the first objective over each of the others; none with one objective.
    """

    caption: str
    metric: str
    rows: tuple[tuple[str, ...], ...]
    best: int
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)
    front: tuple[int, ...] = ()
    planned: tuple[tuple[str, ...], ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()
    charts: tuple[Chart, ...] = ()


def trials_of(reports: Sequence[RunReport]) -> list[Trials]:
    """Return a table for each search whose trials were all gathered, by the run reports of `search`."""
    gathered = [report.results for report in reports if report.verb == "search" and report.results.get("best")]
    tables = [codec.from_json(SearchTable, known, where="the run report of a search") for known in gathered]
    return [_of(table, place) for place, table in enumerate(tables)]


def _of(table: SearchTable, place: int) -> Trials:
    least, most = (choose(row.ranks for row in table.rows) for choose in (min, max))
    ranks = plural(most, "rank") if least == most else f"{least} to {most} ranks"
    mode = "Experiment parallel" if most == 1 else f"Data parallel, {ranks} each"
    return Trials(
        caption=f"{mode}: {plural(len(table.rows), 'trial')}, at most {table.most_at_once} at the same time, "
        f"{duration(table.seconds)} from the first start to the last end.{_objectives(table)}",
        metric=table.metric,
        rows=tuple(_texts(row) for row in table.rows),
        best=[row.trial_id for row in table.rows].index(table.best),
        more=_more_columns(table),
        front=tuple(number for number, row in enumerate(table.rows) if row.trial_id in table.front),
        planned=tuple(
            (one.group or "all", str(one.planned), str(one.selected), str(one.skipped), one.reason)
            for one in table.planned
        ),
        repeated=tuple(_mean_texts(one) for one in table.repeated),
        charts=tuple(pareto_charts(table, name=f"search-{place}")),
    )


def _objectives(table: SearchTable) -> str:
    """Return what was optimized, as the sentence of a caption; empty for the score alone."""
    words = {"max": "highest", "min": "lowest"}
    names = [f"{words[objective.direction]} {objective.name}" for objective in table.objectives]
    return f" Objectives: {', '.join(names)}; the trials of the Pareto front are marked." if names else ""


def _more_columns(table: SearchTable) -> dict[str, Sequence[str]]:
    rows = table.rows
    columns: dict[str, Sequence[str]] = {}
    if any(row.group for row in rows):
        columns["Group"] = [row.group for row in rows]
    if any(row.parameters is not None for row in rows):
        columns["Parameters"] = ["–" if row.parameters is None else f"{row.parameters:,}" for row in rows]
    for name in table.further_metrics:
        values = [row.metrics.get(name) for row in rows]
        columns[name] = ["–" if value is None else figure(value, 4) for value in values]
    if any(row.energy_wh is not None for row in rows):
        columns["Electricity"] = [
            "–" if row.energy_wh is None else f"{spelled(row.energy_wh)}, {row.energy_kind}" for row in rows
        ]
    return columns


def _mean_texts(one: RepeatedTrial) -> tuple[str, ...]:
    spread = "" if one.score_sd is None else f" ± {figure(one.score_sd, 4)}"
    score = "–" if one.score_mean is None else f"{figure(one.score_mean, 4)}{spread}"
    seconds = "–" if one.seconds_mean is None else duration(one.seconds_mean)
    energy = "–" if one.energy_wh_mean is None else spelled(one.energy_wh_mean)
    return (options_text(one.varied), f"{one.completed} of {len(one.trial_ids)}", score, seconds, energy)


def options_text(varied: Mapping[str, Any]) -> str:
    """Return options as text: `norm batch, steps 10`."""
    return ", ".join(f"{name} {value}" for name, value in varied.items())


def _texts(row: TrialRow) -> tuple[str, ...]:
    state = f"{row.state}: {row.cause}" if row.cause else row.state
    score = "–" if row.score is None else figure(row.score, 4)
    times = (_moment(row.started_at), _moment(row.ended_at), duration(row.seconds) if row.started_at else "–")
    return (options_text(row.varied), state, score, str(row.ranks), *times, row.host or "–")


def _moment(text: str) -> str:
    """Format a time in UTC: `2026-11-25 19:38:07.123`."""
    return text.partition("+")[0].replace("T", " ") or "–"
