"""Text for times, sizes, places and final states, for all displays of a run."""

from __future__ import annotations

from medweave_core.contracts.progress import duration
from medweave_core.errors import describe_exit_code
from medweave_core.runlog.run_state import JobProgress

NO_EXIT_CODE = "no exit code"
NOT_COMPLETE = "its outputs are not complete"
END_WORDS = {"partial": "finished with partial results", "unknown": "ended, outcome unknown"}
UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(num_bytes: int) -> str:
    """Return a size in the largest fitting unit, such as `1.4 GiB`."""
    for factor, unit in UNITS:
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"


def took(seconds: float) -> str:
    """Return a duration, with one decimal below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def end_of(job: JobProgress) -> str:
    """Return how a job ended, such as `done in 3.1 s` or `FAILED after 12 s, exit code 65, bad data`."""
    if job.reused_from:
        return f"cache hit: outputs of run {job.reused_from}"
    word = {"completed": "done in", "failed": "FAILED after", "cancelled": "stopped after"}[job.state]
    return f"{word} {took(job.seconds(0.0))}{f', {why(job)}' if job.state == 'failed' else ''}"


def why(job: JobProgress) -> str:
    """Return why a job failed: the exit code of its command with its meaning, if that is not 0."""
    if job.exit_code is None:
        return NO_EXIT_CODE
    return describe_exit_code(job.exit_code) if job.exit_code else NOT_COMPLETE


def activity_of(job: JobProgress, now_s: float) -> str:
    """Return what a job that has not ended is doing."""
    if job.state == "waiting":
        return job.reason
    if job.state == "placed":
        return "receiving inputs"
    return job.text or f"running for {took(job.seconds(now_s))}"
