"""A folder of many files, or a large file, as one tree stream: see `agent.tree_stream`. No streamflow in here."""

from __future__ import annotations

import hashlib
import os
import posixpath
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.store.blob_store import Store
from medweave_connectors.transfer.streams import transcoding
from medweave_connectors.transfer.streams.pieces import Piece

LARGE_BYTES = 2**23  # fewer are not worth the start of a python3


def is_worth_it(manifest: Manifest) -> bool:
    """Return whether a tree stream is faster than tar, and can hold all names."""
    is_large = tree_digest.has_many(manifest) or manifest.num_bytes >= LARGE_BYTES
    return is_large and not tree_digest.has_special_names(manifest)


@dataclass(frozen=True, slots=True)
class TreeStream:
    """A folder of many files, or a large file, as one stream that our agents write and read.

    Attributes:
        path: of the folder or file, without links.
        target: its path in the staging folder.
        num_bytes: of all its files.
        store: of the locations that get it.
        later: the files are added to the store after the copy has its final path.
    """

    path: str
    target: str
    num_bytes: int
    store: Store | None
    later: bool = False

    def by_this_machine(self, listing: Path) -> Piece:
        """Return the commands for a source on this machine.

        Args:
            listing: a file of this machine that gets the listing of the sent files, see `parse_listing`.
        """
        packing = [sys.executable, "-S", "-I", "-c", program_text.of("tree_stream"), self.path, str(listing)]
        arguments = (
            self.target,
            tree_digest.listing_path(self.target),
            str(self.num_bytes),
            self._blobs,
            "later" if self.later else "",
        )
        unpacking = transcoding.agent_command("receive-tree", *arguments)
        return Piece(packing, unpacking, posixpath.basename(self.path), self.num_bytes)

    def for_source(self) -> Mapping[str, Any]:
        """Return the settings of the agent that reads it."""
        return {"program": program_text.of("tree_stream"), "path": self.path}

    def for_target(self) -> Mapping[str, Any]:
        """Return the settings of the agent that writes it."""
        return {
            "program": program_text.of("tree_stream"),
            "path": self.target,
            "note": tree_digest.listing_path(self.target),
            "num_bytes": self.num_bytes,
            "blobs": self._blobs,
            "later": self.later,
        }

    @property
    def _blobs(self) -> str:
        return "" if self.store is None else self.store.blobs


def sent_digest(listing: bytes) -> str:
    """Return the SHA-256 of the tree that was sent, see `tree_stream.listing_of`."""
    return hashlib.sha256(listing.partition(b"\n")[2]).hexdigest()


def parse_listing(listing: bytes, scanned: Manifest) -> Manifest | None:
    """Return the manifest of the sent files, with digests; None where its files, folders or bytes are not those of the scan.

    The sender ends the stream at a file that changes while it is read. A file that changed before has another digest.

    Args:
        listing: made by the sender, which may be another site's agent.
        scanned: the source, without digests.
    """
    num_bytes, _, tree = listing.partition(b"\n")
    files, folder_lines = agent_files.parsed(tree)
    entries = dict(scanned.entries)
    for name, _, sha256 in map(agent_files.file_of, files):
        path = os.fsdecode(name.removeprefix(b"./"))
        entry = entries.get(path)
        if entry is None or entry.kind != Kind.FILE:
            return None
        entries[path] = entry.with_digest(sha256.decode(errors="replace"))
    folders = {os.fsdecode(line.partition(b" ")[2]).removeprefix("./") or ROOT for line in folder_lines}
    scanned_folders = {path for path, entry in scanned.entries.items() if entry.kind == Kind.FOLDER}
    sent = len(files), num_bytes.decode(errors="replace"), folders
    if sent != (scanned.num_files, str(scanned.num_bytes), scanned_folders):
        return None
    return replace(scanned, entries=entries)
