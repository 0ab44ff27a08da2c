"""Runs programs in the foreground; all of them end when the whole `up` is cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from .errors import TestbedError, last_lines

_POLL_s = 0.05
_GRACE_s = 5.0


class Cancelled(Exception):
    """The user interrupted; no message is needed."""


class Commands:
    """Foreground programs, each in a separate process group, so that a terminal's Ctrl-C reaches only the testbed command."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End what runs and refuse what would still start."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether a stop was requested."""
        return self._cancelled.is_set()

    def sleep(self, seconds: float) -> None:
        """Waits; raises `Cancelled` at once when the whole is cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def run(
        self, words: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, folder: Path | None = None,
        text: str | None = None, log: Path | None = None, timeout_s: float = 1800, do: str = "",
    ) -> str:  # fmt: skip
        """Run a program to its end and return its standard output.

        Args:
            environment: the whole environment of the program; ours if None.
            text: its standard input.
            log: a file that gets standard output and error; then the return value is empty.
            do: what a person does about a failure, for the error.
        Raises:
            TestbedError: it failed, took longer than timeout_s, or is not installed; the end of its output is quoted.
            Cancelled: the whole was cancelled.
        """
        names = [str(word) for word in words]
        code, output, errors = self.outcome(
            names, environment=environment, folder=folder, text=text, log=log, timeout_s=timeout_s
        )
        if code == 0:
            return output
        text = log.read_text(encoding="utf-8", errors="replace") if log else errors or output
        raise TestbedError(
            f"`{' '.join(names)[:160]}` failed.",
            seen=f"exit code {code}; " + last_lines(text),
            expected="exit code 0",
            do=do or (f"read {log}" if log else "correct what the program says, then run `make testbed` again"),
        )

    def outcome(
        self, words: Sequence[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None,
        text: str | None = None, log: Path | None = None, timeout_s: float = 1800,
    ) -> tuple[int, str, str]:  # fmt: skip
        """Like `run`, for programs whose failure is an answer: (exit code, standard output, standard error)."""
        if self.cancelled:
            raise Cancelled
        streams: tuple[int | IO[bytes], int | IO[bytes]] = (subprocess.PIPE, subprocess.PIPE)
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            stream = log.open("wb")
            streams = (stream, stream)
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL, stdout=streams[0],
                stderr=streams[1], env=None if environment is None else dict(environment), cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as absent:
            return 127, "", f"there is no program '{absent.filename}'"
        finally:
            if log:
                stream.close()
        return self._finish(process, text, timeout_s)

    def _finish(self, process: subprocess.Popen[bytes], text: str | None, timeout_s: float) -> tuple[int, str, str]:
        """Wait for a program, for the deadline and for a cancellation."""
        deadline = time.monotonic() + timeout_s
        data = text.encode() if text is not None else None
        while True:
            try:
                output, errors = process.communicate(data, timeout=_POLL_s)
                break
            except subprocess.TimeoutExpired:
                data = None
                if not self.cancelled and time.monotonic() < deadline:
                    continue
                end_group(process)
                if self.cancelled:
                    raise Cancelled from None
                return 124, "", f"it was still running after {timeout_s:.0f} s"
        texts = (output or b"").decode(errors="replace"), (errors or b"").decode(errors="replace")
        return process.returncode, *texts


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children: politely, after some seconds for certain."""
    for word, patience_s in ((signal.SIGTERM, _GRACE_s), (signal.SIGKILL, _GRACE_s)):
        try:
            os.killpg(process.pid, word)
            process.communicate(timeout=patience_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
