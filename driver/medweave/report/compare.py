"""Compare a run with another one: time, memory, energy and cost of each step and of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from medweave.project.prices import Prices, amount_text
from medweave.report.energy import Model, energy_wh, total
from medweave.report.timeline import short_duration
from medweave_core.contracts.energy import spelled
from medweave_core.runlog.history import Run
from medweave_core.runlog.jobs import Job

SAME = 0.05  # smaller relative differences of times and energies are not shown
NONE = "–"
REUSED = "cache hit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both runs as text.

    Attributes:
        change: relative change; empty if it is small or unknown.
        is_worse: whether the change is for the worse; None without a change.
    """

    name: str
    now: str
    before: str
    change: str = ""
    is_worse: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """The resources of all jobs of one step.

    Attributes:
        seconds: sum of wall times, s; None if one is unknown.
    """

    where: str
    state: str
    num_jobs: int
    seconds: float | None
    cpu_seconds: float | None
    peak_memory_mib: float | None
    energy_wh: float | None


def totals_by_step(run: Run, model: Model) -> dict[str, StepTotals]:
    """Return the totals of each step in the order of the run; place and state are those of the last attempt."""
    by_step: dict[str, list[Job]] = {}
    for job in run.jobs:
        by_step.setdefault(job.step, []).append(job)
    deployments: Mapping[str, str] = run.facts.get("deployments") or {}
    return {
        step: StepTotals(
            where=", ".join(dict.fromkeys(job.where for job in jobs)),
            state=_state(jobs),
            num_jobs=len({job.name for job in jobs}),
            seconds=_sum(job.duration_s for job in jobs),
            cpu_seconds=_sum(0.0 if job.reused_from else job.cpu_seconds for job in jobs),
            peak_memory_mib=max((job.peak_memory_mib for job in jobs if job.peak_memory_mib), default=None),
            energy_wh=_sum(energy_wh(job, deployments, model) for job in jobs),
        )
        for step, jobs in by_step.items()
    }


def steps(now: Run, before: Run, model: Model) -> list[Row]:
    """Return a row for each step of either run: place, state and time."""
    new, old = totals_by_step(now, model), totals_by_step(before, model)
    rows = []
    for step in [*new, *(step for step in old if step not in new)]:
        one, other = new.get(step), old.get(step)
        change, is_worse = "", None
        if one and other and REUSED not in (one.state, other.state):
            change, is_worse = _change(one.seconds, other.seconds)
        name = step.strip("/").replace("/", ".")
        rows.append(Row(name=name, now=_describe(one), before=_describe(other), change=change, is_worse=is_worse))
    return rows


def sums(now: Run, before: Run, model: Model, prices: Prices | None = None) -> Iterator[Row]:
    """Yield the rows of the whole runs; with their cost if prices are known."""
    energy = [total(step.energy_wh for step in totals_by_step(run, model).values())[0] for run in (now, before)]
    pairs: Sequence[tuple[str, Callable[[float], str], float | None, float | None]] = (
        ("Whole run", short_duration, now.seconds, before.seconds),
        ("Processor time", short_duration, _cpu(now), _cpu(before)),
        ("Energy (estimate)", spelled, energy[0], energy[1]),
        ("MiB copied between places", _mib, _moved(now), _moved(before)),
    )
    if any(queued := [sum(job.queued_s for job in run.jobs) for run in (now, before)]):
        pairs = (*pairs, ("Queue time, sum of all jobs", short_duration, queued[0], queued[1]))
    if prices is not None:
        costs = [_sum(prices.of_job(job) for job in run.jobs) for run in (now, before)]
        pairs = (*pairs, ("Cost", lambda amount: amount_text(amount, prices.currency), costs[0], costs[1]))
    for name, words, one, other in pairs:
        change, is_worse = _change(one, other)
        yield Row(name=name, now=_or_none(one, words), before=_or_none(other, words), change=change, is_worse=is_worse)


def figures(now: Mapping[str, float | None], before: Mapping[str, float | None]) -> list[Row]:
    """Return rows of the headline figures. They are not judged, since larger is better for some and worse for others."""
    rows = []
    for name in [*now, *(name for name in before if name not in now)]:
        one, other = now.get(name), before.get(name)
        change = f"{one - other:+.3f}" if one is not None and other is not None and abs(one - other) >= 0.0005 else ""
        rows.append(Row(name=name, now=_or_none(one, _two), before=_or_none(other, _two), change=change))
    return rows


def versions(now: Sequence[tuple[str, str]], before: Sequence[tuple[str, str]]) -> list[Row]:
    """Return rows of the software whose versions differ."""
    new, old = dict(now), dict(before)
    return [
        Row(name=name, now=new.get(name, NONE), before=old.get(name, NONE))
        for name in sorted({*new, *old})
        if new.get(name) != old.get(name)
    ]


def _state(jobs: Sequence[Job]) -> str:
    last = {job.name: job for job in jobs}.values()
    if all(job.reused_from for job in last):
        return REUSED
    return next((job.state for job in last if job.state != "completed"), "completed")


def _describe(step: StepTotals | None) -> str:
    if step is None:
        return "did not run"
    words = [step.where if step.num_jobs == 1 else f"{step.num_jobs} jobs at {step.where}"]
    words += [step.state] if step.state != "completed" else []
    if step.state != REUSED:
        words += [short_duration(step.seconds)] if step.seconds is not None else []
        words += [f"{step.peak_memory_mib:.0f} MiB"] if step.peak_memory_mib else []
    return ", ".join(words)


def _change(now: float | None, before: float | None) -> tuple[str, bool | None]:
    """Return the relative change, and whether it is worse: of all compared figures, less is better."""
    if not now or not before or abs(now / before - 1) < SAME:
        return "", None
    factor = now / before
    return (f"{factor:.1f} times" if factor >= 2 else f"{100 * (factor - 1):+.0f} %"), factor > 1


def _sum(values: Iterator[float | None]) -> float | None:
    listed = list(values)
    return None if any(value is None for value in listed) else sum(value for value in listed if value is not None)


def _cpu(run: Run) -> float | None:
    return _sum(0.0 if job.reused_from else job.cpu_seconds for job in run.jobs)


def _moved(run: Run) -> float:
    return sum(transfers.num_bytes for transfers in run.transfers) / 2**20


def _mib(value: float) -> str:
    return f"{value:,.1f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _or_none(value: float | None, words: Callable[[float], str]) -> str:
    return NONE if value is None else words(value)
