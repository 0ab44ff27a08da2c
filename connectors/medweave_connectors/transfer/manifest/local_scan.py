"""The manifest of a folder of this machine, without digests, made without starting a program.

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

Scanned = tuple[str, os.stat_result]  # path within the folder, and its status
_FACTS = struct.Struct(">QQIQqq")  # device, inode, mode, size in bytes, and the two times in ns
QUIET_S = 5.0  # a file that has just changed may change again within one tick of the file system's clock


def scan(path: str) -> Manifest | None:
    """Return the manifest of a folder, links followed; None where `manifest.command` has to list it and report the cause.

    That is the case for a path that is no folder, for dangling and cyclic links, for special files, and for missing permissions.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)  # noqa: PTH116 (many)
        if not stat.S_ISDIR(status.st_mode):
            return None
        scanned = [(ROOT, status)]
        _scan_below(real, "", ((status.st_dev, status.st_ino),), scanned)
    except (OSError, _NotScannable):
        return None
    return Manifest(real, {name: _entry(status) for name, status in scanned}, known_by=_known_by(real, scanned))


class _NotScannable(Exception):
    """An entry is neither file nor folder, or a folder within itself."""


def _scan_below(folder: str, prefix: str, above: tuple[tuple[int, int], ...], scanned: list[Scanned]) -> None:
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        status, name = entry.stat(), prefix + entry.name
        scanned.append((name, status))
        if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in above:
            _scan_below(entry.path, name + "/", (*above, (status.st_dev, status.st_ino)), scanned)
        elif not stat.S_ISREG(status.st_mode):
            raise _NotScannable


def _entry(status: os.stat_result) -> ManifestEntry:
    mode = status.st_mode
    seconds, rest_ns = divmod(status.st_ctime_ns, 10**9)
    changed = f"{_second(seconds)}.{rest_ns:09d} +0000"  # as `stat` writes it
    kind = Kind.FILE if stat.S_ISREG(mode) else Kind.FOLDER
    return ManifestEntry(kind, status.st_size, stat.S_IMODE(mode), status.st_mtime_ns // 10**9, changed)


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _known_by(real: str, scanned: list[Scanned]) -> FolderState | None:
    """Return the state of a folder; None where a file has just changed."""
    # In the order of the file system: where the order changes, the folder is only read again.
    files = [item for item in scanned if stat.S_ISREG(item[1].st_mode)]
    quiet_since_ns = time.time_ns() - round(QUIET_S * 1e9)
    if any(status.st_mtime_ns > quiet_since_ns or status.st_ctime_ns > quiet_since_ns for _, status in files):
        return None
    # The times of a folder change with its entries, which are compared themselves.
    folders = [
        (path, f"{stat.S_IMODE(status.st_mode):o}") for path, status in scanned if not stat.S_ISREG(status.st_mode)
    ]
    words = [real, *(path for path, _ in files), "", *(word for folder in folders for word in folder), ""]
    state = hashlib.sha256(os.fsencode("\0".join(words)))
    pack = _FACTS.pack
    facts = [
        pack(status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for _, status in files
    ]
    state.update(b"".join(facts))
    return FolderState(_key(scanned[0][1]), state.hexdigest())
