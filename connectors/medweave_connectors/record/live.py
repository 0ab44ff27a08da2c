"""What running jobs print, line by line in files of the run's scratch: `tail -F runs/<run-id>/work/stderr/train` follows a job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = "stderr"  # in the run's scratch, which only its owner can read
FULL_BYTES = 8 * 2**20


class LiveText:
    """One file per job. A full one is moved to `<label>.1`, where the part before has been; so no job fills the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int] = {}

    def add(self, label: str, line: str) -> None:
        """A line of a job. A disk that has no room for it ends no job: its last lines are kept elsewhere too."""
        with contextlib.suppress(OSError):
            file = self._files.get(label)
            if file is not None and os.fstat(file).st_size > FULL_BYTES:
                self.end(label)
                (self._folder / label).replace(self._folder / f"{label}.1")
                file = None
            if file is None:
                self._folder.mkdir(exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                file = self._files[label] = os.open(self._folder / label, flags, 0o600)
            os.write(file, f"{line}\n".encode(errors="replace"))

    def end(self, label: str) -> None:
        """The job has ended; its file stays as long as the scratch."""
        if (file := self._files.pop(label, None)) is not None:
            os.close(file)
