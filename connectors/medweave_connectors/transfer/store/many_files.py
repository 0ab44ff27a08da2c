"""Many files at once: what a python3 at a site does with them, if there is one. Pure.

For each file, a shell starts programs or a driver writes a line of an archive; a python3 there does neither. All that it does is
done by the tools of POSIX, too, where it is missing or fails: whoever asks looks for the last line.
"""

from __future__ import annotations

import os
import posixpath
import shlex

from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.transfer.agent import files, program_text
from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Kind, Manifest
from medweave_connectors.transfer.shell_commands import sync
from medweave_connectors.transfer.store.blob_store import Store

MANY = 200  # files: for fewer it is not worth the start of a python3
_NOTE = ".medweave-tree"  # beside a copy that is put together


def has_many(manifest: Manifest) -> bool:
    """Whether it is a folder of many files."""
    return manifest.num_files >= MANY and manifest.entries[ROOT].kind == Kind.FOLDER


def listing_digest(manifest: Manifest) -> str | None:
    """The SHA-256 of a folder's tree, as `far_files` writes it; None where there are not many files, or odd names."""
    if manifest.tree is not None:
        return manifest.tree
    if not has_many(manifest) or tree_digest.has_special_names(manifest):
        return None
    lines, folders = [], []
    for path, each in manifest.entries.items():
        name = os.fsencode(path if path == ROOT else f"./{path}")
        if each.kind == Kind.FILE:
            lines.append(files.line_of(each.sha256.encode(), each.mode, name))
        elif each.kind == Kind.FOLDER:
            folders.append(b"%04o %s" % (each.mode, name))
    return tree_digest.digest_of_lines(lines, folders)


def digest_command(path: str) -> list[str]:
    """Words that print the seal of a folder, and note its tree."""
    others = " ".join(tree_digest.command(path)).removeprefix(READ_ONLY)
    return [f"{READ_ONLY}{{ {_run('seal', path, listing_path(path))} || {others}; }}"]


def add_tree(store: Store, path: str, tree: str) -> list[str]:
    """Return the command that adds the files and the tree of a folder to the store: `was_added` reads its output."""
    return [f"{{ {_run('keep', path, listing_path(path), store.blobs, tree)}; }}"]


def was_added(text: str) -> bool:
    """What they printed."""
    return "medweave-kept." in text


def check_received(path: str, tree: str, store: Store | None) -> list[str]:
    """Words that look whether what `tree_stream` has written is this tree, which waits in the store then for `add_tree_later`:
    `is_received` tells.

    Args:
        store: None for a tree of which it need not know but its files.
    """
    note = shlex.quote(listing_path(path))
    waits = ""
    if store is not None:
        waiting = _beside_list(store, tree, files.WAITING)
        folder, new = shlex.quote(posixpath.dirname(waiting)), shlex.quote(waiting)
        waits = f" && {{ mkdir -p -m 700 {folder} && mv -f {note} {new} || :; }}"  # without it, it is sent another time
    # While the driver reads what it has sent, the disk writes. A disk that cannot is told here, for it tells it once.
    return [
        f'( [ "$(sha256sum < {note})" = "{tree}  -" ] && {sync(note)}{waits} && echo medweave-check_received. ) 2>/dev/null'
    ]


def add_tree_later(store: Store, path: str, tree: str) -> str:
    """A line that makes blobs of the files of a folder that stands at its place now, and keeps its tree. Thousands of names take
    as long as a part of the copy, and nobody needs them before another copy of the same: see `store.aside`."""
    return _run("keep", path, _beside_list(store, tree, files.WAITING), store.blobs, tree)


def _beside_list(store: Store, tree: str, ending: bytes) -> str:
    return os.fsdecode(files.place_of(os.fsencode(store.blobs), tree.encode()) + ending)


def is_received(text: str) -> bool:
    """What they printed."""
    return "medweave-check_received." in text


def link_tree(store: Store, path: str, tree: str) -> list[str]:
    """Words that make a folder of the store's files, each of them read and found right: `taken` tells whether they did; else
    nothing of it is left."""
    return [f"{{ {_run('take', path, store.blobs, tree)} || rm -rf {shlex.quote(path)}; }}"]


def was_linked(text: str) -> bool:
    """What they printed."""
    return "medweave-took." in text


def listing_path(path: str) -> str:
    """Where the tree of a copy is noted that is put together at a path."""
    return posixpath.join(posixpath.dirname(path), _NOTE)


def _run(*words: str) -> str:
    given = " ".join(map(shlex.quote, words))
    return f"command -v python3 >/dev/null && ( python3 -I -S -c {shlex.quote(program_text.of('files'))} {given} ) 2>/dev/null"
