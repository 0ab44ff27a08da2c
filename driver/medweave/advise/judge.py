"""Derive advice from measurements: a scaling law per strategy, the ordered options, the checks and the unseen effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medweave.advise import model
from medweave.advise.document import STRATEGIES, Advice, CalibrationCheck, Measured, MeasuredRow, Option, StrategyName
from medweave.advise.model import Law, Timed

ALONE, SIDE_BY_SIDE = "single", "search"


def advise(measured: Measured, *, calibrate_up_to: int | None = None) -> Advice:
    """Return the advice for some measurements.

    Args:
        measured: measurements that `read.py` has checked.
        calibrate_up_to: rows on more GPUs are only compared with their prediction; None: all rows are used for calibration.
    """
    used = tuple(row for row in measured.rows if calibrate_up_to is None or row.gpus <= calibrate_up_to)
    laws: dict[StrategyName, Law] = {name: law for name in STRATEGIES if (law := law_of(name, used, measured))}
    options = sorted(_options(measured, laws, used), key=lambda option: (not option.fits, _finish(option), option.gpus))
    soonest = next((option for option in options if option.fits), None)
    others = [option for option in options if option.fits and option is not soonest]
    return Advice(
        title=measured.title,
        soonest=soonest,
        is_sure=soonest is not None
        and all(option.low_s + option.queue_wait_s > soonest.high_s + soonest.queue_wait_s for option in others),
        measure_next=_next(soonest, options),
        options=tuple(options),
        not_judged=tuple(_not_judged(measured, laws, used)),
        checks=tuple(_checks(measured, laws, used)),
        method=model.METHOD,
        unseen=tuple(_unseen(measured, laws, used)),
    )


def no_advice() -> Advice:
    """Return the advice without measurements: no option is judged."""
    return Advice(
        title="", soonest=None, is_sure=False, measure_next="", options=(), not_judged=(), checks=(), method="", unseen=()
    )  # fmt: skip


def law_of(name: str, rows: Sequence[MeasuredRow], measured: Measured) -> Law | None:
    """Return the scaling law of a strategy by its rows; None if it lacks a row with more than one GPU that it needs.

    On one GPU all strategies are equal, so a strategy without such a row uses those of the others.
    """
    of_strategy = [row for row in rows if row.strategy == name]
    alone = [row for row in of_strategy if row.gpus == 1] or [row for row in rows if row.gpus == 1]
    used = alone if name == ALONE else [*alone, *(row for row in of_strategy if row.gpus > 1)]
    if not used or (name not in (ALONE, SIDE_BY_SIDE) and all(row.gpus == 1 for row in used)):
        return None
    has_parts = all(row.elapsed_s is None for row in used)
    share: Callable[[int], float] = model.divided
    least: Callable[[int], float] = model.divided
    if name == SIDE_BY_SIDE:
        share = model.side_by_side(measured.num_trials, measured.trial_s)
        least = model.at_best(measured.num_trials, measured.trial_s)
    times = [timed(row, measured) for row in used]
    per_gpu = {(row.samples_per_step or 0) / row.gpus for row in used}
    grows = len({row.gpus for row in used}) > 1 and len(per_gpu) == 1 and has_parts
    return Law(rows=times, share=share, least_share=least, has_parts=has_parts, fewer_steps=grows)


def timed(row: MeasuredRow, measured: Measured) -> Timed:
    """Return a row as time of the whole workload; the parts of a step are multiplied by the number of sequential steps."""
    if row.elapsed_s is not None:
        return Timed(gpus=row.gpus, divided_s=row.elapsed_s)
    assert row.compute_s is not None, "read.py requires one or the other"
    assert row.samples_per_step is not None, "read.py requires it"
    assert measured.samples_per_trial is not None, "read.py requires it"
    trainings = float(measured.num_trials)
    if row.strategy == SIDE_BY_SIDE:
        trainings *= model.side_by_side(measured.num_trials, measured.trial_s)(row.gpus)
    steps = trainings * measured.samples_per_trial / row.samples_per_step
    return Timed(
        gpus=row.gpus,
        divided_s=steps * row.compute_s,
        communication_s=steps * row.communication_s,
        data_s=steps * row.data_s,
    )


def _options(measured: Measured, laws: dict[StrategyName, Law], rows: Sequence[MeasuredRow]) -> Iterator[Option]:
    for name, law in laws.items():
        for gpus in sorted({1} if name == ALONE else set(measured.gpus) - {1}):
            yield _option(name, gpus, law, measured, rows)


def _option(name: StrategyName, gpus: int, law: Law, measured: Measured, rows: Sequence[MeasuredRow]) -> Option:
    estimate, alone = law.at(gpus), law.at(1).elapsed_s
    nearest = _nearest(name, gpus, rows)
    memory = max((row.memory_mib for row in nearest if row.memory_mib is not None), default=None)
    fits = memory is None or measured.gpu_memory_mib is None or memory <= measured.gpu_memory_mib
    return Option(
        strategy=name,
        gpus=gpus,
        elapsed_s=estimate.elapsed_s,
        low_s=estimate.low_s,
        high_s=estimate.high_s,
        queue_wait_s=max((row.queue_wait_s for row in nearest), default=0.0),
        efficiency=alone / estimate.elapsed_s / gpus,
        efficiency_low=alone / estimate.high_s / gpus,
        efficiency_high=alone / estimate.low_s / gpus,
        is_measured=estimate.is_measured,
        fits=fits,
    )


def _nearest(name: str, gpus: int, rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows that estimate queue wait and memory; of a search all its rows, since each trial requests one GPU."""
    candidates = [row for row in rows if row.strategy == name or row.gpus == 1]
    if name == SIDE_BY_SIDE:
        return candidates
    most = max((row.gpus for row in candidates if row.gpus <= gpus), default=0)
    return [row for row in candidates if row.gpus == most]


def _finish(option: Option) -> float:
    """Return its end in s after the submission, rounded to 0.1 %, so that of equal options the one with fewer GPUs comes first."""
    return float(f"{option.elapsed_s + option.queue_wait_s:.3e}")


def _next(soonest: Option | None, options: Sequence[Option]) -> str:
    if soonest is None or soonest.is_measured:
        return ""
    same = [option for option in options if option.strategy == soonest.strategy]
    tried = [option.gpus for option in same if option.is_measured]
    free = sorted(option.gpus for option in same if not option.is_measured)
    between = [gpus for gpus in free if gpus > max(tried, default=1)]
    return f"{soonest.strategy} on {between[0] if between else soonest.gpus} GPUs"


def _not_judged(measured: Measured, laws: dict[StrategyName, Law], rows: Sequence[MeasuredRow]) -> Iterator[str]:
    for name in STRATEGIES:
        if name not in laws and any(row.strategy == name for row in measured.rows):
            yield f"{name}: needs calibrated rows on one GPU and on more than one GPU"
    if not any(row.gpus == 1 for row in rows):
        yield "single: no row on one GPU; efficiencies use an estimate for one GPU"


def _checks(
    measured: Measured, laws: dict[StrategyName, Law], used: Sequence[MeasuredRow]
) -> Iterator[CalibrationCheck]:
    for row in measured.rows:
        law = laws.get(row.strategy)
        if row in used or law is None:
            continue
        estimate, seen = law.at(row.gpus), timed(row, measured).elapsed_s
        yield CalibrationCheck(
            strategy=row.strategy,
            gpus=row.gpus,
            measured_s=seen,
            elapsed_s=estimate.elapsed_s,
            low_s=estimate.low_s,
            high_s=estimate.high_s,
            error=estimate.elapsed_s / seen - 1,
            is_inside=estimate.low_s <= seen <= estimate.high_s,
        )


def _unseen(measured: Measured, laws: dict[StrategyName, Law], rows: Sequence[MeasuredRow]) -> Iterator[str]:
    most = max((row.gpus for row in rows), default=1)
    parts = [row for row in rows if row.elapsed_s is None]
    last = max((row.gpus for row in parts), default=0)
    if parts:
        yield f"shared file system: data wait is measured only up to {_gpus(last)} that read in parallel"
    else:
        yield (
            f"shared file system: total times up to {_gpus(most)} do not show the data wait, nor the number of "
            "readers at which it grows"
        )
    together = [row.gpus for row in rows if row.strategy not in (ALONE, SIDE_BY_SIDE)]
    if together and max(together) <= measured.gpus_per_node < max(measured.gpus):
        yield f"network between nodes: no training used more than the {measured.gpus_per_node} GPUs of one node"
    if SIDE_BY_SIDE in laws and measured.num_trials > 1 and not measured.trial_s:
        yield "trial durations: assumed equal; unequal trials leave GPUs idle at the end"
    if any(gpus > most for gpus in measured.gpus):
        yield f"queue wait for more than {most} GPUs: assumed to equal that for fewer GPUs"
    if measured.gpu_memory_mib is None or all(row.memory_mib is None for row in rows):
        yield "GPU memory: unknown whether the model fits"


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"
