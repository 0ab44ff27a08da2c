"""One copy from a place to others: put together aside, verified there, and only then given its name."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.errors import (
    NoRoom,
    SourceChanged,
    SourceUnreadable,
    StreamBroke,
    TargetRefused,
    TransferFailed,
)
from medweave_connectors.transfer import commands, manifest, reasons
from medweave_connectors.transfer.commands import Place
from medweave_connectors.transfer.manifest import Kind, Manifest, Unlisted

ConnectorOf = Callable[[str], Any]
Stream = Callable[[str, str], Awaitable[None]]
Value = TypeVar("Value")


class Digests:
    """Manifests with digests, of sources: what is sent to several places is read once, as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], tuple[Manifest, asyncio.Task[Manifest]]] = {}

    async def of(self, key: tuple[str, str, str], seen: Manifest, read: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """The manifest of a source that looks as `seen` now."""
        known = self._known.get(key)
        if known is None or not known[0].unchanged(seen) or _failed(known[1]):
            known = seen, asyncio.ensure_future(read())
            known[1].add_done_callback(_failed)  # who asked may have given up
            self._known[key] = known
        return await asyncio.shield(known[1])


def _failed(task: asyncio.Future[Manifest]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class Sending:
    """A file or folder on its way from one place to others, of one deployment.

    Attributes:
        seen: the source as it looked before it was sent, without digests.
        place: where the copy will stand, the same at each of them.
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
    ) -> None:
        self.source, self.path = source, path
        self.destinations, self.destination = destinations, destination
        self.seen: Manifest
        self.place: Place
        self._token = secrets.token_hex(6)
        self._connector_of, self._digests = connector_of, digests
        self._distinct: Sequence[ExecutionLocation] = destinations

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
        looking = asyncio.ensure_future(self.look())
        try:
            told = await every(self._prepared(each) for each in self._distinct)
            self.seen = await looking
        finally:
            looking.cancel()
        below, name = told[0].below, posixpath.basename(self.path)  # a copy has one path for all of them
        self.place = commands.place_of(self.destination, name, self._token, below=below)
        self._refuse_what_cannot_be_sent()
        needed = self.seen.num_bytes
        for each in told:
            if each.free_bytes is not None and each.free_bytes < needed:
                raise NoRoom(self.source.deployment, self.to, f"{needed} bytes are needed, {each.free_bytes} are free")

    async def look(self) -> Manifest:
        """The source as it is now, without its digests."""
        return await self._manifest_of_source(digests=False)

    async def _prepared(self, location: ExecutionLocation) -> commands.Prepared:
        text, code = await self._run(location, commands.prepare(self.destination, self._token))
        if code or (told := commands.read_prepared(text)) is None:
            raise self._refused(text, code)
        return told

    def _refuse_what_cannot_be_sent(self) -> None:
        counts = {kind: self.seen.count(kind) for kind in (Kind.SYMLINK, Kind.SPECIAL)}
        words = {
            Kind.SYMLINK: "links that lead nowhere",
            Kind.SPECIAL: "entries that are neither files nor folders nor links",
        }
        if seen := ", ".join(f"{count} {words[kind]}" for kind, count in counts.items() if count):
            raise SourceUnreadable(self.source.deployment, self.to, f"{seen}, of {len(self.seen.entries)}")

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
                sent = await self._attempt(stream)
                break
            except (StreamBroke, OSError, SourceUnreadable, _Differs) as error:
                now = await self.look()
                if self.seen.unchanged(now) and not getattr(error, "source_moved", False):
                    raise await self._typed(error) from None  # the stream's own words name files
                if is_last:
                    seen = f"{len(now.entries)} files and folders, some of which are not as they were when it began"
                    raise SourceChanged(self.source.deployment, self.to, seen) from None
                await self.drop()
                final = self.place.final
                await self.prepare()
                if self.place.final != final:  # others know it by that path already
                    raise TransferFailed(self.source.deployment, self.to, "a folder has come to its place") from None
        await every(self._keep(each) for each in self._distinct)
        return sent

    async def _attempt(self, stream: Stream) -> Manifest:
        # The source is read for its digests while it is read to be sent: the second of them finds it in memory.
        reading = asyncio.ensure_future(self._sums())
        reading.add_done_callback(_failed)  # where the stream breaks first, its error is told
        try:
            await stream(self.seen.real, self.place.inside(self.name))
            sent = await reading
        finally:
            reading.cancel()
        arrived = await every(self._arrived(each) for each in self.verified_at())
        if wrong := next(filter(None, map(sent.difference, arrived)), ""):
            raise _Differs(wrong, source_moved=not self.seen.unchanged(sent))
        return sent

    async def _sums(self) -> Manifest:
        key = (self.source.deployment, self.source.name, self.seen.real)
        return await self._digests.of(key, self.seen, lambda: self._manifest_of_source(digests=True))

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
            raise _Differs(f"at {self.to}: {error}") from None

    async def _keep(self, location: ExecutionLocation) -> None:
        text, code = await self._run(location, commands.keep(self.place, self.name))
        if code:
            raise self._refused(text, code)

    async def drop(self) -> None:
        """Removes what is not in its place, wherever it can be reached."""
        words = commands.drop(self.destination, self._token)
        await asyncio.gather(*(self._run(each, words) for each in self._distinct), return_exceptions=True)

    # ---- inside

    async def _manifest_of_source(self, *, digests: bool) -> Manifest:
        text, _ = await self._run(self.source, manifest.command(self.path, digests=digests))
        try:
            return manifest.parse(text, digests=digests)
        except Unlisted as error:
            raise SourceUnreadable(self.source.deployment, self.to, str(error)) from None

    async def _run(self, location: ExecutionLocation, words: list[str]) -> tuple[str, int]:
        told = await self._connector_of(location.deployment).run(location=location, command=words, capture_output=True)
        return str(told[0]), int(told[1])

    def _refused(self, text: str, code: int) -> TransferFailed:
        reason = reasons.reason_in(text)
        kind = NoRoom if reason in reasons.NO_ROOM else TargetRefused
        return kind(self.source.deployment, self.to, reason or f"the shell there ended with {code}")

    async def _typed(self, error: StreamBroke | OSError | SourceUnreadable | _Differs) -> TransferFailed:
        if isinstance(error, SourceUnreadable):
            return error
        if isinstance(error, _Differs):
            return TransferFailed(self.source.deployment, self.to, str(error))
        reason = reasons.reason_in(error.told if isinstance(error, StreamBroke) else str(error))
        status = f" (exit status {error.exit_status})" if isinstance(error, StreamBroke) else ""
        seen = f"the stream broke off: {reason or 'without a word that is known'}{status}"
        if reason in reasons.NO_ROOM:
            return NoRoom(self.source.deployment, self.to, f"{self.seen.num_bytes} bytes are needed; {seen}")
        if reason in (*reasons.NOT_ALLOWED, *reasons.READ_ONLY):
            try:
                await self._sums()  # which end was it?
            except SourceUnreadable as unreadable:
                return unreadable
            return TargetRefused(self.source.deployment, self.to, seen)
        return TransferFailed(self.source.deployment, self.to, seen)


async def every(work: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """What all of it returns. When one fails, the others have ended too before that is told: nothing goes on behind it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Differs(Exception):
    """What arrived is not what was sent."""

    def __init__(self, seen: str, *, source_moved: bool = False) -> None:
        super().__init__(seen)
        self.source_moved = source_moved
