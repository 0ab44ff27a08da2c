"""What lies below a folder of this machine, without digests: as `manifest` lists it, but no program is started.

No streamflow in here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import struct
import time

from medweave_connectors.transfer.manifest.manifest import ROOT, FolderState, Kind, Manifest, ManifestEntry

Found = tuple[str, os.stat_result]  # what lies at a path within the folder
_FACTS = struct.Struct(">QQIQqq")  # device, inode, mode, size in bytes, and the two times in ns
QUIET_S = 5.0  # what has changed just now may change again within one tick of the file system's clock


def scan(path: str) -> Manifest | None:
    """The entries below a folder, links followed; None where a program has to look, and to say what is there.

    That is so for a path that is no folder, for links that lead nowhere or back, for what is neither a file nor a folder, and for
    what may not be read.
    """
    real = os.path.realpath(path)
    try:
        said = os.stat(real)  # noqa: PTH116 (many)
        if not stat.S_ISDIR(said.st_mode):
            return None
        found = [(ROOT, said)]
        _scan_below(real, "", ((said.st_dev, said.st_ino),), found)
    except (OSError, _NotScannable):
        return None
    return Manifest(real, {name: _entry(each) for name, each in found}, known_by=_known_by(real, found))


class _NotScannable(Exception):
    """Something that is no file or folder, or a folder within itself."""


def _scan_below(folder: str, prefix: str, above: tuple[tuple[int, int], ...], found: list[Found]) -> None:
    with os.scandir(folder) as entries:
        listed = list(entries)
    for each in listed:
        said, name = each.stat(), prefix + each.name
        found.append((name, said))
        if stat.S_ISDIR(said.st_mode) and (said.st_dev, said.st_ino) not in above:
            _scan_below(each.path, name + "/", (*above, (said.st_dev, said.st_ino)), found)
        elif not stat.S_ISREG(said.st_mode):
            raise _NotScannable


def _entry(said: os.stat_result) -> ManifestEntry:
    mode = said.st_mode
    seconds, rest_ns = divmod(said.st_ctime_ns, 10**9)
    changed = f"{_second(seconds)}.{rest_ns:09d} +0000"  # as `stat` writes it
    kind = Kind.FILE if stat.S_ISREG(mode) else Kind.FOLDER
    return ManifestEntry(kind, said.st_size, stat.S_IMODE(mode), said.st_mtime_ns // 10**9, changed)


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _key(said: os.stat_result) -> str:
    return f"{said.st_dev:x}-{said.st_ino:x}"


def _known_by(real: str, found: list[Found]) -> FolderState | None:
    """None where something has changed just now."""
    # In the order in which the file system tells them: where that is another one the next time, it is read again, and no harm done.
    files = [each for each in found if stat.S_ISREG(each[1].st_mode)]
    quiet_since_ns = time.time_ns() - round(QUIET_S * 1e9)
    if any(said.st_mtime_ns > quiet_since_ns or said.st_ctime_ns > quiet_since_ns for _, said in files):
        return None
    # A folder's own times change with what is made and removed in it, which its entries show.
    folders = [(path, f"{stat.S_IMODE(said.st_mode):o}") for path, said in found if not stat.S_ISREG(said.st_mode)]
    words = [real, *(path for path, _ in files), "", *(word for each in folders for word in each), ""]
    state = hashlib.sha256(os.fsencode("\0".join(words)))
    pack = _FACTS.pack
    facts = [
        pack(each.st_dev, each.st_ino, each.st_mode, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for _, each in files
    ]
    state.update(b"".join(facts))
    return FolderState(_key(found[0][1]), state.hexdigest())
