"""One digest over all entries below a path: a correct copy is verified by 64 characters instead of a listing. Pure."""

from __future__ import annotations

import hashlib
import os
import re
import shlex

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.manifest import file_digests
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest

_TREE_DIGEST = re.compile(r"^medweave-seal ([0-9a-f]{64})\.$", re.MULTILINE)
_ESCAPED = "\\\n\r"  # sha256sum escapes names with these; GNU and busybox differ


def expected_digest(manifest: Manifest) -> str | None:
    """Return the digest that `command` prints for a manifest's entries; None where it cannot be computed."""
    root = manifest.entries[ROOT]
    if root.kind == Kind.FILE:
        return _sha256(f"{root.sha256}  -\n".encode())
    if has_special_names(manifest):
        return None
    paths = {path: os.fsencode("." if path == ROOT else f"./{path}") for path in manifest.entries}
    others = [paths[path] for path, entry in manifest.entries.items() if entry.kind not in (Kind.FILE, Kind.FOLDER)]
    folders = [paths[path] for path, entry in manifest.entries.items() if entry.kind == Kind.FOLDER]
    files = [
        entry.sha256.encode() + b"  " + paths[path]
        for path, entry in manifest.entries.items()
        if entry.kind == Kind.FILE
    ]
    return digest_of_lines(others, folders, files)


def has_special_names(manifest: Manifest) -> bool:
    """Return whether there is a name that programs escape."""
    names = "/".join(manifest.entries)
    return any(sign in names for sign in _ESCAPED)


def digest_of_lines(*parts: list[bytes]) -> str:
    """Return the SHA-256 of some parts of sorted lines, with a slash between the parts."""
    return _sha256(agent_files.text_of(*parts))


def command(path: str) -> list[str]:
    """Return a command that reads every file below a path, and prints the digest of all names and contents.

    A program that fails or is missing changes the digest: an incomplete reading never matches.
    """
    large = file_digests.choose('"$at"')
    one = file_digests.of_one('"$at"')
    script = (
        f"at={shlex.quote(path)}; {large}; "
        'if [ -d "$at" ]; then cd "$at" && { find . ! -type f ! -type d | sort; echo /; '
        f"find . -type d | sort; echo /; {file_digests.of_files('. -type f')} | sort; }}; else {one}; fi"
    )
    return [
        f'{READ_ONLY}( export LC_ALL=C; digest=$( ( {script} ) 2>/dev/null | sha256sum ); echo "medweave-seal ${{digest%% *}}." )'
    ]


def parse_digest(text: str) -> str | None:
    """Return the digest in the output of `command`; None without one."""
    match = _TREE_DIGEST.search(text)
    return match[1] if match is not None else None


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
