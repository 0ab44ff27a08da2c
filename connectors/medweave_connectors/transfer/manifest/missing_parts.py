"""The parts that a copy lacks after a cut: the source's manifest compared with what has arrived. Pure.

Sizes suffice: the complete copy is verified by SHA-256.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.transfer.agent.archive import BLOCK_BYTES as HEADER_BYTES
from medweave_connectors.transfer.agent.archive import padded
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest, ManifestEntry
from medweave_connectors.transfer.shell_commands import BLOCK_BYTES

WORTH_BYTES = 2**20  # a shorter beginning is sent again: the end of a file needs a separate stream
_MOST_UNSTAMPED = 64  # more files differ in mode or time only where the file system stores neither
_MODES = 0o777


@dataclass(frozen=True, slots=True)
class MissingParts:
    """The files and folders that complete a copy, at all of its locations.

    Attributes:
        files: paths of files to be sent as a whole.
        partial_files: paths of files whose beginning has arrived, with its number of bytes.
        unwanted: paths of entries that do not belong to the copy, or are of another kind, or too long.
        unstamped: paths of files with all their bytes, and perhaps without their mode and time.
        new_folders: paths of folders that are missing.
        folders: paths of all folders without their mode, with the mode.
        missing_bytes: to be sent, as an archive has them.
        nothing_arrived: no file has arrived, not even a part of one.
    """

    files: tuple[str, ...]
    partial_files: Mapping[str, int]
    unwanted: tuple[str, ...]
    unstamped: tuple[str, ...]
    new_folders: tuple[str, ...]
    folders: Mapping[str, int]
    missing_bytes: int
    nothing_arrived: bool

    @property
    def is_complete(self) -> bool:
        """Return whether all bytes have arrived."""
        return not self.files and not self.partial_files


def find_missing_parts(sent: Manifest, files: Collection[str], arrived: Sequence[Manifest]) -> MissingParts:
    """Return the parts of the copy that any of the locations lacks.

    Args:
        sent: the source.
        files: paths of the files that are sent; the others came from a store.
        arrived: what each location has.
    """
    paths = [path for path in sent.entries if path in files]
    num_arrived = {
        path: min(_arrived_bytes(sent.entries[path], copy.entries.get(path)) for copy in arrived) for path in paths
    }
    partial_files, missing = {}, []
    for path in paths:
        begins = max(num_arrived[path], 0) // BLOCK_BYTES * BLOCK_BYTES
        if num_arrived[path] == sent.entries[path].size:
            continue
        if begins >= WORTH_BYTES:
            partial_files[path] = begins
        else:
            missing.append(path)
    whole = [path for path in paths if num_arrived[path] == sent.entries[path].size]
    folders = {path: entry.mode & _MODES for path, entry in sent.entries.items() if entry.kind == Kind.FOLDER}
    end_bytes = sum(sent.entries[path].size - begins for path, begins in partial_files.items())
    return MissingParts(
        files=tuple(missing),
        partial_files=partial_files,
        unwanted=tuple(dict.fromkeys(path for copy in arrived for path in _unwanted(sent, copy))),
        unstamped=_unstamped(sent, whole, arrived),
        new_folders=tuple(path for path in folders if any(_folder_mode(copy, path) < 0 for copy in arrived)),
        folders={
            path: mode for path, mode in folders.items() if any(_folder_mode(copy, path) != mode for copy in arrived)
        },
        missing_bytes=archive_bytes(sent, missing) + end_bytes,
        nothing_arrived=not whole and not partial_files,
    )


def archive_bytes(sent: Manifest, paths: Collection[str]) -> int:
    """Return the bytes of an archive of some files."""
    return sum(HEADER_BYTES + padded(sent.entries[path].size) for path in paths)


def finishing_steps(sent: Manifest, missing: MissingParts, copy: str) -> Iterator[tuple[str, str]]:
    """Yield the steps that tar would take at its end, for `shell_commands.batch_commands`: empty folders, modes, times.

    Args:
        copy: its path.
    """
    for path in missing.new_folders:
        yield "mkdir -p", path_below(copy, path)
    for path in (*missing.partial_files, *missing.unstamped):
        entry = sent.entries[path]
        yield f"stamp {entry.mode & _MODES:o} {_touch_time(entry.modified_s)}", path_below(copy, path)
    for path in sorted(missing.folders, reverse=True):  # inner folders first: the mode of the outer one may deny access
        yield f"chmod {missing.folders[path]:o}", path_below(copy, path)


def removal_steps(missing: MissingParts, copy: str) -> Iterator[tuple[str, str]]:
    """Yield the removals that come first, in the same form as `finishing_steps`."""
    for path in missing.unwanted:
        yield "rm -rf", path_below(copy, path)


def path_below(folder: str, path: str) -> str:
    """Return the full path of a manifest's entry."""
    return folder if path == ROOT else posixpath.join(folder, path)


def _arrived_bytes(sent: ManifestEntry, arrived: ManifestEntry | None) -> int:
    """Return the bytes of a file that have arrived; -1 where there is no file that may be completed."""
    if arrived is None or arrived.kind != Kind.FILE or arrived.size > sent.size:
        return -1
    return arrived.size


def _unwanted(sent: Manifest, arrived: Manifest) -> Iterator[str]:
    for path, entry in arrived.entries.items():
        wanted = sent.entries.get(path)
        if wanted is None or wanted.kind != entry.kind or (wanted.kind == Kind.FILE and entry.size > wanted.size):
            yield path


def _folder_mode(arrived: Manifest, path: str) -> int:
    """Return the mode of a folder; -1 where it is missing."""
    entry = arrived.entries.get(path)
    return entry.mode & _MODES if entry is not None and entry.kind == Kind.FOLDER else -1


def _unstamped(sent: Manifest, whole: Sequence[str], arrived: Sequence[Manifest]) -> tuple[str, ...]:
    """Return the files that tar had written, but for their mode and time."""

    def stamp(entry: ManifestEntry) -> tuple[int, int]:
        return entry.mode & _MODES, entry.modified_s

    paths = [path for path in whole if any(stamp(copy.entries[path]) != stamp(sent.entries[path]) for copy in arrived)]
    return tuple(paths) if len(paths) <= _MOST_UNSTAMPED else ()


def _touch_time(modified_s: int) -> str:
    """Return a time in UTC for `touch -t`, whose years have four digits."""
    moment = time.gmtime(min(max(modified_s, 0), 253402300799))
    return time.strftime("%Y%m%d%H%M.%S", moment)
