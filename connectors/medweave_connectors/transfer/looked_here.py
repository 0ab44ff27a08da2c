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
from collections.abc import Iterator

from medweave_connectors.transfer.manifest import ROOT, Entry, Kind, Manifest

_FACTS = struct.Struct(">QQIQqq")  # device, inode, mode, size in bytes, and the two times in ns
QUIET_S = 5.0  # what has changed just now may change again within one tick of the file system's clock


def look(path: str) -> Manifest | None:
    """The entries below a folder, links followed; None where a program has to look, and to say what is there.

    That is so for a path that is no folder, for links that lead nowhere or back, for what is neither a file nor a folder, and for
    what may not be read.
    """
    real = os.path.realpath(path)
    try:
        said = os.stat(real)  # noqa: PTH116 (many)
        if not stat.S_ISDIR(said.st_mode):
            return None
        found = [(ROOT, said), *_below(real, "", ((said.st_dev, said.st_ino),))]
    except OSError:
        return None
    except _Unusual:
        return None
    return Manifest(real, {name: _entry(each) for name, each in found}, known_by=_stamp(real, found))


class _Unusual(Exception):
    """Something that is no file or folder, or a folder within itself."""


def _below(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        listed = list(entries)
    for each in listed:
        said, name = each.stat(), prefix + each.name
        if stat.S_ISREG(said.st_mode):
            yield name, said
        elif stat.S_ISDIR(said.st_mode) and (said.st_dev, said.st_ino) not in above:
            yield name, said
            yield from _below(each.path, name + "/", (*above, (said.st_dev, said.st_ino)))
        else:
            raise _Unusual


def _entry(said: os.stat_result) -> Entry:
    kind = Kind.FOLDER if stat.S_ISDIR(said.st_mode) else Kind.FILE
    seconds, rest_ns = divmod(said.st_ctime_ns, 10**9)
    changed = f"{_second(seconds)}.{rest_ns:09d} +0000"  # as `stat` writes it
    return Entry(kind, said.st_size, stat.S_IMODE(said.st_mode), said.st_mtime_ns // 10**9, changed)


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _stamp(real: str, found: list[tuple[str, os.stat_result]]) -> str | None:
    """One digest of all that shows whether a file of the folder has changed; None where something has, just now."""
    quiet_since_ns = time.time_ns() - round(QUIET_S * 1e9)
    lines = [os.fsencode(real)]
    for path, said in sorted(found, key=lambda each: each[0]):
        if stat.S_ISDIR(said.st_mode):
            continue
        modified_ns, changed_ns = said.st_mtime_ns, said.st_ctime_ns
        if modified_ns > quiet_since_ns or changed_ns > quiet_since_ns:
            return None
        lines += (
            os.fsencode(path),
            _FACTS.pack(said.st_dev, said.st_ino, said.st_mode, said.st_size, modified_ns, changed_ns),
        )
    return hashlib.sha256(b"\0".join(lines)).hexdigest()
