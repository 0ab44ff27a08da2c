"""`medweave.transfer`: StreamFlow's data manager, whose copies are complete or absent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import time
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.data import DataLocation, DataType
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.data.manager import DefaultDataManager, _copy
from streamflow.data.remotepath import StreamFlowPath, get_inner_path

from medweave_connectors.engine.data.delivery import OutputDelivery
from medweave_connectors.host.errors import of_the_file
from medweave_connectors.host.gather import gather_all
from medweave_connectors.policy.data_classes import wraps_of
from medweave_connectors.policy.transfer_rules import TransferGuard
from medweave_connectors.runlog import current
from medweave_connectors.transfer.bandwidth import BandwidthLimit, parse_limit
from medweave_connectors.transfer.capabilities import MirrorsCopies, one_per_volume, run_at, underlying
from medweave_connectors.transfer.manifest.digest_cache import DigestCache
from medweave_connectors.transfer.manifest.digest_database import open_digest_database
from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.manifest.site_inventory import SiteInventory, site_of
from medweave_connectors.transfer.progress import TransferMeter, TransferProgress
from medweave_connectors.transfer.routes.bucket.settings import parse_bucket
from medweave_connectors.transfer.routes.direct.commands import PORTS, parse_ports
from medweave_connectors.transfer.routes.router import Router
from medweave_connectors.transfer.sender import Sender
from medweave_connectors.transfer.store.blob_store import Store, store_at

STORE_GIB = 50.0
DROP_S = 10.0  # for the removal of what did not arrive
_Link = tuple[ExecutionLocation, str, ExecutionLocation]  # where the file is, its path there, and where it is linked


@dataclass(frozen=True, slots=True)
class _Request:
    """One call of `transfer_data`.

    Attributes:
        path: of the source, without links.
        target: the path at the destinations.
        classes: data classes of the source.
    """

    location: ExecutionLocation
    path: str
    destinations: Sequence[ExecutionLocation]
    target: str
    writable: bool
    classes: frozenset[str]


class MedweaveDataManager(DefaultDataManager):
    """Stages each copy between two sites, verifies it by SHA-256, publishes it by a rename, and records it in the event log.

    StreamFlow's manager drops tar's exit status and does not compare folders: a cut stream counts as a complete copy. Steps that
    wait for a copy that broke wait for ever. Links to files that a site already has are not copies, and are not recorded.

    Attributes:
        guard: the data rules, checked before anything is sent.
        inventory: the content at the sites, as far as this run knows it.
    """

    def __init__(
        self,
        context: StreamFlowContext,
        storeGiB: float = STORE_GIB,
        sameFileSystem: bool = True,
        direct: bool = True,
        directPorts: Sequence[int] = PORTS,
        limitMiBps: float | None = None,
        bucket: Mapping[str, Any] | None = None,
        dataRules: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context)
        self.guard = TransferGuard(dataRules, wraps_of(context.config) if dataRules is not None else {})
        self.inventory = SiteInventory()
        self._delivery = OutputDelivery(partial(run_at, self._connector_of))
        self._digests = DigestCache(open_digest_database(os.environ))
        self._store_gib = storeGiB
        with of_the_file():
            ports, limit = parse_ports(directPorts), parse_limit(limitMiBps)
            folder = Path(context.config.get("path") or ".").parent if bucket else Path()
            settings = parse_bucket(bucket, folder=folder) if bucket else None
        self._router = Router(self._connector_of, same=sameFileSystem, direct=direct, ports=ports, bucket=settings)
        self._limit = BandwidthLimit(limit)
        self._evicted: set[tuple[str, ...]] = set()  # stores that this run has brought back to their limit
        # By source and deployment: two transfers of the same may not both decide that it is missing there.
        self._deciding: dict[tuple[str, str], asyncio.Lock] = {}

    async def transfer_data(
        self,
        src_location: ExecutionLocation,
        src_path: str,
        dst_locations: MutableSequence[ExecutionLocation],
        dst_path: str,
        writable: bool = False,
    ) -> None:
        """Copy, or link where the site already has the source.

        Raises:
            TransferForbidden: the data rules keep the source away from a destination, which was not contacted.
            TransferFailed: a copy was not made; nothing of it is left. Its kind says why.
        """
        started = time.monotonic()
        source = await self._resolve(src_location, src_path)
        known = [(copy.location, copy.path) for copy in self.get_data_locations(source)]
        classes = self.guard.admit([(src_location, src_path), (src_location, source), *known], dst_locations)
        if await self._delivery.is_delivered(src_location, source, dst_locations, dst_path):
            for location in dst_locations:
                self._finish(self._register(source, location, dst_path, writable))
            return
        request = _Request(src_location, source, dst_locations, dst_path, writable, classes)
        made: list[DataLocation] = []
        sender: Sender | None = None
        try:
            links, sender = await self._begin(made, request)
            self.guard.note([(copy.location, copy.path) for copy in made], classes)
            work = [self._link(*link, dst_path, writable) for link in links]
            if sender is not None:
                work.append(self._send(sender, request, started))
            await gather_all(work)
            linked = {target.name: path for _, path, target in links}
            for copy in made:
                if copy.name in linked and not writable:
                    await self._set_data_type(copy)
                    self.inventory.linked(site_of(copy.location), linked[copy.name], copy.path)
                self._finish(copy)
        except BaseException:
            _release(made)
            await _drop(sender)
            raise

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of `dataManager.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    # ---- links and copies

    def _connector_of(self, deployment: str) -> Any:
        return self.context.deployment_manager.get_connector(deployment)

    async def _resolve(self, location: ExecutionLocation, path: str) -> str:
        real = await StreamFlowPath(path, context=self.context, location=location).resolve()
        if real is None:
            raise WorkflowExecutionException(f"a file or folder that a step needs is not at {location.deployment}")
        return str(real)

    async def _begin(self, made: list[DataLocation], request: _Request) -> tuple[list[_Link], Sender | None]:
        """Decide between link and copy for each destination, and register the results: other steps wait for them from now on.

        Returns:
            The links, and the sender of the copy.
        """
        source, destinations = request.path, request.destinations
        deciding = self._deciding.setdefault((source, destinations[0].deployment), asyncio.Lock())
        while True:
            await self._wait_for_arrivals(source, destinations)
            async with deciding:
                existing = [(location, self._existing(request, location)) for location in destinations]
                if not all(copy is None or copy[2].is_set() for _, copy in existing):
                    continue  # another transfer has started since
                links = [(copy[0], copy[1], location) for location, copy in existing if copy is not None]
                others = [location for location, copy in existing if copy is None]
                if others:
                    shared = await self._sharing(others, [target for _, _, target in links], request.target)
                    links = [link for link in links if link[2] not in shared]
                    sender = self._sender(request, [*others, *shared])
                    await self._register_all(made, sender, links, request)
                    return links, sender
            # Links send nothing twice: many are made at the same time.
            await self._register_all(made, None, links, request)
            return links, None

    async def _sharing(
        self, copied: Sequence[ExecutionLocation], linked: Sequence[ExecutionLocation], path: str
    ) -> list[ExecutionLocation]:
        """Return the locations of links that share a volume with a copy: a path is either a link or a copy."""
        connector = self._connector_of(copied[0].deployment)
        chosen = {location.name for location in await one_per_volume(connector, [*copied, *linked], path)}
        return [location for location in linked if location.name not in chosen]

    async def _register_all(
        self, made: list[DataLocation], sender: Sender | None, links: Sequence[_Link], request: _Request
    ) -> None:
        try:
            for location, path in await self._final_paths(sender, [target for _, _, target in links], request):
                made.append(self._register(request.path, location, path, request.writable))
        except BaseException:
            await _drop(sender)
            raise

    def _sender(self, request: _Request, destinations: Sequence[ExecutionLocation]) -> Sender:
        store, run = self._store(request, destinations), current()
        # Only files in a run's folder may be linked: elsewhere are the user's own files, which they may change.
        may_link = not request.writable and run is not None and f"/{run.run_id}/" in request.path
        source, target = request.location.deployment, destinations[0].deployment
        return Sender(
            request.location,
            request.path,
            destinations,
            request.target,
            connector_of=self._connector_of,
            router=self._router,
            digests=self._digests,
            meter=TransferMeter(self._limit, partial(_report_progress, source, target)),
            store=store,
            evicts=store is not None and self.should_evict(store, destinations),
            may_link=may_link,
        )

    def _store(self, request: _Request, destinations: Sequence[ExecutionLocation]) -> Store | None:
        """Return the store of the destinations; None for this machine and if the connector mirrors copies."""
        connector = underlying(self._connector_of(destinations[0].deployment))
        if request.writable or destinations[0].local or isinstance(connector, MirrorsCopies):
            return None
        return self.store_at(request.target, request.classes)

    def store_at(self, path: str, classes: frozenset[str]) -> Store | None:
        """Return the store for a path of another site; None where the site has none."""
        run = current()
        return None if run is None else store_at(path, run.run_id, self._store_gib, classes)

    def should_evict(self, store: Store, locations: Sequence[ExecutionLocation]) -> bool:
        """Return whether this run has not yet brought a store back to its limit; the caller does it then."""
        key = (store.root, *(location.name for location in locations))
        is_first = key not in self._evicted
        self._evicted.add(key)
        return is_first

    async def _wait_for_arrivals(self, source: str, destinations: Sequence[ExecutionLocation]) -> None:
        keys = {(location.deployment, location.name) for location in destinations}
        for copy in self.path_mapper.get(path=source, data_type=DataType.PRIMARY):
            if (copy.deployment, copy.name) in keys:
                await copy.available.wait()

    def _existing(
        self, request: _Request, target: ExecutionLocation
    ) -> tuple[ExecutionLocation, str, asyncio.Event] | None:
        """Return the copy that a destination already has: its location, its path, and the event of its arrival."""
        source = request.location
        for copy in self.path_mapper.get(path=request.path, data_type=DataType.PRIMARY):
            if (copy.deployment, copy.name) == (target.deployment, target.name):
                return target, copy.path, copy.available
        is_same = (source.deployment, source.name) == (target.deployment, target.name)
        if is_same or (source.local and target.local and not request.writable):
            available = asyncio.Event()
            available.set()
            return source, request.path, available
        return None

    async def _final_paths(
        self, sender: Sender | None, linked: Sequence[ExecutionLocation], request: _Request
    ) -> list[tuple[ExecutionLocation, str]]:
        """Return each destination with the final path of its copy or link."""
        paths = []
        if sender is not None:
            plan = await sender.prepare()
            paths += [(location, plan.place.final) for location in plan.destinations]
        for location in linked:
            target = StreamFlowPath(request.target, context=self.context, location=location)
            folder = posixpath.dirname(request.target)
            if not self.get_data_locations(folder, location.deployment, location.name):
                await target.parent.mkdir(mode=0o777, parents=True, exist_ok=True)
            # A link into an existing folder gets the source's own name there; another link is replaced.
            is_folder = await target.is_dir() and not await target.is_symlink()
            name = posixpath.basename(request.path)
            paths.append((location, posixpath.join(request.target, name) if is_folder else request.target))
        return paths

    def _register(self, source: str, location: ExecutionLocation, path: str, writable: bool) -> DataLocation:
        known = self.path_mapper.get(path=source)
        if not known:
            raise WorkflowExecutionException(f"the source of a copy to {location.deployment} is not registered")
        self.register_path(location, posixpath.dirname(path))
        copy = DataLocation(location=location, path=path, relpath=known[0].relpath, data_type=DataType.PRIMARY)
        self.path_mapper.put(path=path, data_location=copy)
        if not writable:  # a copy that may be written to does not stay equal to its source
            self.register_relation(known[0], copy)
        return copy

    # ---- execution

    async def _link(
        self, source: ExecutionLocation, path: str, target: ExecutionLocation, target_path: str, writable: bool
    ) -> None:
        await _copy(
            src_connector=self._connector_of(source.deployment),
            src_location=source,
            src=path,
            dst_connector=self._connector_of(target.deployment),
            dst_locations=[target],
            dst=target_path,
            writable=writable,
        )

    async def _send(self, sender: Sender, request: _Request, started: float) -> None:
        sent = await sender.send()
        if not request.writable:
            for location in sender.plan.destinations:
                self.inventory.note(site_of(location), sender.plan.place.final, sent)
        _record(sender, sent, time.monotonic() - started)

    async def _set_data_type(self, copy: DataLocation) -> None:
        path = StreamFlowPath(copy.path, context=self.context, location=copy.location)
        copy.data_type = DataType.SYMBOLIC_LINK if await path.is_symlink() else DataType.PRIMARY

    def _finish(self, copy: DataLocation) -> None:
        """Mark a copy as available, at the locations that its location wraps too."""
        path, location = copy.path, copy.location
        while (inner := get_inner_path(StreamFlowPath(path, context=self.context, location=location))) is not None:
            assert location.wraps is not None, "an inner path is at the wrapped location"
            path, location = str(inner), location.wraps
            known = self.path_mapper.get(path=path, deployment=location.deployment, name=location.name)
            self.register_relation(
                copy,
                known[0]
                if known
                else DataLocation(
                    location=location,
                    path=path,
                    relpath=copy.relpath,
                    data_type=copy.data_type,
                    available=True,
                ),
            )
        copy.available.set()


def _report_progress(source: str, target: str, progress: TransferProgress) -> None:
    if (run := current()) is not None:
        run.transfer_progress(
            source=source,
            destination=target,
            num_bytes=progress.sent_bytes,
            total_bytes=progress.total_bytes,
            rate=progress.rate,
            text=str(progress),
        )


def _record(sender: Sender, sent: Manifest, seconds: float) -> None:
    if (run := current()) is None:
        return
    plan, carrier = sender.plan, sender.carrier
    for location in carrier.everywhere:
        route, reason = carrier.route_taken(location)
        run.transfer_ended(
            source=plan.source.deployment,
            destination=plan.target_deployment,
            location=location.name,
            route=route,
            reason=reason,
            num_bytes=plan.num_bytes,
            num_files=len(plan.files),
            reused_bytes=sent.num_bytes - plan.num_bytes,
            wire_bytes=carrier.wire_bytes(location),
            again_bytes=sender.meter.again_bytes,
            seconds=seconds,
        )


async def _drop(sender: Sender | None) -> None:
    if sender is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sender.drop()), DROP_S)


def _release(copies: Iterable[DataLocation]) -> None:
    # Steps that wait for such a copy would wait for ever: StreamFlow's manager never sets the event of a copy that broke.
    for copy in copies:
        copy.data_type = DataType.INVALID
        copy.available.set()
