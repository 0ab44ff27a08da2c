"""One copy from a place to others: put together aside, verified there, and only then given its name."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import (
    NoRoom,
    SiteUnreachable,
    SourceChanged,
    SourceUnreadable,
    StreamBroke,
    TransferFailed,
)
from medweave_connectors.transfer import shell_commands, tree_receiver
from medweave_connectors.transfer.agent import archive
from medweave_connectors.transfer.failures import Broken, Differs
from medweave_connectors.transfer.gather import every
from medweave_connectors.transfer.manifest import local_scan, manifest, tree_digest
from medweave_connectors.transfer.manifest.digest_cache import Digests, failed
from medweave_connectors.transfer.manifest.manifest import Manifest, Unlisted
from medweave_connectors.transfer.progress import Flow, counted_by
from medweave_connectors.transfer.resume import Carrier, GoingOn
from medweave_connectors.transfer.shell_commands import Place
from medweave_connectors.transfer.store import blob_store, many_files
from medweave_connectors.transfer.store.blob_store import State, Store
from medweave_connectors.transfer.store.store_lookup import Reuse, is_worth_it
from medweave_connectors.transfer.tree_receiver import Tree

ConnectorOf = Callable[[str], Any]
Ask = Callable[[Sequence[ExecutionLocation]], Awaitable[None]]
Stream = Callable[[str, str, Tree | None], Awaitable[None]]


class Sending:
    """A file or folder on its way from one place to others, of one deployment.

    Attributes:
        seen: the source as it looked before it was sent, without digests.
        place: where the copy will stand, the same at each of them.
        carrier: sends parts of it.
        flow: what has been sent until now.

    Args:
        ask: asks places what they can encode.
        at: the store of the destinations, if they have one.
        sweeps: what is too much in there is removed, once the copy stands.
    """

    def __init__(
        self,
        source: ExecutionLocation,
        path: str,
        destinations: Sequence[ExecutionLocation],
        destination: str,
        *,
        connector_of: ConnectorOf,
        digests: Digests,
        flow: Flow,
        ask: Ask,
        at: Store | None = None,
        sweeps: bool = False,
    ) -> None:
        self.source, self.path = source, path
        self.destinations, self.destination = destinations, destination
        self.seen: Manifest
        self.place: Place
        self._token = secrets.token_hex(6)
        self._connector_of, self._digests, self.flow, self._ask = connector_of, digests, flow, ask
        self._distinct: Sequence[ExecutionLocation] = destinations
        self._store, self._sweeps = at, sweeps
        self._reuse: Reuse | None = None
        self._left: list[str] | None = None
        self._asked: Manifest  # with which the stores were asked
        self._gone_on = False
        self.carrier: Carrier
        self._broken = Broken(source.deployment, self.to)

    @property
    def to(self) -> str:
        """The deployment that gets it."""
        return str(self.destinations[0].deployment)

    @property
    def name(self) -> str:
        """The source's own name, without links."""
        return posixpath.basename(self.seen.real)

    # ---- before anything is sent

    async def prepare(self) -> None:
        """Looks at the source and makes room at the destinations, at the same time.

        Raises:
            SourceUnreadable: there is nothing that could be read.
            NoRoom: it would not fit.
            TargetRefused: nothing can be written there.
        """
        self._token = secrets.token_hex(6)
        connector = self._connector_of(self.to)
        if (distinct := getattr(connector, "distinct", None)) is not None:  # some pods share a volume
            self._distinct = await distinct(self.destinations, self.destination)
        looking, told = asyncio.ensure_future(self.look()), list[tuple[shell_commands.Prepared, State]]()
        try:
            told += await every(self._prepared(each) for each in self._distinct)
            if not looking.done() and self._is_worth_asking({state for _, state in told}):
                await self._ask(self._distinct)
            self.seen = await looking
        finally:
            looking.cancel()
        await self._placed(told)
        await self._make_sure_of_room([place for place, _ in told])

    async def _placed(self, told: Sequence[tuple[shell_commands.Prepared, State]]) -> None:
        """Decides where the copy is put together, and takes what is in the stores."""
        below, name = told[0][0].below, posixpath.basename(self.path)  # a copy has one path for all of them
        self.place = shell_commands.place_of(self.destination, name, self._token, below=below)
        if unsendable := self.seen.unsendable():
            raise SourceUnreadable(self.source.deployment, self.to, unsendable)
        self._reuse = self._left = None
        states = {state for _, state in told}
        if self._store is not None and State.NONE not in states:
            self._reuse = Reuse(self._store, self.place, self.name, self._distinct, self._run)
            if State.NEW not in states:
                await self._take(self._reuse)

    def _is_worth_asking(self, states: Collection[State]) -> bool:
        """Whether a source that takes so long to look at will go encoded: a folder of this machine, of which no store has any."""
        return bool(self.source.local) and State.USED not in states and Path(self.path).is_dir()

    async def _take(self, reuse: Reuse) -> None:
        """Links what the destinations have already."""
        sent = await self._sums(to_ask=True)
        left = await reuse.take(sent)
        if is_worth_it(sent, left):
            self._left, self._asked = left, sent
        else:
            await reuse.leave()

    async def _make_sure_of_room(self, places: Sequence[shell_commands.Prepared]) -> None:
        needed, _ = self.moves
        if (free := shell_commands.least_free(places)) is not None and free < needed and self._reuse is not None:
            await self._reuse.make_room(needed - free)
            free = shell_commands.least_free(
                [place for place, _ in await every(self._prepared(each) for each in self._distinct)]
            )
        if free is not None and free < needed:
            raise NoRoom(self.source.deployment, self.to, f"{needed} bytes are needed, {free} are free")

    @property
    def moves(self) -> tuple[int, int]:
        """What has to be sent: bytes, and files."""
        if self._left is None:
            return self.seen.num_bytes, self.seen.num_files
        return sum(self.seen.entries[path].size for path in self._left), len(self._left)

    async def look(self) -> Manifest:
        """The source as it is now, without its digests."""
        return await self._manifest_of_source(digests=False)

    async def _prepared(self, location: ExecutionLocation) -> tuple[shell_commands.Prepared, State]:
        """What is there, and the state of the store."""
        words = shell_commands.prepare(self.destination, self._token)
        if self._store is not None:
            words = ["; ".join((blob_store.make(self._store), *words))]
        text, code = await self._run(location, words)
        if code or (told := shell_commands.read_prepared(text)) is None:
            raise self._broken.refused(text, code)
        return told, blob_store.state_in(text)

    # ---- the copy

    async def send(self, stream: Stream) -> Manifest:
        """Sends, verifies and puts the copy into its place. Where the source has changed meanwhile, once more.

        Args:
            stream: copies the source's path, the first, to the second at every destination.

        Returns:
            The source's manifest, which is that of each copy.

        Raises:
            SourceChanged: it changes all the time.
            TransferFailed: what arrived is not what was sent; or a kind of it that says why nothing arrived.
        """
        for is_last in (False, True):
            try:
                with archive.expecting(self.seen.num_bytes):
                    sent = await self._attempt(stream)
                break
            except (StreamBroke, OSError, SourceUnreadable, Differs) as error:
                now = await self.look()
                if self.seen.unchanged(now) and not getattr(error, "source_moved", False):
                    needed = self.seen.num_bytes
                    told = await self._broken.typed(error, needed_bytes=needed, read_source=self._sums)
                    raise told from None  # the stream's own words name files
                if is_last:
                    seen = f"{len(now.entries)} files and folders, some of which are not as they were when it began"
                    raise SourceChanged(self.source.deployment, self.to, seen) from None
                await self.drop()
                self._all_again()
                final = self.place.final
                await self.prepare()
                if self.place.final != final:  # others know it by that path already
                    raise TransferFailed(self.source.deployment, self.to, "a folder has come to its place") from None
        await every(self._keep(each) for each in self._distinct)
        return sent

    async def _attempt(self, stream: Stream) -> Manifest:
        if self._left is not None:
            try:
                return await self._rest(self._left)
            except (StreamBroke, OSError, Differs):
                self._left = None
                await self._start_anew()
        try:
            sent = await self._whole(stream)
        except Differs as error:
            # What was sent in pieces is sent once more, in one: a file that was cut may hold anything.
            if error.source_moved or not self._gone_on:
                raise
            await self._start_anew()
            sent = await self._whole(stream)
        if self._reuse is not None:
            await self._reuse.keep(sent)
        return sent

    async def _rest(self, left: list[str]) -> Manifest:
        """Sends what the destinations do not have."""
        assert self._reuse is not None
        sent = await self._sums() if left else self._asked
        if left:  # else all of it was verified when it was linked

            async def files(place: Place) -> None:
                await self.carrier.send_files(self.seen.real, left, place.folder, self._distinct)

            await self._carried(files)
            await self._verify(sent)
        await self._reuse.keep(sent, left)
        return sent

    async def _whole(self, stream: Stream) -> Manifest:
        reading: list[asyncio.Future[Manifest]] = []

        def read() -> None:
            # The source is read for its digests while it is read to be sent: the second of them finds it in memory.
            if not reading:
                reading.append(asyncio.ensure_future(self._sums()))
                reading[0].add_done_callback(failed)  # where the stream breaks first, its error is told

        async def all_of_it(place: Place) -> None:
            tree = self._tree(place) if tree_receiver.is_for(self.seen) else None
            await stream(self.seen.real, place.inside(self.name), tree)

        self.carrier.not_as_a_tree = read
        try:
            await self._carried(all_of_it)
            if (noted := self.carrier.tree(self._distinct)) and (sent := await self._as_noted(noted)) is not None:
                return sent
            try:
                sent = await reading[0] if reading else await self._sums()
            except SiteUnreachable:  # its connection was lost, too
                sent = await self._sums()
        finally:
            for each in reading:
                each.cancel()
        await self._verify(sent)
        return sent

    def _tree(self, place: Place) -> Tree:
        at = self._store if self._reuse is not None else None
        return Tree(
            self.seen.real, place.inside(self.name), self.seen.num_bytes, at, later=many_files.are_in(self.seen)
        )

    async def _as_noted(self, noted: bytes) -> Manifest | None:
        """What was sent as a tree, found to be what has arrived; None where both have to be read."""
        if self._gone_on:
            return None
        digest = tree_receiver.digest_of(noted)
        reading = asyncio.ensure_future(self._read(noted))
        try:
            are_settled = await every(self._is_settled(each, digest) for each in self._distinct)
            if (sent := await reading) is None:
                return None
        finally:
            reading.cancel()
        for location, is_settled in zip(self._distinct, are_settled, strict=True):
            if not is_settled and (wrong := await self._difference(location, sent, tree_digest.of(sent))):
                raise Differs(wrong)
            if is_settled and self._reuse is not None:
                are_many = many_files.are_in(sent)
                self._reuse.knows(location, digest if are_many else None, waits=are_many)
        return sent

    async def _read(self, noted: bytes) -> Manifest | None:
        sent = await asyncio.to_thread(tree_receiver.read, noted, self.seen)
        if sent is not None:
            await self._digests.learn(self._key, self.seen, sent)
        return sent

    async def _is_settled(self, location: ExecutionLocation, digest: str) -> bool:
        at = self._store if self._reuse is not None and many_files.are_in(self.seen) else None
        text, code = await self._run(location, many_files.settled(self.place.inside(self.name), digest, at))
        if code == shell_commands.REFUSED:
            raise self._broken.refused(text, code)
        return many_files.is_settled(text)

    async def _carried(self, first: Callable[[Place], Awaitable[None]]) -> None:
        """Sends, and goes on where the stream is cut."""
        going_on = self._going_on()
        try:
            with counted_by(self.flow):
                await going_on.carry(first)
        finally:
            self._stands_at(going_on)

    def _going_on(self) -> GoingOn:
        mirrors = [each for each in self.verified_at() if each not in self.destinations]
        return GoingOn(
            self.seen,
            self.seen.files if self._left is None else self._left,
            self.place,
            to=self.to,
            places=[*self._distinct, *mirrors],
            run=self._run,
            look=self.look,
            carrier=self.carrier,
            flow=self.flow,
        )

    async def _start_anew(self) -> None:
        going_on = self._going_on()
        await going_on.start_anew()
        self._stands_at(going_on)
        self._all_again()

    def _all_again(self) -> None:
        """What was sent until now is sent once more."""
        self._gone_on = False
        self.flow.again_bytes = self.flow.sent_bytes

    def _stands_at(self, going_on: GoingOn) -> None:
        self.place, self._gone_on = going_on.place, self._gone_on or going_on.has_gone_on
        if self._reuse is not None:
            self._reuse.stands_at(self.place)

    async def _verify(self, sent: Manifest) -> None:
        wanted = tree_digest.of(sent)
        found = await every(self._difference(each, sent, wanted) for each in self.verified_at())
        if wrong := next(filter(None, found), ""):
            raise Differs(wrong, source_moved=not self.seen.unchanged(sent))

    async def _difference(self, location: ExecutionLocation, sent: Manifest, wanted: str | None) -> str:
        """What is wrong with the copy at a place; empty where nothing is."""
        if wanted is not None:
            words = (many_files.sealed if many_files.are_in(sent) else tree_digest.command)(
                self.place.inside(self.name)
            )
            text, _ = await self._run(location, words)
            if tree_digest.read(text) == wanted:
                return ""
        return sent.difference(await self._arrived(location))

    async def _sums(self, *, to_ask: bool = False) -> Manifest:
        read, here = partial(self._manifest_of_source, digests=True), bool(self.source.local)
        return await self._digests.of(self._key, self.seen, read, here=here, to_ask=to_ask)

    @property
    def _key(self) -> tuple[str, str, str]:
        return self.source.deployment, self.source.name, self.seen.real

    def verified_at(self) -> list[ExecutionLocation]:
        """Each place that got a copy: places of several machines copy to all of them."""
        mirrors = getattr(self._connector_of(self.to), "mirrors", None)
        more = [other for each in self.destinations for other in mirrors(each)] if mirrors is not None else []
        return [*self.destinations, *more]

    async def _arrived(self, location: ExecutionLocation) -> Manifest:
        text, _ = await self._run(location, manifest.command(self.place.inside(self.name)))
        try:
            return manifest.parse(text)
        except Unlisted as error:
            raise Differs(f"at {self.to}: {error}") from None

    async def _keep(self, location: ExecutionLocation) -> None:
        [words] = shell_commands.keep(self.place, self.name)
        if lines := self._later(location):
            words = f"{words} && {blob_store.aside(*lines)}"
        text, code = await self._run(location, [words])
        if code:
            raise self._broken.refused(text, code)

    def _later(self, location: ExecutionLocation) -> list[str]:
        """Return shell lines that add the files of the copy to the store, and then evict what is beyond its limit."""
        kept = [] if self._reuse is None else self._reuse.later(location, self.place.final)
        swept = [blob_store.evict(self._store)] if self._store is not None and self._sweeps else []
        return [*kept, *swept]

    async def drop(self) -> None:
        """Removes what is not in its place, wherever it can be reached."""
        words = shell_commands.drop(self.destination, self._token)
        await asyncio.gather(*(self._run(each, words) for each in self._distinct), return_exceptions=True)

    # ---- inside

    async def _manifest_of_source(self, *, digests: bool) -> Manifest:
        if self.source.local and not digests and (found := await asyncio.to_thread(local_scan.look, self.path)):
            return found
        are_many = digests and many_files.are_in(self.seen)
        text, _ = await self._run(self.source, manifest.command(self.path, digests=digests, many=are_many))
        try:
            return manifest.parse(text, digests=digests)
        except Unlisted as error:
            raise SourceUnreadable(self.source.deployment, self.to, str(error)) from None

    async def _run(self, location: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        told = await self._connector_of(location.deployment).run(location=location, command=words, capture_output=True)
        return str(told[0]), int(told[1])
