"""Streams between this machine and a site, encoded in the blocks of `agent.encoding` where the site has a python3.

A thread encodes and decodes one block ahead of the link: the event loop stays free for other copies and jobs.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import StreamCut, StreamRefused
from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.host.read_only_commands import READ_ONLY
from medweave_connectors.host.stdin_command import CommandWithInput
from medweave_connectors.transfer.agent import encoding, program_text
from medweave_connectors.transfer.agent.archive import ArchiveChecker, ArchiveRefused, LengthChecker
from medweave_connectors.transfer.agent.encoding import BLOCK, HEAD, RAW, Decoder, Encoder, NotDecoded
from medweave_connectors.transfer.agent.stream_peer import COUNT, CUT
from medweave_connectors.transfer.capabilities import endpoint_of

_BOOT = "import sys; b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
_MARK = "medweave-codecs "
_CODECS = re.compile("^" + _MARK + r"([0-9,]{1,32})\.$", re.MULTILINE)
Read = Callable[[int], Awaitable[bytes]]
Item = TypeVar("Item")


# ---- commands at a site


def agent_command(verb: str, *arguments: str) -> CommandWithInput:
    """Return the command that runs `agent.stream_peer.main`.

    The program text comes by standard input: command lines show in process lists, and a pod's command is part of a URL.
    """
    return CommandWithInput(["python3", "-S", "-I", "-c", _BOOT, verb, *arguments], program_text.framed("stream_peer"))


def codecs_command() -> list[str]:
    """Return the command that prints the codecs of a location for `parse_codecs`."""
    text = program_text.of("encoding") + f"print({_MARK!r} + ','.join(map(str, codecs())) + '.')\n"
    python = shlex.join(["python3", "-S", "-I", "-c", text])
    return [f"{READ_ONLY}command -v python3 >/dev/null && {python} 2>/dev/null"]


def parse_codecs(text: str) -> frozenset[int]:
    """Return the codecs that a location shares with this machine; none where it has no python3."""
    match = _CODECS.search(text)
    numbers = map(int, filter(None, match[1].split(","))) if match else ()
    return frozenset(numbers).intersection(encoding.codecs())


class SiteCodecs:
    """The codecs of the locations of a run; each location is queried once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], frozenset[int]] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    def known(self, location: ExecutionLocation) -> frozenset[int]:
        """Return the codecs of a location; none where it was not queried."""
        return self._known.get((location.deployment, location.name), frozenset())

    async def query(self, locations: Sequence[ExecutionLocation], connector_of: Callable[[str], Any]) -> None:
        """Query the locations on other machines.

        Raises:
            SiteUnreachable: a location does not answer.
        """
        remote = [location for location in locations if not location.local]
        await asyncio.gather(*(self._query(location, connector_of(location.deployment)) for location in remote))

    async def _query(self, location: ExecutionLocation, connector: Any) -> None:
        key = (location.deployment, location.name)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key in self._known:
                return
            if await endpoint_of(connector, location) is None:  # such connectors do not quote a command's arguments
                self._known[key] = frozenset()
                return
            text, _ = await connector.run(location=location, command=codecs_command(), capture_output=True)
            self._known[key] = parse_codecs(str(text))


# ---- one stream


@dataclass(frozen=True, slots=True)
class StreamLeg:
    """A stream between this machine and a location, or several locations that get the same bytes.

    Attributes:
        is_remote: the location is on another machine.
        codecs: codecs that may encode the stream; none: it is sent as it is.
    """

    is_remote: bool
    codecs: frozenset[int]

    def packing(self, command: Sequence[str]) -> list[str]:
        """Return the command at the location that writes the stream, encoded."""
        if not self.codecs:
            return list(command)
        return agent_command("send", ",".join(map(str, sorted(self.codecs))), *command)

    def unpacking(self, command: Sequence[str]) -> list[str]:
        """Return the command at the location that decodes and reads the stream. Our agents decode it themselves."""
        if isinstance(command, CommandWithInput):
            return command
        return agent_command("receive", "", *command) if self.codecs else list(command)


LOCAL_LEG = StreamLeg(is_remote=False, codecs=frozenset())


def leg(codecs: SiteCodecs | None, *locations: ExecutionLocation) -> StreamLeg:
    """Return the leg to some locations, encoded by a codec that all of them know; without `codecs`, as it is."""
    known = [frozenset[int]() if codecs is None else codecs.known(location) for location in locations]
    return StreamLeg(is_remote=not locations[0].local, codecs=frozenset.intersection(*known))


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """The bytes for each target.

    Attributes:
        num_bytes: of the content.
        wire_bytes: between this machine and others: the larger of what arrived and what leaves.
    """

    data: bytes
    num_bytes: int
    wire_bytes: int


class Transcoder:
    """A stream through this machine: decoded, checked, and encoded again.

    Args:
        checker: of the content; None lets everything pass.
    """

    def __init__(self, source: StreamLeg, target: StreamLeg, checker: ArchiveChecker | LengthChecker | None) -> None:
        self._source, self._target, self._checker = source, target, checker
        self._decoder = Decoder() if source.codecs else None
        self._encoder = Encoder(target.codecs) if target.codecs else None
        self._announced_bytes: int | None = None
        self._received_bytes = self._sent_bytes = 0

    async def blocks(self, read: Read, buffer_bytes: int) -> AsyncGenerator[EncodedBlock]:
        """Yield the blocks to be written until the stream ends.

        Raises:
            StreamRefused: the content is not what the driver requested.
        """
        if self._encoder is not None:  # whole blocks need not be joined
            buffer_bytes = max(buffer_bytes, BLOCK)
        contents = self._checked(read, buffer_bytes)
        blocks = self._plain(contents) if self._encoder is None else self._encoded(contents, self._encoder)
        if self._decoder is not None or self._encoder is not None:
            blocks = read_ahead(blocks)
        async with aclosing(contents), aclosing(blocks):
            async for block in blocks:
                yield block

    def end(self) -> bytes:
        """Return the last bytes, once the stream and its program have ended.

        Raises:
            StreamCut: the stream ended before the end that its sender announces.
            StreamRefused: the archive in it has not ended.
        """
        if self._decoder is not None and self._announced_bytes != self._received_bytes:
            raise StreamCut("a transfer through this machine", CUT)
        if self._checker is not None:
            try:
                self._checker.end()
            except ArchiveRefused as error:
                raise StreamRefused(str(error)) from None
        return b"" if self._encoder is None else HEAD.pack(RAW, 0, 0) + COUNT.pack(self._sent_bytes)

    # ---- internal

    async def _checked(self, read: Read, buffer_bytes: int) -> AsyncGenerator[tuple[bytes, int]]:
        """Yield content that passed the check, and its number of bytes in transit to this machine."""
        contents = self._read(read, buffer_bytes) if self._decoder is None else self._decoded(read, self._decoder)
        try:
            async with aclosing(contents):
                async for data, wire_bytes in contents:
                    yield (data if self._checker is None else self._checker.passed(data)), wire_bytes
        except (ArchiveRefused, NotDecoded) as error:
            raise StreamRefused(str(error)) from None

    async def _read(self, read: Read, buffer_bytes: int) -> AsyncGenerator[tuple[bytes, int]]:
        while data := await read(buffer_bytes):
            yield data, len(data) if self._source.is_remote else 0

    async def _decoded(self, read: Read, decoder: Decoder) -> AsyncGenerator[tuple[bytes, int]]:
        buffered = _BufferedReader(read)
        while head := await buffered.exactly(HEAD.size):
            how, length, size = decoder.head(head)
            if not length:
                if last := await buffered.exactly(COUNT.size):
                    (self._announced_bytes,) = COUNT.unpack(last)
                return
            if (body := await buffered.exactly(length)) is None:
                return
            content = body if how == RAW else await asyncio.to_thread(decoder.content, how, body, size)
            self._received_bytes += size
            yield bytes(content), HEAD.size + length

    async def _plain(self, contents: AsyncGenerator[tuple[bytes, int]]) -> AsyncGenerator[EncodedBlock]:
        async for data, wire_bytes in contents:
            yield EncodedBlock(data, len(data), max(wire_bytes, len(data) if self._target.is_remote else 0))

    async def _encoded(
        self, contents: AsyncGenerator[tuple[bytes, int]], encoder: Encoder
    ) -> AsyncGenerator[EncodedBlock]:
        buffer, incoming_bytes = bytearray(), 0

        async def encode(piece: bytearray) -> EncodedBlock:
            head, body, size = await asyncio.to_thread(encoder.block_of, piece)
            self._sent_bytes += size
            return EncodedBlock(b"".join((head, body)), size, max(incoming_bytes, len(head) + len(body)))

        async for data, wire_bytes in contents:
            incoming_bytes += wire_bytes
            if not buffer and len(data) == BLOCK and isinstance(data, bytearray):
                yield await encode(data)
                incoming_bytes = 0
                continue
            buffer += data
            while len(buffer) >= BLOCK:
                piece = buffer[:BLOCK]
                del buffer[:BLOCK]
                yield await encode(piece)
                incoming_bytes = 0
        if buffer:
            yield await encode(buffer)


class _BufferedReader:
    """Reads exact numbers of bytes."""

    def __init__(self, read: Read) -> None:
        self._read, self._buffer = read, bytearray()

    async def exactly(self, size: int) -> bytearray | None:
        """Return exactly this number of bytes; None if the stream ends before."""
        while len(self._buffer) < size:
            if not (data := await self._read(size - len(self._buffer))):
                return None
            self._buffer += data
        content = self._buffer[:size]
        del self._buffer[:size]
        return content


async def read_ahead(items: AsyncGenerator[Item]) -> AsyncGenerator[Item]:
    """Yield the items; each is produced while the item before it is used."""
    coming = asyncio.ensure_future(anext(items, None))
    try:
        while (item := await coming) is not None:
            coming = asyncio.ensure_future(anext(items, None))
            yield item
    finally:
        await cancel_and_wait(coming)
        await items.aclose()
