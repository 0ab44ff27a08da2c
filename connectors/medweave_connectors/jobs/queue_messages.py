"""Notices and errors about a submitted job that sites with a queue share. Pure."""

from __future__ import annotations

from medweave_connectors.host.errors import SiteUnreachable
from medweave_core.contracts.progress import duration


def reattached(job: str) -> str:
    """Return the notice about a re-attached job, for example `Slurm job 100`."""
    return f"re-attached to {job} of an earlier driver"


def runs_now(queue_s: float | None = None) -> str:
    """Return the notice about a job that starts after a wait of so many seconds; None if that is unknown."""
    return "runs now" if queue_s is None else f"runs now, after {duration(queue_s)} in the queue"


def earlier_job_unknown(place: str, step: str, silence_s: float, error: Exception) -> SiteUnreachable:
    """Return the error for a site that does not report whether an earlier driver's job does the work of a step."""
    return SiteUnreachable(
        f"{place}: no answer about an earlier job of {step} for {duration(silence_s)}; nothing was submitted: {error}"
    )


def outputs_not_moved(place: str, job: str, step: str, reason: str) -> SiteUnreachable:
    """Return the error for a re-attached job whose output folder stays where the earlier run expected it."""
    return SiteUnreachable(
        f"{place}: {job} of {step} has ended, and its output folder could not be moved to this run: {reason}"
    )
