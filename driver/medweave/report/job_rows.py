"""The table of jobs in a report. A step with many jobs has rows for the jobs to look at, and one for all others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from medweave.report.timeline import MOST_JOBS, short_duration
from medweave_core.contracts.energy import spelled
from medweave_core.runlog.jobs import Job

MOST_FAILED, NUM_LONGEST = 20, 10  # rows of their own in a step with more than MOST_JOBS jobs
Energy = Callable[[Job], float | None]


def job_rows(jobs: Sequence[Job], energy_wh: Energy) -> list[dict[str, str]]:
    """Return the rows, in scheduling order.

    Args:
        energy_wh: energy of a job, Wh; None if unknown.
    """
    by_step: dict[str, list[Job]] = {}
    for job in jobs:
        by_step.setdefault(job.step, []).append(job)
    summarized: dict[str, list[Job]] = {}
    for step, own in by_step.items():
        if len(own) > MOST_JOBS:
            shown = {id(job) for job in _to_look_at(own)}
            summarized[step] = [job for job in own if id(job) not in shown]
    in_summary = {id(job) for others in summarized.values() for job in others}
    rows = []
    for job in jobs:
        if id(job) not in in_summary:
            rows.append(_row(job, energy_wh(job)))
        elif job is summarized[job.step][0]:
            rows.append(_summary(summarized[job.step], energy_wh))
    return rows


def _to_look_at(jobs: Sequence[Job]) -> list[Job]:
    """Return the first jobs that did not complete, and the longest ones."""
    failed = [job for job in jobs if job.state != "completed"][:MOST_FAILED]
    return [*failed, *sorted(jobs, key=lambda job: job.duration_s or 0.0, reverse=True)[:NUM_LONGEST]]


def _row(job: Job, wh: float | None) -> dict[str, str]:
    waited = job.waited_s
    cores, memory = job.requested.get("cores"), job.requested.get("memory_mib")
    return {
        "label": f"{job.label} (attempt {job.attempt})" if job.attempt > 1 else job.label,
        "where": job.where,
        "state": "cache hit" if job.reused_from else job.state,
        "started": "–" if job.started_s is None or job.is_queued else f"+{short_duration(job.started_s)}",
        "waited": "–" if waited is None else short_duration(waited),
        "took": "–" if job.duration_s is None else short_duration(job.duration_s),
        "cpu": "–" if job.cpu_seconds is None else short_duration(job.cpu_seconds),
        "requested_cores": f"{cores:g}" if isinstance(cores, int | float) else "–",
        "energy": "–" if wh is None else spelled(wh),
        "memory": "–" if job.peak_memory_mib is None else f"{job.peak_memory_mib:.0f}",
        "requested_memory": f"{memory:.0f}" if isinstance(memory, int | float) else "–",
    }


def _summary(jobs: Sequence[Job], energy_wh: Energy) -> dict[str, str]:
    """Return one row for several jobs of a step: medians of times, sums of processor time and energy, the largest memory."""
    states: dict[str, int] = {}
    for job in jobs:
        state = "cache hit" if job.reused_from else job.state
        states[state] = states.get(state, 0) + 1
    cpu, wh = _known(job.cpu_seconds for job in jobs), _known(energy_wh(job) for job in jobs)
    waited, took = _known(job.waited_s for job in jobs), _known(job.duration_s for job in jobs)
    memory, started = _known(job.peak_memory_mib for job in jobs), _known(job.started_s for job in jobs)
    return {
        "label": f"{jobs[0].label.partition('.')[0]}, {len(jobs):,} more jobs",
        "where": ", ".join(dict.fromkeys(job.where for job in jobs)),
        "state": ", ".join(f"{number:,} {state}" for state, number in states.items())
        if len(states) > 1
        else next(iter(states)),
        "started": f"from +{short_duration(min(started))}" if started else "–",
        "waited": f"median {short_duration(statistics.median(waited))}" if waited else "–",
        "took": f"median {short_duration(statistics.median(took))}" if took else "–",
        "cpu": f"sum {short_duration(sum(cpu))}" if cpu else "–",
        "requested_cores": "–",
        "energy": f"sum {spelled(sum(wh))}" if wh else "–",
        "memory": f"at most {max(memory):.0f}" if memory else "–",
        "requested_memory": "–",
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
