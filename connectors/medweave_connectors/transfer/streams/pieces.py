"""One stream of a copy: the command that writes it, the command that reads it, and its allowed content. Pure."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.agent.archive import ArchiveChecker, LengthChecker
from medweave_connectors.transfer.manifest.manifest import ROOT

COMMAND_BYTES = 100_000  # Linux allows 128 KiB in one argument, and the line of a remote shell is one


@dataclass(frozen=True, slots=True)
class Piece:
    """One stream.

    Attributes:
        packing, unpacking: the command that writes the stream, and the command that reads it.
        root: the only name at the top of the archive; None where the stream is a part of a file.
        num_bytes: the most bytes that the archive's files may have, or exactly those of the part of a file.
    """

    packing: Sequence[str]
    unpacking: Sequence[str]
    root: str | None
    num_bytes: int

    def checker(self, *, trusted: bool) -> ArchiveChecker | LengthChecker | None:
        """Return the checker of the stream; None for an archive that this machine writes."""
        if self.root is None:
            return LengthChecker(self.num_bytes)
        return None if trusted else ArchiveChecker(self.root, self.num_bytes)

    def checker_for_agent(self) -> Mapping[str, Any]:
        """Return what an agent needs to build the same checker, as JSON."""
        return checker_settings(self.root, self.num_bytes)


def checker_settings(root: str | None, num_bytes: int | None) -> Mapping[str, Any]:
    """Return the settings of an agent's checker.

    Args:
        root: the only name at the top of an archive; None for a part of a file.
        num_bytes: the most bytes of the archive's files, None for no limit; or exactly those of the part.
    """
    return {"program": program_text.of("archive"), "root": root, "num_bytes": num_bytes}


def whole_copy(path: str, target: str, *, num_bytes: int) -> Piece:
    """Return the stream of a file or folder.

    Args:
        target: its path in the staging folder that `shell_commands.prepare` has made, with the source's own name.
        num_bytes: of all its files.
    """
    unpacking = shell_commands.unpack_files(posixpath.dirname(target))
    return Piece(shell_commands.pack(path), unpacking, posixpath.basename(path), num_bytes)


def some_files(
    folder: str,
    paths: Sequence[str],
    part: str,
    *,
    num_bytes: int,
    own: bool = False,
    most_bytes: int = COMMAND_BYTES,
) -> Iterator[Piece]:
    """Yield the streams of some files of a folder, as many as command lines need; or of the single file.

    Args:
        folder: the source's own path, without links.
        paths: relative to the folder.
        part: the staging folder at each destination.
        num_bytes: of all files of the folder.
        own: see `shell_commands.unpack`.
        most_bytes: of the names in one command.
    """
    above, name = posixpath.split(folder)
    names = [name if path == ROOT else posixpath.join(name, path) for path in paths]
    unpacking = shell_commands.unpack_files(part, own=own)
    for batch in batches(names, most_bytes):
        yield Piece(shell_commands.pack_files(above or "/", batch), unpacking, name, num_bytes)


def file_end(path: str, target: str, *, begins: int, size: int) -> Piece:
    """Return the stream of the missing end of a large file.

    Args:
        begins: bytes that the destination has, in blocks of `shell_commands.BLOCK_BYTES`.
        size: of the whole file, bytes.
    """
    packing, unpacking = shell_commands.read_from(path, begins), shell_commands.write_from(target, begins)
    return Piece(packing, unpacking, None, size - begins)


def batches(names: Sequence[str], most_bytes: int = COMMAND_BYTES) -> Iterator[list[str]]:
    """Yield the names in groups that fit into one command each."""
    batch: list[str] = []
    num_bytes = 0
    for name in names:
        length = len(os.fsencode(shlex.quote(name))) + 9  # and its entry in the argument list
        if batch and num_bytes + length > most_bytes:
            yield batch
            batch, num_bytes = [], 0
        batch.append(name)
        num_bytes += length
    if batch:
        yield batch
