"""The data that `medweave advise` reads and writes; the JSON Schemas are generated from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from medweave_core.contracts.schema import schema_for

MEASURED, ADVICE = "measured-steps", "advice"
StrategyName = Literal["single", "ddp", "local-sgd", "hybrid", "compss", "search"]
STRATEGIES: tuple[StrategyName, ...] = get_args(StrategyName)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measurement: the time of the whole workload, or a step by its parts. Repeats are separate rows.

    Attributes:
        strategy: how the workload was distributed; `single` is one GPU, `search` runs one trial per GPU at the same time.
        gpus: GPUs that took part, over all nodes.
        elapsed_s: wall time of the whole workload, s; instead of the parts below.
        compute_s: computing in one optimiser step of one training, mean, s.
        communication_s: waiting for the other ranks in such a step, mean, s.
        data_s: waiting for the next batch in such a step, mean, s.
        samples_per_step: samples of such a step, over all GPUs of the training; with `compute_s`.
        queue_wait_s: from the submission until the GPUs were allocated, s.
        memory_mib: peak memory of one GPU, MiB; null if it was not measured.
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
    """A few measured steps or runs of one workload, and the options to judge.

    Attributes:
        title: description of the measurement, for people.
        gpus: available numbers of GPUs, which are judged.
        gpus_per_node: GPUs of one node.
        rows: the measurements.
        num_trials: trainings of the workload; all strategies but `search` run them one after the other.
        samples_per_trial: training samples that one of them sees in all its steps; needed if rows have the parts of a step.
        trial_s: durations of the trials on one GPU each, in the order in which they start, s; empty if unknown.
        gpu_memory_mib: memory of one GPU, MiB; null if unknown.
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
    """One option to run the workload.

    Attributes:
        strategy: how it is distributed.
        gpus: number of GPUs.
        elapsed_s: wall time of the whole workload, s: measured, or estimated by the model.
        low_s: lower bound of that time, s.
        high_s: upper bound of that time, s.
        queue_wait_s: wait before that, as measured on so many GPUs or the next fewer, s.
        efficiency: time on one GPU, divided by this time and by the number of GPUs.
        efficiency_low: the same for `high_s`.
        efficiency_high: the same for `low_s`.
        is_measured: the time is a mean of rows, not an estimate.
        fits: whether the memory of a GPU suffices, as far as it is known.
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
class CalibrationCheck:
    """A row that was not used for calibration, and its prediction by the model.

    Attributes:
        strategy: strategy of the row.
        gpus: number of GPUs of the row.
        measured_s: measured time, s.
        elapsed_s: predicted time, s.
        low_s: predicted lower bound, s.
        high_s: predicted upper bound, s.
        error: relative error of the prediction; below 0 if it is too short.
        is_inside: whether the measured time is within the bounds.
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
class Stage:
    """Consecutive partitions of a network on one GPU.

    Attributes:
        gpu: number of the GPU, from 0, as in the placement.
        partitions: names, in the order in which they run.
        load: sum of their loads.
        share: of the load of the network.
        memory_mib: memory of the stage in training, MiB; 0 if unknown.
    """

    gpu: int
    partitions: tuple[str, ...]
    load: float
    share: float
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAdvice:
    """What `train --strategy hybrid` brings with the stages of a placement, compared with ddp on the same GPUs.

    Attributes:
        stages: in the order in which they run, one for each GPU.
        unit: of the loads.
        speed_up_bound: the stages are never faster than one GPU by more than this: total load over the largest stage.
        ddp_speed_up_bound: the same for ddp on as many GPUs: their number, less if one is slower than the others.
        memory_mib: memory of the whole network in training, MiB; 0 if unknown.
        gpu_memory_mib: memory of one GPU, the smallest one; null if unknown.
        fits_one_gpu: whether the whole network fits this memory; null if one of them is unknown.
    """

    stages: tuple[Stage, ...]
    unit: str
    speed_up_bound: float
    ddp_speed_up_bound: float
    memory_mib: float
    gpu_memory_mib: float | None
    fits_one_gpu: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The strategy and number of GPUs that finish soonest, by a model of a few measurements, and how certain that is.

    Attributes:
        title: description of the measurement.
        soonest: the option that is expected to end first, queue wait included; null if none can be judged or fits.
        is_sure: no other option's interval reaches below that of `soonest`.
        measure_next: the most informative next measurement for `soonest`, in words; empty if it is measured.
        options: all judged options, the soonest first.
        not_judged: strategies without the needed rows, with the missing rows.
        checks: rows on more GPUs than the model was calibrated on.
        method: how estimates and intervals are computed, in words; empty without measurements.
        unseen: effects that these measurements cannot show, in words.
        hybrid: what the stages of each placement bring.
    """

    title: str
    soonest: Option | None
    is_sure: bool
    measure_next: str
    options: tuple[Option, ...]
    not_judged: tuple[str, ...]
    checks: tuple[CalibrationCheck, ...]
    method: str
    unseen: tuple[str, ...]
    hybrid: tuple[StageAdvice, ...] = ()


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file that `medweave advise` reads or writes."""
    return schema_for(name, {MEASURED: Measured, ADVICE: Advice}[name])
