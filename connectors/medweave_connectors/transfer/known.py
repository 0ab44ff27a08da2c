"""What has been read of sources in this run. No streamflow in here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from medweave_connectors.transfer.manifest import Manifest


class Digests:
    """Manifests with digests, of sources: what is sent to several places is read once, as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Manifest, asyncio.Task[Manifest]]] = {}

    async def of(self, key: tuple[str, str, str], seen: Manifest, read: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """The manifest of a source that looks as `seen` now."""
        known = self._known.get(key)
        if known is None or not known[0].unchanged(seen) or failed(known[1]):
            known = seen, asyncio.ensure_future(read())
            known[1].add_done_callback(failed)  # who asked may have given up
            self._known[key] = known
        return await asyncio.shield(known[1])


def failed(task: asyncio.Future[Manifest]) -> bool:
    """Whether it has ended, and not with a manifest."""
    return task.done() and (task.cancelled() or task.exception() is not None)
