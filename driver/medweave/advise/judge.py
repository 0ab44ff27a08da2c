"""From measurements to an advice: each strategy's law, the options in their order, what was held back, what is not seen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medweave.advise import model
from medweave.advise.document import STRATEGIES, Advice, Check, Measured, MeasuredRow, Option, StrategyName
from medweave.advise.model import Law, Timed

ALONE, SIDE_BY_SIDE = "single", "search"


def advise(measured: Measured, *, calibrate_up_to: int | None = None) -> Advice:
    """The advice.

    Args:
        measured: as `read.py` has checked it.
        calibrate_up_to: rows on more GPUs are only compared with what the others say of them; None: every row calibrates.
    """
    used = tuple(row for row in measured.rows if calibrate_up_to is None or row.gpus <= calibrate_up_to)
    laws: dict[StrategyName, Law] = {name: law for name in STRATEGIES if (law := law_of(name, used, measured))}
    options = sorted(_options(measured, laws, used), key=lambda each: (not each.fits, _finish(each), each.gpus))
    soonest = next((each for each in options if each.fits), None)
    others = [each for each in options if each.fits and each is not soonest]
    return Advice(
        title=measured.title,
        soonest=soonest,
        is_sure=soonest is not None
        and all(each.low_s + each.queue_wait_s > soonest.high_s + soonest.queue_wait_s for each in others),
        measure_next=_next(soonest, options),
        options=tuple(options),
        not_judged=tuple(_not_judged(measured, laws, used)),
        checks=tuple(_checks(measured, laws, used)),
        method=model.METHOD,
        unseen=tuple(_unseen(measured, laws, used)),
    )


def law_of(name: str, rows: Sequence[MeasuredRow], measured: Measured) -> Law | None:
    """What the rows say of a strategy; None where it has none with more than one GPU that it would need.

    On one GPU all strategies are the same, so a strategy without a row there takes those of the others.
    """
    own = [row for row in rows if row.strategy == name]
    alone = [row for row in own if row.gpus == 1] or [row for row in rows if row.gpus == 1]
    mine = alone if name == ALONE else [*alone, *(row for row in own if row.gpus > 1)]
    if not mine or (name not in (ALONE, SIDE_BY_SIDE) and all(row.gpus == 1 for row in mine)):
        return None
    has_parts = all(row.elapsed_s is None for row in mine)
    share: Callable[[int], float] = model.divided
    least: Callable[[int], float] = model.divided
    if name == SIDE_BY_SIDE:
        share = model.side_by_side(measured.num_trials, measured.trial_s)
        least = model.at_best(measured.num_trials, measured.trial_s)
    times = [timed(row, measured) for row in mine]
    per_gpu = {(row.samples_per_step or 0) / row.gpus for row in mine}
    grows = len({row.gpus for row in mine}) > 1 and len(per_gpu) == 1 and has_parts
    return Law(rows=times, share=share, least_share=least, has_parts=has_parts, fewer_steps=grows)


def timed(row: MeasuredRow, measured: Measured) -> Timed:
    """A row as time of the whole work; of the parts of a step, that times the steps that come one after the other."""
    if row.elapsed_s is not None:
        return Timed(gpus=row.gpus, divided_s=row.elapsed_s)
    assert row.compute_s is not None, "read.py asks for one or the other"
    assert row.samples_per_step is not None, "read.py asks for it"
    assert measured.samples_per_trial is not None, "read.py asks for it"
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
    found, alone = law.at(gpus), law.at(1).elapsed_s
    nearest = _nearest(name, gpus, rows)
    memory = max((row.memory_mib for row in nearest if row.memory_mib is not None), default=None)
    fits = memory is None or measured.gpu_memory_mib is None or memory <= measured.gpu_memory_mib
    return Option(
        strategy=name,
        gpus=gpus,
        elapsed_s=found.elapsed_s,
        low_s=found.low_s,
        high_s=found.high_s,
        queue_wait_s=max((row.queue_wait_s for row in nearest), default=0.0),
        efficiency=alone / found.elapsed_s / gpus,
        efficiency_low=alone / found.high_s / gpus,
        efficiency_high=alone / found.low_s / gpus,
        is_measured=found.is_measured,
        fits=fits,
    )


def _nearest(name: str, gpus: int, rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """The rows that are asked for wait and memory: a trial of a search asks for one GPU, as its own rows on any number do."""
    own = [row for row in rows if row.strategy == name or row.gpus == 1]
    if name == SIDE_BY_SIDE:
        return own
    most = max((row.gpus for row in own if row.gpus <= gpus), default=0)
    return [row for row in own if row.gpus == most]


def _finish(option: Option) -> float:
    """When it ends, s after its submission; to a thousandth, so that of equals the one with fewer GPUs comes first."""
    return float(f"{option.elapsed_s + option.queue_wait_s:.3e}")


def _next(soonest: Option | None, options: Sequence[Option]) -> str:
    if soonest is None or soonest.is_measured:
        return ""
    tried = [each.gpus for each in options if each.strategy == soonest.strategy and each.is_measured]
    free = sorted(each.gpus for each in options if each.strategy == soonest.strategy and not each.is_measured)
    between = [gpus for gpus in free if gpus > max(tried, default=1)]
    return f"{soonest.strategy} on {between[0] if between else soonest.gpus} GPUs"


def _not_judged(measured: Measured, laws: dict[StrategyName, Law], rows: Sequence[MeasuredRow]) -> Iterator[str]:
    for name in STRATEGIES:
        if name not in laws and any(row.strategy == name for row in measured.rows):
            yield f"{name}: no calibrated row has it on more than one GPU, or on one"
    if not any(row.gpus == 1 for row in rows):
        yield "single: no row on one GPU; efficiencies are by what the model expects there"


def _checks(measured: Measured, laws: dict[StrategyName, Law], used: Sequence[MeasuredRow]) -> Iterator[Check]:
    for row in measured.rows:
        law = laws.get(row.strategy)
        if row in used or law is None:
            continue
        found, seen = law.at(row.gpus), timed(row, measured).elapsed_s
        yield Check(
            strategy=row.strategy,
            gpus=row.gpus,
            measured_s=seen,
            elapsed_s=found.elapsed_s,
            low_s=found.low_s,
            high_s=found.high_s,
            error=found.elapsed_s / seen - 1,
            is_inside=found.low_s <= seen <= found.high_s,
        )


def _unseen(measured: Measured, laws: dict[StrategyName, Law], rows: Sequence[MeasuredRow]) -> Iterator[str]:
    most = max((row.gpus for row in rows), default=1)
    parts = [row for row in rows if row.elapsed_s is None]
    last = max((row.gpus for row in parts), default=0)
    if parts:
        yield f"the shared file system: waiting for data is known up to {_gpus(last)} reading at once, and not beyond"
    else:
        yield (
            f"the shared file system: whole times up to {_gpus(most)} do not tell what part of them is waiting for data, "
            "and not from how many readers on it grows"
        )
    together = [row.gpus for row in rows if row.strategy not in (ALONE, SIDE_BY_SIDE)]
    if together and max(together) <= measured.gpus_per_node < max(measured.gpus):
        yield f"the network between nodes: no training was spread over more than the {measured.gpus_per_node} GPUs of a node"
    if SIDE_BY_SIDE in laws and measured.num_trials > 1 and not measured.trial_s:
        yield "how much the trials differ in length: they count as equal, so the last of them may leave GPUs idle"
    if any(gpus > most for gpus in measured.gpus):
        yield f"the queue's wait for more than {most} GPUs: it counts as that for fewer"
    if measured.gpu_memory_mib is None or all(row.memory_mib is None for row in rows):
        yield "whether the memory of a GPU is enough"


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"
