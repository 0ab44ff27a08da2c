"""The table of a search's trials: options, results, times and machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts import codec
from medweave_core.contracts.progress import duration
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.search import SearchTable, TrialRow
from medweave_steps.report.words import figure, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The table of one search.

    Attributes:
        caption: its mode, and how much of it overlapped.
        metric: what its trials were chosen by.
        rows: options, state, score, ranks, start, end, time and machine of each trial, as texts.
        best: place of the chosen one.
    """

    caption: str
    metric: str
    rows: tuple[tuple[str, ...], ...]
    best: int


def trials_of(reports: Sequence[RunReport]) -> list[Trials]:
    """Return a table for each search whose trials were all gathered, by the run reports of `search`."""
    gathered = [report.results for report in reports if report.verb == "search" and report.results.get("best")]
    return [_of(codec.from_json(SearchTable, known, where="the run report of a search")) for known in gathered]


def _of(table: SearchTable) -> Trials:
    ranks = max(row.ranks for row in table.rows)
    mode = "Experiment parallel" if ranks == 1 else f"Data parallel, {plural(ranks, 'rank')} each"
    return Trials(
        caption=f"{mode}: {plural(len(table.rows), 'trial')}, at most {table.most_at_once} at the same time, "
        f"{duration(table.seconds)} from the first start to the last end.",
        metric=table.metric,
        rows=tuple(_texts(row) for row in table.rows),
        best=[row.trial_id for row in table.rows].index(table.best),
    )


def _texts(row: TrialRow) -> tuple[str, ...]:
    options = ", ".join(f"{name} {value}" for name, value in row.varied.items())
    state = f"{row.state}: {row.cause}" if row.cause else row.state
    score = "–" if row.score is None else figure(row.score, 4)
    times = (_moment(row.started_at), _moment(row.ended_at), duration(row.seconds) if row.started_at else "–")
    return (options, state, score, str(row.ranks), *times, row.host or "–")


def _moment(text: str) -> str:
    """Format a time in UTC: `2026-11-25 19:38:07.123`."""
    return text.partition("+")[0].replace("T", " ") or "–"
