"""What a killed run and the one that went on have done together: from their event logs, and from Slurm's accounting. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Events = Sequence[Mapping[str, Any]]
# Their number depends on how fast things go; the others come once each, in every run.
UNCOUNTED = frozenset(("job.progress", "transfer.progress", "notice", "run.ended"))


def boundaries(events: Events) -> int:
    """How many moments a run has at which its driver may be killed: after each event but the last."""
    return sum(event["type"] not in UNCOUNTED for event in events)


def done(events: Events) -> list[tuple[str, str]]:
    """The jobs that a run has brought to a good end, by their name and what they are to Slurm; empty for no Slurm job."""
    return [
        (event["job"], str((event["data"].get("site") or {}).get("slurm_job_id", "")))
        for event in events
        if event["type"] == "job.ended"
        and event["data"].get("state") == "completed"
        and not event["data"].get("reused_from")
    ]


def repeated(*runs: Events) -> dict[str, int]:
    """The jobs that were done more than once in runs that follow each other, and how often too many.

    A Slurm job that the next driver has taken over is told by both, and was done once.
    """
    each = {(job, slurm_id or str(number)) for number, events in enumerate(runs) for job, slurm_id in done(events)}
    total = Counter(job for job, _ in each)
    return {job: times - 1 for job, times in sorted(total.items()) if times > 1}


def doubled(sacct: str, folder: str) -> dict[str, int]:
    """The jobs that Slurm was given more than once, and how often too many.

    Args:
        sacct: lines of `JobName|WorkDir`, one for each allocation.
        folder: the `workdir` of the runs that are looked at.
    """
    names = Counter(name for name, workdir in _rows(sacct) if workdir.startswith(f"{folder}/"))
    return {name: times - 1 for name, times in sorted(names.items()) if times > 1}


def submitted(sacct: str, folder: str) -> int:
    """How many jobs Slurm was given."""
    return sum(workdir.startswith(f"{folder}/") for _, workdir in _rows(sacct))


def _rows(sacct: str) -> Iterable[tuple[str, str]]:
    for line in sacct.splitlines():
        name, _, workdir = line.partition("|")
        yield name, workdir
