"""The files of a search: the grid that people write, its trials, and the table of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medweave_core.contracts.volume import DataClass

TrialState = Literal["completed", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGrid:
    """A search: options of `train` by their names without the dashes, and the values that they may have.

    Attributes:
        options: the same in all trials.
        product: option to its values; every combination is a trial, the last option changes fastest.
        trials: options of each trial, in place of `product`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    product: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    trials: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a search: a complete training, independent of the other trials.

    Attributes:
        trial_id: by its content, whatever its place in the grid.
        options: all options of `train`, including the seed.
        varied: those that differ from trial to trial.
    """

    trial_id: str
    options: Mapping[str, Any]
    varied: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTable:
    """`search.json`: all trials of a search, and the one that was chosen. It contains no patient data.

    Attributes:
        metric: what trials are chosen by; the highest is the best.
        rows: one for each trial, in the order of the grid.
        best: trial id of the chosen one; empty in the result of a single trial.
        most_at_once: trials that ran at the same time, by their starts and ends.
        seconds: from the first start to the last end, s.
    """

    metric: str
    rows: tuple[TrialRow, ...]
    best: str
    most_at_once: int
    seconds: float
    table_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
