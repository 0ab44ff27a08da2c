"""The table of a search's trials: options, results, times and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        energy: electricity of each trial, as text; empty if that of no trial is known.
        front: places of the rows on the Pareto front; with repeats of rows of `repeated`.
        repeated: options, completed trials, score, time and electricity of each combination, as texts; empty without repeats.
        charts: the first objective over each of the others; none with one objective.
    """

    caption: str
    metric: str
    rows: tuple[tuple[str, ...], ...]
    best: int
    energy: tuple[str, ...] = ()
    front: tuple[int, ...] = ()
    repeated: tuple[tuple[str, ...], ...] = ()
    charts: tuple[Chart, ...] = ()


def trials_of(reports: Sequence[RunReport]) -> list[Trials]:
    """Return a table for each search whose trials were all gathered, by the run reports of `search`."""
    gathered = [report.results for report in reports if report.verb == "search" and report.results.get("best")]
    tables = [codec.from_json(SearchTable, known, where="the run report of a search") for known in gathered]
    return [_of(table, place) for place, table in enumerate(tables)]


def _of(table: SearchTable, place: int) -> Trials:
    ranks = max(row.ranks for row in table.rows)
    mode = "Experiment parallel" if ranks == 1 else f"Data parallel, {plural(ranks, 'rank')} each"
    return Trials(
        caption=f"{mode}: {plural(len(table.rows), 'trial')}, at most {table.most_at_once} at the same time, "
        f"{duration(table.seconds)} from the first start to the last end.{_objectives(table)}",
        metric=table.metric,
        rows=tuple(_texts(row) for row in table.rows),
        best=[row.trial_id for row in table.rows].index(table.best),
        energy=_energy(table.rows) if any(row.energy_wh is not None for row in table.rows) else (),
        front=tuple(number for number, row in enumerate(table.rows) if row.trial_id in table.front),
        repeated=tuple(_mean_texts(one) for one in table.repeated),
        charts=tuple(pareto_charts(table, name=f"search-{place}")),
    )


def _objectives(table: SearchTable) -> str:
    """Return what was optimized, as the sentence of a caption; empty for the score alone."""
    words = {"max": "highest", "min": "lowest"}
    names = [f"{words[objective.direction]} {objective.name}" for objective in table.objectives]
    return f" Objectives: {', '.join(names)}; the trials of the Pareto front are marked." if names else ""


def _energy(rows: Sequence[TrialRow]) -> tuple[str, ...]:
    return tuple("–" if row.energy_wh is None else f"{spelled(row.energy_wh)}, {row.energy_kind}" for row in rows)


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
