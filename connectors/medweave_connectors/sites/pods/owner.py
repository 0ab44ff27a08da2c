"""Ownership of releases and objects: labels of the run and the driver that created them."""

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
Owner = Literal["missing", "stranger", "me", "ended", "running", "elsewhere"]


def labels() -> dict[str, str]:
    """Return the labels of what this driver creates."""
    run = current()
    own = {RUN: label(run.run_id if run else f"pid-{os.getpid()}"), DRIVER: _driver(os.getpid())}
    return own | ({TOKEN: run.owner.token} if run else {})


def owner(object_labels: Mapping[str, str] | None) -> Owner:
    """Return the owner of an object, by its labels.

    Returns:
        missing: it does not exist (`object_labels` is None); stranger: medweave did not create it; me: this driver; ended: a dead
        driver of this machine; running: another live driver of this machine; elsewhere: a driver of another machine.
    """
    if object_labels is None:
        return "missing"
    driver = object_labels.get(DRIVER)
    if driver is None:
        return "stranger"
    host, _, rest = driver.rpartition("_")
    pid, _, _ = rest.partition("-")
    if host != _host():
        return "elsewhere"
    if not pid.isdecimal() or _driver(int(pid)) != driver:
        return "ended"
    return "me" if int(pid) == os.getpid() else "running"


def is_of(object_labels: Mapping[str, str], run: RunOwner, *, pid: int) -> bool:
    """Return True for the labels of a run.

    One of an older version, or one with a generated id that has lost its token, is recognized by its driver's process id.
    """
    if object_labels.get(RUN) != label(run.run_id):
        return False
    if run.token or (TOKEN in object_labels and not run.is_certain):
        return bool(run.token) and object_labels.get(TOKEN) == run.token
    _, _, process = object_labels.get(DRIVER, "").rpartition("_")
    return process.partition("-")[0] == str(pid)


def label(text: str) -> str:
    """Return the text as the value of a label: at most 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.") or "x"


def _driver(pid: int) -> str:
    # The start time distinguishes a process from a later one with the same number. It is relative to the boot time: the wall-clock
    # time changes when the clock is set, and a live driver would count as ended.
    try:
        process = psutil.Process(pid)
        # A killed process is listed until its parent reaps it, which takes seconds if that is a container's first process.
        ended = process.status() == psutil.STATUS_ZOMBIE
        started = 0 if ended else round(100 * (process.create_time() - psutil.boot_time()))
    except psutil.Error:
        started = 0
    return f"{_host()}_{pid}-{started}"


def _host() -> str:
    return label(socket.gethostname().partition(".")[0])[:30]
