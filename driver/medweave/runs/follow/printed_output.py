"""What a job prints, read while it prints."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO


class Printed:
    """Reads on where it stopped: also in a file that has been full and begins anew, and to the end of one that is removed.

    Args:
        path: of the job's file in the scratch (`medweave_connectors.runlog.job_output_files`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Printed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    @property
    def begun(self) -> bool:
        """Whether the job has printed something so far."""
        return self._stream is not None

    def new(self) -> str:
        """What came since the last call."""
        text = b""
        with contextlib.suppress(FileNotFoundError):
            if self._stream is None:
                earlier = self._path.with_name(f"{self._path.name}.1")
                text = earlier.read_bytes() if earlier.exists() else b""
                self._stream = self._path.open("rb")
            elif not os.path.samestat(os.fstat(self._stream.fileno()), self._path.stat()):
                newer = self._path.open("rb")
                text = self._stream.read()
                self._stream.close()
                self._stream = newer
        return (text + (self._stream.read() if self._stream is not None else b"")).decode(errors="replace")
