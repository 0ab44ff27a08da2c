"""Which way a copy between two sites goes, and why: not at all where the two see the same files, straight where they reach each
other, by way of a bucket that both reach, through the driver otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.host import transfer_reasons
from medweave_connectors.host.errors import StreamBroke, StreamCut
from medweave_connectors.runlog import console, current
from medweave_connectors.transfer import stream_commands
from medweave_connectors.transfer.gather import every
from medweave_connectors.transfer.progress import Flow
from medweave_connectors.transfer.progress import current as current_flow
from medweave_connectors.transfer.routes import same_file_system
from medweave_connectors.transfer.routes.bucket.depot import Depot
from medweave_connectors.transfer.routes.direct.carry import Broke, Half, Listener, Unreached, carry
from medweave_connectors.transfer.routes.direct.endpoints import end_of
from medweave_connectors.transfer.routes.route_work import (
    BUCKET,
    DIRECT,
    SAME,
    THROUGH,
    Pair,
    Work,
    by_driver,
    some,
    whole,
)
from medweave_connectors.transfer.routes.same_file_system import How
from medweave_connectors.transfer.routes.via_driver import send_piece
from medweave_connectors.transfer.stream_commands import Piece
from medweave_connectors.transfer.tree_receiver import Tree
from medweave_connectors.transfer.wire import Sites, leg

MOST_BREAKS = 2  # of streams, one after the other: then the pair is left alone
_FULL = (*transfer_reasons.NO_ROOM, *transfer_reasons.READ_ONLY)  # so it would be on any way
_FINAL = (*_FULL, *transfer_reasons.NOT_ALLOWED)
_PART = "only files that it lacked were sent"
_NAMES = 2**20  # bytes of them that one command takes: Linux has 2 MiB for them and the environment
ConnectorOf = Callable[[str], Any]
_TAKEN = {How.LINKED: "it was linked there", How.COPIED: "it was copied there", How.SHARED: "it was put there once"}
Pump = Callable[[Sequence[ExecutionLocation]], Awaitable[None]]


class Way:
    """The way of one copy, to places of one deployment.

    Attributes:
        depot: the bucket, where the file has one.
        sites: what places can encode of what goes through the driver.
        not_as_a_tree: called where a copy goes, or may have to go, in another way than as a tree: its source has to be read, then.
        holds: files, and their bytes, of the whole source.
        links: whether a file may be one that others have.
    """

    depot: Depot | None
    sites: Sites
    holds: tuple[int, int]
    links: bool
    not_as_a_tree: Callable[[], object]

    def __init__(
        self,
        connector_of: ConnectorOf,
        pair: Pair,
        source: ExecutionLocation,
        destinations: Sequence[ExecutionLocation],
        why_not: str,
        ports: tuple[int, int],
    ) -> None:
        self._connector_of, self._pair, self._why_not, self._ports = connector_of, pair, why_not, ports
        self._source, self._destinations = source, list(destinations)
        self._driver = by_driver(source, destinations[0])
        self._reasons: dict[str, tuple[str, str]] = {}  # routes too, of places that have it without the driver
        self._taking = asyncio.Lock()  # places may have one folder: what the first of them has taken is there for all
        self._reason = (why_not or _PART) if self._driver == THROUGH else "one of its ends is this machine"
        self._wire_bytes: dict[str, int] = {}
        self._begun: list[ExecutionLocation] = []  # some bytes may be there
        self._by_driver = False  # some bytes have gone through it
        self._broken = False  # some bytes were not counted
        self._flow: Flow | None = None  # which counts those that go through the driver
        self._trees: dict[str, bytes | None] = {}  # what was read for a place
        self.not_as_a_tree = lambda: None

    def told(self, place: ExecutionLocation) -> tuple[str, str]:
        """The route by which a place got its copy, and why by that one."""
        # Without a word of its own it may see the files of one that has them.
        other = next(iter(self._reasons.values()), None) if not self._by_driver else None
        return self._reasons.get(place.name) or other or (self._driver, self._reason)

    def wire_bytes(self, place: ExecutionLocation) -> int | None:
        """What a place's copy took on the wire; None where that is not counted."""
        route = self.told(place)[0]
        if self._broken or (route == DIRECT) != (place.name in self._wire_bytes):
            return None
        if route == DIRECT:
            return self._wire_bytes[place.name]
        return self._flow.wire_bytes or None if self._flow is not None and route == self._driver else None

    def tree(self, places: Sequence[ExecutionLocation]) -> bytes | None:
        """What was read to be sent, as `tree_stream.noted` has it; None where it did not go as one tree to all of them."""
        found = {self._trees.get(each.name) for each in places}
        return found.pop() if len(found) == 1 else None

    async def send(self, path: str, target: str, pump: Pump, tree: Tree | None = None) -> None:
        """Copies a path to the places, by the best way; what cannot go directly goes through the driver.

        Args:
            target: its path there, in a folder that belongs to this copy.
            pump: sends to some of the places through the driver.
            tree: the same as a stream of our own, where it may go as one.

        Raises:
            StreamCut: a stream without the driver broke off on the way: some of it is there.
            StreamBroke: tar failed for a reason that it would have on any way.
        """
        left: Sequence[ExecutionLocation] = self._destinations
        self._trees = {}
        if len(self._everywhere) > len(self._destinations):  # what others copy is listed there
            tree = None
        if tree is None:
            self.not_as_a_tree()
        if self._driver == THROUGH:
            run = current()
            # Elsewhere lie the user's own files, which they may change.
            links = self.links and run is not None and f"/{run.run_id}/" in path
            work = whole(path, target, holds=self.holds, links=links, tree=tree)
            left = await self._without_driver([work], await self._distinct(target))
            if left and len(self._everywhere) > len(self._destinations):  # the connector copies to all of a cluster
                self._reasons, left = {}, self._destinations
        if not left:
            return
        await self._by_this_machine()
        if tree is not None and self._source.local and leg(*left).codecs:  # its program reads nothing but blocks
            await self._planted(tree, [each for each in await self._distinct(target) if each in left])
        else:
            self.not_as_a_tree()
            await pump(left)

    async def _planted(self, tree: Tree, places: Sequence[ExecutionLocation]) -> None:
        """Sends what lies here through the driver to programs of ours, which write it."""
        with tempfile.TemporaryDirectory(prefix="medweave-") as folder:
            note = Path(folder, "sent")
            await self._through_driver([tree.by_this_machine(note)], places)
            self._trees.update(dict.fromkeys([each.name for each in places], note.read_bytes()))

    async def send_files(
        self, folder: str, paths: Sequence[str], part: str, destinations: Sequence[ExecutionLocation]
    ) -> None:
        """Sends some files of a folder, by the best way: see `pieces.files`."""
        left = destinations
        if self._driver == THROUGH:
            several = stream_commands.files(folder, paths, part, most_bytes=_NAMES)
            left = await self._without_driver((some(folder, piece, part) for piece in several), destinations)
        if left:
            own = self._destinations[0].local
            await self._through_driver(stream_commands.files(folder, paths, part, own=own), left)

    async def send_end(
        self, path: str, target: str, destinations: Sequence[ExecutionLocation], *, begins: int, size: int
    ) -> None:
        """Sends what a large file lacks, by the best way: see `pieces.end`."""
        left, end = destinations, stream_commands.end(path, target, begins=begins, size=size)
        if self._driver == THROUGH:
            work = Work(path=path, part=posixpath.dirname(target), piece=end, taking=None)
            left = await self._without_driver([work], destinations)
        if left:
            await self._through_driver([end], left)

    def brought_more(self) -> None:
        """A stream that broke off was not in vain: the next one may go the same way."""
        self._pair.breaks = self._pair.bucket_breaks = 0

    async def _through_driver(self, several: Iterable[Piece], places: Sequence[ExecutionLocation]) -> None:
        await self._by_this_machine()
        for piece in several:
            await send_piece(self._source, piece, places, self._connector_of)

    async def _by_this_machine(self) -> None:
        """What goes through the driver from here on may be encoded, where it is worth a python3 at a site."""
        self._by_driver = True
        if not self._why_not:
            await self.sites.ask([self._source, *self._everywhere], self._connector_of)
            self._flow = current_flow()
            self._flow.known = self.sites.known

    # ---- without the driver

    @property
    def _everywhere(self) -> list[ExecutionLocation]:
        """The destinations, and the places that get a copy of what they get."""
        mirrors = self._of_the_connector("mirrors")
        more = [other for each in self._destinations for other in mirrors(each)] if mirrors is not None else []
        return [*self._destinations, *more]

    async def _distinct(self, target: str) -> list[ExecutionLocation]:
        """Of these, one for each volume: some pods share one."""
        distinct = self._of_the_connector("distinct")
        return self._everywhere if distinct is None else list(await distinct(self._everywhere, target))

    def _of_the_connector(self, name: str) -> Any:
        return getattr(self._connector_of(self._destinations[0].deployment), name, None)

    async def _without_driver(
        self, several: Iterable[Work], places: Sequence[ExecutionLocation]
    ) -> Sequence[ExecutionLocation]:
        """Sends; the places of which nothing is known to have come to them.

        Raises:
            StreamCut: another one broke off.
        """
        for each in places:
            self._reasons.pop(each.name, None)
        self._begun = []
        for work in several:
            left = [each for each in await every(self._one(each, work) for each in places) if each is not None]
            if any(each in self._begun for each in left):
                raise StreamCut(f"a copy to {self._destinations[0].deployment}", self._reason)
            if left:
                return left
        if self._reasons:  # who shares a volume has it, too
            shared = next(iter(self._reasons.values()))
            self._reasons = {each.name: self._reasons.get(each.name, shared) for each in self._everywhere}
        return []

    async def _one(self, place: ExecutionLocation, work: Work) -> ExecutionLocation | None:
        """Sends to one place, which is returned if it did not get it."""
        if not self._pair.apart and await self._taken(place, work):
            return None
        if self._why_not:
            return place
        if await self._straight(place, work):
            return None
        if place in self._begun:  # some of it is there: what is missing goes on
            return place
        by_bucket = self.depot is not None and self._pair.refused != ""
        return None if by_bucket and await self._by_bucket(place, work) else place

    async def _straight(self, place: ExecutionLocation, work: Work) -> bool:
        """Whether a place got it from the source itself."""
        pair = self._pair
        with contextlib.ExitStack() as deciding:
            if pair.listener is None and not pair.refused:
                await pair.deciding.acquire()  # the first one tries, and the others wait for what it finds
                deciding.callback(pair.deciding.release)
            if pair.refused:
                self._reason = pair.refused
                return False
            return await self._tried(place, work, deciding.close)

    async def _by_bucket(self, place: ExecutionLocation, work: Work) -> bool:
        """Whether a place got it by way of the bucket."""
        pair = self._pair
        assert self.depot is not None
        if pair.no_bucket:
            self._no_bucket(pair.no_bucket)
            return False
        self.not_as_a_tree()
        try:
            source, target = await self._halves(place, replace(work, tree=None))
            await self.depot.carry(source, target)
        except Unreached as error:
            self._no_bucket(f"there is no way by the bucket ({error})")
        except Broke as error:
            if (reason := transfer_reasons.reason_in(error.told)) in _FINAL:
                text = f"a copy to {place.deployment} broke off: {reason}"
                raise StreamBroke(text, error.told, error.exit_status) from None
            pair.bucket_breaks += 1
            if pair.bucket_breaks >= MOST_BREAKS:
                self._no_bucket(f"{MOST_BREAKS} copies by the bucket broke off, the last one because {error}")
            else:
                self._reason = f"a copy by the bucket broke off: {error}"
                self._tell(self._reason)
        else:
            pair.bucket_breaks = 0
            self._reasons[place.name] = BUCKET, f"{pair.refused}; both reach the bucket"
            return True
        return False

    def _no_bucket(self, why: str) -> None:
        """No way by the bucket between the two in this run; said once."""
        self._reason = f"{self._pair.refused}; {why}"
        if not self._pair.no_bucket:
            self._pair.no_bucket = why
            self._tell(self._reason)

    async def _taken(self, place: ExecutionLocation, work: Work) -> bool:
        """Whether a place that sees the source's files has taken a copy of them.

        Raises:
            StreamBroke: its disk is full or read-only, which it would be on any way.
        """
        if work.taking is None:
            return False
        async with self._taking:
            seen = same_file_system.read_seen(
                (await self._run(self._source, same_file_system.ask(work.path, work.part)))[0]
            )
            if seen is None:
                self._pair.apart = True
                return False
            self.not_as_a_tree()
            for words in work.taking(seen):
                text, code = await self._run(place, words)
                if (reason := transfer_reasons.reason_in(text)) in _FULL:
                    raise StreamBroke(f"a copy at {place.deployment} broke off: {reason}", text, code)
                if code or (how := same_file_system.read_taken(text)) == How.APART:
                    self._pair.apart = code != 0  # rights that it lacks, it will lack again
                    return False
            self._reasons[place.name] = SAME, f"the two see the same files; {_TAKEN[how]}"
            return True

    async def _tried(self, place: ExecutionLocation, work: Work, decided: Callable[[], None]) -> bool:
        pair, refusals = self._pair, []
        for listener in (pair.listener,) if pair.listener is not None else tuple(Listener):

            def connected(listener: Listener = listener) -> None:
                pair.listener = listener
                self._begun.append(place)
                decided()

            try:
                await self._carried(place, work, listener, connected)
            except Unreached as error:
                if pair.listener is not None:  # it has worked before
                    self._broke(Broke(str(error)), nothing_sent=True)
                    return False
                refusals.append(f"at the {listener}: {error}")
            except Broke as error:
                self._broke(error)
                return False
            else:
                pair.breaks = 0
                self._reasons[place.name] = DIRECT, f"the two reach each other; the {listener} listens"
                return True
        self._refused(f"there is no direct way ({'; '.join(dict.fromkeys(refusals))})")
        return False

    async def _carried(
        self, place: ExecutionLocation, work: Work, listener: Listener, connected: Callable[[], None]
    ) -> None:
        source, there = await self._halves(place, work)
        told = await carry(source, there, listener, ports=self._ports, connected=connected, flow=current_flow())
        self._wire_bytes[place.name] = self._wire_bytes.get(place.name, 0) + told.wire_bytes
        self._trees[place.name] = told.tree

    async def _halves(self, place: ExecutionLocation, work: Work) -> tuple[Half, Half]:
        """The two ends with their commands.

        Raises:
            Unreached: no program can be started at one of them.
        """
        ends = []
        for each in (self._source, place):
            try:
                end = await end_of(self._connector_of(each.deployment), each)
            except WorkflowExecutionException:  # a pod that is gone
                end = None
            if end is None:
                raise Unreached(f"no program can be started at {each.deployment}")
            ends.append(end)
        if work.tree is not None:
            return Half(ends[0], tree=work.tree.for_source()), Half(ends[1], tree=work.tree.for_target())
        there = Half(ends[1], work.piece.unpacking, work.piece.for_far_end())
        return Half(ends[0], work.piece.packing), there

    def _broke(self, error: Broke, *, nothing_sent: bool = False) -> None:
        if (reason := transfer_reasons.reason_in(error.told)) in _FINAL:
            text = f"a direct copy to {self._destinations[0].deployment} broke off: {reason}"
            raise StreamBroke(text, error.told, error.exit_status)
        self._broken = True
        self._pair.breaks += 1
        self._reason = f"a direct stream broke off: {error}"
        if self._pair.breaks >= MOST_BREAKS:
            self._refused(f"{MOST_BREAKS} direct streams broke off, the last one because {error}")
        elif nothing_sent:  # else the next one may be direct
            self._tell(self._reason)

    def _refused(self, why: str) -> None:
        """No direct way between the two in this run; said once, unless the bucket is tried."""
        if not self._pair.refused:
            self._pair.refused = why
            if self.depot is None:
                self._tell(why)
        self._reason = why

    def _tell(self, why: str) -> None:
        source, to = self._source.deployment, self._destinations[0].deployment
        say(to, f"what it gets from {source} goes through this machine: {why}")

    async def _run(self, place: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        told = await self._connector_of(place.deployment).run(location=place, command=words, capture_output=True)
        return str(told[0]), int(told[1])


def say(about: str, text: str) -> None:
    """One line, in the event log too where a run is recorded."""
    if (run := current()) is not None:
        run.deployment_notice(about, text)
    else:
        console.say(f"medweave: {about}: {text}")
