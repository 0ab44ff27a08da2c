"""One digest over all entries below a path: a correct copy is verified by 64 characters instead of a listing. Pure."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.transfer.agent import files as agent_files
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.manifest import file_digests
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest

_TREE_DIGEST = re.compile(r"^medweave-seal ([0-9a-f]{64})\.$", re.MULTILINE)
MANY = 200  # files; fewer are not worth the start of a python3
_LISTING = ".medweave-tree"  # in the staging folder
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


def has_many(manifest: Manifest) -> bool:
    """Return whether a manifest is a folder of many files."""
    return manifest.num_files >= MANY and manifest.entries[ROOT].kind == Kind.FOLDER


def listing_digest(manifest: Manifest) -> str | None:
    """Return the SHA-256 of a folder's listing, in the format of `agent.files`; None for few files or special names."""
    if manifest.tree is not None:
        return manifest.tree
    if not has_many(manifest) or has_special_names(manifest):
        return None
    lines, folders = [], []
    for path, entry in manifest.entries.items():
        name = os.fsencode(path if path == ROOT else f"./{path}")
        if entry.kind == Kind.FILE:
            lines.append(agent_files.line_of(entry.sha256.encode(), entry.mode, name))
        elif entry.kind == Kind.FOLDER:
            folders.append(b"%04o %s" % (entry.mode, name))
    return digest_of_lines(lines, folders)


def listing_command(path: str) -> list[str]:
    """Return the command that prints a folder's tree digest, and writes its listing next to the folder."""
    others = " ".join(command(path)).removeprefix(READ_ONLY)
    return [f"{READ_ONLY}{{ {files_agent_command('digest', path, listing_path(path))} || {others}; }}"]


def listing_path(path: str) -> str:
    """Return the path of the listing of a staged copy."""
    return posixpath.join(posixpath.dirname(path), _LISTING)


def files_agent_command(*words: str) -> str:
    """Return a shell line that runs a verb of `agent.files`, where the site has a python3."""
    arguments = " ".join(map(shlex.quote, words))
    return f"command -v python3 >/dev/null && ( python3 -I -S -c {shlex.quote(program_text.of('files'))} {arguments} ) 2>/dev/null"


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
