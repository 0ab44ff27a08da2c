"""The abort of a run that cannot succeed any more, and the question whether the run is ending.

After a failed deployment or placement StreamFlow waits for all jobs that run at other sites, perhaps for hours, and fails then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from streamflow.core.exception import WorkflowDefinitionException

from medweave_connectors.jobs.job_errors import event_message
from medweave_connectors.runlog import current

_main_task: asyncio.Task[Any] | None = None


def remember_main_task() -> None:
    """Store the current task as the one whose cancellation ends the run: StreamFlow builds its context in `asyncio.run`'s task."""
    global _main_task
    with contextlib.suppress(RuntimeError):  # no event loop: the context is built without a run
        _main_task = asyncio.current_task()


def main_task() -> asyncio.Task[Any] | None:
    """Return the task whose cancellation ends the run; None in a process without a run."""
    return _main_task


def abort(error: Exception) -> None:
    """End the run as failed, as a signal would; `streamflow run` then exits with 1. A run that is ending is left alone.

    Args:
        error: the reason. If the StreamFlow file is wrong and no job has ended, the run is recorded as refused.
    """
    run = current()
    if run is None or _main_task is None or run_is_ending():
        return
    run.engine_verdict, run.aborted = "failed", True
    run.error = run.error or event_message(error)
    run.refused = isinstance(error, WorkflowDefinitionException) and not run.has_done_anything
    _main_task.cancel()


def run_is_ending() -> bool:
    """Return True once the end of the run is decided: by a signal, a failure, or its completion."""
    run = current()
    return run is not None and (run.signal_number is not None or run.engine_verdict is not None)


@contextlib.contextmanager
def aborting() -> Iterator[None]:
    """Abort the run if the block raises. StreamFlow logs the error."""
    try:
        yield
    except Exception as error:
        abort(error)
        raise
