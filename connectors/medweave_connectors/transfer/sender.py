"""One copy to locations of one deployment: staged, verified, and only then published under its final path."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import (
    NoRoom,
    SiteUnreachable,
    SourceChanged,
    SourceUnreadable,
    StreamBroke,
    TransferFailed,
)
from medweave_connectors.host.gather import gather_all
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.capabilities import one_per_volume, run_at
from medweave_connectors.transfer.failures import ContentDiffers, TransferErrors
from medweave_connectors.transfer.manifest import tree_digest
from medweave_connectors.transfer.manifest.digest_cache import DigestCache, has_failed
from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.manifest.source import TransferSource
from medweave_connectors.transfer.plan import TransferPlan
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.resume import ResumableCopy
from medweave_connectors.transfer.routes.carrier import Carrier
from medweave_connectors.transfer.routes.router import Router
from medweave_connectors.transfer.shell_commands import StagingFolder, StagingPlace
from medweave_connectors.transfer.store import blob_store
from medweave_connectors.transfer.store.blob_store import Store, StoreState
from medweave_connectors.transfer.store.store_lookup import StoreLookup, is_partial_copy_worth_it
from medweave_connectors.transfer.streams import tree_stream_piece
from medweave_connectors.transfer.streams.tree_stream_piece import TreeStream
from medweave_connectors.transfer.verification import Verifier

Prepared = tuple[StagingFolder, StoreState]
Value = TypeVar("Value")


class Sender:
    """Plans one copy, lets the routes carry it, verifies it and publishes it.

    Attributes:
        meter: counts what has been sent so far.

    Args:
        path: of the file or folder at the source.
        destination: the path, or an existing folder that gets the copy.
        router: provides the carrier of the plan.
        digests: digests of sources that were read before.
        store: the blob store of the destinations; None where they have none.
        evicts: whether the store is brought back to its limit after the copy.
        may_link: the copy is only read.
    """

    def __init__(
        self,
        source: ExecutionLocation,
        path: str,
        destinations: Sequence[ExecutionLocation],
        destination: str,
        *,
        connector_of: Callable[[str], Any],
        router: Router,
        digests: DigestCache,
        meter: TransferMeter,
        store: Store | None,
        evicts: bool,
        may_link: bool,
    ) -> None:
        self.meter = meter
        self._destinations, self._destination = tuple(destinations), destination
        self._target = str(destinations[0].deployment)
        self._connector_of, self._router = connector_of, router
        self._run_at = partial(run_at, connector_of)
        self._source = TransferSource(source, path, target=self._target, digests=digests, run_at=self._run_at)
        self._store, self._evicts, self._may_link = store, evicts, may_link
        self._errors = TransferErrors(source.deployment, self._target)
        self._token = secrets.token_hex(6)
        self._plan: TransferPlan | None = None
        self._carrier: Carrier | None = None
        self._place: StagingPlace | None = None  # where the copy is staged now: another folder after each cut
        self._lookup: StoreLookup | None = None
        self._recalled: Manifest | None = None  # the source with its digests, as the store was queried
        self._was_cut = False

    @property
    def plan(self) -> TransferPlan:
        """Return the current plan, once `prepare` has made it."""
        return _prepared(self._plan)

    @property
    def carrier(self) -> Carrier:
        """Return the carrier of the current plan."""
        return _prepared(self._carrier)

    @property
    def place(self) -> StagingPlace:
        """Return the current staging place."""
        return _prepared(self._place)

    # ---- the plan

    async def prepare(self) -> TransferPlan:
        """Scan the source, make staging folders at the destinations at the same time, and plan the copy.

        Raises:
            SourceUnreadable: the source cannot be read.
            NoRoom: the copy would not fit.
            TargetRefused: nothing can be written at a destination.
        """
        self._token = secrets.token_hex(6)
        connector = self._connector_of(self._target)
        receivers = tuple(await one_per_volume(connector, self._destinations, self._destination))
        scanning = asyncio.ensure_future(self._source.scan())
        try:
            prepared = await gather_all(self._prepare_at(receiver) for receiver in receivers)
            if not scanning.done() and self._will_be_encoded({state for _, state in prepared}):
                await self._router.query_codecs(receivers)
            source = await scanning
        finally:
            scanning.cancel()
        if unsendable := source.unsendable():
            raise SourceUnreadable(self._source.location.deployment, self._target, unsendable)
        place = shell_commands.staging_place(
            self._destination,
            posixpath.basename(self._source.path),
            self._token,
            below=prepared[0][0].below,  # a copy has one path at all destinations
        )
        missing = await self._link_from_store(source, place, receivers, {state for _, state in prepared})
        self._plan = plan = self._make_plan(source, place, receivers, missing)
        self._place, self._carrier = place, self._router.carrier(plan, self.meter)
        await self._check_room([folder for folder, _ in prepared])
        return plan

    def _make_plan(
        self,
        source: Manifest,
        place: StagingPlace,
        receivers: tuple[ExecutionLocation, ...],
        missing: tuple[str, ...] | None,
    ) -> TransferPlan:
        plan = TransferPlan(
            source=self._source.location,
            destinations=self._destinations,
            receivers=receivers,
            manifest=source,
            place=place,
            missing=missing,
            routes=(),
            reason="",
            may_link=self._may_link,
        )
        routes, reason = self._router.candidates(self._source.location, self._destinations[0], plan.num_bytes)
        return replace(plan, routes=routes, reason=reason)

    async def _prepare_at(self, location: ExecutionLocation) -> Prepared:
        """Make the staging folder at a location; return its free space and the state of its store."""
        words = shell_commands.prepare(self._destination, self._token)
        if self._store is not None:
            words = ["; ".join((blob_store.make_store(self._store), *words))]
        text, code = await self._run_at(location, words)
        if code or (folder := shell_commands.parse_prepared(text)) is None:
            raise self._errors.command_failed(text, code)
        return folder, blob_store.parse_state(text)

    def _will_be_encoded(self, states: Collection[StoreState]) -> bool:
        """Return whether a source that takes so long to scan is likely sent encoded: a folder here that no store has."""
        return bool(self._source.location.local) and StoreState.USED not in states and Path(self._source.path).is_dir()

    async def _link_from_store(
        self,
        source: Manifest,
        place: StagingPlace,
        receivers: Sequence[ExecutionLocation],
        states: Collection[StoreState],
    ) -> tuple[str, ...] | None:
        """Link what the receivers' stores have; return the files to be sent, None for all."""
        self._lookup = self._recalled = None
        if self._store is None or StoreState.NONE in states:
            return None
        name = posixpath.basename(source.real)
        self._lookup = lookup = StoreLookup(self._store, place, name, receivers, self._run_at)
        if StoreState.NEW in states:
            return None
        with_digests = await self._source.with_digests(source, to_ask=True)
        missing = await lookup.link(with_digests)
        if not is_partial_copy_worth_it(with_digests, missing):
            await lookup.undo()
            return None
        self._recalled = with_digests
        return tuple(missing)

    async def _check_room(self, folders: Sequence[StagingFolder]) -> None:
        needed = self.plan.num_bytes
        if (free := shell_commands.least_free(folders)) is not None and free < needed and self._lookup is not None:
            await self._lookup.make_room(needed - free)
            prepared = await gather_all(self._prepare_at(receiver) for receiver in self.plan.receivers)
            free = shell_commands.least_free([folder for folder, _ in prepared])
        if free is not None and free < needed:
            raise NoRoom(self._source.location.deployment, self._target, f"{needed} bytes are needed, {free} are free")

    # ---- the copy

    async def send(self) -> Manifest:
        """Send, verify and publish the copy; once more if the source has changed since.

        Returns:
            The manifest of the source and of each copy, with digests.

        Raises:
            SourceChanged: the source changes all the time.
            TransferFailed: the copy was not made; its kind says why.
        """
        for is_last in (False, True):
            try:
                sent = await self._attempt()
                break
            except (StreamBroke, OSError, SourceUnreadable, ContentDiffers) as error:
                now = await self._source.scan()
                source_changed = isinstance(error, ContentDiffers) and error.source_changed
                if self.plan.manifest.unchanged(now) and not source_changed:
                    needed = self.plan.manifest.num_bytes
                    failure = await self._errors.classify(error, needed_bytes=needed, read_source=self._read_source)
                    raise failure from None  # the stream's own message names files
                if is_last:
                    seen = f"{len(now.entries)} files and folders, some of which are not as they were when it began"
                    raise SourceChanged(self._source.location.deployment, self._target, seen) from None
                await self._plan_again()
        await gather_all(self._publish(receiver) for receiver in self.plan.receivers)
        return sent

    async def _plan_again(self) -> None:
        await self.drop()
        self._forget_progress()
        final = self.place.final
        await self.prepare()
        if self.place.final != final:  # the final path has been registered already
            raise TransferFailed(
                self._source.location.deployment, self._target, "the destination became a folder during the copy"
            ) from None

    async def _attempt(self) -> Manifest:
        if self.plan.missing is not None:
            try:
                return await self._send_missing(self.plan.missing)
            except (StreamBroke, OSError, ContentDiffers):
                self._plan = replace(self.plan, missing=None)
                await self._restart()
        try:
            sent = await self._send_whole()
        except ContentDiffers as error:
            # A resumed copy is sent once more without interruption: a file that was cut may have any content.
            if error.source_changed or not self._was_cut:
                raise
            await self._restart()
            sent = await self._send_whole()
        if self._lookup is not None:
            await self._lookup.add(sent)
        return sent

    async def _send_missing(self, missing: tuple[str, ...]) -> Manifest:
        """Send the files that the stores do not have."""
        lookup = _prepared(self._lookup)
        if not missing:  # all of it was verified when it was linked
            sent = _prepared(self._recalled)
            await lookup.add(sent, missing)
            return sent
        sent, source = await self._read_source(), self.plan.manifest.real

        async def send_files(place: StagingPlace) -> None:
            await self.carrier.send_files(source, missing, place.folder, self.plan.receivers)

        await self._resumable(send_files)
        await self._verifier().check(sent, self.carrier.everywhere)
        await lookup.add(sent, missing)
        return sent

    async def _send_whole(self) -> Manifest:
        plan, reading = self.plan, list[asyncio.Future[Manifest]]()

        def read_source() -> None:
            # Digests are read while the source is sent: the second read finds the files in memory.
            if not reading:
                reading.append(asyncio.ensure_future(self._read_source()))
                reading[0].add_done_callback(has_failed)  # an error of the stream is reported first

        async def send_all(place: StagingPlace) -> None:
            tree = self._tree_stream(place) if tree_stream_piece.is_worth_it(plan.manifest) else None
            target = place.inside(plan.name)
            await self.carrier.send(plan.manifest.real, target, tree=tree, before_plain_stream=read_source)

        try:
            await self._resumable(send_all)
            listing = None if self._was_cut else self.carrier.tree_listing(plan.receivers)
            if listing and (sent := await self._verifier().check_tree(listing)) is not None:
                return sent
            try:
                sent = await reading[0] if reading else await self._read_source()
            except SiteUnreachable:  # its connection was lost, too
                sent = await self._read_source()
        finally:
            for future in reading:
                future.cancel()
        await self._verifier().check(sent, self.carrier.everywhere)
        return sent

    async def _resumable(self, send: Callable[[StagingPlace], Awaitable[None]]) -> None:
        """Send, and resume after each cut."""
        copy = self._resumable_copy()
        try:
            await copy.carry(send)
        finally:
            self._follow(copy)

    def _resumable_copy(self) -> ResumableCopy:
        mirrors = [location for location in self.carrier.everywhere if location not in self._destinations]
        return ResumableCopy(
            self.plan,
            self.place,
            [*self.plan.receivers, *mirrors],
            run_at=self._run_at,
            scan_source=self._source.scan,
            carrier=self.carrier,
            meter=self.meter,
        )

    async def _restart(self) -> None:
        copy = self._resumable_copy()
        await copy.restart()
        self._follow(copy)
        self._forget_progress()

    def _forget_progress(self) -> None:
        self._was_cut = False
        self.meter.restart()

    def _follow(self, copy: ResumableCopy) -> None:
        self._place, self._was_cut = copy.place, self._was_cut or copy.was_cut
        if self._lookup is not None:
            self._lookup.follow(copy.place)

    # ---- verification

    async def _read_source(self) -> Manifest:
        return await self._source.with_digests(self.plan.manifest)

    def _verifier(self) -> Verifier:
        return Verifier(
            plan=self.plan,
            path=self.place.inside(self.plan.name),
            source=self._source,
            lookup=self._lookup,
            store=self._store,
            errors=self._errors,
            run_at=self._run_at,
        )

    def _tree_stream(self, place: StagingPlace) -> TreeStream:
        plan, store = self.plan, self._store if self._lookup is not None else None
        source, later = plan.manifest, tree_digest.has_many(plan.manifest)
        return TreeStream(source.real, place.inside(plan.name), source.num_bytes, store, later=later)

    # ---- the end

    async def _publish(self, location: ExecutionLocation) -> None:
        [words] = shell_commands.publish(self.place, self.plan.name)
        if lines := self._deferred_lines(location):
            words = f"{words} && {blob_store.in_background(*lines)}"
        text, code = await self._run_at(location, [words])
        if code:
            raise self._errors.command_failed(text, code)

    def _deferred_lines(self, location: ExecutionLocation) -> list[str]:
        """Return shell lines that add the files of the copy to the store, and then evict files above its limit."""
        added = [] if self._lookup is None else self._lookup.deferred_lines(location, self.place.final)
        evicted = [blob_store.evict(self._store)] if self._store is not None and self._evicts else []
        return [*added, *evicted]

    async def drop(self) -> None:
        """Remove what has not been published, wherever it can be reached."""
        words = shell_commands.discard(self._destination, self._token)
        locations = self._destinations if self._plan is None else self._plan.receivers
        await asyncio.gather(*(self._run_at(location, words) for location in locations), return_exceptions=True)


def _prepared(value: Value | None) -> Value:
    """Return what `prepare` has made."""
    assert value is not None
    return value
