"""Repeated and doubled work of a killed run and its resumed runs, by event logs and Slurm's accounting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Events = Sequence[Mapping[str, Any]]
# Their number depends on timing; every run has the others exactly once.
UNCOUNTED = frozenset(("job.progress", "transfer.progress", "notice", "run.ended"))


def boundaries(events: Events) -> int:
    """Return the number of moments at which a driver may be killed: after each event but the last."""
    return sum(event["type"] not in UNCOUNTED for event in events)


def done(events: Events) -> list[tuple[str, str]]:
    """Return the completed jobs of a run: name and Slurm job id, empty for other jobs."""
    return [
        (event["job"], str((event["data"].get("site") or {}).get("slurm_job_id", "")))
        for event in events
        if event["type"] == "job.ended"
        and event["data"].get("state") == "completed"
        and not event["data"].get("reused_from")
    ]


def repeated(*runs: Events) -> dict[str, int]:
    """Return the jobs that were done more than once in successive runs, and the number of extra times.

    A re-attached Slurm job is in the logs of both drivers, but was done once.
    """
    completed = {(job, slurm_id or str(number)) for number, events in enumerate(runs) for job, slurm_id in done(events)}
    total = Counter(job for job, _ in completed)
    return {job: times - 1 for job, times in sorted(total.items()) if times > 1}


def doubled(sacct: str, folder: str) -> dict[str, int]:
    """Return the jobs that Slurm received more than once, and the number of extra times.

    Args:
        sacct: lines of `JobName|WorkDir`, one for each allocation.
        folder: the `workdir` of the runs.
    """
    names = Counter(name for name, workdir in _rows(sacct) if workdir.startswith(f"{folder}/"))
    return {name: times - 1 for name, times in sorted(names.items()) if times > 1}


def submitted(sacct: str, folder: str) -> int:
    """Return the number of jobs that Slurm received."""
    return sum(workdir.startswith(f"{folder}/") for _, workdir in _rows(sacct))


def _rows(sacct: str) -> Iterable[tuple[str, str]]:
    for line in sacct.splitlines():
        name, _, workdir = line.partition("|")
        yield name, workdir
