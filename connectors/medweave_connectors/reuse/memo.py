"""The SQLite file beside what is kept: digests of files, and records of work. Losing it costs time. No streamflow in here."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 500_000  # whose digests are known
_MAKE = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS files (inode INTEGER, device INTEGER, size INTEGER, modified INTEGER, changed INTEGER, "
    "sha256 BLOB, PRIMARY KEY (inode, device)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS works (key TEXT PRIMARY KEY, used REAL, bytes INTEGER, record TEXT) WITHOUT ROWID",
    f"DELETE FROM files WHERE (SELECT count(*) FROM files) > {MOST_FILES}",
)


class Memo:
    """The file, for several threads; other drivers use it at the same time.

    Args:
        file: its folder exists when it is first used. One that cannot be read (a power cut has broken it) is made anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._table: sqlite3.Connection | None = None
        self._alone = threading.Lock()

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """For some lines; what they change is written at their end. Where the file refuses them, nothing follows from that."""
        with contextlib.suppress(sqlite3.Error), self._alone:
            if self._table is None:
                self._table = _opened(self._file)
            with self._table:
                yield self._table


def _opened(file: Path) -> sqlite3.Connection:
    for is_last in (False, True):
        try:
            table = sqlite3.connect(file, timeout=5, check_same_thread=False)
            for line in _MAKE:
                table.execute(line)
            table.commit()
            return table
        except sqlite3.OperationalError:  # another driver writes, the disk is full, or it is no file
            break
        except sqlite3.DatabaseError:  # it is no database
            if is_last:
                break
            file.unlink(missing_ok=True)
    return sqlite3.connect(":memory:", check_same_thread=False)
