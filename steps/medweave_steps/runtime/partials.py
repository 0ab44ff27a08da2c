"""Names of outputs that are being written aside, so that an interrupted step leaves none of them behind."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

_open_partials: set[Path] = set()


def register(path: Path) -> None:
    """Register a partial file or folder, which is removed on a failure."""
    _open_partials.add(path)


def forget(path: Path) -> None:
    """Unregister an output that is complete or already removed."""
    _open_partials.discard(path)


def remove_all() -> None:
    """Remove all registered partial outputs. Never raises."""
    for path in list(_open_partials):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        _open_partials.discard(path)
