"""The run's beginning and its end by a signal: INT, TERM and HUP cancel the run, so that everything is undeployed.

StreamFlow handles INT only; after TERM or HUP its jobs would run on as orphans.
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

from medweave_connectors.record import console
from medweave_connectors.record.run import RunRecord
from medweave_steps import __version__

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_main_task: asyncio.Task[Any] | None = None


def remember_main_task() -> None:
    """Called while StreamFlow builds its context, which it does in the task that `asyncio.run` made."""
    global _main_task
    with contextlib.suppress(RuntimeError):  # no loop: somebody builds a context without running it
        _main_task = asyncio.current_task()


def begin(run: RunRecord, config: Mapping[str, Any]) -> None:
    """Starts the record and listens to signals; a second call does nothing."""
    if run.running:
        return
    workflow = (config.get("workflows") or {}).get(run.workflow, {})
    run.begin(
        workflow_file=workflow.get("config", {}).get("file", ""),
        bindings=_bindings(workflow, Path(config["path"]).parent),
        deployments={name: d.get("type") for name, d in (config.get("deployments") or {}).items()},
        medweave_version=__version__,
        streamflow_version=metadata.version("streamflow"),
        pid=os.getpid(),
    )
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _interrupt, run, number)


def die_by(signal_number: int) -> None:
    """Ends the process as the signal would have, so that whoever started it sees the true reason."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def _interrupt(run: RunRecord, number: signal.Signals) -> None:
    if run.signal_number is None and _main_task is not None:
        run.signal_number = int(number)
        console.say(f"medweave: {number.name}: ending the jobs (a second one does not wait)")
        _main_task.cancel()
    else:
        raise KeyboardInterrupt


def _bindings(workflow: Mapping[str, Any], base: Path) -> list[dict[str, Any]]:
    # Working directories are left out: they are the user's paths.
    shown = []
    for binding in workflow.get("bindings") or []:
        targets = binding["target"] if isinstance(binding["target"], list) else [binding["target"]]
        for target in targets:
            place = {key: target[key] for key in ("deployment", "service") if key in target}
            shown.append({key: binding[key] for key in ("step", "port") if key in binding} | place)
    return shown
