"""Jobs of a run, as its event log records them, and their time in the queue of a site.

The engine reports a job as started when it submits it, also where the site has a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.contracts.events import job_label
from medweave_core.contracts.report import RunReport
from medweave_core.runlog.run_state import RUNS, WAITS

UNFINISHED = "unfinished"
NEVER_BEGAN = "SubmitRejected"  # failure of a job that its site rejected, or did not start in time


@dataclass(slots=True, kw_only=True)
class Job:
    """One attempt at one job, from the event log of its run. Times are in s since the start of the run.

    Attributes:
        state: completed, failed, cancelled, or unfinished where the log ends before the job.
        requested: cores and memory that the step requested.
        message: error message of the step.
        folder: folder with its reports, or None.
        work: its cache key; empty if the cache is off, or an older version wrote the log.
        parts: keyed digests of the parts of the cache key; empty if the cache is off.
        reused_from: the run whose outputs it reuses (cache hit); else empty.
        not_reusable: why the cache cannot be used for it; else empty.
        site: facts that the site reports (its job id, nodes, pods).
        started_s: start of its command, after its wait in the site's queue; None before.
        handed_s: submission to its site; None before.
        queued_s: time in the queue of its site, in s, as the site reports it, else by notices.
        waiting_since: start of its current wait there; None if it does not wait.
        inputs, outputs: content of its data, as in the event `job.data`.
    """

    name: str
    step: str
    attempt: int
    deployment: str
    service: str | None
    location: str | None
    scheduled_s: float
    started_s: float | None = None
    ended_s: float | None = None
    state: str = UNFINISHED
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory_mib: float | None = None
    exit_code: int | None = None
    message: str = ""
    progress: str = ""
    requested: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    report: RunReport | None = None
    work: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    reused_from: str = ""
    not_reusable: str = ""
    site: Mapping[str, Any] = field(default_factory=dict)
    handed_s: float | None = None
    queued_s: float = 0.0
    waiting_since: float | None = None
    inputs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    outputs: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the short name: `train`, `segment.3` for the fourth of a scatter."""
        return job_label(self.name)

    @property
    def where(self) -> str:
        """Return `site-a-slurm/gpu4`, or the deployment alone."""
        return f"{self.deployment}/{self.service}" if self.service else self.deployment

    @property
    def is_queued(self) -> bool:
        """Return whether it waits in its site's queue, or ended there before it started."""
        return self.waiting_since is not None or (self.started_s is None and self.queued_s > 0)

    @property
    def waited_s(self) -> float | None:
        """Return the time from scheduling to the start of its command in s: waiting for inputs and in its site's queue."""
        if self.started_s is None or self.waiting_since is not None:
            return None if self.ended_s is None else self.ended_s - self.scheduled_s
        return self.started_s - self.scheduled_s

    @property
    def duration_s(self) -> float | None:
        """Return the wall time of the command, else the time from its start to its end, in s."""
        if self.seconds is not None:
            return self.seconds
        if self.started_s is None or self.ended_s is None:
            return None
        return self.ended_s - self.started_s


def note_queue_state(job: Job, text: str, at: float) -> None:
    """Record a notice that a job waits in its site's queue, or runs now.

    Args:
        at: time of the notice, in s since the start of the run.
    """
    if text.startswith(WAITS):
        job.waiting_since = at if job.waiting_since is None else job.waiting_since
    elif RUNS in text and job.waiting_since is not None:
        _begin(job, at)


def end_queue_wait(job: Job, at: float) -> None:
    """Set the queue time and start of a job that ended.

    The queue time that the site reports takes precedence: a job that an earlier driver submitted waited before this run, too.

    Args:
        at: time of its end, in s since the start of the run.
    """
    queue_s, handed_s = job.site.get("queue_seconds"), job.handed_s
    began = at - (job.seconds or 0.0)
    if isinstance(queue_s, int | float) and handed_s is not None:
        job.queued_s, job.waiting_since = float(queue_s), None
        job.started_s = max(handed_s, min(handed_s + queue_s, began))
    elif job.waiting_since is not None and job.seconds is not None and job.site.get("failure") != NEVER_BEGAN:
        _begin(job, began)  # it ended before a notice that it runs
    elif job.waiting_since is not None:
        _begin(job, at)
        job.started_s = job.seconds = None


def _begin(job: Job, at: float) -> None:
    assert job.waiting_since is not None, "callers check that the job waits"
    job.queued_s += max(at - job.waiting_since, 0.0)
    job.started_s, job.waiting_since = max(at, job.waiting_since), None
