"""A table of ranks, time and speed-up: columns that were measured, modeled or published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medweave_core.contracts.progress import duration
from medweave_core.contracts.report import RunReport
from medweave_steps.report.words import figure, plural

NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table: seconds by ranks and the speed-up over one rank, or only bounds of the speed-up.

    Attributes:
        one: seconds by one rank; None if unknown.
        bounds: largest speed-up by ranks, in place of seconds.
        accuracy: share of cases that were classified right, by ranks; empty if unknown.
    """

    heading: str
    seconds: Mapping[int, float] = field(default_factory=dict)
    one: float | None = None
    is_measured: bool = False
    bounds: Mapping[int, float] = field(default_factory=dict)
    accuracy: Mapping[int, float] = field(default_factory=dict)

    @property
    def headings(self) -> tuple[str, ...]:
        """What `texts` returns."""
        if self.bounds:
            return ("Speed-up, at most",)
        return ("Time", "Speed-up", *(["Accuracy"] if self.accuracy else []))

    def speed_up(self, ranks: int) -> float | None:
        """Return the speed-up over one rank; None if it was neither measured nor modeled."""
        if self.bounds:
            return self.bounds.get(ranks)
        if self.one is None or not self.seconds.get(ranks):
            return None
        return self.one / self.seconds[ranks]

    def texts(self, ranks: int) -> tuple[str, ...]:
        """Return the time, the speed-up with its efficiency (1 where twice the ranks take half the time), and the accuracy."""
        value = self.speed_up(ranks)
        speed_up = NONE if value is None else f"{value:.2f} ({value / ranks:.2f})"
        if self.bounds:
            return (speed_up,)
        time = duration(self.seconds[ranks]) if ranks in self.seconds else NONE
        accuracy = figure(self.accuracy[ranks]) if ranks in self.accuracy else NONE
        return (time, speed_up, *([accuracy] if self.accuracy else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The table of run times by ranks.

    Attributes:
        caption: what the columns are.
        ranks: of the rows.
        notes: conditions of the measurements, assumptions of the model, and source of the published columns.
    """

    caption: str
    ranks: tuple[int, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]


def measured_trainings(reports: Sequence[RunReport]) -> dict[int, Mapping[str, Any]]:
    """Return the training facts of `train` reports by number of ranks; the last one of equal numbers."""
    trainings = [
        report.results["training"] for report in reports if report.verb == "train" and "training" in report.results
    ]
    return {_ranks_of(known): known for known in trainings if "step_seconds" in known}


def conditions_of(trainings: Sequence[Mapping[str, Any]], further: Sequence[str] = ()) -> str:
    """Return the conditions of the measurements: steps, batch sizes and processors.

    Args:
        trainings: training facts of `train` reports.
        further: other measurements, in words.
    """
    parts = []
    for known in sorted(trainings, key=_ranks_of):
        steps = plural(int(known.get("steps_done", 0)), "step")
        parts.append(f"{plural(_ranks_of(known), 'rank')}: {steps} of {known.get('batch_size')} volumes or patches")
    cpus = sorted({str(known.get("host_cpu", "an unknown processor")) for known in trainings})
    on = f" On {', '.join(cpus)}." if cpus else ""
    return (
        f"Measured: {'; '.join([*parts, *further])}.{on} The time of a single training is the sum of its steps, without start-up "
        "and validation"
    )


def _ranks_of(training: Mapping[str, Any]) -> int:
    return int(training.get("world_size", 1))
