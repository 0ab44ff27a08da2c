"""Copies through the driver as our connectors make them: one archive, and no failure is dropped.

StreamFlow's own copies query the destination before they begin, drop tar's exit status, and put names into shell lines unquoted.
That each copy is complete or absent is the data manager's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from streamflow.core.deployment import Connector, ExecutionLocation

from medweave_connectors.host import deadlines
from medweave_connectors.host.deadlines import NoProgress, ProgressDeadline
from medweave_connectors.host.errors import StreamCut
from medweave_connectors.runlog import console
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent.archive import ArchiveChecker, LengthChecker
from medweave_connectors.transfer.capabilities import WatchesLocations, underlying
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.shell_commands import is_staging_path
from medweave_connectors.transfer.streams.local_programs import LocalReader, LocalWriter
from medweave_connectors.transfer.streams.pieces import Piece
from medweave_connectors.transfer.streams.transcoding import LOCAL_LEG, SiteCodecs, StreamLeg, Transcoder, leg

THIS_MACHINE = "this machine"
ConnectorOf = Callable[[str], Any]
Streams = Callable[[], Awaitable[tuple[Any, Sequence[Any], tuple[StreamLeg, StreamLeg]]]]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the streams of one copy share.

    Attributes:
        meter: counts their bytes and holds the bandwidth limit.
        codecs: what locations can decode; None where nothing is encoded.
        max_bytes: the most that an archive of another site may hold; None for no limit.
    """

    meter: TransferMeter = field(default_factory=TransferMeter)
    codecs: SiteCodecs | None = None
    max_bytes: int | None = None


@runtime_checkable
class TakesStreamOptions(Protocol):
    """A connector whose copy methods have one more keyword argument than StreamFlow's: `options`, of the copy's streams."""

    @property
    def takes_stream_options(self) -> bool:
        """Return True unless the connector wraps one whose copies take no options."""


def takes_options(connector: Any) -> bool:
    """Return True if a connector's copy methods take options."""
    return isinstance(connector, TakesStreamOptions) and connector.takes_stream_options


def options_for(connector: Any, options: StreamOptions | None) -> dict[str, Any]:
    """Return the keyword arguments that pass options to a connector's copy methods; none if they take no options."""
    return {"options": options} if takes_options(connector) else {}


async def copy_by_connectors(
    source: ExecutionLocation,
    path: str,
    destinations: Sequence[ExecutionLocation],
    target: str,
    connector_of: ConnectorOf,
    options: StreamOptions,
) -> None:
    """Copy a path by the connectors' own copy methods, as StreamFlow's data manager does.

    Raises:
        StreamBroke: a program failed at one end, or the connection was lost.
        SiteUnreachable: there is no connection.
    """
    origin = underlying(connector_of(source.deployment))
    connector = underlying(connector_of(destinations[0].deployment))
    if source.local:
        await connector.copy_local_to_remote(
            src=path, dst=target, locations=list(destinations), read_only=False, **options_for(connector, options)
        )
    elif destinations[0].local:
        await origin.copy_remote_to_local(
            src=path, dst=target, location=source, read_only=False, **options_for(origin, options)
        )
    else:
        await connector.copy_remote_to_remote(
            src=path,
            dst=target,
            locations=list(destinations),
            source_location=source,
            source_connector=origin,
            read_only=False,
            **options_for(connector, options),
        )


async def pump(
    source: Any,
    targets: Sequence[Any],
    buffer_bytes: int,
    checker: ArchiveChecker | LengthChecker | None = None,
    legs: tuple[StreamLeg, StreamLeg] = (LOCAL_LEG, LOCAL_LEG),
    where: str = THIS_MACHINE,
    meter: TransferMeter | None = None,
) -> None:
    """Send the content of one stream to all targets, at the speed of the slowest.

    Args:
        source, targets: contexts of streams, not opened yet.
        checker: of the archive in the stream; None lets everything pass.
        legs: how the stream comes, and how it leaves.
        where: the locations, for messages.

    Raises:
        StreamBroke: a program at one end failed.
        StreamCut: the stream made no progress for a while.
        StreamRefused: the archive is not what the driver requested.
    """
    deadline = ProgressDeadline("a copy", where)
    transcoder = Transcoder(*legs, checker)
    try:
        await deadline.guard(_pump(source, targets, buffer_bytes, transcoder, deadline, meter or TransferMeter()))
    except NoProgress as error:
        raise StreamCut("a copy", str(error), words=str(error)) from None


async def _pump(
    source: Any,
    targets: Sequence[Any],
    buffer_bytes: int,
    transcoder: Transcoder,
    deadline: ProgressDeadline,
    meter: TransferMeter,
) -> None:
    async with contextlib.AsyncExitStack() as ends:
        writers = [await ends.enter_async_context(target) for target in targets]
        share = ends.enter_context(meter.limit.share())

        async def write(data: bytes) -> None:
            await asyncio.gather(*(writer.write(data) for writer in writers))

        # The source's exit status is checked before the end is sent to the targets.
        async with source as reader, contextlib.aclosing(transcoder.blocks(reader.read, buffer_bytes)) as blocks:
            async for block in blocks:
                deadline.progressed(block.wire_bytes)
                await write(block.data)
                meter.add(block.num_bytes, block.wire_bytes)
                await share.spend(block.wire_bytes)
                deadline.progressed()
        if last := transcoder.end():
            await write(last)


async def send_piece(
    source: ExecutionLocation,
    piece: Piece,
    destinations: Sequence[ExecutionLocation],
    connector_of: ConnectorOf,
    options: StreamOptions,
) -> None:
    """Send a piece of a copy through this machine.

    Raises:
        StreamBroke: a program failed at one end, or the connection was lost.
        SiteUnreachable: there is no connection.
    """
    origin, connector = connector_of(source.deployment), connector_of(destinations[0].deployment)

    async def send() -> None:
        legs = leg(options.codecs, source), leg(options.codecs, *destinations)
        if source.local:
            reader: Any = LocalReader(piece.packing, f"a transfer from {THIS_MACHINE}")
        else:
            reader = await origin.get_stream_reader(legs[0].packing(piece.packing), source)
        words = legs[1].unpacking(piece.unpacking)
        writers = [await connector.get_stream_writer(words, location) for location in destinations]
        where = f"{source.deployment} to {destinations[0].deployment}"
        checker = piece.checker(trusted=source.local)
        await pump(reader, writers, int(connector.transferBufferSize), checker, legs, where, options.meter)

    work = send()
    for each, locations in ((origin, [source]), (connector, destinations)):
        deployed = underlying(each)
        if isinstance(deployed, WatchesLocations):  # a lost node breaks no connection
            work = deployed.while_reachable([location.name for location in locations], work)
    await work


class TarCopies:
    """The three copies of a connector whose streams fail when their command fails."""

    deployment_name: str
    transferBufferSize: int
    takes_stream_options = True

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to each location: below the destination where that is a folder, under its name elsewhere.

        Raises:
            StreamBroke: tar failed at one end.
        """
        options = options or StreamOptions()

        async def streams() -> tuple[Any, Sequence[Any], tuple[StreamLeg, StreamLeg]]:
            source = LocalReader(shell_commands.pack(src.rstrip("/")), f"a transfer from {THIS_MACHINE}")
            target_leg = leg(options.codecs, *locations)
            return source, await self._tar_writers(src, dst, locations, target_leg), (LOCAL_LEG, target_leg)

        await self._copy(dst, streams, self.transferBufferSize, options)

    async def copy_remote_to_local(
        self,
        src: str,
        dst: str,
        location: ExecutionLocation,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to this machine by a checked stream, as all methods here."""
        options = options or StreamOptions()

        async def streams() -> tuple[Any, Sequence[Any], tuple[StreamLeg, StreamLeg]]:
            words = shell_commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4), own=True)
            source_leg = leg(options.codecs, location)
            reader = await self._tar_reader(self, src, location, source_leg)
            return reader, [LocalWriter(words, f"a transfer to {THIS_MACHINE}")], (source_leg, LOCAL_LEG)

        await self._copy(dst, streams, self._buffer(self), options, _name(src))

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy from another location; at the same location, link a source that is only read."""
        connector: Any = source_connector or self
        options = options or StreamOptions()
        source_key = (source_location.deployment, source_location.name)
        others = [other for other in locations if (other.deployment, other.name) != source_key]
        if len(others) < len(locations) and src != dst:
            words = shell_commands.link_or_copy(src, dst, read_only=read_only)
            await self.run(location=source_location, command=words)  # type: ignore[attr-defined]
        if others:

            async def streams() -> tuple[Any, Sequence[Any], tuple[StreamLeg, StreamLeg]]:
                legs = leg(options.codecs, source_location), leg(options.codecs, *others)
                reader = await self._tar_reader(connector, src, source_location, legs[0])
                return reader, await self._tar_writers(src, dst, others, legs[1]), legs

            await self._copy(dst, streams, self._buffer(connector), options, _name(src))

    async def _copy(
        self, target: str, streams: Streams, buffer_bytes: int, options: StreamOptions, untrusted_name: str = ""
    ) -> None:
        """Copy, and repeat where a connection was lost: what has arrived by then is not whole, and is removed.

        The data manager resumes its own copies, which go to staging folders, instead.

        Args:
            untrusted_name: the top name of an archive that another site sends; empty for archives of this machine.
        """
        for pause_s in (None,) if is_staging_path(target) else (*deadlines.RETRY_PAUSES_S, None):
            try:
                source, targets, legs = await streams()
                checker = ArchiveChecker(untrusted_name, options.max_bytes) if untrusted_name else None
                return await pump(source, targets, buffer_bytes, checker, legs, self.deployment_name, options.meter)
            except StreamCut as error:
                if pause_s is None:
                    raise
                console.say(f"medweave: {self.deployment_name}: a copy was cut and is repeated: {error}")
            await asyncio.sleep(pause_s)

    @staticmethod
    async def _tar_reader(connector: Any, src: str, location: ExecutionLocation, source_leg: StreamLeg) -> Any:
        return await connector.get_stream_reader(source_leg.packing(shell_commands.pack(src.rstrip("/"))), location)

    async def _tar_writers(
        self, src: str, dst: str, locations: Sequence[ExecutionLocation], target_leg: StreamLeg
    ) -> list[Any]:
        connector: Any = self
        unpacking = (shell_commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4)) for _ in locations)
        lines = [target_leg.unpacking(words) for words in unpacking]
        return [
            await connector.get_stream_writer(line, location) for line, location in zip(lines, locations, strict=True)
        ]

    @staticmethod
    def _buffer(connector: Any) -> int:
        return int(connector.transferBufferSize)


def _name(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))
