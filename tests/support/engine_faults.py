"""For the tests of StreamFlow's faults: runs without medweave, and the word that a fault has gone away."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.engine import FILE, Run, run, start, wait_until, write_workflow
from support.engine_file import STOCK, engine_file
from support.processes import alive

# Nothing of medweave is registered or installed: the engine as its users have it.
STOCK_PRELOAD = """
import streamflow.main
streamflow.main.load_extensions = lambda: None
"""


class FaultIsGone(AssertionError):
    """The stock engine does not show its fault any more: see tests/engine_faults/try_streamflow.py."""


def shown(condition: bool, seen: object = "") -> None:
    """Assert that the stock engine has the fault.

    Raises:
        FaultIsGone: it has not.
    """
    if not condition:
        raise FaultIsGone(str(seen)[-2000:] or "the fault was not seen")


async def outcome(going: Awaitable[Any]) -> Any:
    """Return the result, or the error that was raised."""
    try:
        return await going
    except Exception as error:
        return error


def stock_file(folder: Path, workdir: Path | None = None) -> str:
    """Return a streamflow.yml with stock types only."""
    here = {"type": "local", "workdir": str(workdir or folder / "work"), "config": {}}
    return engine_file({"here": here}, managers=STOCK)


def start_stock(folder: Path, *arguments: str, preload: str = "", environment: Mapping[str, str] | None = None) -> Run:
    """Start `streamflow run` without our plug-in.

    Args:
        preload: Python to run in the process first.
    """
    file = folder / "preload.py"
    file.write_text(STOCK_PRELOAD + preload, encoding="utf-8")
    return start(folder, *arguments, preload=file, environment=environment)


def run_stock(folder: Path, *arguments: str, preload: str = "", environment: Mapping[str, str] | None = None) -> Run:
    """Start a stock run as `start_stock` does, and wait for the end."""
    return start_stock(folder, *arguments, preload=preload, environment=environment).wait()


def validates(folder: Path, deployment: str, *, ours: bool) -> bool:
    """Return True if `streamflow run --validate` accepts a deployment.

    Args:
        folder: made.
        deployment: as text before `here` in the file's `deployments`: `x: {…}, here: {type`.
    """
    folder.mkdir()
    write_workflow(
        folder,
        {"first": "touch result.txt"},
        file=(FILE if ours else stock_file(folder)).replace("here: {type", deployment),
    )
    return (run if ours else run_stock)(folder, "--validate").exit_code == 0


def still_going(run: Run, for_s: float, *, after: Callable[[], bool] = lambda: True) -> bool:
    """Return True if a run is still active so long after an event; kill it then.

    Args:
        for_s: seconds after which a wait counts as one without an end.
    """
    wait_until(lambda: after() or run.process.exitcode is not None, 30)
    run.process.join(for_s)
    going = run.process.exitcode is None
    if going:
        run.signal(signal.SIGKILL)
        run.process.join(20)
    return going


@contextmanager
def going_meanwhile(run: Run, for_s: float, *, after: Callable[[], bool] = lambda: True) -> Iterator[Future[bool]]:
    """Run `still_going` during the block; yield a future with its result, done when the block has ended."""
    with ThreadPoolExecutor(1) as watching:
        yield watching.submit(still_going, run, for_s, after=after)


def pid_in(file: Path) -> int:
    """Wait for the process id that a script writes; return it."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 30)
    return int(file.read_text())


def end(pid: int) -> None:
    """Kill an orphan that a test has made."""
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
