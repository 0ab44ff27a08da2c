"""What one stream of a copy carries: the command that writes it, the one that reads it, and what may pass. Pure."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent import archive
from medweave_connectors.transfer.manifest.manifest import ROOT

COMMAND_BYTES = 100_000  # Linux takes 128 KiB in one word, and a line that a remote shell gets is one


@dataclass(frozen=True, slots=True)
class Piece:
    """One stream.

    Attributes:
        packing, unpacking: words of the command that writes it, and of the one that reads it.
        root: the only name on top of the archive that it is; None for a part of a file.
        num_bytes: of a part of a file.
    """

    packing: Sequence[str]
    unpacking: Sequence[str]
    root: str | None
    num_bytes: int | None = None

    def guard(self, *, trusted: bool) -> archive.Guard | archive.Exactly | None:
        """What looks at it on its way; an archive of our own needs nobody who does."""
        if self.root is None:
            return archive.Exactly(self.num_bytes or 0)
        return None if trusted else archive.Guard(self.root)

    def for_far_end(self) -> Mapping[str, Any]:
        """The same for the far end of a direct copy, as JSON."""
        return archive.for_far_end(self.root, self.num_bytes)


def whole(path: str, target: str) -> Piece:
    """A file or folder.

    Args:
        target: its path at the destination, in a folder that `commands.prepare` has made, under its own name.
    """
    return Piece(
        shell_commands.pack(path), shell_commands.unpack_files(posixpath.dirname(target)), root=posixpath.basename(path)
    )


def files(
    folder: str, paths: Sequence[str], part: str, *, own: bool = False, most_bytes: int = COMMAND_BYTES
) -> Iterator[Piece]:
    """Some files of a folder, in as many archives as command lines need; or the file that it is.

    Args:
        folder: the source's own path, without links.
        paths: relative to it.
        part: where it stands at each destination, under its own name.
        own: see `commands.unpack`.
        most_bytes: of the names in one command.
    """
    above, name = posixpath.split(folder)
    names = [name if each == ROOT else posixpath.join(name, each) for each in paths]
    for some in batches(names, most_bytes):
        yield Piece(
            shell_commands.pack_files(above or "/", some), shell_commands.unpack_files(part, own=own), root=name
        )


def end(path: str, target: str, *, begins: int, size: int) -> Piece:
    """What a large file lacks whose beginning is there.

    Args:
        begins: bytes that are there, in blocks of `commands.BLOCK_BYTES`.
        size: of the whole file, bytes.
    """
    packing, unpacking = shell_commands.read_from(path, begins), shell_commands.write_from(target, begins)
    return Piece(packing, unpacking, root=None, num_bytes=size - begins)


def batches(names: Sequence[str], most_bytes: int = COMMAND_BYTES) -> Iterator[list[str]]:
    """The names in groups that one command takes."""
    some: list[str] = []
    num_bytes = 0
    for name in names:
        length = len(os.fsencode(shlex.quote(name))) + 9  # and its place in the list of words
        if some and num_bytes + length > most_bytes:
            yield some
            some, num_bytes = [], 0
        some.append(name)
        num_bytes += length
    if some:
        yield some
