"""Verification of a copy: what has arrived at each location is compared with the source by SHA-256."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.gather import gather_all
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.failures import ContentDiffers, TransferErrors
from medweave_connectors.transfer.manifest import manifest, tree_digest
from medweave_connectors.transfer.manifest.manifest import Manifest, ManifestError
from medweave_connectors.transfer.manifest.source import TransferSource
from medweave_connectors.transfer.plan import TransferPlan
from medweave_connectors.transfer.store import many_files
from medweave_connectors.transfer.store.blob_store import Store
from medweave_connectors.transfer.store.store_lookup import StoreLookup
from medweave_connectors.transfer.streams import tree_stream_piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Compares the copies of one plan with the source.

    Attributes:
        path: of the copy, in its staging folder.
        lookup, store: of the receivers; None where they have no store.
        run_at: runs a command at a location.
    """

    plan: TransferPlan
    path: str
    source: TransferSource
    lookup: StoreLookup | None
    store: Store | None
    errors: TransferErrors
    run_at: Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]

    async def check_tree(self, listing: bytes) -> Manifest | None:
        """Verify a tree stream by the listings that the receivers' agents made while they wrote it.

        Args:
            listing: that the sender made.

        Returns:
            The manifest of source and copies; None where both have to be read.

        Raises:
            ContentDiffers: a copy differs from its source.
        """
        digest = tree_stream_piece.sent_digest(listing)
        reading = asyncio.ensure_future(self._parse_listing(listing))
        try:
            received = await gather_all(self._has_received(receiver, digest) for receiver in self.plan.receivers)
            if (sent := await reading) is None:
                return None
        finally:
            reading.cancel()
        pending_tree = digest if tree_digest.has_many(sent) else None
        for receiver, has_received in zip(self.plan.receivers, received, strict=True):
            if not has_received:
                if difference := await self._difference(receiver, sent, tree_digest.expected_digest(sent)):
                    raise ContentDiffers(difference)
            elif self.lookup is not None:
                self.lookup.mark_stored(receiver, pending_tree=pending_tree)
        return sent

    async def check(self, sent: Manifest, locations: Sequence[ExecutionLocation]) -> None:
        """Read the copies, and compare them with the source.

        Raises:
            ContentDiffers: a copy differs from its source.
        """
        expected = tree_digest.expected_digest(sent)
        differences = await gather_all(self._difference(location, sent, expected) for location in locations)
        if difference := next(filter(None, differences), ""):
            raise ContentDiffers(difference, source_changed=not self.plan.manifest.unchanged(sent))

    async def _parse_listing(self, listing: bytes) -> Manifest | None:
        sent = await asyncio.to_thread(tree_stream_piece.parse_listing, listing, self.plan.manifest)
        if sent is not None:
            await self.source.learn(self.plan.manifest, sent)
        return sent

    async def _has_received(self, location: ExecutionLocation, digest: str) -> bool:
        store = self.store if self.lookup is not None and tree_digest.has_many(self.plan.manifest) else None
        text, code = await self.run_at(location, many_files.check_received(self.path, digest, store))
        if code == shell_commands.REFUSED:
            raise self.errors.command_failed(text, code)
        return many_files.is_received(text)

    async def _difference(self, location: ExecutionLocation, sent: Manifest, expected: str | None) -> str:
        """Return how the copy at a location differs; empty where it does not."""
        if expected is not None:
            digest_command = tree_digest.listing_command if tree_digest.has_many(sent) else tree_digest.command
            text, _ = await self.run_at(location, digest_command(self.path))
            if tree_digest.parse_digest(text) == expected:
                return ""
        text, _ = await self.run_at(location, manifest.command(self.path))
        try:
            return sent.difference(manifest.parse(text))
        except ManifestError as error:
            raise ContentDiffers(f"at {self.errors.target}: {error}") from None
