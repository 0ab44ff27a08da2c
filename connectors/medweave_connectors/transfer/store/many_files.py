"""Commands for folders of many files, run by a python3 at the site where it has one. Pure.

A shell starts programs for each file; the python3 does not. Where it is missing or fails, POSIX tools do the same work: the last
line of the output says whether python3 did it.
"""

from __future__ import annotations

import os
import posixpath
import shlex

from medweave_connectors.transfer.agent import files
from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.shell_commands import sync
from medweave_connectors.transfer.store.blob_store import Store


def add_tree(store: Store, path: str, tree: str) -> list[str]:
    """Return the command that adds the files and the tree of a folder to the store: `was_added` reads its output."""
    return [f"{{ {tree_digest.files_agent_command('add', path, tree_digest.listing_path(path), store.blobs, tree)}; }}"]


def was_added(text: str) -> bool:
    """Return whether the output of `add_tree` reports success."""
    return "medweave-kept." in text


def check_received(path: str, tree: str, store: Store | None) -> list[str]:
    """Return the command that compares the listing of a tree stream's receiver with a digest: `is_received` reads its output.

    Args:
        store: gets the listing, for `add_tree_later`; None where only the files are added.
    """
    listing = shlex.quote(tree_digest.listing_path(path))
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
    return tree_digest.files_agent_command("add", path, _beside_list(store, tree, files.WAITING), store.blobs, tree)


def _beside_list(store: Store, tree: str, ending: bytes) -> str:
    return os.fsdecode(files.place_of(os.fsencode(store.blobs), tree.encode()) + ending)


def is_received(text: str) -> bool:
    """Return whether the output of `check_received` reports success."""
    return "medweave-received." in text


def link_tree(store: Store, path: str, tree: str) -> list[str]:
    """Return the command that makes a folder of the store's files and verifies each: `was_linked` reads its output.

    Where it fails, nothing of the folder is left.
    """
    return [f"{{ {tree_digest.files_agent_command('link', path, store.blobs, tree)} || rm -rf {shlex.quote(path)}; }}"]


def was_linked(text: str) -> bool:
    """Return whether the output of `link_tree` reports success."""
    return "medweave-took." in text
