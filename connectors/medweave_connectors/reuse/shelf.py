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
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from medweave_connectors.reuse.content import Contents, Known, Unreadable

RECORD, OUTPUTS = "record.json", "outputs"
VERSION = 1
_GIB = 2**30
_DAY_S = 86_400
_NEW = "new-"
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
        self.contents = Contents(root / "digests.sqlite")

    def secret(self) -> bytes:
        """The secret of the digests, made once.

        Raises:
            OSError: the shelf cannot be made.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._root / "secret"
        new = self._root / f"{_NEW}{secrets.token_hex(8)}"
        if not file.exists():
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):  # another run was quicker
                os.link(new, file)
            new.unlink()
        return file.read_bytes()

    def take(self, key: str, into: Path) -> Record | None:
        """Puts kept outputs into a folder; None where there are none, or they are not whole any more.

        Args:
            into: the output folder of the job; what lies in it stays.
        """
        place = self._place(key)
        try:
            record = _read(place / RECORD)
            with self.contents.open() as known:
                if not _is_whole(place / OUTPUTS, record, known):
                    shutil.rmtree(place, ignore_errors=True)
                    return None
                _put(place / OUTPUTS, into, record, known)
            os.utime(place / RECORD)  # its last use
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return record

    def keep(self, key: str, outputs: Path, *, staged: Collection[str], run_id: str) -> bool:
        """Keeps what a job has written; False where something of it cannot be kept: a link that leads elsewhere, a socket.

        Args:
            outputs: the output folder of the job.
            staged: paths in it that were there before the command.

        Raises:
            OSError: the disk is full, or refuses.
        """
        place, new = self._place(key), self._root / f"{_NEW}{secrets.token_hex(8)}"
        if place.exists():
            return True
        try:
            (new / OUTPUTS).mkdir(mode=0o700, parents=True)
            with self.contents.open() as known:
                record = _collect(outputs, new / OUTPUTS, staged=staged, run_id=run_id, known=known)
            (new / RECORD).write_text(json.dumps(dataclasses.asdict(record)), encoding="utf-8")
            place.parent.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                new.rename(place)
        except (Unreadable, _Elsewhere):
            return False
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return True

    def renamed(self, key: str) -> None:
        """The kept files have lost names: the scratch of a run was removed."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            place = self._place(key)
            record = _read(place / RECORD)
            with self.contents.open() as known:
                for path in record.files:
                    known.renamed(place / OUTPUTS / path)

    def make_room(self) -> None:
        """Removes what was not used for long, and above the limit what was used longest ago."""
        oldest_s = time.time() - self._keep_days * _DAY_S
        for left in self._root.glob(f"{_NEW}*"):
            with contextlib.suppress(OSError):
                if left.stat().st_mtime < oldest_s:
                    shutil.rmtree(left, ignore_errors=True)
        room = self._limit_gib * _GIB
        for used_s, place, num_bytes in sorted(self._all(), reverse=True):
            room -= num_bytes
            if used_s < oldest_s or room < 0:
                shutil.rmtree(place, ignore_errors=True)

    def _all(self) -> Iterator[tuple[float, Path, int]]:
        for file in self._root.glob(f"??/*/{RECORD}"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                yield file.stat().st_mtime, file.parent, _read(file).num_bytes

    def _place(self, key: str) -> Path:
        return self._root / key[:2] / key


class _Elsewhere(Exception):
    """A link leads out of the outputs."""


def _read(file: Path) -> Record:
    told = json.loads(file.read_text(encoding="utf-8"))
    if told["version"] != VERSION:
        raise ValueError(told["version"])
    return Record(**told)


def _is_whole(outputs: Path, record: Record, known: Known) -> bool:
    return all(known.file(outputs / path) == sha256 for path, (sha256, _) in record.files.items())


def _put(outputs: Path, into: Path, record: Record, known: Known) -> None:
    for path in sorted(record.folders):
        (into / path).mkdir(exist_ok=True)
    for path, (sha256, mode) in record.files.items():
        (into / path).unlink(missing_ok=True)
        _same_file(outputs / path, into / path, mode)
        known.note(outputs / path, sha256)  # its inode has changed: it has one more name
    for path, target in record.links.items():
        (into / path).symlink_to(target)
    for path in sorted(record.folders, reverse=True):
        (into / path).chmod(record.folders[path] | _OWNER_ALL)


def _collect(outputs: Path, new: Path, *, staged: Collection[str], run_id: str, known: Known) -> Record:
    files: dict[str, tuple[str, int]] = {}
    folders: dict[str, int] = {}
    links: dict[str, str] = {}
    num_bytes = 0
    for at, below, names in os.walk(outputs):
        for name in sorted([*below, *names]):
            path = Path(at, name)
            inside = path.relative_to(outputs).as_posix()
            said = path.lstat()
            if inside in staged:
                continue
            if stat.S_ISLNK(said.st_mode):
                links[inside] = _inner(path, outputs)
            elif stat.S_ISDIR(said.st_mode):
                folders[inside] = stat.S_IMODE(said.st_mode)
                (new / inside).mkdir()
            else:
                mode = stat.S_IMODE(said.st_mode)
                sha256 = known.file(path)
                _same_file(path, new / inside, mode)
                known.note(new / inside, sha256)
                files[inside] = (sha256, mode)
                num_bytes += said.st_size
        below[:] = [name for name in below if Path(at, name).relative_to(outputs).as_posix() not in staged]
    return Record(run_id=run_id, files=files, folders=folders, links=links, num_bytes=num_bytes)


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
