"""The shelf: what steps have written, by the name of their work. A kept file is one more name of the same file (a hard link).

Each is checked before it is given: by its inode where nothing has touched that, else by its content; changed ones are forgotten.
No streamflow in here.
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
from medweave_connectors.cache.database import Memo
from medweave_connectors.host.secret_file import made_once

MEMO = "memo.sqlite"
VERSION = 2  # 1 left out what a command had written into what was staged
_GIB = 2**30
_DAY_S = 86_400
_NEW = "new-"
_KEY = re.compile(r"[0-9a-f]{64}")
_OWNER_ALL = 0o700
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of kept work.

    Attributes:
        run_id: the run that did it.
        files: path to [SHA-256, permission bits].
        folders: path to permission bits.
        links: path to what the link says, inside the outputs.
        num_bytes: of all files.
    """

    run_id: str
    files: Mapping[str, tuple[str, int]]
    folders: Mapping[str, int]
    links: Mapping[str, str]
    num_bytes: int
    version: int = VERSION


class Shelf:
    """What runs of one folder keep.

    Args:
        root: its folder, mode 0700.
        limit_gib: what it may hold, GiB.
        keep_days: what is not used for so long goes.
    """

    def __init__(self, root: Path, *, limit_gib: float, keep_days: float) -> None:
        self._root, self._limit_gib, self._keep_days = root, limit_gib, keep_days
        self.memo = Memo(root / MEMO)
        self.contents = Contents(self.memo)

    def secret(self) -> bytes:
        """The secret of the digests, made once.

        Raises:
            OSError: the shelf cannot be made.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made_once(self._root / "secret")

    def take(self, key: str, into: Path) -> Record | None:
        """Puts kept outputs into a folder; None where there are none, or they are not whole any more.

        Args:
            into: the output folder of the job; what lies in it stays.
        """
        record, place = self._record(key), self._root / key
        if record is None:
            return None
        try:
            if not self._is_whole(place, record):
                self._forget(key)
                return None
            _put(place, into, record)
            # The inodes have changed: they have one more name.
            self.contents.note({place / path: sha256 for path, (sha256, _) in record.files.items()})
        except OSError:  # another run has just made room
            return None
        with self.memo.open() as table:
            table.execute("UPDATE works SET used=? WHERE key=?", (time.time(), key))
        return record

    def run_of(self, key: str) -> str:
        """The run whose outputs `take` would give; empty where there are none, they are not whole, or they leave before."""
        record, used_s = self._record(key), 0.0
        with self.memo.open() as table:
            (used_s,) = table.execute("SELECT used FROM works WHERE key=?", (key,)).fetchone() or (0.0,)
        try:
            is_whole = record is not None and self._is_whole(self._root / key, record)
        except OSError:
            return ""
        return record.run_id if record is not None and is_whole and not self._is_old(used_s) else ""

    def keep(self, key: str, outputs: Path, *, staged: Mapping[str, str], run_id: str) -> bool:
        """Keeps what a job has written; False where something of it cannot be kept: a link that leads elsewhere, a socket, a change
        of what was staged.

        Args:
            outputs: the output folder of the job.
            staged: paths in it that were there before the command, each with its digest, or `FOLDER_SIGN`.

        Raises:
            OSError: the disk is full, or refuses.
        """
        if self._record(key) is not None:
            return True
        if self.memo.fault:  # an entry without a record is a remnant
            return False
        found = _found(outputs, staged)
        try:
            if not self._are_as_they_were(outputs, staged):
                return False
            record = self._collect(outputs, found, self._root / key, run_id=run_id)
        except (Unreadable, _Elsewhere):
            return False
        text = json.dumps(dataclasses.asdict(record))
        with self.memo.open() as table:
            table.execute("REPLACE INTO works VALUES (?, ?, ?, ?)", (key, time.time(), record.num_bytes, text))
        return True

    def renamed(self, key: str) -> None:
        """The kept files have lost names: the scratch of a run was removed."""
        with contextlib.suppress(OSError):
            if (record := self._record(key)) is not None:
                self.contents.renamed([self._root / key / path for path in record.files])

    def make_room(self) -> str:
        """Remove entries without use for long, and above the limit those of the oldest use; return why some or all were left.

        Where the records cannot be read, nothing is removed.
        """
        room = self._limit_gib * _GIB
        works: list[tuple[str, float, int]] | None = None
        with self.memo.open() as table:
            works = table.execute("SELECT key, used, bytes FROM works ORDER BY used DESC").fetchall()
        if works is None or self.memo.fault:
            return self.memo.fault or "its records cannot be read"
        for key, used_s, num_bytes in works:
            room -= num_bytes
            if self._is_old(used_s) or room < 0:
                self._forget(key)
        damaged = self.memo.damaged
        self._remove_remnants({key for key, _, _ in works}, parts_only=damaged is not None)
        return f"{damaged.name} was damaged; entries without a record stay" if damaged is not None else ""

    def _remove_remnants(self, known: Collection[str], *, parts_only: bool) -> None:
        """Remove entries without a record: a driver was killed while it wrote them.

        Args:
            parts_only: only those that were never complete; others may have lost their record.
        """
        for place in self._root.iterdir():
            is_part = place.name.startswith(_NEW)
            is_remnant = is_part or (not parts_only and _KEY.fullmatch(place.name) and place.name not in known)
            with contextlib.suppress(OSError):
                if is_remnant and place.is_dir() and time.time() - place.stat().st_mtime > _DAY_S:
                    shutil.rmtree(place, ignore_errors=True)

    def _is_old(self, used_s: float) -> bool:
        return used_s < time.time() - self._keep_days * _DAY_S

    def _record(self, key: str) -> Record | None:
        """What is known of kept work; None where nothing is, or another version wrote it."""
        row = None
        with self.memo.open() as table:
            row = table.execute("SELECT record FROM works WHERE key=?", (key,)).fetchone()
        with contextlib.suppress(ValueError, TypeError):
            return None if row is None else _read(row[0])
        return None

    def _forget(self, key: str) -> None:
        with self.memo.open() as table:
            table.execute("DELETE FROM works WHERE key=?", (key,))
            table.commit()
            shutil.rmtree(self._root / key, ignore_errors=True)  # the record is gone: no entry without its content

    def _is_whole(self, outputs: Path, record: Record) -> bool:
        there = self.contents.files([os.fspath(outputs / path) for path in record.files])
        return there == [sha256 for sha256, _ in record.files.values()]

    def _are_as_they_were(self, outputs: Path, staged: Mapping[str, str]) -> bool:
        if not staged:
            return True
        there = {inside: is_folder for inside, _, is_folder in tree(os.fspath(outputs), only_into=staged)}
        if any(there.get(inside) != (was == FOLDER_SIGN) for inside, was in staged.items()) or has_more(there, staged):
            return False
        files = {inside: was for inside, was in staged.items() if was != FOLDER_SIGN}
        return self.contents.files([os.fspath(outputs / inside) for inside in files]) == list(files.values())

    def _collect(self, outputs: Path, found: Mapping[str, os.stat_result], place: Path, *, run_id: str) -> Record:
        """Gives the files their second names, in a folder that is there whole or not at all; none for work without files."""
        links = {
            inside: _inner(outputs / inside, outputs) for inside, said in found.items() if stat.S_ISLNK(said.st_mode)
        }
        folders = {inside: stat.S_IMODE(said.st_mode) for inside, said in found.items() if stat.S_ISDIR(said.st_mode)}
        files = [inside for inside in found if inside not in links and inside not in folders]
        digests = dict(zip(files, self.contents.files([os.fspath(outputs / inside) for inside in files]), strict=True))
        if files:
            self._link(outputs, {inside: stat.S_IMODE(found[inside].st_mode) for inside in files}, folders, place)
            self.contents.note({place / inside: sha256 for inside, sha256 in digests.items()})
        return Record(
            run_id=run_id,
            files={inside: (sha256, stat.S_IMODE(found[inside].st_mode)) for inside, sha256 in digests.items()},
            folders=folders,
            links=links,
            num_bytes=sum(found[inside].st_size for inside in files),
        )

    def _link(self, outputs: Path, files: Mapping[str, int], folders: Iterable[str], place: Path) -> None:
        new = self._root / f"{_NEW}{secrets.token_hex(8)}"
        try:
            new.mkdir(mode=0o700)
            for inside in folders:
                (new / inside).mkdir()
            for inside, mode in files.items():
                _same_file(outputs / inside, new / inside, mode)
            shutil.rmtree(place, ignore_errors=True)  # what a driver has left that was killed in here
            new.rename(place)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise


class _Elsewhere(Exception):
    """A link leads out of the outputs."""


def _read(text: str) -> Record:
    told = json.loads(text)
    if not isinstance(told, dict) or told.get("version") != VERSION:
        raise ValueError(told)
    return Record(**told)


def _put(outputs: Path, into: Path, record: Record) -> None:
    for path in sorted(record.folders):
        (into / path).mkdir(exist_ok=True)
    for path, (_, mode) in record.files.items():
        (into / path).unlink(missing_ok=True)
        _same_file(outputs / path, into / path, mode)
    for path, target in record.links.items():
        (into / path).symlink_to(target)
    for path in sorted(record.folders, reverse=True):
        (into / path).chmod(record.folders[path] | _OWNER_ALL)


def _found(outputs: Path, staged: Collection[str]) -> dict[str, os.stat_result]:
    """What lies in a folder, each folder before what it holds; links are not followed, and what was staged is left out."""
    found: dict[str, os.stat_result] = {}
    for at, folders, files in os.walk(outputs):
        for name in sorted([*folders, *files]):
            path = Path(at, name)
            if (inside := path.relative_to(outputs).as_posix()) not in staged:
                found[inside] = path.lstat()
        folders[:] = [name for name in folders if Path(at, name).relative_to(outputs).as_posix() in found]
    return found


def _inner(link: Path, outputs: Path) -> str:
    """What a link inside the outputs says."""
    target = os.readlink(link)  # noqa: PTH115 (its words, not a path)
    root = outputs.resolve()
    if Path(target).is_absolute() or root not in (link.parent.resolve() / target).resolve().parents:
        raise _Elsewhere
    return target


def _same_file(source: Path, target: Path, mode: int) -> None:
    """One more name of a file; a copy where the file system makes none."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
        target.chmod(mode)
