"""Digests of sources that were read in this run or in earlier runs. No streamflow in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.manifest.digest_database import DigestDatabase
from medweave_connectors.transfer.manifest.manifest import Manifest

Read = Callable[[], Awaitable[Manifest]]


class DigestCache:
    """Manifests of sources with digests: an unchanged source is read once, however often it is sent.

    Args:
        memo: the database of earlier runs.
    """

    def __init__(self, memo: DigestDatabase | None = None) -> None:
        self._known: dict[tuple[str, str, str], tuple[Manifest, asyncio.Future[Manifest]]] = {}
        self._memo = memo

    async def of(
        self, key: tuple[str, str, str], seen: Manifest, read: Read, *, here: bool = False, to_ask: bool = False
    ) -> Manifest:
        """Return the manifest with digests of a source whose scan is `seen`.

        Args:
            here: the source is on this machine.
            to_ask: a store is queried and nothing is sent: digests of an earlier run will do.
        """
        known = self._known.get(key)
        if known is None or not known[0].unchanged(seen) or has_failed(known[1]):
            if to_ask and here and (recalled := await self._recalled(seen)) is not None:
                return recalled
            known = seen, asyncio.ensure_future(self._noted(seen, read) if here else read())
            known[1].add_done_callback(has_failed)  # the caller may have been canceled
            self._known[key] = known
        return await asyncio.shield(known[1])

    async def _recalled(self, seen: Manifest) -> Manifest | None:
        if self._memo is None or not tree_digest.has_many(seen) or seen.known_by is None:
            return None
        return await asyncio.to_thread(self._memo.recall, seen.known_by, seen)

    async def _noted(self, seen: Manifest, read: Read) -> Manifest:
        manifest = await read()
        await self._note(seen, manifest)
        return manifest

    async def learn(self, key: tuple[str, str, str], seen: Manifest, read: Manifest) -> None:
        """Record the digests of a source that its sender has computed."""
        known: asyncio.Future[Manifest] = asyncio.get_running_loop().create_future()
        known.set_result(read)
        self._known[key] = seen, known
        await self._note(seen, read)

    async def _note(self, seen: Manifest, read: Manifest) -> None:
        if (memo := self._memo) is not None and tree_digest.has_many(seen) and (known_by := seen.known_by) is not None:
            await asyncio.to_thread(lambda: memo.note(known_by, seen, read, tree_digest.listing_digest(read)))


def has_failed(task: asyncio.Future[Any]) -> bool:
    """Return whether a task has ended without a result."""
    return task.done() and (task.cancelled() or task.exception() is not None)
