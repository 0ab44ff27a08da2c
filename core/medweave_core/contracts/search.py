"""The files of a search: the grid that people write, its trials, and the table of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medweave_core.contracts.codec import omitted
from medweave_core.contracts.volume import DataClass

TrialState = Literal["completed", "failed", "stopped"]
CLASS_METRICS = ("validation_log_loss", "validation_macro_f1", "validation_weighted_f1")
"""Metrics of a classification that the tables of trials show, besides the one that trials are chosen by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGrid:
    """A search: options of `train` by their names without the dashes, and the values that they may have.

    Attributes:
        options: the same in all trials.
        product: option to its values; every combination is a trial, the last option changes fastest. A key such as
            `units,hidden-layers` names several options, and each of its values is a list of theirs. Values may be in named groups.
        trials: options of each trial, in place of `product`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    product: Mapping[str, tuple[Any, ...] | Mapping[str, tuple[Any, ...]]] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a search: a complete training, independent of the other trials.

    Attributes:
        trial_id: by its content, whatever its place in the grid; of a repeat also by its number.
        options: all options of `train`, including the seed.
        varied: those that differ from trial to trial.
        group: group of its values in the grid; absent in a grid without groups.
    """

    trial_id: str
    options: Mapping[str, Any]
    varied: Mapping[str, Any]
    group: str = omitted("")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """The result of a trial.

    Attributes:
        trial_id: of the trial.
        varied: options that differ between trials.
        seed: seed of weights, patches and augmentation.
        state: completed; failed, with its cause; stopped early by the scheduler of the search.
        score: the metric that trials are chosen by; of a stopped one the last that it reached; null without any.
        metrics: all metrics of the model on the validation split.
        cause: error message of `train`; empty without a failure.
        exit_code: of `train`; below 0 the number of the signal that ended it; null if it was not started.
        started_at: UTC, ISO 8601; empty if it was not started.
        ended_at: UTC, ISO 8601.
        seconds: wall time, s.
        epochs: number of finished epochs.
        host: machine that it ran on.
        weights_sha256: of the trained weights; empty without a model.
        ranks: processes that trained it.
        energy_wh: electricity of the training, Wh; absent if unknown.
        energy_kind: measured by counters of the whole machine, or modelled in part or as a whole; absent if unknown.
        group: group of its values in the grid; absent in a grid without groups.
        parameters: weights and biases of the network; absent without a model.
    """

    trial_id: str
    varied: Mapping[str, Any]
    seed: int
    state: TrialState
    score: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    cause: str = ""
    exit_code: int | None = None
    started_at: str = ""
    ended_at: str = ""
    seconds: float = 0.0
    epochs: int = 0
    host: str = ""
    weights_sha256: str = ""
    ranks: int = 1
    energy_wh: float | None = omitted(None)
    energy_kind: Literal["measured", "modelled"] | None = omitted(None)
    group: str = omitted("")
    parameters: int | None = omitted(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A figure that a search optimizes.

    Attributes:
        name: score (the metric of the search), seconds (wall time of the trial) or wh (electricity of its training).
        direction: max if larger is better, min if smaller is.
    """

    name: str
    direction: Literal["max", "min"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTrial:
    """Trials with the same options and different seeds. Means are over the completed ones; null if one of them has no value.

    Attributes:
        trial_ids: of all its trials.
        varied: options that differ between repeated trials.
        completed: number of completed trials.
        score_mean, score_sd: mean of the score, and its standard deviation with the divisor n − 1.
        seconds_mean: wall time, s.
        energy_wh_mean: electricity, Wh.
    """

    trial_ids: tuple[str, ...]
    varied: Mapping[str, Any]
    completed: int
    score_mean: float | None
    score_sd: float | None
    seconds_mean: float | None
    energy_wh_mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrials:
    """The combinations of options in one group of a grid: how many there are, and how many were trained.

    Attributes:
        group: name of the group; empty in a grid without groups.
        planned: combinations of the grid.
        selected: those that the search trained.
        skipped: the others.
        reason: why they were skipped; empty if none was.
    """

    group: str
    planned: int
    selected: int
    skipped: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTable:
    """`search.json`: all trials of a search, and the one that was chosen. It contains no patient data.

    Attributes:
        metric: what trials are chosen by; the highest is the best, unless `objectives` has another first one.
        rows: one for each trial, in the order of the grid; with repeats, first one of each combination, then their repeats.
        best: trial id of the chosen one; empty in the result of a single trial.
        most_at_once: trials that ran at the same time, by their starts and ends.
        seconds: from the first start to the last end, s.
        repeated: the means of each combination over its repeats; absent without repeats.
        objectives: what was optimized, the first decides which model is chosen; absent for the score alone.
        front: trial ids of the Pareto front: no other combination is at least as good in all objectives and better in one. A
            combination with repeats has the id of its first trial. Absent without `objectives`, and if no trial has all figures.
        planned: planned, selected and skipped combinations of each group of the grid; absent without groups and selection.
    """

    metric: str
    rows: tuple[TrialRow, ...]
    best: str
    most_at_once: int
    seconds: float
    repeated: tuple[RepeatedTrial, ...] = omitted(())
    objectives: tuple[Objective, ...] = omitted(())
    front: tuple[str, ...] = omitted(())
    planned: tuple[PlannedTrials, ...] = omitted(())
    table_version: Literal[1] = 1
    data_class: DataClass = "aggregate"

    @property
    def further_metrics(self) -> list[str]:
        """Return the names of `CLASS_METRICS` that a trial has and that is not `metric`."""
        return [name for name in CLASS_METRICS if name != self.metric and any(name in row.metrics for row in self.rows)]
