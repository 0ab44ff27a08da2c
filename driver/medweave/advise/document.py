"""What `medweave advise` reads and writes, as plain data; the JSON Schemas are made from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from medweave_core.contracts.schema import schema_for

MEASURED, ADVICE = "measured-steps", "advice"
StrategyName = Literal["single", "ddp", "local-sgd", "compss", "search"]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measurement: the whole work by its time, or a step by its parts. Repeats are rows of their own.

    Attributes:
        strategy: how the work was spread; `single` is one GPU, `search` has one trial per GPU side by side.
        gpus: GPUs that took part, over all nodes.
        elapsed_s: time of the whole work by the clock, s; in place of the parts below.
        compute_s: computing in one optimiser step of one training, mean, s.
        communication_s: waiting for the other ranks in such a step, mean, s.
        data_s: waiting for the next batch in such a step, mean, s.
        samples_per_step: samples of such a step, over all GPUs of the training; with `compute_s`.
        queue_wait_s: from the submission until it had its GPUs, s.
        memory_mib: most memory of one GPU, MiB; null where it was not looked at.
    """

    strategy: StrategyName
    gpus: int
    elapsed_s: float | None = None
    compute_s: float | None = None
    communication_s: float = 0.0
    data_s: float = 0.0
    samples_per_step: int | None = None
    queue_wait_s: float = 0.0
    memory_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A few measured steps or runs of one work, and what is asked about it.

    Attributes:
        title: what was measured, for people.
        gpus: numbers of GPUs that could be had, to be judged.
        gpus_per_node: GPUs of one node.
        rows: the measurements.
        num_trials: trainings that the work has; all but `search` do them one after the other.
        samples_per_trial: training samples that one of them sees in all its steps; needed where rows tell the parts of a step.
        trial_s: durations of the trials on one GPU each, in the order in which they start, s; empty where they are not known.
        gpu_memory_mib: memory of one GPU, MiB; null where it is not known.
    """

    title: str
    gpus: tuple[int, ...]
    gpus_per_node: int
    rows: tuple[MeasuredRow, ...]
    num_trials: int = 1
    samples_per_trial: int | None = None
    trial_s: tuple[float, ...] = ()
    gpu_memory_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to do the work.

    Attributes:
        strategy: how it is spread.
        gpus: over so many GPUs.
        elapsed_s: time of the whole work from its start, s: measured, or what the model expects.
        low_s: it takes no less, s.
        high_s: it takes no more, s.
        queue_wait_s: wait before that, as measured on so many GPUs or the next fewer, s.
        efficiency: time on one GPU, by this time and by the number of GPUs.
        efficiency_low: the same for `high_s`.
        efficiency_high: the same for `low_s`.
        is_measured: it is the mean of rows, not an estimate.
        fits: whether the memory of a GPU is enough, as far as that is known.
    """

    strategy: StrategyName
    gpus: int
    elapsed_s: float
    low_s: float
    high_s: float
    queue_wait_s: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    is_measured: bool
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row that the model was not shown, beside what the model says of it.

    Attributes:
        strategy: of the row.
        gpus: of the row.
        measured_s: what the row says, s.
        elapsed_s: what the model says, s.
        low_s: it takes no less, says the model, s.
        high_s: it takes no more, says the model, s.
        error: by how much the model is off, as a share of what was measured; below 0 where it is too quick.
        is_inside: the row lies in the interval.
    """

    strategy: StrategyName
    gpus: int
    measured_s: float
    elapsed_s: float
    low_s: float
    high_s: float
    error: float
    is_inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which strategy on how many GPUs finishes soonest, by a model of a few measurements, and how far to trust it.

    Attributes:
        title: what was measured.
        soonest: the option that is expected to end first, with its wait; null where none can be judged or fits.
        is_sure: no other option's interval reaches below that of `soonest`.
        measure_next: the measurement that would tell most about `soonest`, in words; empty where it is measured.
        options: all that could be judged, the soonest first.
        not_judged: strategies without the rows that they would need, each with what is missing.
        checks: rows on more GPUs than the model was calibrated on.
        method: where estimates and intervals come from, in words.
        unseen: what these measurements cannot show, in words.
    """

    title: str
    soonest: Option | None
    is_sure: bool
    measure_next: str
    options: tuple[Option, ...]
    not_judged: tuple[str, ...]
    checks: tuple[Check, ...]
    method: str
    unseen: tuple[str, ...]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a file that `medweave advise` reads or writes."""
    return schema_for(name, {MEASURED: Measured, ADVICE: Advice}[name])
