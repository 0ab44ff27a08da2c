"""What was read of this machine's folders in earlier runs: one that nobody has touched since is known without being read.

It serves to ask a site's store, and for nothing else: where anything is sent, the source is read. Each file is known by its device,
inode, mode, size and times, that of its change too, which no program can set back. One digest of all that stands in a file here,
with the digests of the folder's files: no name of a file or patient. The file has the folder's device and inode for a name.
No streamflow in here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from medweave_connectors.transfer.manifest.manifest import FolderState, Manifest

MAX_FOLDERS = 64  # folders; those go first whose last use is longest ago
_OURS = re.compile(r"[0-9a-f]+-[0-9a-f]+|[0-9a-f]{16}\.new")  # names of files here; others stay
_DIGEST_BYTES, _HEX = 32, 64
_HEAD = struct.Struct(">32s32sQ")  # the folder's state, its tree (zeros where it has none), and bytes


def open_digest_database(environment: Mapping[str, str]) -> DigestDatabase | None:
    """Where XDG's rules put caches; None for who has no home."""
    bases = (Path(environment.get("XDG_CACHE_HOME", "")), Path(environment.get("HOME", "")) / ".cache")
    base = next((each for each in bases if each.is_absolute()), None)
    return None if base is None else DigestDatabase(base / "medweave" / "digests")


class DigestDatabase:
    """What is known of folders.

    Args:
        at: its folder, which nobody else may read.
    """

    def __init__(self, at: Path) -> None:
        self._at = at

    def recall(self, known_by: FolderState, seen: Manifest) -> Manifest | None:
        """A folder that looks as `seen`, with its digests and tree; None where it is not known."""
        files, held = seen.files, self._held(known_by.folder)
        if held is None or held.state.hex() != known_by.state or len(held.digests) != _DIGEST_BYTES * len(files):
            return None
        with contextlib.suppress(OSError):
            os.utime(self._at / known_by.folder)  # its last use
        entries, digests = dict(seen.entries), held.digests.hex()
        for number, path in enumerate(files):
            entries[path] = entries[path].with_digest(digests[number * _HEX : (number + 1) * _HEX])
        return replace(seen, entries=entries, tree=held.tree)

    def note(self, known_by: FolderState, seen: Manifest, read: Manifest, tree: str | None) -> None:
        """Keeps the digests of a folder.

        Args:
            known_by: as it was before it was read. Where it has changed since, nothing is known by that any more.
            seen: likewise.
            tree: of `many.tree_of`.
        """
        if seen.entries.keys() != read.entries.keys():
            return
        digests = bytes.fromhex("".join([read.entries[path].sha256 for path in seen.files]))
        head = _HEAD.pack(bytes.fromhex(known_by.state), bytes.fromhex(tree or ""), read.num_bytes)
        new = self._at / f"{secrets.token_hex(8)}.new"
        with contextlib.suppress(OSError):  # a full disk: it is read again the next time
            self._at.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(hashlib.sha256(head + digests).digest() + head + digests)
            new.replace(self._at / known_by.folder)
            ours = [path for path in self._at.iterdir() if _OURS.fullmatch(path.name)]
            for old in sorted(ours, key=lambda path: path.stat().st_mtime, reverse=True)[MAX_FOLDERS:]:
                old.unlink()

    def _held(self, folder: str) -> _FolderDigests | None:
        try:
            held = (self._at / folder).read_bytes()
        except OSError:
            return None
        check, rest = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
        if len(rest) < _HEAD.size or hashlib.sha256(rest).digest() != check:
            return None
        state, tree, num_bytes = _HEAD.unpack_from(rest)
        return _FolderDigests(state, tree.hex() if any(tree) else None, num_bytes, rest[_HEAD.size :])


class _FolderDigests(NamedTuple):
    state: bytes
    tree: str | None
    num_bytes: int
    digests: bytes
