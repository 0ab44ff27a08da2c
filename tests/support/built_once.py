"""Programs that tests build: what takes minutes is built once, however many test processes want it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Settings of Go's compiler: more memory and so less time, and no C.
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOGC": "400"}


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with this file, which is created if missing."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield
