"""Output of running jobs, in files of the run's scratch: `tail -F runs/<run-id>/work/stderr/train` follows a job."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

FULL_BYTES = 8 * 2**20


class LiveText:
    """One file per job. A full file replaces `<label>.1`, so that no job fills the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}
        self._waiting: dict[str, list[str]] = {}

    def add(self, label: str, line: str) -> None:
        """Add a line of a job. Lines of one turn of the event loop are written together at its end."""
        if not self._waiting:
            try:
                asyncio.get_running_loop().call_soon(self._write_all)
            except RuntimeError:  # there is no event loop
                self._waiting[label] = [line]
                self._write_all()
                return
        self._waiting.setdefault(label, []).append(line)

    def end(self, label: str) -> None:
        """Close the file of an ended job; it stays as long as the scratch."""
        self._write_all()
        self._close(label)

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for label, lines in waiting.items():
            # A full disk fails no job: its last lines are stored elsewhere too.
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
