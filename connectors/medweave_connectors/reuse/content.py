"""What lies under a path of this machine, by content. A file is read once, and again when its inode says that it has changed.

No streamflow in here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

QUIET_NS = 2_000_000_000  # what has changed just now may change again within one tick of the file system's clock
MOST_ROWS = 500_000
_AT_ONCE = 900  # SQLite takes 999 values
_TABLE = (
    "CREATE TABLE IF NOT EXISTS files (device INTEGER, inode INTEGER, size INTEGER, modified INTEGER, changed INTEGER, "
    "sha256 BLOB, PRIMARY KEY (inode, device)) WITHOUT ROWID"
)


class Unreadable(OSError):
    """Something there has no content: a socket, a pipe, a device."""


class Contents:
    """Digests of files, by device and inode; of a file's name nothing is written down.

    Args:
        memo: the SQLite file that keeps them between runs; its folder exists. A memo that cannot be used costs time, nothing else.
    """

    def __init__(self, memo: Path) -> None:
        self._memo = memo

    def digest(self, path: str | os.PathLike[str]) -> str:
        """SHA-256 of a file, or one digest of all that lies in a folder; links are followed.

        Raises:
            OSError: it cannot be read.
        """
        with self.open() as known:
            if not Path(path).is_dir():
                return known.file(path)
            whole = hashlib.sha256()
            found = [(inside, file, os.stat(file)) for inside, file in tree(os.fspath(path))]  # noqa: PTH116 (thousands)
            known.expect([said for _, _, said in found])
            for inside, file, said in found:
                mark = "x" if said.st_mode & stat.S_IXUSR else ""
                word = "/" if stat.S_ISDIR(said.st_mode) else known.file(file, said) + mark
                name = os.fsencode(inside)
                whole.update(b"%d\0%b\0%b\n" % (len(name), name, word.encode()))
            return whole.hexdigest()

    @contextlib.contextmanager
    def open(self) -> Iterator[Known]:
        """The digests for one piece of work."""
        try:
            table = sqlite3.connect(self._memo, timeout=5)
        except sqlite3.Error:
            table = sqlite3.connect(":memory:")
        known = Known(table)
        try:
            yield known
        finally:
            known.close()


class Known:
    """Digests that are looked up, found out and noted."""

    def __init__(self, table: sqlite3.Connection) -> None:
        self._table = table
        self._expected: dict[tuple[int, int], tuple[Any, ...] | None] = {}
        with self._careful() as rows:
            rows.execute("PRAGMA journal_mode=WAL")
            rows.execute("PRAGMA synchronous=OFF")  # a memo that a power cut breaks is read no more, and costs time
            rows.execute(_TABLE)

    def file(self, path: str | os.PathLike[str], said: os.stat_result | None = None) -> str:
        """SHA-256 of a file.

        Args:
            said: what the file system says of it, where that is known already.

        Raises:
            OSError: it cannot be read, or is no file.
        """
        said = said or os.stat(path)  # noqa: PTH116 (there are thousands)
        if not stat.S_ISREG(said.st_mode):
            raise Unreadable("neither file nor folder")
        if _key(said) not in self._expected:
            self.expect([said])
        known = self._expected[_key(said)]
        if known is not None and known[:-1] == _facts(said):
            return bytes(known[-1]).hex()
        with open(path, "rb") as content:  # noqa: PTH123
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if time.time_ns() - max(said.st_ctime_ns, said.st_mtime_ns) > QUIET_NS and _facts(Path(path).stat()) == _facts(
            said
        ):
            self._write(said, found)
        return found

    def expect(self, files: Sequence[os.stat_result]) -> None:
        """Looks some files up at once."""
        keys = [_key(said) for said in files]
        self._expected.update(dict.fromkeys(keys))
        for first in range(0, len(keys), _AT_ONCE):
            part = keys[first : first + _AT_ONCE]
            with self._careful() as rows:
                places = ",".join("?" * len(part))
                found = rows.execute(f"SELECT * FROM files WHERE inode IN ({places})", [inode for _, inode in part])
                self._expected.update({each[:2]: each for each in found if each[:2] in self._expected})

    def renamed(self, path: Path) -> None:
        """Remembers a file on whose inode nothing but its names has changed since it was read."""
        said = path.stat()
        self.expect([said])
        known = self._expected[_key(said)]
        if known is not None and known[:-2] == _facts(said)[:-1]:
            self._write(said, bytes(known[-1]).hex())

    def note(self, path: Path, sha256: str) -> None:
        """Remembers what a file holds whose inode has got another name since it was read."""
        self._write(path.stat(), sha256)

    def close(self) -> None:
        """Keeps what was noted."""
        with self._careful() as rows:
            if rows.execute("SELECT count(*) FROM files").fetchone()[0] > MOST_ROWS:
                rows.execute("DELETE FROM files")
            rows.commit()
        self._table.close()

    def _write(self, said: os.stat_result, sha256: str) -> None:
        self._expected.pop(_key(said), None)
        with self._careful() as rows:
            rows.execute("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", (*_facts(said), bytes.fromhex(sha256)))

    @contextlib.contextmanager
    def _careful(self) -> Iterator[sqlite3.Connection]:
        with contextlib.suppress(sqlite3.Error):
            yield self._table


def tree(folder: str) -> Iterator[tuple[str, str]]:
    """Everything below a folder in the order of its names, links followed: the path inside, and the path."""
    for at, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        inside = at[len(folder) :].lstrip("/")
        for name in sorted([*folders, *files]):
            yield posixpath.join(inside, name), posixpath.join(at, name)


def _key(said: os.stat_result) -> tuple[int, int]:
    return said.st_dev, _signed(said.st_ino)


def _facts(said: os.stat_result) -> tuple[int, ...]:
    return *_key(said), said.st_size, said.st_mtime_ns, said.st_ctime_ns


def _signed(number: int) -> int:
    """SQLite's integers have a sign."""
    return number - 2**64 if number >= 2**63 else number
