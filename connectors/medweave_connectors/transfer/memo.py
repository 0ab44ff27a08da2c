"""What was read of this machine's folders in earlier runs: one that nobody has touched since is known without being read.

It serves to ask a site's store, and for nothing else: where anything is sent, the source is read. Each file is known by its device,
inode, mode, size and times, that of its change too, which no program can set back. One digest of all that is the name of a file
here, in which are the digests of the folder's files: no name of a file or patient. No streamflow in here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from medweave_connectors.transfer.manifest import Manifest

MOST = 64  # folders; those go first whose last use is longest ago
_DIGEST_BYTES = 32


def memo_of(environment: Mapping[str, str]) -> Memo | None:
    """Where XDG's rules put caches; None for who has no home."""
    bases = (Path(environment.get("XDG_CACHE_HOME", "")), Path(environment.get("HOME", "")) / ".cache")
    base = next((each for each in bases if each.is_absolute()), None)
    return None if base is None else Memo(base / "medweave" / "digests")


class Memo:
    """What is known of folders.

    Args:
        at: its folder, which nobody else may read.
    """

    def __init__(self, at: Path) -> None:
        self._at = at

    def recall(self, known_by: str, seen: Manifest) -> Manifest | None:
        """A folder that looks as `seen`, with its digests; None where it is not known.

        Args:
            known_by: see `Manifest`.
        """
        files, file = _files(seen), self._at / known_by
        try:
            held = file.read_bytes()
            os.utime(file)  # its last use
        except OSError:
            return None
        check, digests = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
        if len(digests) != _DIGEST_BYTES * len(files) or hashlib.sha256(digests).digest() != check:
            return None
        entries = dict(seen.entries)
        for number, path in enumerate(files):
            sha256 = digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES].hex()
            entries[path] = entries[path].with_digest(sha256)
        return replace(seen, entries=entries)

    def note(self, known_by: str, read: Manifest) -> None:
        """Keeps the digests of a folder.

        Args:
            known_by: see `Manifest`; as it was before it was read. Where it has changed since, nothing is known by that any more.
        """
        digests = b"".join(bytes.fromhex(read.entries[path].sha256) for path in _files(read))
        new = self._at / f"{secrets.token_hex(8)}.new"
        with contextlib.suppress(OSError):  # a full disk: it is read again the next time
            self._at.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(hashlib.sha256(digests).digest() + digests)
            new.replace(self._at / known_by)
            for old in sorted(self._at.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)[MOST:]:
                old.unlink()


def _files(seen: Manifest) -> list[str]:
    return sorted(seen.files)
