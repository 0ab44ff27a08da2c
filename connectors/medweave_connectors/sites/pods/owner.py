"""Whose a release or an object is: labels that tell the run and the driver that made it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Literal

import psutil  # type: ignore[import-untyped]  # comes with StreamFlow

from medweave_connectors.runlog import current
from medweave_core.runlog.run_ownership import RunOwner

RUN, DRIVER, TOKEN = "medweave.dev/run", "medweave.dev/driver", "medweave.dev/run-token"
Owner = Literal["nobody", "stranger", "me", "ended", "running", "elsewhere"]


def labels() -> dict[str, str]:
    """Return the labels of what this driver creates."""
    run = current()
    own = {RUN: label(run.run_id if run else f"pid-{os.getpid()}"), DRIVER: _driver(os.getpid())}
    return own | ({TOKEN: run.owner.token} if run else {})


def owner(found: Mapping[str, str] | None) -> Owner:
    """Whose something is, by its labels.

    Returns:
        nobody: it does not exist (`found` is None); stranger: medweave did not make it; me: this driver; ended: a driver of
        this machine that runs no more, as after a kill; running: another driver that runs now; elsewhere: one of another machine.
    """
    if found is None:
        return "nobody"
    driver = found.get(DRIVER)
    if driver is None:
        return "stranger"
    host, _, rest = driver.rpartition("_")
    pid, _, _ = rest.partition("-")
    if host != _host():
        return "elsewhere"
    if not pid.isdecimal() or _driver(int(pid)) != driver:
        return "ended"
    return "me" if int(pid) == os.getpid() else "running"


def is_of(found: Mapping[str, str], run: RunOwner, *, pid: int) -> bool:
    """Return True for the labels of a run.

    One of an older version, or one with a generated id that has lost its token, is recognized by its driver's process id.
    """
    if found.get(RUN) != label(run.run_id):
        return False
    if run.token or (TOKEN in found and not run.is_certain):
        return bool(run.token) and found.get(TOKEN) == run.token
    _, _, process = found.get(DRIVER, "").rpartition("_")
    return process.partition("-")[0] == str(pid)


def label(text: str) -> str:
    """The text as the value of a label: at most 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.") or "x"


def _driver(pid: int) -> str:
    # The moment of its start tells a process from a later one with the same number. Counted from the machine's: by the calendar it
    # moves when the clock is set, and a driver that runs would be taken for one that has ended.
    try:
        process = psutil.Process(pid)
        # One that was killed is listed until its parent asks for it, which takes seconds where that is a container's first process.
        ended = process.status() == psutil.STATUS_ZOMBIE
        started = 0 if ended else round(100 * (process.create_time() - psutil.boot_time()))
    except psutil.Error:
        started = 0
    return f"{_host()}_{pid}-{started}"


def _host() -> str:
    return label(socket.gethostname().partition(".")[0])[:30]
