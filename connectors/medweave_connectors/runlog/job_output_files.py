"""What running jobs print, line by line in files of the run's scratch: `tail -F runs/<run-id>/work/stderr/train` follows a job."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

FULL_BYTES = 8 * 2**20


class LiveText:
    """One file per job. A full one is moved to `<label>.1`, where the part before has been; so no job fills the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        self._waiting: dict[str, list[str]] = {}

    def add(self, label: str, line: str) -> None:
        """A line of a job, which is in its file before the event loop waits again: many lines come in one turn of it."""
        if not self._waiting:
            try:
                asyncio.get_running_loop().call_soon(self._write_all)
            except RuntimeError:  # no turn comes
                self._waiting[label] = [line]
                self._write_all()
                return
        self._waiting.setdefault(label, []).append(line)

    def end(self, label: str) -> None:
        """The job has ended; its file stays as long as the scratch."""
        self._write_all()
        self._close(label)

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for label, lines in waiting.items():
            # A disk that has no room for them ends no job: its last lines are kept elsewhere too.
            with contextlib.suppress(OSError):
                os.write(self._open(label), "".join(f"{line}\n" for line in lines).encode(errors="replace"))

    def _open(self, label: str) -> int:
        if label in self._files and os.fstat(self._files[label]).st_size > FULL_BYTES:
            self._close(label)
            (self._folder / label).replace(self._folder / f"{label}.1")
        if label not in self._files:
            self._folder.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[label] = os.open(self._folder / label, flags, 0o600)
        return self._files[label]

    def _close(self, label: str) -> None:
        if (file := self._files.pop(label, None)) is not None:
            os.close(file)
