"""Copies through the driver as our connectors make them: one archive, and no failure is dropped.

The stock ones ask what the destination is before they begin, drop tar's exit status, and put names into shell lines as they are.
That what arrives is all of it, and what is not is removed, is the data manager's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
from collections.abc import Awaitable, Callable, MutableSequence, Sequence
from typing import Any

from streamflow.core.deployment import Connector, ExecutionLocation

from medweave_connectors.host.deadlines import NoProgress, ProgressDeadline
from medweave_connectors.host.errors import StreamCut
from medweave_connectors.runlog import console
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.agent.archive import Exactly, Guard
from medweave_connectors.transfer.progress import current
from medweave_connectors.transfer.routes.direct.endpoints import behind
from medweave_connectors.transfer.shell_commands import is_aside
from medweave_connectors.transfer.stream_commands import Piece
from medweave_connectors.transfer.streams import ProgramReader, ProgramWriter
from medweave_connectors.transfer.wire import HERE, Leg, Passing, leg

THIS = "this machine"
CUT_PAUSES_S = (0.5, 3.0, 10.0)  # before a connection that was lost is made again
Streams = Callable[[], Awaitable[tuple[Any, Sequence[Any], tuple[Leg, Leg]]]]


async def pump(
    source: Any,
    targets: Sequence[Any],
    buffer_bytes: int,
    guard: Guard | Exactly | None = None,
    legs: tuple[Leg, Leg] = (HERE, HERE),
    where: str = THIS,
) -> None:
    """Sends what one stream gives to all others; the slowest sets the pace.

    Args:
        source, targets: contexts of streams, not opened yet.
        guard: of the archive that the stream is; without one, everything passes.
        legs: how it comes, and how it goes on.
        where: the places, for people.

    Raises:
        StreamBroke: one of the programs behind them failed.
        StreamCut: nothing has passed for a while.
        StreamRefused: the archive is not what was asked for.
    """
    deadline = ProgressDeadline("a copy", where)
    try:
        await deadline.guard(_pump(source, targets, buffer_bytes, Passing(*legs, guard), deadline))
    except NoProgress as error:
        raise StreamCut("a copy", str(error), words=str(error)) from None


async def _pump(
    source: Any, targets: Sequence[Any], buffer_bytes: int, passing: Passing, deadline: ProgressDeadline
) -> None:
    flow = current()
    async with contextlib.AsyncExitStack() as ends:
        writers = [await ends.enter_async_context(each) for each in targets]
        share = ends.enter_context(flow.limit.share())

        async def write(data: bytes) -> None:
            await asyncio.gather(*(writer.write(data) for writer in writers))

        # The source's end is known before the targets are told that all has arrived.
        async with source as reader, contextlib.aclosing(passing.blocks(reader.read, buffer_bytes)) as blocks:
            async for block in blocks:
                deadline.progressed(block.wire_bytes)
                await write(block.data)
                flow.passed(block.num_bytes, block.wire_bytes)
                await share.spend(block.wire_bytes)
                deadline.progressed()
        if last := passing.end():
            await write(last)


async def send_piece(
    source: ExecutionLocation,
    piece: Piece,
    destinations: Sequence[ExecutionLocation],
    connector_of: Callable[[str], Any],
) -> None:
    """Sends a piece of a copy through this machine.

    Raises:
        StreamBroke: a program failed, here or there, or the connection to it was lost.
        SiteUnreachable: there is no connection.
    """
    origin, connector = connector_of(source.deployment), connector_of(destinations[0].deployment)

    async def sent() -> None:
        legs = leg(source), leg(*destinations)
        if source.local:
            reader: Any = ProgramReader(piece.packing, f"a transfer from {THIS}")
        else:
            reader = await origin.get_stream_reader(legs[0].packing(piece.packing), source)
        words = legs[1].unpacking(piece.unpacking)
        writers = [await connector.get_stream_writer(words, each) for each in destinations]
        where = f"{source.deployment} to {destinations[0].deployment}"
        guard = piece.guard(trusted=source.local)
        await pump(reader, writers, int(connector.transferBufferSize), guard, legs, where)

    work = sent()
    for each, places in ((origin, [source]), (connector, destinations)):
        # Pods are looked at meanwhile: a node that is lost breaks no connection.
        if (while_there := getattr(behind(each), "while_there", None)) is not None:
            work = while_there([place.name for place in places], work)
    await work


class TarCopies:
    """The three copies of a connector whose streams fail when their command fails."""

    deployment_name: str
    transferBufferSize: int

    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None:
        """Copies to each location: below the destination where that is a folder, under its name elsewhere.

        Raises:
            StreamBroke: tar failed, here or there.
        """

        async def streams() -> tuple[Any, Sequence[Any], tuple[Leg, Leg]]:
            source = ProgramReader(shell_commands.pack(src.rstrip("/")), f"a transfer from {THIS}")
            there = leg(*locations)
            return source, await self._tar_writers(src, dst, locations, there), (HERE, there)

        await self._pumped(dst, streams, self.transferBufferSize)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Copies to this machine, in the same way."""

        async def streams() -> tuple[Any, Sequence[Any], tuple[Leg, Leg]]:
            words = shell_commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4), own=True)
            there = leg(location)
            reader = await self._tar_reader(self, src, location, there)
            return reader, [ProgramWriter(words, f"a transfer to {THIS}")], (there, HERE)

        await self._pumped(dst, streams, self._buffer(self), _name(src))

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        """Copies from another place, in the same way; at the same place it links what is only read."""
        connector: Any = source_connector or self
        here = (source_location.deployment, source_location.name)
        others = [each for each in locations if (each.deployment, each.name) != here]
        if len(others) < len(locations) and src != dst:
            words = shell_commands.link_or_copy(src, dst, read_only=read_only)
            await self.run(location=source_location, command=words)  # type: ignore[attr-defined]
        if others:

            async def streams() -> tuple[Any, Sequence[Any], tuple[Leg, Leg]]:
                legs = leg(source_location), leg(*others)
                reader = await self._tar_reader(connector, src, source_location, legs[0])
                return reader, await self._tar_writers(src, dst, others, legs[1]), legs

            await self._pumped(dst, streams, self._buffer(connector), _name(src))

    async def _pumped(self, target: str, streams: Streams, buffer_bytes: int, elsewhere: str = "") -> None:
        """Copies, and again where a connection was lost on the way: what has come by then is not whole, and goes.

        What is put together aside is the data manager's, which keeps it and goes on.

        Args:
            elsewhere: the name of what another site sends, which is not trusted.
        """
        for pause_s in (None,) if is_aside(target) else (*CUT_PAUSES_S, None):
            try:
                source, targets, legs = await streams()
                guard = Guard(elsewhere) if elsewhere else None
                return await pump(source, targets, buffer_bytes, guard, legs, self.deployment_name)
            except StreamCut as error:
                if pause_s is None:
                    raise
                console.say(f"medweave: {self.deployment_name}: a copy was cut and is repeated: {error}")
            await asyncio.sleep(pause_s)

    @staticmethod
    async def _tar_reader(connector: Any, src: str, location: ExecutionLocation, there: Leg) -> Any:
        return await connector.get_stream_reader(there.packing(shell_commands.pack(src.rstrip("/"))), location)

    async def _tar_writers(self, src: str, dst: str, locations: Sequence[ExecutionLocation], there: Leg) -> list[Any]:
        connector: Any = self
        unpacking = (shell_commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4)) for _ in locations)
        words = [there.unpacking(each) for each in unpacking]
        return [await connector.get_stream_writer(*each) for each in zip(words, locations, strict=True)]

    @staticmethod
    def _buffer(connector: Any) -> int:
        return int(connector.transferBufferSize)


def _name(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))
