"""`medweave.transfer`: StreamFlow's data manager, whose copies are complete or absent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
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

from medweave_connectors.engine.data.delivery import Delivery
from medweave_connectors.host.errors import of_the_file
from medweave_connectors.policy.data_classes import wraps_of
from medweave_connectors.policy.transfer_rules import TransferGuard
from medweave_connectors.runlog import current
from medweave_connectors.transfer.bandwidth import Limit, read_limit
from medweave_connectors.transfer.gather import every
from medweave_connectors.transfer.manifest.digest_cache import Digests
from medweave_connectors.transfer.manifest.digest_database import memo_of
from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.manifest.site_inventory import Held, site_of
from medweave_connectors.transfer.progress import Flow, Progress
from medweave_connectors.transfer.routes.bucket.settings import read_bucket
from medweave_connectors.transfer.routes.direct.commands import PORTS, read_ports
from medweave_connectors.transfer.routes.probes import Routes
from medweave_connectors.transfer.routes.selection import Way
from medweave_connectors.transfer.sender import Sending
from medweave_connectors.transfer.store.blob_store import Store, store_at
from medweave_connectors.transfer.tree_receiver import Tree

STORE_GIB = 50.0
LEAVE_S = 10.0  # for the removal of what did not arrive


class MedweaveDataManager(DefaultDataManager):
    """Puts each copy between two sites together aside, verifies it by SHA-256, renames it, and writes it into the run's event log.

    The stock manager drops tar's exit status and never looks at folders: a cut stream passes for a whole copy. And who waits for a
    copy that broke waits for ever. Links to what a site has already are not copies, and are not counted.

    Attributes:
        guard: the data rules, which are asked before anything is sent.
        held: what is known to lie at the sites.
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
        self.held, self._delivery = Held(), Delivery(self._at)
        self._digests = Digests(memo_of(os.environ))
        self._store_gib = storeGiB
        with of_the_file():
            ports, limit = read_ports(directPorts), read_limit(limitMiBps)
            folder = Path(context.config.get("path") or ".").parent if bucket else Path()
            way_by = read_bucket(bucket, folder=folder) if bucket else None
        self._routes = Routes(context, same=sameFileSystem, direct=direct, ports=ports, bucket=way_by)
        self._limit = Limit(limit)
        self._swept: set[tuple[str, ...]] = set()  # stores that have been looked through in this run
        # Two transfers of the same to the same deployment do not decide at once that it is not there yet.
        self._deciding: dict[tuple[str, str], asyncio.Lock] = {}

    async def transfer_data(
        self,
        src_location: ExecutionLocation,
        src_path: str,
        dst_locations: MutableSequence[ExecutionLocation],
        dst_path: str,
        writable: bool = False,
    ) -> None:
        """Copies, or links where the site has it.

        Raises:
            TransferForbidden: the data rules keep it away from a destination, which has not been asked for anything.
            TransferFailed: a copy was not made; nothing of it is left. Its kind says why.
        """
        started = time.monotonic()
        source = await self._resolved(src_location, src_path)
        known = [(each.location, each.path) for each in self.get_data_locations(source)]
        classes = self.guard.admit([(src_location, src_path), (src_location, source), *known], dst_locations)
        made: list[DataLocation] = []
        if await self._delivery.stands(src_location, source, dst_locations, dst_path):
            for each in dst_locations:
                self._finish(self._registered(source, each, dst_path, writable))
            return
        sending: Sending | None = None
        try:
            links, sending = await self._begin(made, src_location, source, dst_locations, dst_path, writable, classes)
            self.guard.note([(place.location, place.path) for place in made], classes)
            work = [self._link(*each, dst_path, writable) for each in links]
            if sending is not None:
                work.append(self._send(sending, started, writable))
            await every(work)
            linked = {wanted.name: path for _, path, wanted in links}
            for place in made:
                if place.name in linked and not writable:
                    await self._judge(place)
                    self.held.linked(site_of(place.location), linked[place.name], place.path)
                self._finish(place)
        except BaseException:
            _release(made)
            await _give_up(sending)
            raise

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of `dataManager.config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    # ---- what is linked, and what is sent

    async def _at(self, location: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        connector: Any = self.context.deployment_manager.get_connector(location.deployment)
        told = await connector.run(location=location, command=words, capture_output=True)
        return str(told[0]), int(told[1])

    async def _resolved(self, location: ExecutionLocation, path: str) -> str:
        real = await StreamFlowPath(path, context=self.context, location=location).resolve()
        if real is None:
            raise WorkflowExecutionException(f"a file or folder that a step wants is not at {location.deployment}")
        return str(real)

    async def _begin(
        self,
        made: list[DataLocation],
        src_location: ExecutionLocation,
        source: str,
        destinations: Sequence[ExecutionLocation],
        path: str,
        writable: bool,
        classes: frozenset[str],
    ) -> tuple[list[tuple[ExecutionLocation, str, ExecutionLocation]], Sending | None]:
        """Decides for each destination, and registers what will be there: who wants the same waits for it from now on.

        Returns:
            The links (where the file is, its path there, where it is wanted), and what has to be sent.
        """
        deciding = self._deciding.setdefault((source, destinations[0].deployment), asyncio.Lock())
        while True:
            await self._arrivals(source, destinations)
            async with deciding:
                found = [(each, self._here(source, src_location, each, writable)) for each in destinations]
                if not all(place is None or place[2].is_set() for _, place in found):
                    continue  # another one has begun meanwhile
                links = [(place[0], place[1], each) for each, place in found if place is not None]
                others = [each for each, place in found if place is None]
                if others:
                    sending = self._sending(
                        src_location, source, others, path, self._store(others, path, writable, classes)
                    )
                    await self._register(made, sending, links, path, source, writable)
                    return links, sending
            # What is there already is not sent twice: many links are made side by side.
            await self._register(made, None, links, path, source, writable)
            return links, None

    async def _register(
        self,
        made: list[DataLocation],
        sending: Sending | None,
        links: Sequence[tuple[ExecutionLocation, str, ExecutionLocation]],
        path: str,
        source: str,
        writable: bool,
    ) -> None:
        try:
            paths = await self._destinations(sending, [each for _, _, each in links], path, source)
            for location, where in paths:
                made.append(self._registered(source, location, where, writable))
        except BaseException:
            await _give_up(sending)
            raise

    def _sending(
        self,
        src_location: ExecutionLocation,
        source: str,
        others: Sequence[ExecutionLocation],
        path: str,
        at: Store | None,
    ) -> Sending:
        connector_of: Callable[[str], Any] = self.context.deployment_manager.get_connector
        return Sending(
            src_location,
            source,
            others,
            path,
            connector_of=connector_of,
            digests=self._digests,
            flow=Flow(self._limit),
            ask=self._routes.ask,
            at=at,
            sweeps=at is not None and self.sweeps(at, others),
        )

    def _store(
        self, locations: Sequence[ExecutionLocation], path: str, writable: bool, classes: frozenset[str]
    ) -> Store | None:
        """The store of the places that get a copy; this machine has none, nor have places that copy to others by themselves."""
        connector = self.context.deployment_manager.get_connector(locations[0].deployment)
        if writable or locations[0].local or hasattr(connector, "mirrors"):
            return None
        return self.store_at(path, classes)

    def store_at(self, path: str, classes: frozenset[str]) -> Store | None:
        """The store for what lies at a path of another site; None where it has none."""
        run = current()
        return None if run is None else store_at(path, run.run_id, self._store_gib, classes)

    def sweeps(self, at: Store, places: Sequence[ExecutionLocation]) -> bool:
        """Whether nobody in this run has removed yet what is too much in a store; who asks does."""
        key = (at.root, *(each.name for each in places))
        is_first = key not in self._swept
        self._swept.add(key)
        return is_first

    async def _arrivals(self, source: str, destinations: Sequence[ExecutionLocation]) -> None:
        wanted = {(each.deployment, each.name) for each in destinations}
        for place in self.path_mapper.get(path=source, data_type=DataType.PRIMARY):
            if (place.deployment, place.name) in wanted:
                await place.available.wait()

    def _here(
        self, source: str, src_location: ExecutionLocation, wanted: ExecutionLocation, writable: bool
    ) -> tuple[ExecutionLocation, str, asyncio.Event] | None:
        """Where a destination has the source already: on which location, at which path, and from when on."""
        for place in self.path_mapper.get(path=source, data_type=DataType.PRIMARY):
            if (place.deployment, place.name) == (wanted.deployment, wanted.name):
                return wanted, place.path, place.available
        same = (src_location.deployment, src_location.name) == (wanted.deployment, wanted.name)
        if same or (src_location.local and wanted.local and not writable):
            there = asyncio.Event()
            there.set()
            return src_location, source, there
        return None

    async def _destinations(
        self, sending: Sending | None, linked: Sequence[ExecutionLocation], path: str, source: str
    ) -> list[tuple[ExecutionLocation, str]]:
        """Each destination with the path that the copy or link will have there."""
        if sending is not None:
            await sending.prepare()
        final = [] if sending is None else [(each, sending.place.final) for each in sending.destinations]
        for each in linked:
            place = StreamFlowPath(path, context=self.context, location=each)
            if not self.get_data_locations(posixpath.dirname(path), each.deployment, each.name):
                await place.parent.mkdir(mode=0o777, parents=True, exist_ok=True)
            # A link into an existing folder lies below it, under the source's own name; another link is replaced.
            below = await place.is_dir() and not await place.is_symlink()
            final.append((each, posixpath.join(path, posixpath.basename(source)) if below else path))
        return final

    def _registered(self, source: str, location: ExecutionLocation, path: str, writable: bool) -> DataLocation:
        known = self.path_mapper.get(path=source)
        if not known:
            raise WorkflowExecutionException(f"nothing is known of what is to be copied to {location.deployment}")
        self.register_path(location, posixpath.dirname(path))
        place = DataLocation(location=location, path=path, relpath=known[0].relpath, data_type=DataType.PRIMARY)
        self.path_mapper.put(path=path, data_location=place)
        if not writable:  # what may be written to is no copy of its source any more
            self.register_relation(known[0], place)
        return place

    # ---- the work

    async def _link(
        self, there: ExecutionLocation, source: str, wanted: ExecutionLocation, path: str, writable: bool
    ) -> None:
        connector_of: Callable[[str], Any] = self.context.deployment_manager.get_connector
        await _copy(
            src_connector=connector_of(there.deployment),
            src_location=there,
            src=source,
            dst_connector=connector_of(wanted.deployment),
            dst_locations=[wanted],
            dst=path,
            writable=writable,
        )

    async def _send(self, sending: Sending, started: float, writable: bool) -> None:
        connector_of: Callable[[str], Any] = self.context.deployment_manager.get_connector

        way = self._routes.way(
            sending.source, sending.destinations, num_bytes=sending.moves[0], seen=sending.seen, writable=writable
        )
        sending.carrier = way
        sending.flow.tell = partial(_tell, sending)

        async def stream(source: str, target: str, tree: Tree | None) -> None:
            async def pump(places: Sequence[ExecutionLocation]) -> None:
                await _copy(
                    src_connector=connector_of(sending.source.deployment),
                    src_location=sending.source,
                    src=source,
                    dst_connector=connector_of(sending.to),
                    dst_locations=list(places),
                    dst=target,
                    writable=True,
                )

            await way.send(source, target, pump, tree)

        sent = await sending.send(stream)
        if not writable:
            for place in sending.destinations:
                self.held.note(site_of(place), sending.place.final, sent)
        _record(sending, sent, time.monotonic() - started, way)

    async def _judge(self, place: DataLocation) -> None:
        path = StreamFlowPath(place.path, context=self.context, location=place.location)
        place.data_type = DataType.SYMBOLIC_LINK if await path.is_symlink() else DataType.PRIMARY

    def _finish(self, place: DataLocation) -> None:
        """It is there, in the places that its location wraps too."""
        path, location = place.path, place.location
        while (inner := get_inner_path(StreamFlowPath(path, context=self.context, location=location))) is not None:
            assert location.wraps is not None, "an inner path lies at the wrapped location"
            path, location = str(inner), location.wraps
            known = self.path_mapper.get(path=path, deployment=location.deployment, name=location.name)
            self.register_relation(
                place,
                known[0]
                if known
                else DataLocation(
                    location=location,
                    path=path,
                    relpath=place.relpath,
                    data_type=place.data_type,
                    available=True,
                ),
            )
        place.available.set()


def _tell(sending: Sending, progress: Progress) -> None:
    if (run := current()) is not None:
        run.transfer_progress(
            source=sending.source.deployment,
            destination=sending.to,
            num_bytes=progress.sent_bytes,
            total_bytes=progress.total_bytes,
            rate=progress.rate,
            text=str(progress),
        )


def _record(sending: Sending, sent: Manifest, seconds: float, way: Way) -> None:
    if (run := current()) is None:
        return
    num_bytes, num_files = sending.moves
    for place in sending.verified_at():
        route, reason = way.told(place)
        run.transfer_ended(
            source=sending.source.deployment,
            destination=sending.to,
            location=place.name,
            route=route,
            reason=reason,
            num_bytes=num_bytes,
            num_files=num_files,
            reused_bytes=sent.num_bytes - num_bytes,
            wire_bytes=way.wire_bytes(place),
            again_bytes=sending.flow.again_bytes,
            seconds=seconds,
        )


async def _give_up(sending: Sending | None) -> None:
    if sending is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending.drop()), LEAVE_S)


def _release(places: Iterable[DataLocation]) -> None:
    # Whoever waits for such a copy would wait for ever: the stock manager never sets the event of a copy that broke.
    for place in places:
        place.data_type = DataType.INVALID
        place.available.set()
