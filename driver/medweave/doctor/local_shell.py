"""This machine, asked as another one is: one line of shell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def ask(line: str, limit_s: float) -> tuple[str, int]:
    """What a line printed, and its exit status.

    Raises:
        TimeoutError: it has not ended in time; it is ended, with what it has started.
    """
    with subprocess.Popen(
        ["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(f"no end after {limit_s:.0f} s") from error
    return out, process.returncode
