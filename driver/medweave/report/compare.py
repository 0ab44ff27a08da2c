"""Two runs side by side: what each step took in the one and in the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from medweave.project.prices import Prices, amount_text
from medweave.report.energy import Model, energy_wh, total
from medweave.report.timeline import short_duration
from medweave_core.contracts.energy import spelled
from medweave_core.runlog.history import Run
from medweave_core.runlog.jobs import Job

SAME = 0.05  # a smaller part of a time or of energy is what two runs of the same differ by
NONE = "–"
REUSED = "cache hit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both runs, in words.

    Attributes:
        change: how much more or less it is now; empty where that is nothing, or cannot be told.
        is_worse: the change is for the worse; None where there is none.
    """

    name: str
    now: str
    before: str
    change: str = ""
    is_worse: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What the jobs of one step took together.

    Attributes:
        seconds: wall time, added up, s; None where one is not known.
    """

    where: str
    state: str
    num_jobs: int
    seconds: float | None
    cpu_seconds: float | None
    peak_memory_mib: float | None
    energy_wh: float | None


def took(run: Run, model: Model) -> dict[str, Took]:
    """By step, in the order of the run; the last attempt says where and how it ended."""
    by_step: dict[str, list[Job]] = {}
    for job in run.jobs:
        by_step.setdefault(job.step, []).append(job)
    deployments: Mapping[str, str] = run.facts.get("deployments") or {}
    return {
        step: Took(
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
    """Each step of either run: where it was, how it ended and what it took."""
    new, old = took(now, model), took(before, model)
    rows = []
    for step in [*new, *(each for each in old if each not in new)]:
        one, other = new.get(step), old.get(step)
        change, is_worse = "", None
        if one and other and REUSED not in (one.state, other.state):
            change, is_worse = _change(one.seconds, other.seconds)
        name = step.strip("/").replace("/", ".")
        rows.append(Row(name=name, now=_told(one), before=_told(other), change=change, is_worse=is_worse))
    return rows


def sums(now: Run, before: Run, model: Model, prices: Prices | None = None) -> Iterator[Row]:
    """The same of the whole runs; what they cost where prices are known."""
    energy = [total(each.energy_wh for each in took(run, model).values())[0] for run in (now, before)]
    pairs: Sequence[tuple[str, Callable[[float], str], float | None, float | None]] = (
        ("Whole run", short_duration, now.seconds, before.seconds),
        ("Processor time", short_duration, _cpu(now), _cpu(before)),
        ("Energy, estimated", spelled, energy[0], energy[1]),
        ("MiB copied between places", _mib, _moved(now), _moved(before)),
    )
    if any(queued := [sum(job.queued_s for job in run.jobs) for run in (now, before)]):
        pairs = (*pairs, ("Waited in queues, all jobs", short_duration, queued[0], queued[1]))
    if prices is not None:
        costs = [_sum(prices.of_job(job) for job in run.jobs) for run in (now, before)]
        pairs = (*pairs, ("Cost", lambda amount: amount_text(amount, prices.currency), costs[0], costs[1]))
    for name, words, one, other in pairs:
        change, is_worse = _change(one, other)
        yield Row(name=name, now=_or_none(one, words), before=_or_none(other, words), change=change, is_worse=is_worse)


def figures(now: Mapping[str, float | None], before: Mapping[str, float | None]) -> list[Row]:
    """Headline figures of the results. Which way is better, each figure's own name tells: nothing is judged here."""
    rows = []
    for name in [*now, *(each for each in before if each not in now)]:
        one, other = now.get(name), before.get(name)
        change = f"{one - other:+.3f}" if one is not None and other is not None and abs(one - other) >= 0.0005 else ""
        rows.append(Row(name=name, now=_or_none(one, _two), before=_or_none(other, _two), change=change))
    return rows


def versions(now: Sequence[tuple[str, str]], before: Sequence[tuple[str, str]]) -> list[Row]:
    """The software whose versions differ."""
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


def _told(each: Took | None) -> str:
    if each is None:
        return "did not run"
    words = [each.where if each.num_jobs == 1 else f"{each.num_jobs} jobs at {each.where}"]
    words += [each.state] if each.state != "completed" else []
    if each.state != REUSED:
        words += [short_duration(each.seconds)] if each.seconds is not None else []
        words += [f"{each.peak_memory_mib:.0f} MiB"] if each.peak_memory_mib else []
    return ", ".join(words)


def _change(now: float | None, before: float | None) -> tuple[str, bool | None]:
    """How much more or less it is, and whether that is worse: of all that is told here, less is better."""
    if not now or not before or abs(now / before - 1) < SAME:
        return "", None
    factor = now / before
    return (f"{factor:.1f} times" if factor >= 2 else f"{100 * (factor - 1):+.0f} %"), factor > 1


def _sum(values: Iterator[float | None]) -> float | None:
    listed = list(values)
    return None if any(each is None for each in listed) else sum(each for each in listed if each is not None)


def _cpu(run: Run) -> float | None:
    return _sum(0.0 if job.reused_from else job.cpu_seconds for job in run.jobs)


def _moved(run: Run) -> float:
    return sum(each.num_bytes for each in run.transfers) / 2**20


def _mib(value: float) -> str:
    return f"{value:,.1f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _or_none(value: float | None, words: Callable[[float], str]) -> str:
    return NONE if value is None else words(value)
