"""Copies through the driver as our connectors make them: one archive, and no failure is dropped.

The stock ones ask what the destination is before they begin, drop tar's exit status, and put names into shell lines as they are.
That what arrives is all of it, and what is not is removed, is the data manager's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import secrets
import shlex
from collections.abc import Awaitable, Callable, Iterator, MutableSequence, Sequence
from typing import Any

from streamflow.core.deployment import Connector, ExecutionLocation

from medweave_connectors.errors import StreamCut, StreamRefused
from medweave_connectors.local.streams import Reader, Writer
from medweave_connectors.record import console
from medweave_connectors.transfer import commands
from medweave_connectors.transfer.archive import ArchiveRefused, Guard

HERE = "this machine"
CUT_PAUSES_S = (0.5, 3.0, 10.0)  # before a connection that was lost is made again
COMMAND_BYTES = 100_000  # Linux takes 128 KiB in one word, and a line that a remote shell gets is one
Streams = Callable[[], Awaitable[tuple[Any, Sequence[Any]]]]


async def pump(source: Any, targets: Sequence[Any], buffer_bytes: int, guard: Guard | None = None) -> None:
    """Sends what one stream gives to all others; the slowest sets the pace.

    Args:
        source, targets: contexts of streams, not opened yet.
        guard: of the archive that the stream is; without one, everything passes.

    Raises:
        StreamBroke: one of the programs behind them failed.
        StreamRefused: the archive is not what was asked for.
    """
    async with contextlib.AsyncExitStack() as ends:
        writers = [await ends.enter_async_context(each) for each in targets]
        # The source's end is known before the targets are told that all has arrived.
        async with source as reader:
            while data := await reader.read(buffer_bytes):
                with _refusing():
                    passed = data if guard is None else guard.passed(data)
                await asyncio.gather(*(writer.write(passed) for writer in writers))
        if guard is not None:
            with _refusing():
                guard.end()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ArchiveRefused as error:
        raise StreamRefused(str(error)) from None


async def send_files(
    source: ExecutionLocation,
    folder: str,
    paths: Sequence[str],
    part: str,
    destinations: Sequence[ExecutionLocation],
    connector_of: Callable[[str], Any],
) -> None:
    """Sends some files of a folder into the place of a copy whose other files are there.

    Args:
        folder: the source's own path.
        paths: relative to it.
        part: where the folder stands at each destination, under its own name.

    Raises:
        StreamBroke: tar failed, here or there.
    """
    above, name = posixpath.split(folder)
    for some in batches([posixpath.join(name, each) for each in paths]):
        words = commands.pack_files(above or "/", some)
        if source.local:
            reader: Any = Reader(words, f"a transfer from {HERE}")
        else:
            reader = await connector_of(source.deployment).get_stream_reader(words, source)
        connector = connector_of(destinations[0].deployment)
        writers = [await connector.get_stream_writer(commands.unpack_files(part), each) for each in destinations]
        await pump(reader, writers, int(connector.transferBufferSize), None if source.local else Guard(name))


def batches(names: Sequence[str]) -> Iterator[list[str]]:
    """Names in groups that one command line takes."""
    some: list[str] = []
    num_bytes = 0
    for name in names:
        length = len(os.fsencode(shlex.quote(name))) + 1
        if some and num_bytes + length > COMMAND_BYTES:
            yield some
            some, num_bytes = [], 0
        some.append(name)
        num_bytes += length
    if some:
        yield some


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

        async def streams() -> tuple[Any, Sequence[Any]]:
            source = Reader(commands.pack(src.rstrip("/")), f"a transfer from {HERE}")
            return source, await self._tar_writers(src, dst, locations)

        await self._pumped(streams, self.transferBufferSize)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Copies to this machine, in the same way."""

        async def streams() -> tuple[Any, Sequence[Any]]:
            words = commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4), own=True)
            return await self._tar_reader(self, src, location), [Writer(words, f"a transfer to {HERE}")]

        await self._pumped(streams, self._buffer(self), _name(src))

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
            words = commands.link_or_copy(src, dst, read_only=read_only)
            await self.run(location=source_location, command=words)  # type: ignore[attr-defined]
        if others:

            async def streams() -> tuple[Any, Sequence[Any]]:
                reader = await self._tar_reader(connector, src, source_location)
                return reader, await self._tar_writers(src, dst, others)

            await self._pumped(streams, self._buffer(connector), _name(src))

    async def _pumped(self, streams: Streams, buffer_bytes: int, elsewhere: str = "") -> None:
        """Copies, and again where a connection was lost on the way: what has come by then is not whole, and goes.

        Args:
            elsewhere: the name of what another site sends, which is not trusted.
        """
        for pause_s in (*CUT_PAUSES_S, None):
            try:
                source, targets = await streams()
                return await pump(source, targets, buffer_bytes, Guard(elsewhere) if elsewhere else None)
            except StreamCut as error:
                if pause_s is None:
                    raise
                console.say(f"medweave: {self.deployment_name}: a copy was cut and is repeated: {error.told}")
            await asyncio.sleep(pause_s)

    @staticmethod
    async def _tar_reader(connector: Any, src: str, location: ExecutionLocation) -> Any:
        return await connector.get_stream_reader(commands.pack(src.rstrip("/")), location)

    async def _tar_writers(self, src: str, dst: str, locations: Sequence[ExecutionLocation]) -> list[Any]:
        connector: Any = self
        words = [commands.unpack(_name(src), dst.rstrip("/"), secrets.token_hex(4)) for _ in locations]
        return [await connector.get_stream_writer(*each) for each in zip(words, locations, strict=True)]

    @staticmethod
    def _buffer(connector: Any) -> int:
        return int(connector.transferBufferSize)


def _name(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))
