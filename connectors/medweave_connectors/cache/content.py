"""What lies under a path of this machine, by content. A file is read once, and again when its inode says that it has changed.

No streamflow in here.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from medweave_connectors.cache.database import Memo

QUIET_NS = 2_000_000_000  # what has changed just now may change again within one tick of the file system's clock
_AT_ONCE = 900  # SQLite takes 999 values
Row = tuple[int, int, int, int, int, bytes]  # of the table


class Unreadable(OSError):
    """Something there has no content: a socket, a pipe, a device."""


class Contents:
    """Digests of files, by inode and device; of a file's name nothing is written down. For several threads.

    Args:
        memo: keeps them between runs.
    """

    def __init__(self, memo: Memo) -> None:
        self._memo = memo

    def digest(self, path: str | os.PathLike[str]) -> str:
        """SHA-256 of a file, or one digest of all that lies in a folder; links are followed.

        Raises:
            OSError: it cannot be read.
        """
        if not Path(path).is_dir():
            return self.files([os.fspath(path)])[0]
        there = list(tree(os.fspath(path)))
        files = [(file, os.stat(file)) for _, file, is_folder in there if not is_folder]  # noqa: PTH116 (thousands)
        words = iter(self._digests(files))
        modes = iter([said.st_mode for _, said in files])
        whole = hashlib.sha256()
        for inside, _, is_folder in there:
            word = FOLDER_SIGN if is_folder else next(words) + ("x" if next(modes) & stat.S_IXUSR else "")
            name = os.fsencode(inside)
            whole.update(b"%d\0%b\0%b\n" % (len(name), name, word.encode()))
        return whole.hexdigest()

    def files(self, paths: Sequence[str]) -> list[str]:
        """SHA-256 of each file.

        Raises:
            OSError: one cannot be read, or is no file.
        """
        return self._digests([(path, os.stat(path)) for path in paths])  # noqa: PTH116 (there are thousands)

    def _digests(self, files: Sequence[tuple[str, os.stat_result]]) -> list[str]:
        said = [each for _, each in files]
        if any(not stat.S_ISREG(each.st_mode) for each in said):
            raise Unreadable("neither file nor folder")
        known, found, new = self._rows(said), [], []
        for path, each in files:
            row = known.get(_key(each))
            if row is None or row[:-1] != _facts(each):
                row = _read(path, each)
                if _is_quiet(path, each):
                    new.append(row)
            found.append(row[-1].hex())
        self._write(new)
        return found

    def note(self, digests: Mapping[Path, str]) -> None:
        """Remembers what files hold whose inodes have got another name since they were read."""
        self._write([(*_facts(path.stat()), bytes.fromhex(sha256)) for path, sha256 in digests.items()])

    def renamed(self, paths: Sequence[Path]) -> None:
        """Remembers the files on whose inodes nothing but their names has changed since they were read."""
        said = [path.stat() for path in paths]
        known = self._rows(said)
        same = [(each, row) for each in said if (row := known.get(_key(each))) and row[:4] == _facts(each)[:4]]
        self._write([(*_facts(each), row[-1]) for each, row in same])

    def _rows(self, files: Sequence[os.stat_result]) -> dict[tuple[int, int], Row]:
        found: dict[tuple[int, int], Row] = {}
        inodes = [_key(each)[0] for each in files]
        for first in range(0, len(inodes), _AT_ONCE):
            part = inodes[first : first + _AT_ONCE]
            with self._memo.open() as table:
                rows = table.execute(f"SELECT * FROM files WHERE inode IN ({','.join('?' * len(part))})", part)
                found.update({each[:2]: each for each in rows})
        return found

    def _write(self, rows: Sequence[Row]) -> None:
        if rows:
            with self._memo.open() as table:
                table.executemany("REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


FOLDER_SIGN = "/"  # in the place of a digest


def tree(folder: str, *, only_into: Collection[str] | None = None) -> Iterator[tuple[str, str, bool]]:
    """Everything below a folder in one order, links followed: the path inside, the path, and whether it is a folder.

    Args:
        only_into: paths inside of the folders that are looked into; all of them where there are none.
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


def has_more(there: Iterable[str], staged: Collection[str]) -> bool:
    """Whether something lies in a folder that was staged which was not staged with it."""
    return any(inside not in staged and posixpath.dirname(inside) in staged for inside in there)


def _read(path: str, said: os.stat_result) -> Row:
    with Path(path).open("rb") as content:
        return *_facts(said), hashlib.file_digest(content, "sha256").digest()


def _is_quiet(path: str, said: os.stat_result) -> bool:
    """Whether nobody has written to it just now, or while it was read."""
    age_ns = time.time_ns() - max(said.st_ctime_ns, said.st_mtime_ns)
    return age_ns > QUIET_NS and _facts(Path(path).stat()) == _facts(said)


def _key(said: os.stat_result) -> tuple[int, int]:
    return _signed(said.st_ino), said.st_dev


def _facts(said: os.stat_result) -> tuple[int, int, int, int, int]:
    return *_key(said), said.st_size, said.st_mtime_ns, said.st_ctime_ns


def _signed(number: int) -> int:
    """SQLite's integers have a sign."""
    return number - 2**64 if number >= 2**63 else number
