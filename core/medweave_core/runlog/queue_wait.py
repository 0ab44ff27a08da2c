"""When a job's command began, where its site has a queue: the engine calls a job started when it hands it over. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medweave_core.runlog.run_state import RUNS, WAITS

if TYPE_CHECKING:
    from medweave_core.runlog.history import Job

NEVER_BEGAN = "SubmitRejected"  # the failure of a job that its site did not take, or let wait for too long


def told(job: Job, text: str, at: float) -> None:
    """A notice of the job: it waits at its site, or runs now.

    Args:
        at: when that was said, s since the start of the run.
    """
    if text.startswith(WAITS):
        job.waiting_since = at if job.waiting_since is None else job.waiting_since
    elif RUNS in text and job.waiting_since is not None:
        _begin(job, at)


def ended(job: Job, at: float) -> None:
    """Its end: the site's own figure counts. A job that an earlier driver has handed over waited before this run, too."""
    queue_s, handed_s = job.site.get("queue_seconds"), job.handed_s
    began = at - (job.seconds or 0.0)
    if isinstance(queue_s, int | float) and handed_s is not None:
        job.queued_s, job.waiting_since = float(queue_s), None
        job.started_s = max(handed_s, min(handed_s + queue_s, began))
    elif job.waiting_since is not None and job.seconds is not None and job.site.get("failure") != NEVER_BEGAN:
        _begin(job, began)  # it was too short for a word that it runs
    elif job.waiting_since is not None:
        _begin(job, at)
        job.started_s = job.seconds = None


def _begin(job: Job, at: float) -> None:
    assert job.waiting_since is not None, "looked after before"
    job.queued_s += max(at - job.waiting_since, 0.0)
    job.started_s, job.waiting_since = max(at, job.waiting_since), None
