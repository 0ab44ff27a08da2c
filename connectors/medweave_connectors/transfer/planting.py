"""A folder of many files of this machine, sent as one stream of our own: see `tree_stream`. No streamflow in here."""

from __future__ import annotations

import hashlib
import os
import posixpath
import sys
from dataclasses import replace
from pathlib import Path

from medweave_connectors.transfer import far_files, many, seal, wire
from medweave_connectors.transfer.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.pieces import Piece
from medweave_connectors.transfer.store import Store


def is_for(seen: Manifest) -> bool:
    """Whether a folder is worth it, and no name in it is odd."""
    return many.are_in(seen) and not seal.is_odd(seen)


def piece(path: str, target: str, note: Path, store: Store | None) -> Piece:
    """The stream.

    Args:
        path: the folder, without links.
        target: where it is put together.
        note: a file of this machine, which says what was sent once it has been: see `read`.
        store: of the places that get it.
    """
    packing = [sys.executable, "-S", "-I", "-c", wire.tree_program(), path, str(note)]
    unpacking = wire.words("plant", target, many.note_of(target), "" if store is None else store.blobs)
    return Piece(packing, unpacking, root=posixpath.basename(path))


def read(note: Path, seen: Manifest) -> tuple[Manifest, str] | None:
    """What was sent, with its digests, and the SHA-256 of its tree; None where it is not what was seen before.

    A file that was written to while it was read has ended the stream, and one that was written to before that has other bytes.
    """
    total, _, tree = note.read_bytes().partition(b"\n")
    files, folder_lines = far_files.parsed(tree)
    entries = dict(seen.entries)
    for name, _, sha256 in map(far_files.file_of, files):
        path = os.fsdecode(name.removeprefix(b"./"))
        entry = entries.get(path)
        if entry is None or entry.kind != Kind.FILE:
            return None
        entries[path] = entry._replace(sha256=sha256.decode())
    folders = {os.fsdecode(line.partition(b" ")[2]).removeprefix("./") or ROOT for line in folder_lines}
    wanted = {path for path, each in seen.entries.items() if each.kind == Kind.FOLDER}
    if (len(files), int(total), folders) != (seen.num_files, seen.num_bytes, wanted):
        return None
    return replace(seen, entries=entries), hashlib.sha256(tree).hexdigest()
