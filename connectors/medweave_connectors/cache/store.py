"""The local store of the cache: outputs of steps, by cache key. A stored file is a hard link to the output.

Each file is verified before it is restored: by its inode if that is unchanged, otherwise by its content. Entries with a changed
file are deleted. Does not import streamflow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from medweave_connectors.cache.content import FOLDER_SIGN, Contents, Unreadable, has_more, tree
from medweave_connectors.cache.database import CacheDatabase
from medweave_connectors.host.secret_file import made_once

DATABASE_FILE = "memo.sqlite"
VERSION = 2  # version 1 omitted files that a command had written into staged folders
_GIB = 2**30
_DAY_S = 86_400
_NEW = "new-"
_KEY = re.compile(r"[0-9a-f]{64}")
_OWNER_ALL = 0o700
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One cache entry: the outputs of a job.

    Attributes:
        run_id: the run that produced the outputs.
        files: path to [SHA-256, permission bits].
        folders: path to permission bits.
        links: path to link target, inside the outputs.
        num_bytes: of all files.
    """

    run_id: str
    files: Mapping[str, tuple[str, int]]
    folders: Mapping[str, int]
    links: Mapping[str, str]
    num_bytes: int
    version: int = VERSION


class LocalStore:
    """The store of a runs folder.

    Args:
        root: its folder, mode 0700.
        limit_gib: size limit, GiB.
        keep_days: entries without use for so long are evicted.
    """

    def __init__(self, root: Path, *, limit_gib: float, keep_days: float) -> None:
        self._root, self._limit_gib, self._keep_days = root, limit_gib, keep_days
        self.database = CacheDatabase(root / DATABASE_FILE)
        self.contents = Contents(self.database)

    def secret(self) -> bytes:
        """Return the secret of the digests, created once.

        Raises:
            OSError: the store's folder cannot be created.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made_once(self._root / "secret")

    def restore(self, key: str, into: Path) -> CacheEntry | None:
        """Link stored outputs into a folder. Return None if there is no entry, or it is no longer complete.

        Args:
            into: the output folder of the job; its contents stay.
        """
        record, folder = self._record(key), self._root / key
        if record is None:
            return None
        try:
            if not self._is_whole(folder, record):
                self._delete(key)
                return None
            _put(folder, into, record)
            # The inodes have changed: each has one more name.
            self.contents.note({folder / path: sha256 for path, (sha256, _) in record.files.items()})
        except OSError:  # another run has just evicted it
            return None
        with self.database.open() as table:
            table.execute("UPDATE works SET used=? WHERE key=?", (time.time(), key))
        return record

    def has_entry(self, key: str) -> bool:
        """Return whether there is an entry, which may be incomplete. Reads one row only."""
        return self._record(key) is not None

    def find_run(self, key: str) -> str:
        """Return the run whose outputs `restore` would link; empty if the entry is absent, incomplete, or too old."""
        record, used_s = self._record(key), 0.0
        with self.database.open() as table:
            (used_s,) = table.execute("SELECT used FROM works WHERE key=?", (key,)).fetchone() or (0.0,)
        try:
            is_whole = record is not None and self._is_whole(self._root / key, record)
        except OSError:
            return ""
        return record.run_id if record is not None and is_whole and not self._is_old(used_s) else ""

    def save(self, key: str, outputs: Path, *, staged: Mapping[str, str], run_id: str) -> bool:
        """Store the outputs of a job. Return False if they cannot be stored: a link leads out of them, one is a socket, or a staged
        file was changed.

        Args:
            outputs: the output folder of the job.
            staged: paths that existed before the command, each with its digest, or `FOLDER_SIGN`.

        Raises:
            OSError: the disk is full, or access is denied.
        """
        if self._record(key) is not None:
            return True
        if self.database.fault:  # an entry without a record is a remnant
            return False
        entries = _scan(outputs, staged)
        try:
            if not self._are_unchanged(outputs, staged):
                return False
            record = self._collect(outputs, entries, self._root / key, run_id=run_id)
        except (Unreadable, _Elsewhere):
            return False
        text = json.dumps(dataclasses.asdict(record))
        with self.database.open() as table:
            table.execute("REPLACE INTO works VALUES (?, ?, ?, ?)", (key, time.time(), record.num_bytes, text))
        return True

    def note_renamed(self, keys: Iterable[str]) -> None:
        """Update digests of stored files whose other names were removed with the scratch of a run."""
        records = ((key, record) for key in keys if (record := self._record(key)) is not None)
        self.contents.note_renamed([self._root / key / path for key, record in records for path in record.files])

    def evict(self) -> str:
        """Remove entries without recent use and, above the limit, the least recently used. Return why some or all stay.

        If the records cannot be read, nothing is removed.
        """
        room = self._limit_gib * _GIB
        works: list[tuple[str, float, int]] | None = None
        with self.database.open() as table:
            works = table.execute("SELECT key, used, bytes FROM works ORDER BY used DESC").fetchall()
        if works is None or self.database.fault:
            return self.database.fault or "its records cannot be read"
        for key, used_s, num_bytes in works:
            room -= num_bytes
            if self._is_old(used_s) or room < 0:
                self._delete(key)
        damaged = self.database.damaged
        self._remove_remnants({key for key, _, _ in works}, parts_only=damaged is not None)
        return f"{damaged.name} was damaged; entries without a record stay" if damaged is not None else ""

    def _remove_remnants(self, known: Collection[str], *, parts_only: bool) -> None:
        """Remove entries without a record: a driver was killed while it wrote them.

        Args:
            parts_only: only those that were never complete; others may have lost their record.
        """
        for folder in self._root.iterdir():
            is_part = folder.name.startswith(_NEW)
            is_remnant = is_part or (not parts_only and _KEY.fullmatch(folder.name) and folder.name not in known)
            with contextlib.suppress(OSError):
                if is_remnant and folder.is_dir() and time.time() - folder.stat().st_mtime > _DAY_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _is_old(self, used_s: float) -> bool:
        return used_s < time.time() - self._keep_days * _DAY_S

    def _record(self, key: str) -> CacheEntry | None:
        """Return the record of an entry; None if it is missing, or another version wrote it."""
        row = None
        with self.database.open() as table:
            row = table.execute("SELECT record FROM works WHERE key=?", (key,)).fetchone()
        with contextlib.suppress(ValueError, TypeError):
            return None if row is None else _read(row[0])
        return None

    def _delete(self, key: str) -> None:
        with self.database.open() as table:
            table.execute("DELETE FROM works WHERE key=?", (key,))
            table.commit()
            shutil.rmtree(self._root / key, ignore_errors=True)  # the record is gone: no entry without its content

    def _is_whole(self, outputs: Path, record: CacheEntry) -> bool:
        existing = self.contents.files([os.fspath(outputs / path) for path in record.files])
        return existing == [sha256 for sha256, _ in record.files.values()]

    def _are_unchanged(self, outputs: Path, staged: Mapping[str, str]) -> bool:
        if not staged:
            return True
        existing = {inside: is_folder for inside, _, is_folder in tree(os.fspath(outputs), only_into=staged)}
        if any(existing.get(inside) != (was == FOLDER_SIGN) for inside, was in staged.items()) or has_more(
            existing, staged
        ):
            return False
        files = {inside: was for inside, was in staged.items() if was != FOLDER_SIGN}
        return self.contents.files([os.fspath(outputs / inside) for inside in files]) == list(files.values())

    def _collect(
        self, outputs: Path, entries: Mapping[str, os.stat_result], folder: Path, *, run_id: str
    ) -> CacheEntry:
        """Link the output files into a new entry, complete or absent, and return its record. Without files no folder is created."""
        links = {
            inside: _inner(outputs / inside, outputs)
            for inside, status in entries.items()
            if stat.S_ISLNK(status.st_mode)
        }
        folders = {
            inside: stat.S_IMODE(status.st_mode) for inside, status in entries.items() if stat.S_ISDIR(status.st_mode)
        }
        files = [inside for inside in entries if inside not in links and inside not in folders]
        digests = dict(zip(files, self.contents.files([os.fspath(outputs / inside) for inside in files]), strict=True))
        if files:
            self._link(outputs, {inside: stat.S_IMODE(entries[inside].st_mode) for inside in files}, folders, folder)
            self.contents.note({folder / inside: sha256 for inside, sha256 in digests.items()})
        return CacheEntry(
            run_id=run_id,
            files={inside: (sha256, stat.S_IMODE(entries[inside].st_mode)) for inside, sha256 in digests.items()},
            folders=folders,
            links=links,
            num_bytes=sum(entries[inside].st_size for inside in files),
        )

    def _link(self, outputs: Path, files: Mapping[str, int], folders: Iterable[str], folder: Path) -> None:
        new = self._root / f"{_NEW}{secrets.token_hex(8)}"
        try:
            new.mkdir(mode=0o700)
            for inside in folders:
                (new / inside).mkdir()
            for inside, mode in files.items():
                _same_file(outputs / inside, new / inside, mode)
            shutil.rmtree(folder, ignore_errors=True)  # a remnant of a driver that was killed at this line
            new.rename(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise


class _Elsewhere(Exception):
    """A link leads out of the outputs."""


def _read(text: str) -> CacheEntry:
    record = json.loads(text)
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ValueError(record)
    return CacheEntry(**record)


def _put(outputs: Path, into: Path, record: CacheEntry) -> None:
    for path in sorted(record.folders):
        (into / path).mkdir(exist_ok=True)
    for path, (_, mode) in record.files.items():
        (into / path).unlink(missing_ok=True)
        _same_file(outputs / path, into / path, mode)
    for path, target in record.links.items():
        (into / path).symlink_to(target)
    for path in sorted(record.folders, reverse=True):
        (into / path).chmod(record.folders[path] | _OWNER_ALL)


def _scan(outputs: Path, staged: Collection[str]) -> dict[str, os.stat_result]:
    """Return the entries of a folder, folders before their contents, without staged paths; links are not followed."""
    entries: dict[str, os.stat_result] = {}
    for at, folders, files in os.walk(outputs):
        for name in sorted([*folders, *files]):
            path = Path(at, name)
            if (inside := path.relative_to(outputs).as_posix()) not in staged:
                entries[inside] = path.lstat()
        folders[:] = [name for name in folders if Path(at, name).relative_to(outputs).as_posix() in entries]
    return entries


def _inner(link: Path, outputs: Path) -> str:
    """Return the target of a link inside the outputs.

    Raises:
        _Elsewhere: it leads out of the outputs.
    """
    target = os.readlink(link)  # noqa: PTH115 (the text, not a path)
    root = outputs.resolve()
    if Path(target).is_absolute() or root not in (link.parent.resolve() / target).resolve().parents:
        raise _Elsewhere
    return target


def _same_file(source: Path, target: Path, mode: int) -> None:
    """Make a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
        target.chmod(mode)
