"""Content digests of local files and folders. A file is read once, and again when its inode shows that it has changed.

Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from medweave_connectors.cache.database import CacheDatabase

QUIET_NS = 2_000_000_000  # a file that changed just now may change again within one tick of the file system's clock
_AT_ONCE = 900  # SQLite takes 999 values
Row = tuple[int, int, int, int, int, bytes]  # of the table `files`


class Unreadable(OSError):
    """A path has no content: it is a socket, a pipe or a device."""


class Contents:
    """Digests of files, by inode and device; file names are not stored. Thread-safe.

    Args:
        database: stores the digests between runs.
    """

    def __init__(self, database: CacheDatabase) -> None:
        self._database = database

    def digest(self, path: str | os.PathLike[str]) -> str:
        """Return the SHA-256 of a file, or one digest of all contents of a folder; links are followed.

        Raises:
            OSError: the file or folder cannot be read.
        """
        if not Path(path).is_dir():
            return self.files([os.fspath(path)])[0]
        entries = list(tree(os.fspath(path)))
        files = [(file, os.stat(file)) for _, file, is_folder in entries if not is_folder]  # noqa: PTH116 (thousands)
        words = iter(self._digests(files))
        modes = iter([stats.st_mode for _, stats in files])
        whole = hashlib.sha256()
        for inside, _, is_folder in entries:
            word = FOLDER_SIGN if is_folder else next(words) + ("x" if next(modes) & stat.S_IXUSR else "")
            name = os.fsencode(inside)
            whole.update(b"%d\0%b\0%b\n" % (len(name), name, word.encode()))
        return whole.hexdigest()

    def files(self, paths: Sequence[str]) -> list[str]:
        """Return the SHA-256 of each file.

        Raises:
            OSError: one of them cannot be read, or is not a file.
        """
        return self._digests([(path, os.stat(path)) for path in paths])  # noqa: PTH116 (there are thousands)

    def _digests(self, files: Sequence[tuple[str, os.stat_result]]) -> list[str]:
        stats = [status for _, status in files]
        if any(not stat.S_ISREG(status.st_mode) for status in stats):
            raise Unreadable("neither file nor folder")
        known, digests, new = self._rows(stats), [], []
        for path, status in files:
            row = known.get(_key(status))
            if row is None or row[:-1] != _facts(status):
                row = _read(path, status)
                if _is_quiet(path, status):
                    new.append(row)
            digests.append(row[-1].hex())
        self._write(new)
        return digests

    def note(self, digests: Mapping[Path, str]) -> None:
        """Store known digests of files whose inodes got another name (hard link) since they were read."""
        self._write([(*_facts(path.stat()), bytes.fromhex(sha256)) for path, sha256 in digests.items()])

    def note_renamed(self, paths: Sequence[Path]) -> None:
        """Update the stored rows of files whose inodes changed only in their names since they were read.

        Files that no longer exist are left out.
        """
        stats = []
        for path in paths:
            with contextlib.suppress(OSError):
                stats.append(path.stat())
        known = self._rows(stats)
        same = [(status, row) for status in stats if (row := known.get(_key(status))) and row[:4] == _facts(status)[:4]]
        self._write([(*_facts(status), row[-1]) for status, row in same])

    def _rows(self, files: Sequence[os.stat_result]) -> dict[tuple[int, int], Row]:
        known: dict[tuple[int, int], Row] = {}
        inodes = [_key(status)[0] for status in files]
        for first in range(0, len(inodes), _AT_ONCE):
            part = inodes[first : first + _AT_ONCE]
            with self._database.open() as table:
                rows = table.execute(f"SELECT * FROM files WHERE inode IN ({','.join('?' * len(part))})", part)
                known.update({row[:2]: row for row in rows})
        return known

    def _write(self, rows: Sequence[Row]) -> None:
        if rows:
            with self._database.open() as table:
                table.executemany("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


FOLDER_SIGN = "/"  # instead of a digest


def tree(folder: str, *, only_into: Collection[str] | None = None) -> Iterator[tuple[str, str, bool]]:
    """Yield everything below a folder in a fixed order, links followed: relative path, path, and whether it is a folder.

    Args:
        only_into: relative paths of the folders to descend into; None for all.
    """
    for at, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        inside = at[len(folder) :].lstrip("/")
        for name in folders:
            yield posixpath.join(inside, name), posixpath.join(at, name), True
        for name in sorted(files):
            yield posixpath.join(inside, name), posixpath.join(at, name), False
        if only_into is not None:
            folders[:] = [name for name in folders if posixpath.join(inside, name) in only_into]


def has_more(existing: Iterable[str], staged: Collection[str]) -> bool:
    """Return True if a staged folder contains a path that was not staged."""
    return any(inside not in staged and posixpath.dirname(inside) in staged for inside in existing)


def _read(path: str, stats: os.stat_result) -> Row:
    with Path(path).open("rb") as content:
        return *_facts(stats), hashlib.file_digest(content, "sha256").digest()


def _is_quiet(path: str, stats: os.stat_result) -> bool:
    """Return True if the file was not written just now, nor while it was read."""
    age_ns = time.time_ns() - max(stats.st_ctime_ns, stats.st_mtime_ns)
    return age_ns > QUIET_NS and _facts(Path(path).stat()) == _facts(stats)


def _key(stats: os.stat_result) -> tuple[int, int]:
    return _signed(stats.st_ino), stats.st_dev


def _facts(stats: os.stat_result) -> tuple[int, int, int, int, int]:
    return *_key(stats), stats.st_size, stats.st_mtime_ns, stats.st_ctime_ns


def _signed(number: int) -> int:
    """Return the number as SQLite stores it: its integers are signed."""
    return number - 2**64 if number >= 2**63 else number
