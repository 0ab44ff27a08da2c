"""The run's beginning and its end by a signal: INT, TERM and HUP cancel the run, so that everything is undeployed.

StreamFlow handles INT only; after TERM or HUP its jobs would run on as orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from streamflow.core.exception import WorkflowDefinitionException

from medweave_connectors.engine.job_errors import event_message, storage_error
from medweave_connectors.host.errors import SiteConfigError, of_the_file
from medweave_connectors.host.job_processes import kill_of_runs
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.run import RunRecord
from medweave_connectors.sites.local.process import kill_all
from medweave_core import __version__
from medweave_core.documents.streamflow_bindings import targets
from medweave_core.runlog.log_state import came_to_its_end, driver_lives
from medweave_core.runlog.run_folder import EVENTS, WORK
from medweave_core.runlog.run_ownership import owner_of

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEFTOVERS_S = 3.0
_interrupts = 0
_main_task: asyncio.Task[Any] | None = None


def remember_main_task() -> None:
    """Called while StreamFlow builds its context, which it does in the task that `asyncio.run` made."""
    global _main_task
    with contextlib.suppress(RuntimeError):  # no loop: somebody builds a context without running it
        _main_task = asyncio.current_task()


def begin(run: RunRecord, config: Mapping[str, Any]) -> None:
    """Starts the record, makes the links to the inputs, and listens to signals; a second call does nothing.

    Raises:
        SiteConfigError: an input is not there.
    """
    if run.running:
        return
    with of_the_file():
        run.home.make()
    workflow = (config.get("workflows") or {}).get(run.workflow, {})
    file = workflow.get("config", {}).get("file", "")
    try:
        run.begin(
            workflow_file=os.path.relpath(file, Path(config["path"]).parent),  # the engine has made it absolute
            documents=dict(run.documents),
            bindings=_bindings(workflow),
            deployments={name: d.get("type") for name, d in (config.get("deployments") or {}).items()},
            medweave_version=__version__,
            streamflow_version=metadata.version("streamflow"),
            pid=os.getpid(),
        )
    except OSError as error:
        if (storage := storage_error(error)) is None:
            raise
        run.storage_failed(storage)
    if run.storage_error is not None:
        raise SiteConfigError.of(run.storage_error)
    run.when_storage_fails = abort
    end_left(run)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _interrupt, run, number)


def end_left(run: RunRecord) -> None:
    """Ends what killed drivers of the same folder of runs have left running here: what it would write, this run may do again."""
    logs = [work.parent / EVENTS for work in run.folder.parent.glob(f"*/{WORK}") if work.parent != run.folder]
    folders = [log.parent for log in logs if not came_to_its_end(log) and not driver_lives(log)]
    owners = [owner_of(folder, folder.name) for folder in folders]
    gone = {owner.process_key for owner in owners if owner.is_certain}
    if gone and (count := kill_of_runs(gone)):
        console.say(f"medweave: {count} processes of runs whose drivers are gone were ended")


def abort(error: Exception) -> None:
    """Ends a run that cannot succeed any more, as a signal would; `streamflow run` then exits with 1.

    After a failed deployment or placement StreamFlow waits for all jobs that go on elsewhere, perhaps for hours, and fails then.

    Args:
        error: why; where the file is wrong, and nothing was done yet, the record tells that the run was refused.
    """
    run = current()
    if run is None or _main_task is None or run_is_ending():
        return
    run.engine_verdict, run.aborted = "failed", True
    run.error = run.error or event_message(error)
    run.refused = isinstance(error, WorkflowDefinitionException) and not run.has_done_anything
    _main_task.cancel()


def run_is_ending() -> bool:
    """True where the run's end is decided."""
    run = current()
    return run is not None and (run.signal_number is not None or run.engine_verdict is not None)


@contextlib.contextmanager
def aborting() -> Iterator[None]:
    """What fails in here ends the run. The engine logs the error."""
    try:
        yield
    except Exception as error:
        abort(error)
        raise


async def cancel_leftovers() -> None:
    """Ends the engine's own tasks while its tables are still open.

    After a failure StreamFlow leaves them to `asyncio.run`, where each of them raises once more for want of a database.
    """
    leftovers = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), _main_task)]
    for task in leftovers:
        task.cancel()
    if leftovers:
        await asyncio.wait(leftovers, timeout=LEFTOVERS_S)


def die_by(signal_number: int) -> None:
    """Ends the process as the signal would have, so that whoever started it sees the true reason."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def _interrupt(run: RunRecord, number: signal.Signals) -> None:
    global _interrupts
    _interrupts += 1
    if _interrupts == 1 and _main_task is not None:
        run.signal_number = int(number)
        console.say(f"medweave: {number.name}: ending the jobs (again: killing them)")
        _main_task.cancel()
    elif _interrupts == 2:
        kill_all()
    else:
        run.signal_number = int(number)
        kill_all()
        run.finish()
        die_by(number)


def _bindings(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Working directories are left out: they are the user's paths.
    return [
        {key: binding[key] for key in ("step", "port") if key in binding}
        | {key: target[key] for key in ("deployment", "service") if key in target}
        for _, binding, target in targets(workflow)
    ]
