"""Digests of this machine's folders from earlier runs: the digests of an unchanged folder are known without reading it.

They serve to query a site's store only: where anything is sent, the source is read. A file is unchanged if its device, inode, mode,
size and times are, the inode's time of change too, which no program can set back. A database file has one digest of all these facts
and the digests of the folder's files, without names. It is named by the folder's device and inode. No streamflow in here.
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

MAX_FOLDERS = 64  # least recently used folders are removed first
_OURS = re.compile(r"[0-9a-f]+-[0-9a-f]+|[0-9a-f]{16}\.new")  # names of database files; others stay
_DIGEST_BYTES, _HEX = 32, 64
_HEAD = struct.Struct(">32s32sQ")  # the folder's state, its tree (zeros where it has none), and bytes


def open_digest_database(environment: Mapping[str, str]) -> DigestDatabase | None:
    """Return the database in the user's cache folder, as XDG defines it; None without a home."""
    bases = (Path(environment.get("XDG_CACHE_HOME", "")), Path(environment.get("HOME", "")) / ".cache")
    base = next((path for path in bases if path.is_absolute()), None)
    return None if base is None else DigestDatabase(base / "medweave" / "digests")


class DigestDatabase:
    """The digests of folders.

    Args:
        at: the database's folder, mode 0700.
    """

    def __init__(self, at: Path) -> None:
        self._at = at

    def recall(self, known_by: FolderState, seen: Manifest) -> Manifest | None:
        """Return a folder's manifest with digests and tree; None where the database has none for this state."""
        files, stored = seen.files, self._read(known_by.folder)
        if stored is None or stored.state.hex() != known_by.state or len(stored.digests) != _DIGEST_BYTES * len(files):
            return None
        with contextlib.suppress(OSError):
            os.utime(self._at / known_by.folder)  # the last use
        entries, digests = dict(seen.entries), stored.digests.hex()
        for number, path in enumerate(files):
            entries[path] = entries[path].with_digest(digests[number * _HEX : (number + 1) * _HEX])
        return replace(seen, entries=entries, tree=stored.tree)

    def note(self, known_by: FolderState, seen: Manifest, read: Manifest, tree: str | None) -> None:
        """Store the digests of a folder.

        Args:
            known_by, seen: of before the folder was read. If it has changed since, this state does not occur again.
            tree: of `tree_digest.listing_digest`.
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

    def _read(self, folder: str) -> _FolderDigests | None:
        try:
            data = (self._at / folder).read_bytes()
        except OSError:
            return None
        check, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if len(rest) < _HEAD.size or hashlib.sha256(rest).digest() != check:
            return None
        state, tree, num_bytes = _HEAD.unpack_from(rest)
        return _FolderDigests(state, tree.hex() if any(tree) else None, num_bytes, rest[_HEAD.size :])


class _FolderDigests(NamedTuple):
    state: bytes
    tree: str | None
    num_bytes: int
    digests: bytes
