"""The source of a copy: its manifest, scanned, and read for its digests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import SourceUnreadable
from medweave_connectors.transfer.manifest import local_scan, manifest, tree_digest
from medweave_connectors.transfer.manifest.digest_cache import DigestCache
from medweave_connectors.transfer.manifest.manifest import Manifest, ManifestError


class TransferSource:
    """A file or folder that is copied.

    Attributes:
        location, path: where it is.

    Args:
        target: the deployment that gets the copy, for messages.
        digests: digests of sources that were read before.
        run_at: runs a command at a location.
    """

    def __init__(
        self,
        location: ExecutionLocation,
        path: str,
        *,
        target: str,
        digests: DigestCache,
        run_at: Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]],
    ) -> None:
        self.location, self.path = location, path
        self._target, self._digests, self._run_at = target, digests, run_at

    async def scan(self) -> Manifest:
        """Return the current manifest, without digests.

        Raises:
            SourceUnreadable: the source cannot be read.
        """
        if self.location.local and (scanned := await asyncio.to_thread(local_scan.scan, self.path)):
            return scanned
        return await self._list(digests=False, many=False)

    async def with_digests(self, scanned: Manifest, *, to_ask: bool = False) -> Manifest:
        """Return the manifest with digests.

        Args:
            scanned: the manifest without digests.
            to_ask: a store is queried with it: digests of an earlier run will do.

        Raises:
            SourceUnreadable: the source cannot be read.
        """
        read = partial(self._list, digests=True, many=tree_digest.has_many(scanned))
        is_local = bool(self.location.local)
        return await self._digests.of(self._key(scanned), scanned, read, here=is_local, to_ask=to_ask)

    async def learn(self, scanned: Manifest, sent: Manifest) -> None:
        """Record the digests that the sender of a stream has computed."""
        await self._digests.learn(self._key(scanned), scanned, sent)

    def _key(self, scanned: Manifest) -> tuple[str, str, str]:
        return self.location.deployment, self.location.name, scanned.real

    async def _list(self, *, digests: bool, many: bool) -> Manifest:
        text, _ = await self._run_at(self.location, manifest.command(self.path, digests=digests, many=many))
        try:
            return manifest.parse(text, digests=digests)
        except ManifestError as error:
            raise SourceUnreadable(self.location.deployment, self._target, str(error)) from None
