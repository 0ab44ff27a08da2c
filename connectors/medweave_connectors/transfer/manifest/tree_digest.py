"""One digest for all that lies below a path: a copy that was made well is verified by 64 characters instead of a listing. Pure."""

from __future__ import annotations

import hashlib
import os
import re
import shlex

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.transfer.agent import files as far_files
from medweave_connectors.transfer.manifest import file_digests
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest

_SEAL = re.compile(r"^medweave-seal ([0-9a-f]{64})\.$", re.MULTILINE)
_ESCAPED = "\\\n\r"  # sha256sum writes names with these in ways of its own, which differ between GNU and busybox


def expected_digest(manifest: Manifest) -> str | None:
    """The digest that `command` prints of such entries; None where it cannot be told beforehand."""
    root = manifest.entries[ROOT]
    if root.kind == Kind.FILE:
        return _sha256(f"{root.sha256}  -\n".encode())
    if has_special_names(manifest):
        return None
    paths = {path: os.fsencode("." if path == ROOT else f"./{path}") for path in manifest.entries}
    others = [paths[path] for path, each in manifest.entries.items() if each.kind not in (Kind.FILE, Kind.FOLDER)]
    folders = [paths[path] for path, each in manifest.entries.items() if each.kind == Kind.FOLDER]
    files = [
        each.sha256.encode() + b"  " + paths[path] for path, each in manifest.entries.items() if each.kind == Kind.FILE
    ]
    return digest_of_lines(others, folders, files)


def has_special_names(manifest: Manifest) -> bool:
    """Whether there is a name that programs write in ways of their own."""
    names = "/".join(manifest.entries)
    return any(sign in names for sign in _ESCAPED)


def digest_of_lines(*parts: list[bytes]) -> str:
    """The SHA-256 of some parts of sorted lines, with a slash between them."""
    return _sha256(far_files.text_of(*parts))


def command(path: str) -> list[str]:
    """Words for a POSIX shell that read every file below a path, and print the digest of all names and contents.

    A program that fails or is missing there makes it another digest: it can only be too careful.
    """
    large = file_digests.choose('"$at"')
    one = file_digests.of_one('"$at"')
    script = (
        f"at={shlex.quote(path)}; {large}; "
        'if [ -d "$at" ]; then cd "$at" && { find . ! -type f ! -type d | sort; echo /; '
        f"find . -type d | sort; echo /; {file_digests.of_files('. -type f')} | sort; }}; else {one}; fi"
    )
    return [
        f'{READ_ONLY}( export LC_ALL=C; seal=$( ( {script} ) 2>/dev/null | sha256sum ); echo "medweave-seal ${{seal%% *}}." )'
    ]


def parse_digest(text: str) -> str | None:
    """What `command` printed; None where there is no digest."""
    found = _SEAL.search(text)
    return found[1] if found is not None else None


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
