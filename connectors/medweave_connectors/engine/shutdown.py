"""The start of a run, and its end by a signal: INT, TERM and HUP cancel the run, so that everything is undeployed.

StreamFlow handles only INT; after TERM or HUP its jobs would continue as orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from medweave_connectors.host.errors import SiteConfigError, of_the_file
from medweave_connectors.host.job_processes import kill_of_runs
from medweave_connectors.jobs.job_errors import storage_error
from medweave_connectors.jobs.run_abort import abort, main_task
from medweave_connectors.policy.pseudonym_home import home_of
from medweave_connectors.runlog import console
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


def begin(run: RunRecord, config: Mapping[str, Any]) -> None:
    """Start the record, make the links to the inputs, and handle signals; a second call does nothing.

    Raises:
        SiteConfigError: an input does not exist.
    """
    if run.running:
        return
    with of_the_file():
        home_of(run.folder.parent).make()
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
    run.on_storage_failure(abort)
    kill_orphans(run)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _interrupt, run, number)


def kill_orphans(run: RunRecord) -> None:
    """Kill local processes of killed drivers with the same folder of runs: this run may repeat their jobs."""
    logs = [work.parent / EVENTS for work in run.folder.parent.glob(f"*/{WORK}") if work.parent != run.folder]
    folders = [log.parent for log in logs if not came_to_its_end(log) and not driver_lives(log)]
    owners = [owner_of(folder, folder.name) for folder in folders]
    gone = {owner.process_key for owner in owners if owner.is_certain}
    if gone and (count := kill_of_runs(gone)):
        console.say(f"medweave: {count} processes of runs whose drivers are gone were ended")


async def cancel_leftovers() -> None:
    """Cancel StreamFlow's tasks while its database is open.

    After a failure StreamFlow leaves them to `asyncio.run`, where each task raises again because the database is closed.
    """
    spared = {asyncio.current_task(), main_task()}
    leftovers = [task for task in asyncio.all_tasks() if task not in spared and not _connects_a_process(task)]
    for task in leftovers:
        task.cancel()
    if leftovers:
        await asyncio.wait(leftovers, timeout=LEFTOVERS_S)


def _connects_a_process(task: asyncio.Task[Any]) -> bool:
    """Return True for asyncio's own task in the start of a process: without it, what starts the process waits forever.

    See https://github.com/python/cpython/issues/125502; Python 3.11 has no fix.
    """
    return getattr(task.get_coro(), "__qualname__", "") == "BaseSubprocessTransport._connect_pipes"


def die_by(signal_number: int) -> None:
    """Kill the process by the signal, so that its parent sees the signal as the reason."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def _interrupt(run: RunRecord, number: signal.Signals) -> None:
    global _interrupts
    _interrupts += 1
    if _interrupts == 1 and (task := main_task()) is not None:
        run.signal_number = int(number)
        console.say(f"medweave: {number.name}: canceling the jobs (send it again to kill them)")
        task.cancel()
    elif _interrupts == 2:
        kill_all()
    else:
        run.signal_number = int(number)
        kill_all()
        run.finish()
        die_by(number)


def _bindings(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    # Without working directories: they are the user's paths.
    return [
        {key: binding[key] for key in ("step", "port") if key in binding}
        | {key: target[key] for key in ("deployment", "service") if key in target}
        for _, binding, target in targets(workflow)
    ]
