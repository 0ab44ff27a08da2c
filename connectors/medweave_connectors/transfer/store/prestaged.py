"""A folder that stands ready in a site's store, read while its source is looked at: nobody waits for one after the other.

It is the tree that the source had the last time. Where it has another one now, or the store nothing ready, nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer.manifest.digest_cache import failed
from medweave_connectors.transfer.store import many_files
from medweave_connectors.transfer.store.blob_store import Store

Run = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]


class Ahead:
    """Stores that read what they have ready of a tree.

    Args:
        at: the store, the same at all locations.
        tree: of `many.tree_of`; without one, or without a store, nothing is read.
    """

    def __init__(self, at: Store | None, tree: str | None, locations: Sequence[ExecutionLocation], run: Run) -> None:
        self._store, self._tree, self._run = at, tree, run
        self._reading: dict[str, asyncio.Future[tuple[str, int]]] = {}
        if at is not None and tree is not None:
            for each in locations:
                self._reading[each.name] = reading = asyncio.ensure_future(run(each, many_files.check(at, tree)))
                reading.add_done_callback(failed)  # perhaps nobody asks

    async def taken(self, location: ExecutionLocation, path: str, tree: str) -> bool:
        """Whether a location's store has given this tree to a path."""
        if self._store is None or tree != self._tree:
            return False
        text, _ = await self._reading[location.name]
        if not many_files.is_whole(text):
            return False
        text, _ = await self._run(location, many_files.move(self._store, path, tree))
        return many_files.taken(text)

    def close(self) -> None:
        """Nobody asks any more."""
        for each in self._reading.values():
            each.cancel()
