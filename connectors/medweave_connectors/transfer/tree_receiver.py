"""A folder of many files, or what is large, sent as one stream of our own: see `tree_stream`. No streamflow in here."""

from __future__ import annotations

import hashlib
import os
import posixpath
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medweave_connectors.transfer import wire
from medweave_connectors.transfer.agent import files as far_files
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.store import many_files
from medweave_connectors.transfer.store.blob_store import Store
from medweave_connectors.transfer.stream_commands import Piece

LARGE_BYTES = 2**23  # less is not worth the start of a python3


def is_for(seen: Manifest) -> bool:
    """Whether it is worth it, and no name in it is odd."""
    return (many_files.are_in(seen) or seen.num_bytes >= LARGE_BYTES) and not tree_digest.is_odd(seen)


@dataclass(frozen=True, slots=True)
class Tree:
    """One such stream.

    Attributes:
        path: the folder or file, without links.
        target: where it is put together.
        num_bytes: of all its files.
        store: of the places that get it.
        later: the store gets names of the files once the copy stands.
    """

    path: str
    target: str
    num_bytes: int
    store: Store | None
    later: bool = False

    def by_this_machine(self, note: Path) -> Piece:
        """The commands, where it lies here.

        Args:
            note: a file of this machine, which says what was sent once it has been: see `read`.
        """
        packing = [sys.executable, "-S", "-I", "-c", program_text.of("tree_stream"), self.path, str(note)]
        given = (
            self.target,
            many_files.note_of(self.target),
            str(self.num_bytes),
            self._blobs,
            "later" if self.later else "",
        )
        unpacking = wire.words("plant", *given)
        return Piece(packing, unpacking, root=posixpath.basename(self.path))

    def for_source(self) -> Mapping[str, Any]:
        """What the far end of a direct copy is told that reads it."""
        return {"program": program_text.of("tree_stream"), "path": self.path}

    def for_target(self) -> Mapping[str, Any]:
        """The same of the one that writes it."""
        return {
            "program": program_text.of("tree_stream"),
            "path": self.target,
            "note": many_files.note_of(self.target),
            "num_bytes": self.num_bytes,
            "blobs": self._blobs,
            "later": self.later,
        }

    @property
    def _blobs(self) -> str:
        return "" if self.store is None else self.store.blobs


def digest_of(noted: bytes) -> str:
    """The SHA-256 of the tree that was sent, see `tree_stream.noted`."""
    return hashlib.sha256(noted.partition(b"\n")[2]).hexdigest()


def read(noted: bytes, seen: Manifest) -> Manifest | None:
    """What was sent, with its digests; None where its files are not those that were seen before, or not as large together.

    A file that was written to while it was read has ended the stream, and one that was written to before that has other bytes.

    Args:
        noted: by the sender, see `tree_stream.noted`. It may be another site's.
    """
    total, _, tree = noted.partition(b"\n")
    files, folder_lines = far_files.parsed(tree)
    entries = dict(seen.entries)
    for name, _, sha256 in map(far_files.file_of, files):
        path = os.fsdecode(name.removeprefix(b"./"))
        entry = entries.get(path)
        if entry is None or entry.kind != Kind.FILE:
            return None
        entries[path] = entry.with_digest(sha256.decode(errors="replace"))
    folders = {os.fsdecode(line.partition(b" ")[2]).removeprefix("./") or ROOT for line in folder_lines}
    wanted = {path for path, each in seen.entries.items() if each.kind == Kind.FOLDER}
    told = total.decode(errors="replace")
    if (len(files), told, folders) != (seen.num_files, str(seen.num_bytes), wanted):
        return None
    return replace(seen, entries=entries)
