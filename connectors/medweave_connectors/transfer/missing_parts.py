"""What of a copy whose stream was cut has still to be sent: the source's listing beside what lies at the destinations. Pure.

Sizes are enough for it: the whole copy is compared by SHA-256 at its end.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.transfer.agent.archive import BLOCK_BYTES as HEADER_BYTES
from medweave_connectors.transfer.agent.archive import padded
from medweave_connectors.transfer.manifest.manifest import ROOT, Entry, Kind, Manifest
from medweave_connectors.transfer.shell_commands import BLOCK_BYTES

WORTH_BYTES = 2**20  # a shorter beginning is sent again: its end takes a stream of its own
_MOST_UNSTAMPED = 64  # more have other modes or times because their file system has none
_MODES = 0o777


@dataclass(frozen=True, slots=True)
class Rest:
    """What has to be done for a copy to be whole, at each of its places.

    Attributes:
        files: paths of those that are sent, whole.
        ends: paths of those whose beginning stays, with the number of its bytes.
        wrong: paths of what is there and does not belong to the copy, or is of another kind, or too long.
        unstamped: paths of files that have all their bytes, and perhaps not their mode and time.
        new_folders, folders: paths of those that are not there; and of all that have not their mode, with it.
        left_bytes: what has to be sent, as an archive has it.
        nothing_there: no file has arrived, not even a part of one.
    """

    files: tuple[str, ...]
    ends: Mapping[str, int]
    wrong: tuple[str, ...]
    unstamped: tuple[str, ...]
    new_folders: tuple[str, ...]
    folders: Mapping[str, int]
    left_bytes: int
    nothing_there: bool

    @property
    def is_nothing(self) -> bool:
        """All bytes are there."""
        return not self.files and not self.ends


def rest_of(sent: Manifest, wanted: Collection[str], there: Sequence[Manifest]) -> Rest:
    """What the places lack, taken together.

    Args:
        sent: the source.
        wanted: paths of the files that are sent; the others came from a store.
        there: what lies at each place.
    """
    paths = [path for path in sent.entries if path in wanted]
    has = {path: min(_bytes_there(sent.entries[path], each.entries.get(path)) for each in there) for path in paths}
    ends, files = {}, []
    for path in paths:
        begins = max(has[path], 0) // BLOCK_BYTES * BLOCK_BYTES
        if has[path] == sent.entries[path].size:
            continue
        if begins >= WORTH_BYTES:
            ends[path] = begins
        else:
            files.append(path)
    whole = [path for path in paths if has[path] == sent.entries[path].size]
    folders = {path: each.mode & _MODES for path, each in sent.entries.items() if each.kind == Kind.FOLDER}
    return Rest(
        files=tuple(files),
        ends=ends,
        wrong=tuple(dict.fromkeys(path for each in there for path in _wrong(sent, each))),
        unstamped=_unstamped(sent, whole, there),
        new_folders=tuple(path for path in folders if any(_mode(each, path) < 0 for each in there)),
        folders={path: mode for path, mode in folders.items() if any(_mode(each, path) != mode for each in there)},
        left_bytes=_archive_bytes(sent, files) + sum(sent.entries[path].size - begins for path, begins in ends.items()),
        nothing_there=not whole and not ends,
    )


def all_bytes(sent: Manifest, wanted: Collection[str]) -> int:
    """What the archive of such files has."""
    return _archive_bytes(sent, wanted)


def _archive_bytes(sent: Manifest, paths: Collection[str]) -> int:
    return sum(HEADER_BYTES + padded(sent.entries[path].size) for path in paths)


def _bytes_there(mine: Entry, other: Entry | None) -> int:
    """How much of a file is there; -1 where there is none, or something else."""
    if other is None or other.kind != Kind.FILE or other.size > mine.size:
        return -1
    return other.size


def _wrong(sent: Manifest, there: Manifest) -> Iterator[str]:
    for path, other in there.entries.items():
        mine = sent.entries.get(path)
        if mine is None or mine.kind != other.kind or (mine.kind == Kind.FILE and other.size > mine.size):
            yield path


def _mode(there: Manifest, path: str) -> int:
    """Of a folder; -1 where it is not there."""
    other = there.entries.get(path)
    return other.mode & _MODES if other is not None and other.kind == Kind.FOLDER else -1


def _unstamped(sent: Manifest, whole: Sequence[str], there: Sequence[Manifest]) -> tuple[str, ...]:
    """Files that a tar had come to the end of, but for their mode and time."""

    def stamp(each: Entry) -> tuple[int, int]:
        return each.mode & _MODES, each.modified_s

    found = [path for path in whole if any(stamp(each.entries[path]) != stamp(sent.entries[path]) for each in there)]
    return tuple(found) if len(found) <= _MOST_UNSTAMPED else ()


def finishing(sent: Manifest, rest: Rest, copy: str) -> Iterator[tuple[str, str]]:
    """What tar would have done at last, for `commands.each_done`: empty folders, modes, times.

    Args:
        copy: its path.
    """
    for path in rest.new_folders:
        yield "mkdir -p", _below(copy, path)
    for path in (*rest.ends, *rest.unstamped):
        entry = sent.entries[path]
        yield f"stamp {entry.mode & _MODES:o} {_touched(entry.modified_s)}", _below(copy, path)
    for path in sorted(rest.folders, reverse=True):  # what lies in a folder before the folder, which may shut it out
        yield f"chmod {rest.folders[path]:o}", _below(copy, path)


def removing(rest: Rest, copy: str) -> Iterator[tuple[str, str]]:
    """What has to go first, in the same way."""
    for path in rest.wrong:
        yield "rm -rf", _below(copy, path)


def _below(copy: str, path: str) -> str:
    return copy if path == ROOT else posixpath.join(copy, path)


def _touched(modified_s: int) -> str:
    """A time in UTC as `touch -t` has it: years of four digits."""
    moment = time.gmtime(min(max(modified_s, 0), 253402300799))
    return time.strftime("%Y%m%d%H%M.%S", moment)
