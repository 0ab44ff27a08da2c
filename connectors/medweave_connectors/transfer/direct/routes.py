"""Which way a copy between two sites goes, and why: straight where the two reach each other, through the driver otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.errors import StreamBroke
from medweave_connectors.record import console, current
from medweave_connectors.transfer import archive, reasons
from medweave_connectors.transfer import commands as tar
from medweave_connectors.transfer.copies import send_files
from medweave_connectors.transfer.direct import commands
from medweave_connectors.transfer.direct.carry import Broke, Half, Listener, Unreached, carry
from medweave_connectors.transfer.direct.ends import end_of
from medweave_connectors.transfer.sending import every

DIRECT, THROUGH = "direct", "through-driver"
SMALL_BYTES = (
    2**20
)  # two programs take a third of a second to start; a driver at a link of 25 Mbit/s sends these in that time
MOST_BREAKS = 2  # of streams, one after the other: then the pair is left alone
CLEAR_S = 60.0
_FINAL = (*reasons.NO_ROOM, *reasons.READ_ONLY, *reasons.NOT_ALLOWED)  # so it would be on any way
_PART = "only files that it lacked were sent"
_NAMES = 2**20  # bytes of them that one command takes: Linux has 2 MiB for them and the environment
ConnectorOf = Callable[[str], Any]
_Words = tuple[
    Sequence[str], Sequence[str], str
]  # of the command that writes, of the one that reads, and the archive's root
Pump = Callable[[Sequence[ExecutionLocation]], Awaitable[None]]


@dataclass(slots=True)
class _Pair:
    """What is known of two deployments in this run.

    Attributes:
        listener: which end has to listen; None before it is known.
        refused: why there is no direct way; empty while there may be one.
        breaks: streams that broke since the last that did not.
    """

    listener: Listener | None = None
    refused: str = ""
    breaks: int = 0
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)


class Routes:
    """The ways between deployments, each tried once in a run and remembered."""

    def __init__(self, context: StreamFlowContext, *, direct: bool, ports: tuple[int, int]) -> None:
        """`direct` is false where the site's file switches direct copies off; `ports`: see `carry`."""
        self._context, self._direct, self._ports = context, direct, ports
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def way(self, source: ExecutionLocation, destinations: Sequence[ExecutionLocation], *, num_bytes: int) -> Way:
        """The way of one copy."""
        pair = self._pairs.setdefault((source.deployment, destinations[0].deployment), _Pair())
        connector_of = self._context.deployment_manager.get_connector
        return Way(connector_of, pair, source, destinations, self._why_not(num_bytes), self._ports)

    def _why_not(self, num_bytes: int) -> str:
        if not self._direct:
            return "direct copies are switched off in dataManager.config"
        return "less than 1 MiB costs less so" if num_bytes < SMALL_BYTES else ""


class Way:
    """The way of one copy, to places of one deployment."""

    def __init__(
        self,
        connector_of: ConnectorOf,
        pair: _Pair,
        source: ExecutionLocation,
        destinations: Sequence[ExecutionLocation],
        why_not: str,
        ports: tuple[int, int],
    ) -> None:
        self._connector_of, self._pair, self._why_not, self._ports = connector_of, pair, why_not, ports
        self._source, self._destinations = source, list(destinations)
        self._driver = by_driver(source, destinations[0])
        self._reasons: dict[str, str] = {}  # of places that have it directly
        self._reason = (why_not or _PART) if self._driver == THROUGH else "one of its ends is this machine"
        self._begun: list[ExecutionLocation] = []  # some bytes may be there

    def told(self, place: ExecutionLocation) -> tuple[str, str]:
        """The route by which a place got its copy, and why by that one."""
        if place.name in self._reasons:
            return DIRECT, self._reasons[place.name]
        return self._driver, self._reason

    async def send(self, path: str, target: str, pump: Pump) -> None:
        """Copies a path to the places, by the best way; what did not arrive directly goes through the driver.

        Args:
            target: its path there, in a folder that belongs to this copy.
            pump: sends to some of the places through the driver.

        Raises:
            StreamBroke: tar failed for a reason that it would have on any way.
        """
        left: Sequence[ExecutionLocation] = self._destinations
        if self._driver == THROUGH and not self._why_not:
            left = await self._directly(path, target)
        if left:
            await pump(left)

    async def send_files(
        self,
        source: ExecutionLocation,
        folder: str,
        paths: Sequence[str],
        part: str,
        destinations: Sequence[ExecutionLocation],
        connector_of: ConnectorOf,
    ) -> None:
        """Sends some files of a folder, by the best way: see `copies.send_files`."""
        left: Sequence[ExecutionLocation] = destinations
        above, name = posixpath.split(folder)
        names = [posixpath.join(name, each) for each in paths]
        if self._driver == THROUGH and not self._why_not and sum(len(os.fsencode(each)) + 9 for each in names) < _NAMES:
            self._reasons, self._begun = {}, []
            left = await self._each(destinations, (tar.pack_files(above or "/", names), tar.unpack_files(part), name))
            if not left:
                self._arrived(self._destinations)
        if left:
            await send_files(source, folder, paths, part, left, connector_of)

    # ---- directly

    async def _directly(self, path: str, target: str) -> Sequence[ExecutionLocation]:
        """Sends; the places that did not get it."""
        self._reasons, self._begun = {}, []
        connector = self._connector_of(self._destinations[0].deployment)
        mirrors, distinct = (getattr(connector, name, None) for name in ("mirrors", "distinct"))
        wanted = list(self._destinations)
        if mirrors is not None:
            wanted += [other for each in self._destinations for other in mirrors(each)]
        everywhere = wanted
        if distinct is not None:  # some pods share a volume
            wanted = await distinct(wanted, target)
        words = tar.pack(path), tar.unpack_files(posixpath.dirname(target)), posixpath.basename(path)
        failed = await self._each(wanted, words)
        if failed and mirrors is not None:  # the connector copies to all of a cluster
            self._reasons, failed = {}, wanted
        elif not failed:  # who shares a volume has it, too
            self._arrived(everywhere)
        await every(self._clear(each, target) for each in failed if each in self._begun)
        return self._destinations if failed and mirrors is not None else failed

    def _arrived(self, places: Sequence[ExecutionLocation]) -> None:
        self._reasons = {each.name: next(iter(self._reasons.values())) for each in places}

    async def _each(self, places: Sequence[ExecutionLocation], words: _Words) -> list[ExecutionLocation]:
        """Sends to each place; those that did not get it."""
        return [each for each in await every(self._one(each, words) for each in places) if each is not None]

    async def _one(self, place: ExecutionLocation, words: _Words) -> ExecutionLocation | None:
        """Sends to one place, which is returned if it did not get it."""
        pair = self._pair
        with contextlib.ExitStack() as deciding:
            if pair.listener is None and not pair.refused:
                await pair.deciding.acquire()  # the first one tries, and the others wait for what it finds
                deciding.callback(pair.deciding.release)
            if pair.refused:
                self._reason = pair.refused
                return place
            return None if await self._tried(place, words, deciding.close) else place

    async def _tried(self, place: ExecutionLocation, words: _Words, decided: Callable[[], None]) -> bool:
        pair, refusals = self._pair, []
        for listener in (pair.listener,) if pair.listener is not None else tuple(Listener):

            def connected(listener: Listener = listener) -> None:
                pair.listener = listener
                self._begun.append(place)
                decided()

            try:
                await self._carried(place, words, listener, connected)
            except Unreached as error:
                if pair.listener is not None:  # it has worked before
                    self._broke(Broke(str(error)))
                    return False
                refusals.append(f"at the {listener}: {error}")
            except Broke as error:
                self._broke(error)
                return False
            else:
                pair.breaks = 0
                self._reasons[place.name] = f"the two reach each other; the {listener} listens"
                return True
        self._refused(f"there is no direct way ({'; '.join(dict.fromkeys(refusals))})")
        return False

    async def _carried(
        self, place: ExecutionLocation, words: _Words, listener: Listener, connected: Callable[[], None]
    ) -> None:
        ends = []
        for each in (self._source, place):
            try:
                end = await end_of(self._connector_of(each.deployment), each)
            except WorkflowExecutionException:  # a pod that is gone
                end = None
            if end is None:
                raise Unreached(f"no program can be started at {each.deployment}")
            ends.append(end)
        packing, unpacking, root = words
        there = Half(ends[1], unpacking, archive.for_far_end(root))
        await carry(Half(ends[0], packing), there, listener, ports=self._ports, connected=connected)

    def _broke(self, error: Broke) -> None:
        if (reason := reasons.reason_in(error.told)) in _FINAL:
            text = f"a direct copy to {self._destinations[0].deployment} broke off: {reason}"
            raise StreamBroke(text, error.told, error.exit_status)
        self._pair.breaks += 1
        self._reason = f"a direct stream broke off: {error}"
        if self._pair.breaks >= MOST_BREAKS:
            self._refused(f"{MOST_BREAKS} direct streams broke off, the last one because {error}")
        else:
            self._tell(self._reason)

    def _refused(self, why: str) -> None:
        """No direct way between the two in this run; said once."""
        if not self._pair.refused:
            self._pair.refused = why
            self._tell(why)
        self._reason = why

    def _tell(self, why: str) -> None:
        source, to = self._source.deployment, self._destinations[0].deployment
        text = f"what it gets from {source} goes through this machine: {why}"
        if (run := current()) is not None:
            run.deployment_notice(to, text)
        else:
            console.say(f"medweave: {to}: {text}")

    async def _clear(self, place: ExecutionLocation, target: str) -> None:
        connector = self._connector_of(place.deployment)
        words = commands.clear(target)
        await asyncio.wait_for(connector.run(location=place, command=words, capture_output=True), CLEAR_S)


def by_driver(source: ExecutionLocation, destination: ExecutionLocation) -> str:
    """How bytes go that this machine handles: `local`, `from-driver`, `to-driver`, or `through-driver` between other sites."""
    if source.local and destination.local:
        return "local"
    if source.local:
        return "from-driver"
    return "to-driver" if destination.local else THROUGH
