"""The SQLite file of the cache: digests of files, and records of cache entries. Does not import streamflow.

Losing a digest costs time. A cache entry without its record looks like a remnant, so a file that cannot be read must never look
empty.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 500_000  # whose digests are known
LOCK_S = 5.0  # the longest wait for another driver
_MAKE = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS files (inode INTEGER, device INTEGER, size INTEGER, modified INTEGER, changed INTEGER, "
    "sha256 BLOB, PRIMARY KEY (inode, device)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS works (key TEXT PRIMARY KEY, used REAL, bytes INTEGER, record TEXT) WITHOUT ROWID",
)
_TRIM = f"DELETE FROM files WHERE (SELECT count(*) FROM files) > {MOST_FILES}"
_DAMAGED = ".damaged"


class CacheDatabase:
    """The cache's SQLite file. Thread-safe; other drivers use it at the same time.

    Args:
        file: its folder exists when it is first used. A damaged file (after a power cut) is renamed, and a new one is created.

    Attributes:
        fault: why the file cannot be read; empty if it can, or before the first use. With a fault, rows live only in memory.
    """

    def __init__(self, file: Path) -> None:
        self._file, self.fault = file, ""
        self._table: sqlite3.Connection | None = None
        self._alone = threading.Lock()

    @property
    def damaged(self) -> Path | None:
        """Return the damaged file that was renamed, now or earlier: some entries have no record because of it."""
        aside = _aside(self._file)
        return aside if aside.exists() else None

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection and commit at the end. Database errors are ignored: the block ends early."""
        with contextlib.suppress(sqlite3.Error), self._alone:
            if self._table is None:
                self._table, self.fault = _opened(self._file)
            with self._table:
                yield self._table


def _opened(file: Path) -> tuple[sqlite3.Connection, str]:
    """Return the database and no fault, or one in memory and why the file cannot be read."""
    fault = ""
    for _ in range(2):
        try:
            return _connected(file), ""
        except sqlite3.OperationalError as error:  # the disk is full, a lock does not end, or a folder has the name
            fault = str(error)
            break
        except sqlite3.DatabaseError as error:  # no database
            fault = str(error)
            try:
                file.replace(_aside(file))
            except OSError:
                break
    return sqlite3.connect(":memory:", check_same_thread=False), fault


def _connected(file: Path) -> sqlite3.Connection:
    table = sqlite3.connect(file, timeout=LOCK_S, check_same_thread=False)
    try:
        for line in _MAKE:
            table.execute(line)
        table.commit()
        with contextlib.suppress(sqlite3.OperationalError):  # another driver writes
            table.execute(_TRIM)
            table.commit()
    except sqlite3.Error:
        table.close()
        raise
    return table


def _aside(file: Path) -> Path:
    return file.with_name(file.name + _DAMAGED)
