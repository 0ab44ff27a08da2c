"""What a site's store gives to a copy before anything is sent, and what the store gets of it once it is verified."""

from __future__ import annotations

import contextlib
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.manifest import manifest, tree_digest
from medweave_connectors.transfer.manifest.manifest import ROOT, Manifest, Unlisted
from medweave_connectors.transfer.shell_commands import Place
from medweave_connectors.transfer.store import blob_store, many_files
from medweave_connectors.transfer.store.blob_store import Store

Run = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]


class Reuse:
    """The stores of the places that get one copy."""

    def __init__(self, at: Store, place: Place, name: str, locations: Sequence[ExecutionLocation], run: Run) -> None:
        self._store, self._part, self._name = at, place.folder, name
        self._locations, self._run = locations, run
        self._given: list[ExecutionLocation] = []  # those whose store knew the whole tree
        self._waiting: dict[str, str] = {}  # by location name: the tree whose files are added to the store later

    def stands_at(self, place: Place) -> None:
        """The copy has another folder now."""
        self._part = place.folder

    async def take(self, sent: Manifest) -> list[str]:
        """Links what all of the places have.

        Returns:
            The files that have to be sent.
        """
        left: set[str] = set()
        for each in self._locations:
            left |= set(await self._taken(each, sent))
        return [path for path in sent.entries if path in left]

    async def _taken(self, location: ExecutionLocation, sent: Manifest) -> list[str]:
        path = posixpath.join(self._part, self._name)
        if (tree := many_files.tree_of(sent)) is not None:
            text, _ = await self._run(location, many_files.take(self._store, path, tree))
            if many_files.taken(text):
                self.knows(location)
                return []
        wanted, paths, left = tree_digest.of(sent), sent.files, [""]
        sealing = tree_digest.command(path) if tree is None else many_files.sealed(path)
        for is_last in (False, True):
            text = await self._all(location, blob_store.link(self._store, self._part, sent, self._name, paths, sealing))
            if wanted is not None and tree_digest.read(text) == wanted:
                return []
            there = await self._there(location)
            if wrong := blob_store.wrong(sent, there):
                await self._run(location, blob_store.forget(self._store, self._part, self._name, wrong))
            left = blob_store.missing(sent, there)
            if is_last or not left or not blob_store.gave_up(text):
                break
            known = set((await self._all(location, blob_store.ask(self._store, self._part, sent, left))).split())
            paths = [path for path in left if blob_store.key(sent.entries[path]) in known]
        return left

    async def _there(self, location: ExecutionLocation) -> Manifest:
        text, _ = await self._run(location, manifest.command(posixpath.join(self._part, self._name)))
        with contextlib.suppress(Unlisted):
            return manifest.parse(text)
        return Manifest("", {})

    async def keep(self, sent: Manifest, paths: Sequence[str] | None = None) -> None:
        """Puts files of a verified copy into the stores, all where none are named. What cannot be kept is sent another time."""
        for each in self._locations:
            wanted = [] if each in self._given else await self._not_kept_as_a_tree(each, sent, paths)
            await self._all(each, blob_store.keep(self._store, self._part, sent, self._name, wanted))

    async def _not_kept_as_a_tree(
        self, location: ExecutionLocation, sent: Manifest, paths: Sequence[str] | None
    ) -> Sequence[str]:
        if (tree := many_files.tree_of(sent)) is not None:
            text, _ = await self._run(
                location, many_files.keep(self._store, posixpath.join(self._part, self._name), tree)
            )
            if many_files.kept(text):
                return []
        return sent.files if paths is None else paths

    async def leave(self) -> None:
        """Takes back what the stores gave: the whole copy is sent."""
        words = [f"rm -rf {shlex.quote(posixpath.join(self._part, self._name))}"]
        for each in self._locations:
            await self._run(each, words)

    def knows(self, location: ExecutionLocation, tree: str | None = None, *, waits: bool = False) -> None:
        """A store has the files of the copy; or gets them later, where a tree waits in it."""
        self._given.append(location)
        if tree is not None and waits:
            self._waiting[location.name] = tree

    def later(self, location: ExecutionLocation, path: str) -> list[str]:
        """Shell lines for the time after the copy has its final name: they add its files to the store."""
        tree = self._waiting.get(location.name)
        return [] if tree is None else [many_files.keep_later(self._store, path, tree)]

    async def make_room(self, needed_bytes: int) -> None:
        """Removes as much as nobody uses."""
        for each in self._locations:
            await self._run(each, [blob_store.evict(self._store, needed_bytes=needed_bytes)])

    async def _all(self, location: ExecutionLocation, words: Iterator[list[str]]) -> str:
        text = ""
        for each in words:
            text, _ = await self._run(location, each)
        return text


def is_worth_it(sent: Manifest, left: Sequence[str]) -> bool:
    """Whether the rest is sent alone, and not all of it."""
    return (len(left) < sent.num_files and sent.entries[ROOT].kind == manifest.Kind.FOLDER) or not left
