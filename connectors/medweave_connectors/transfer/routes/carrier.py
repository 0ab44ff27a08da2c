"""Execution of a transfer plan: the carrier tries the candidate routes in order.

Nothing is sent where both sites see the same files. Otherwise the copy goes directly where the sites reach each other, by a bucket
that both reach, or through the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host import transfer_reasons
from medweave_connectors.host.errors import StreamBroke, StreamCut
from medweave_connectors.host.gather import gather_all
from medweave_connectors.transfer.capabilities import mirrors_of, one_per_volume, run_at
from medweave_connectors.transfer.failures import notify
from medweave_connectors.transfer.plan import BUCKET, DIRECT, SAME, THROUGH, TransferPlan, driver_route
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.routes import same_file_system
from medweave_connectors.transfer.routes.bucket.bucket_copy import BucketRoute
from medweave_connectors.transfer.routes.copy_work import CopyWork, PairState, partial_work, whole_work
from medweave_connectors.transfer.routes.direct.direct_copy import (
    CopyBroke,
    Listener,
    NotConnected,
    copy_directly,
)
from medweave_connectors.transfer.routes.same_file_system import SharedCopyResult
from medweave_connectors.transfer.routes.via_driver import StreamOptions, copy_by_connectors, send_piece
from medweave_connectors.transfer.streams import pieces
from medweave_connectors.transfer.streams.pieces import Piece
from medweave_connectors.transfer.streams.transcoding import SiteCodecs, leg
from medweave_connectors.transfer.streams.tree_stream_piece import TreeStream

MOST_BREAKS = 2  # consecutive broken streams: then the route between the pair is not retried
_FULL = (*transfer_reasons.NO_ROOM, *transfer_reasons.READ_ONLY)  # which no other route would change
_FINAL = (*_FULL, *transfer_reasons.NOT_ALLOWED)
_NAME_BYTES = 2**20  # of one command: Linux has 2 MiB for arguments and environment
_SHARED = {
    SharedCopyResult.LINKED: "linked at the destination",
    SharedCopyResult.COPIED: "copied at the destination",
    SharedCopyResult.SHARED: "one copy for several locations",
}


class Carrier:
    """Carries one copy, and the missing parts of it after a cut.

    Args:
        meter: counts the bytes of all streams of the copy.
        pair: what the run has learned about the routes between the two deployments.
        bucket: None where the settings have none.
        ports: first and last port at which an agent may listen.
        is_small: no agents are started for so few bytes.
    """

    def __init__(
        self,
        plan: TransferPlan,
        meter: TransferMeter,
        *,
        pair: PairState,
        connector_of: Callable[[str], Any],
        bucket: BucketRoute | None,
        codecs: SiteCodecs,
        ports: tuple[int, int],
        is_small: bool,
    ) -> None:
        self._plan, self._meter, self._pair, self._connector_of = plan, meter, pair, connector_of
        self._bucket, self._codecs, self._ports, self._is_small = bucket, codecs, ports, is_small
        self._source, self._destinations = plan.source, list(plan.destinations)
        self._driver = driver_route(plan.source, plan.destinations[0])
        self._reason = plan.reason
        self._taken: dict[str, tuple[str, str]] = {}  # by location name: route without the driver, and reason
        self._local_copies = asyncio.Lock()  # locations may share a folder: the first copy serves all of them
        self._wire_bytes: dict[str, int] = {}
        self._started: list[ExecutionLocation] = []  # locations that may have got some bytes
        self._used_driver = False
        self._has_uncounted_bytes = False
        self._listings: dict[str, bytes | None] = {}  # by location name: listing of the tree that was sent there

    # ---- results

    def route_taken(self, location: ExecutionLocation) -> tuple[str, str]:
        """Return the route by which a location got its copy, and the reason."""
        # A location without an entry may share the volume of one that has an entry.
        other = next(iter(self._taken.values()), None) if not self._used_driver else None
        return self._taken.get(location.name) or other or (self._driver, self._reason)

    def wire_bytes(self, location: ExecutionLocation) -> int | None:
        """Return the bytes that the copy of a location took on the wire; None where they were not counted."""
        route = self.route_taken(location)[0]
        if self._has_uncounted_bytes or (route == DIRECT) != (location.name in self._wire_bytes):
            return None
        if route == DIRECT:
            return self._wire_bytes[location.name]
        is_counted = self._used_driver and not self._is_small and route == self._driver
        return self._meter.wire_bytes or None if is_counted else None

    def tree_listing(self, locations: Sequence[ExecutionLocation]) -> bytes | None:
        """Return the listing that the tree stream's sender made; None where not all locations got one tree stream."""
        listings = {self._listings.get(location.name) for location in locations}
        return listings.pop() if len(listings) == 1 else None

    # ---- sending

    async def send(
        self, path: str, target: str, *, tree: TreeStream | None, before_plain_stream: Callable[[], object]
    ) -> None:
        """Copy a path to the destinations by the best route.

        Args:
            target: its path in the staging folder.
            tree: the same as a tree stream, where that is possible.
            before_plain_stream: called before the copy takes a route that carries no tree stream.

        Raises:
            StreamCut: a stream without the driver broke off; some bytes have arrived.
            StreamBroke: tar failed for a reason that no other route would change.
        """
        remaining: Sequence[ExecutionLocation] = self._destinations
        self._listings = {}
        has_mirrors = len(self.everywhere) > len(self._destinations)
        if has_mirrors:  # its connector copies from location to location: no agent lists what arrives
            tree = None
        if tree is None:
            before_plain_stream()
        if self._driver == THROUGH:
            work = whole_work(
                path,
                target,
                manifest=self._plan.manifest,
                links=self._plan.may_link,
                tree=tree,
                before_plain_stream=before_plain_stream,
            )
            remaining = await self._without_driver([work], await self._receivers(target))
            if remaining and has_mirrors:
                self._taken, remaining = {}, self._destinations
        if not remaining:
            return
        await self._prepare_driver_route()
        receivers = [location for location in await self._receivers(target) if location in remaining]
        if tree is not None and self._source.local and leg(self._options.codecs, *remaining).codecs:
            await self._send_tree(tree, receivers)
        else:
            before_plain_stream()
            await copy_by_connectors(self._source, path, receivers, target, self._connector_of, self._options)

    async def send_files(
        self, folder: str, paths: Sequence[str], part: str, destinations: Sequence[ExecutionLocation]
    ) -> None:
        """Send some files of a folder by the best route: see `pieces.some_files`."""
        remaining, num_bytes = destinations, self._plan.manifest.num_bytes
        if self._driver == THROUGH:
            streams = pieces.some_files(folder, paths, part, num_bytes=num_bytes, most_bytes=_NAME_BYTES)
            remaining = await self._without_driver(
                (partial_work(folder, piece, part) for piece in streams), destinations
            )
        if remaining:
            own = self._destinations[0].local
            streams = pieces.some_files(folder, paths, part, num_bytes=num_bytes, own=own)
            await self._through_driver(streams, remaining)

    async def send_end(
        self, path: str, target: str, destinations: Sequence[ExecutionLocation], *, begins: int, size: int
    ) -> None:
        """Send the missing end of a large file by the best route: see `pieces.file_end`."""
        remaining, piece = destinations, pieces.file_end(path, target, begins=begins, size=size)
        if self._driver == THROUGH:
            work = CopyWork(path=path, part=posixpath.dirname(target), piece=piece, local_copy=None)
            remaining = await self._without_driver([work], destinations)
        if remaining:
            await self._through_driver([piece], remaining)

    def made_progress(self) -> None:
        """Record that a broken stream has delivered bytes: the next one may take the same route."""
        self._pair.breaks = self._pair.bucket_breaks = 0

    # ---- through the driver

    @property
    def _options(self) -> StreamOptions:
        codecs = None if self._is_small else self._codecs
        return StreamOptions(self._meter, codecs, self._plan.manifest.num_bytes)

    async def _send_tree(self, tree: TreeStream, locations: Sequence[ExecutionLocation]) -> None:
        """Send a tree of this machine to agents that write it."""
        with tempfile.TemporaryDirectory(prefix="medweave-") as folder:
            listing = Path(folder, "sent")
            await self._through_driver([tree.by_this_machine(listing)], locations)
            self._listings.update(dict.fromkeys([location.name for location in locations], listing.read_bytes()))

    async def _through_driver(self, streams: Iterable[Piece], locations: Sequence[ExecutionLocation]) -> None:
        await self._prepare_driver_route()
        for piece in streams:
            await send_piece(self._source, piece, locations, self._connector_of, self._options)

    async def _prepare_driver_route(self) -> None:
        """Query the codecs of both ends, where the copy is large enough to start a python3 at a site."""
        self._used_driver = True
        if not self._is_small:
            await self._codecs.query([self._source, *self.everywhere], self._connector_of)

    # ---- without the driver

    @property
    def everywhere(self) -> list[ExecutionLocation]:
        """Return the destinations, and the locations at which their connector repeats a copy."""
        connector = self._connector_of(self._plan.target_deployment)
        mirrors = [mirror for location in self._destinations for mirror in mirrors_of(connector, location)]
        return [*self._destinations, *mirrors]

    async def _receivers(self, target: str) -> list[ExecutionLocation]:
        connector = self._connector_of(self._plan.target_deployment)
        return list(await one_per_volume(connector, self.everywhere, target))

    async def _without_driver(
        self, several: Iterable[CopyWork], locations: Sequence[ExecutionLocation]
    ) -> Sequence[ExecutionLocation]:
        """Send, and return the locations that got nothing.

        Raises:
            StreamCut: a stream broke off; some bytes have arrived.
        """
        for location in locations:
            self._taken.pop(location.name, None)
        self._started = []
        for work in several:
            results = await gather_all(self._send_to(location, work) for location in locations)
            remaining = [location for location, has_arrived in zip(locations, results, strict=True) if not has_arrived]
            if any(location in self._started for location in remaining):
                raise StreamCut(f"a copy to {self._plan.target_deployment}", self._reason)
            if remaining:
                return remaining
        if self._taken:  # locations that share a volume have the copy, too
            shared = next(iter(self._taken.values()))
            self._taken = {location.name: self._taken.get(location.name, shared) for location in self.everywhere}
        return []

    async def _send_to(self, location: ExecutionLocation, work: CopyWork) -> bool:
        """Send to one location; return whether it has arrived."""
        if not self._pair.apart and await self._copy_locally(location, work):
            return True
        if self._is_small:
            return False
        if await self._send_directly(location, work):
            return True
        if location in self._started:  # a part has arrived: resume sends the rest
            return False
        by_bucket = self._bucket is not None and self._pair.refused != ""
        return by_bucket and await self._send_by_bucket(location, work)

    async def _copy_locally(self, location: ExecutionLocation, work: CopyWork) -> bool:
        """Let a location that sees the source's files copy them; return whether it did.

        Raises:
            StreamBroke: its disk is full or read-only, which no other route would change.
        """
        if work.local_copy is None:
            return False
        async with self._local_copies:
            view = same_file_system.parse_probe(
                (await run_at(self._connector_of, self._source, same_file_system.probe(work.path, work.part)))[0]
            )
            if view is None:
                self._pair.apart = True
                return False
            work.before_plain_stream()
            for words in work.local_copy(view):
                text, code = await run_at(self._connector_of, location, words)
                if (reason := transfer_reasons.reason_in(text)) in _FULL:
                    raise StreamBroke(f"a copy at {location.deployment} broke off: {reason}", text, code)
                if code or (result := same_file_system.parse_result(text)) == SharedCopyResult.APART:
                    self._pair.apart = code != 0  # missing rights stay missing
                    return False
            self._taken[location.name] = SAME, f"both sites share a file system; {_SHARED[result]}"
            return True

    async def _send_directly(self, location: ExecutionLocation, work: CopyWork) -> bool:
        """Send from the source's agent to the location's agent; return whether all has arrived."""
        pair = self._pair
        with contextlib.ExitStack() as deciding:
            if pair.listener is None and not pair.refused:
                await pair.deciding.acquire()  # the first copy probes, the others wait for the result
                deciding.callback(pair.deciding.release)
            if pair.refused:
                self._reason = pair.refused
                return False
            return await self._try_listeners(location, work, deciding.close)

    async def _try_listeners(self, location: ExecutionLocation, work: CopyWork, decided: Callable[[], None]) -> bool:
        pair, refusals = self._pair, []
        for listener in (pair.listener,) if pair.listener is not None else tuple(Listener):

            def connected(listener: Listener = listener) -> None:
                pair.listener = listener
                self._started.append(location)
                decided()

            try:
                await self._copy_directly(location, work, listener, connected)
            except NotConnected as error:
                if pair.listener is not None:  # it has worked before
                    self._count_direct_break(CopyBroke(str(error)), nothing_sent=True)
                    return False
                refusals.append(f"at the {listener}: {error}")
            except CopyBroke as error:
                self._count_direct_break(error)
                return False
            else:
                pair.breaks = 0
                self._taken[location.name] = DIRECT, f"both sites reach each other; the {listener} listens"
                return True
        self._refuse_direct(f"there is no direct route ({'; '.join(dict.fromkeys(refusals))})")
        return False

    async def _copy_directly(
        self, location: ExecutionLocation, work: CopyWork, listener: Listener, connected: Callable[[], None]
    ) -> None:
        source, target = await work.peer_tasks(self._source, location, self._connector_of)
        result = await copy_directly(
            source, target, listener, ports=self._ports, connected=connected, meter=self._meter
        )
        self._wire_bytes[location.name] = self._wire_bytes.get(location.name, 0) + result.wire_bytes
        self._listings[location.name] = result.listing

    async def _send_by_bucket(self, location: ExecutionLocation, work: CopyWork) -> bool:
        """Send by the bucket; return whether all has arrived."""
        pair = self._pair
        assert self._bucket is not None
        if pair.no_bucket:
            self._refuse_bucket(pair.no_bucket)
            return False
        work.before_plain_stream()
        try:
            plain = replace(work, tree=None)
            await self._bucket.copy(*await plain.peer_tasks(self._source, location, self._connector_of))
        except NotConnected as error:
            self._refuse_bucket(f"there is no route through the bucket ({error})")
        except CopyBroke as error:
            self._raise_if_final(error, f"a copy to {location.deployment}")
            pair.bucket_breaks += 1
            if pair.bucket_breaks >= MOST_BREAKS:
                self._refuse_bucket(f"{MOST_BREAKS} copies through the bucket broke off, the last one because {error}")
            else:
                self._reason = f"a copy through the bucket broke off: {error}"
                self._notify(self._reason)
        else:
            pair.bucket_breaks = 0
            self._taken[location.name] = BUCKET, f"{pair.refused}; both reach the bucket"
            return True
        return False

    # ---- routes that fail

    def _count_direct_break(self, error: CopyBroke, *, nothing_sent: bool = False) -> None:
        self._raise_if_final(error, f"a direct copy to {self._plan.target_deployment}")
        self._has_uncounted_bytes = True
        self._pair.breaks += 1
        self._reason = f"a direct stream broke off: {error}"
        if self._pair.breaks >= MOST_BREAKS:
            self._refuse_direct(f"{MOST_BREAKS} direct streams broke off, the last one because {error}")
        elif nothing_sent:  # else the next one may be direct
            self._notify(self._reason)

    @staticmethod
    def _raise_if_final(error: CopyBroke, what: str) -> None:
        if (reason := transfer_reasons.reason_in(error.tar_errors)) in _FINAL:
            raise StreamBroke(f"{what} broke off: {reason}", error.tar_errors, error.exit_status) from None

    def _refuse_direct(self, why: str) -> None:
        """Drop the direct route between the pair for this run; a notice says so once, unless the bucket is tried."""
        if not self._pair.refused:
            self._pair.refused = why
            if self._bucket is None:
                self._notify(why)
        self._reason = why

    def _refuse_bucket(self, why: str) -> None:
        """Drop the bucket route between the pair for this run; a notice says so once."""
        self._reason = f"{self._pair.refused}; {why}"
        if not self._pair.no_bucket:
            self._pair.no_bucket = why
            self._notify(self._reason)

    def _notify(self, why: str) -> None:
        source, target = self._source.deployment, self._plan.target_deployment
        notify(target, f"data from {source} goes through the driver: {why}")
