"""Atomic outputs: they are written under a temporary name, flushed to the disk and renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from medweave_core.errors import UsageError
from medweave_steps.runtime import partials


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SYNCS_AT_ONCE = 16
"""The disk is waited for, not the processor; a journal takes many files in one turn: 1.5 s instead of 15 for 9,000 files."""


def _sync_all(files: Iterable[Path]) -> None:
    pool = ThreadPoolExecutor(SYNCS_AT_ONCE, "sync")
    try:
        for _ in pool.map(_sync, files):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the file gets its own name only if the block succeeds.

    An existing file of that name is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    partials.register(aside)
    try:
        yield aside
        _sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
        partials.forget(aside)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; it gets its own name only if the block succeeds.

    Raises:
        UsageError: something is already there (an empty folder is replaced).
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(
            f"the output '{path.name}' exists already.",
            expected="a path that does not exist: nothing is overwritten",
            do="remove it or choose another --output",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    partials.register(aside)
    try:
        aside.mkdir()
        yield aside
        _sync_all(file for file in aside.rglob("*") if file.is_file())
        if path.is_dir():
            path.rmdir()
        aside.replace(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        partials.forget(aside)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, complete or not at all."""
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
