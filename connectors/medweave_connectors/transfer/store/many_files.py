"""Commands for folders of many files, run by a python3 at the site where it has one. Pure.

A shell starts programs for each file; the python3 does not. Where it is missing or fails, POSIX tools do the same work: the last
line of the output says whether python3 did it.
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

MANY = 200  # files; fewer are not worth the start of a python3
_LISTING = ".medweave-tree"  # in the staging folder


def has_many(manifest: Manifest) -> bool:
    """Return whether a manifest is a folder of many files."""
    return manifest.num_files >= MANY and manifest.entries[ROOT].kind == Kind.FOLDER


def listing_digest(manifest: Manifest) -> str | None:
    """Return the SHA-256 of a folder's listing, in the format of `agent.files`; None for few files or special names."""
    if manifest.tree is not None:
        return manifest.tree
    if not has_many(manifest) or tree_digest.has_special_names(manifest):
        return None
    lines, folders = [], []
    for path, entry in manifest.entries.items():
        name = os.fsencode(path if path == ROOT else f"./{path}")
        if entry.kind == Kind.FILE:
            lines.append(files.line_of(entry.sha256.encode(), entry.mode, name))
        elif entry.kind == Kind.FOLDER:
            folders.append(b"%04o %s" % (entry.mode, name))
    return tree_digest.digest_of_lines(lines, folders)


def digest_command(path: str) -> list[str]:
    """Return the command that prints a folder's tree digest, and writes its listing next to the folder."""
    others = " ".join(tree_digest.command(path)).removeprefix(READ_ONLY)
    return [f"{READ_ONLY}{{ {_run('digest', path, listing_path(path))} || {others}; }}"]


def add_tree(store: Store, path: str, tree: str) -> list[str]:
    """Return the command that adds the files and the tree of a folder to the store: `was_added` reads its output."""
    return [f"{{ {_run('add', path, listing_path(path), store.blobs, tree)}; }}"]


def was_added(text: str) -> bool:
    """Return whether the output of `add_tree` reports success."""
    return "medweave-kept." in text


def check_received(path: str, tree: str, store: Store | None) -> list[str]:
    """Return the command that compares the listing of a tree stream's receiver with a digest: `is_received` reads its output.

    Args:
        store: gets the listing, for `add_tree_later`; None where only the files are added.
    """
    listing = shlex.quote(listing_path(path))
    pending = ""
    if store is not None:
        pending_listing = _beside_list(store, tree, files.WAITING)
        folder, new = shlex.quote(posixpath.dirname(pending_listing)), shlex.quote(pending_listing)
        # Where it fails, the files are sent again the next time.
        pending = f" && {{ mkdir -p -m 700 {folder} && mv -f {listing} {new} || :; }}"
    # The disk flushes while the driver parses its listing. A write error is reported only once: it is read here.
    return [
        f'( [ "$(sha256sum < {listing})" = "{tree}  -" ] && {sync(listing)}{pending} && echo medweave-received. ) 2>/dev/null'
    ]


def add_tree_later(store: Store, path: str, tree: str) -> str:
    """Return a shell line that adds the files and the listing of a published folder to the store.

    Thousands of links take as long as a part of the copy, and only a later copy needs them: see `blob_store.in_background`.
    """
    return _run("add", path, _beside_list(store, tree, files.WAITING), store.blobs, tree)


def _beside_list(store: Store, tree: str, ending: bytes) -> str:
    return os.fsdecode(files.place_of(os.fsencode(store.blobs), tree.encode()) + ending)


def is_received(text: str) -> bool:
    """Return whether the output of `check_received` reports success."""
    return "medweave-received." in text


def link_tree(store: Store, path: str, tree: str) -> list[str]:
    """Return the command that makes a folder of the store's files and verifies each: `was_linked` reads its output.

    Where it fails, nothing of the folder is left.
    """
    return [f"{{ {_run('link', path, store.blobs, tree)} || rm -rf {shlex.quote(path)}; }}"]


def was_linked(text: str) -> bool:
    """Return whether the output of `link_tree` reports success."""
    return "medweave-took." in text


def listing_path(path: str) -> str:
    """Return the path of the listing of a staged copy."""
    return posixpath.join(posixpath.dirname(path), _LISTING)


def _run(*words: str) -> str:
    """Return a shell line that runs a verb of `agent.files`, where the site has a python3."""
    arguments = " ".join(map(shlex.quote, words))
    return f"command -v python3 >/dev/null && ( python3 -I -S -c {shlex.quote(program_text.of('files'))} {arguments} ) 2>/dev/null"
