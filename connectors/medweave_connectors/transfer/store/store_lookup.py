"""Lookup of a copy's files in a site's store before anything is sent, and their addition to it once the copy is verified."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.manifest import manifest, tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Manifest, ManifestError
from medweave_connectors.transfer.shell_commands import StagingPlace
from medweave_connectors.transfer.store import blob_store, many_files
from medweave_connectors.transfer.store.blob_store import Store

RunAt = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]


class StoreLookup:
    """The stores of the locations that get one copy.

    Args:
        place: where the copy is staged.
        name: the source's own name.
        run_at: runs a command at a location.
    """

    def __init__(
        self, store: Store, place: StagingPlace, name: str, locations: Sequence[ExecutionLocation], run_at: RunAt
    ) -> None:
        self._store, self._part, self._name = store, place.folder, name
        self._locations, self._run_at = locations, run_at
        self._stored: list[ExecutionLocation] = []  # their store has the whole tree
        self._pending_trees: dict[str, str] = {}  # by location name: the tree whose files are added after the copy

    def follow(self, place: StagingPlace) -> None:
        """Use the copy's new staging folder after a lost connection."""
        self._part = place.folder

    async def link(self, sent: Manifest) -> list[str]:
        """Link the files that the stores of all locations have, verified; return the paths of the files to be sent."""
        missing: set[str] = set()
        for location in self._locations:
            missing |= set(await self._link_at(location, sent))
        return [path for path in sent.entries if path in missing]

    async def _link_at(self, location: ExecutionLocation, sent: Manifest) -> list[str]:
        path = posixpath.join(self._part, self._name)
        if (tree := tree_digest.listing_digest(sent)) is not None:
            text, _ = await self._run_at(location, many_files.link_tree(self._store, path, tree))
            if many_files.was_linked(text):
                self.mark_stored(location)
                return []
        expected, paths, missing = tree_digest.expected_digest(sent), sent.files, [""]
        digest_command = tree_digest.command(path) if tree is None else tree_digest.listing_command(path)
        for is_last in (False, True):
            links = blob_store.link_files(self._store, self._part, sent, self._name, paths, digest_command)
            text = await self._run_all(location, links)
            if expected is not None and tree_digest.parse_digest(text) == expected:
                return []
            linked = await self._scan(location)
            if damaged := blob_store.damaged_files(sent, linked):
                await self._run_at(location, blob_store.remove_blobs(self._store, self._part, self._name, damaged))
            missing = blob_store.missing_files(sent, linked)
            if is_last or not missing or not blob_store.stopped_early(text):
                break
            query = blob_store.query(self._store, self._part, sent, missing)
            stored_keys = set((await self._run_all(location, query)).split())
            paths = [path for path in missing if blob_store.blob_key(sent.entries[path]) in stored_keys]
        return missing

    async def _scan(self, location: ExecutionLocation) -> Manifest:
        text, _ = await self._run_at(location, manifest.command(posixpath.join(self._part, self._name)))
        with contextlib.suppress(ManifestError):
            return manifest.parse(text)
        return Manifest("", {})

    async def add(self, sent: Manifest, paths: Sequence[str] | None = None) -> None:
        """Add files of a verified copy to the stores. A file that cannot be added is sent again the next time.

        Args:
            paths: of the files; None for all.
        """
        for location in self._locations:
            files = [] if location in self._stored else await self._files_beside_tree(location, sent, paths)
            await self._run_all(location, blob_store.add_files(self._store, self._part, sent, self._name, files))

    async def _files_beside_tree(
        self, location: ExecutionLocation, sent: Manifest, paths: Sequence[str] | None
    ) -> Sequence[str]:
        """Add a folder of many files as one tree; return the files that have to be added one by one."""
        if (tree := tree_digest.listing_digest(sent)) is not None:
            path = posixpath.join(self._part, self._name)
            text, _ = await self._run_at(location, many_files.add_tree(self._store, path, tree))
            if many_files.was_added(text):
                return []
        return sent.files if paths is None else paths

    async def undo(self) -> None:
        """Remove the links: the whole copy is sent."""
        words = [f"rm -rf {shlex.quote(posixpath.join(self._part, self._name))}"]
        for location in self._locations:
            await self._run_at(location, words)

    def mark_stored(self, location: ExecutionLocation, *, pending_tree: str | None = None) -> None:
        """Record that a store has the files of the copy.

        Args:
            pending_tree: digest of the tree whose files are added after the copy has its final path.
        """
        self._stored.append(location)
        if pending_tree is not None:
            self._pending_trees[location.name] = pending_tree

    def deferred_lines(self, location: ExecutionLocation, path: str) -> list[str]:
        """Return shell lines that add a pending tree to the store, for the time after the copy has its final path."""
        tree = self._pending_trees.get(location.name)
        return [] if tree is None else [many_files.add_tree_later(self._store, path, tree)]

    async def make_room(self, needed_bytes: int) -> None:
        """Evict unused files of `needed_bytes` from the store of each location."""
        for location in self._locations:
            await self._run_at(location, [blob_store.evict(self._store, needed_bytes=needed_bytes)])

    async def _run_all(self, location: ExecutionLocation, commands: Iterator[list[str]]) -> str:
        """Run commands in order; return the output of the last one."""
        text = ""
        for words in commands:
            text, _ = await self._run_at(location, words)
        return text


def is_partial_copy_worth_it(sent: Manifest, missing: Sequence[str]) -> bool:
    """Return whether only the missing files are sent, instead of everything in one stream."""
    return (len(missing) < sent.num_files and sent.entries[ROOT].kind == manifest.Kind.FOLDER) or not missing
