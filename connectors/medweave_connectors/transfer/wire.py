"""Streams between this machine and a site, in the blocks of direct copies where the site has a python3 (see `direct.encoding`).

A block is encoded and decoded in a thread, one ahead of the link: the event loop has other copies, and jobs.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.errors import StreamCut, StreamRefused
from medweave_connectors.host.stdin_command import CommandWithInput
from medweave_connectors.transfer.agent import encoding, program_text
from medweave_connectors.transfer.agent.archive import ArchiveRefused, Exactly, Guard
from medweave_connectors.transfer.agent.encoding import BLOCK, HEAD, RAW, Decoder, Encoder, NotDecoded
from medweave_connectors.transfer.agent.stream_peer import COUNT, CUT
from medweave_connectors.transfer.manifest.manifest import LOOK
from medweave_connectors.transfer.progress import current
from medweave_connectors.transfer.routes.direct.endpoints import end_of

_BOOT = "import sys; b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
_MARK = "medweave-codecs "
_TOLD = re.compile("^" + _MARK + r"([0-9,]{1,32})\.$", re.MULTILINE)
Read = Callable[[int], Awaitable[bytes]]
Item = TypeVar("Item")


# ---- what is run at a site


def words(verb: str, *given: str) -> CommandWithInput:
    """Words that run it, see `far_stream.main`. It comes by its input: a command line has names, and a pod's is part of a URL."""
    return CommandWithInput(["python3", "-S", "-I", "-c", _BOOT, verb, *given], program_text.framed("stream_peer"))


def ask() -> list[str]:
    """Words that say what a place can encode; `read_told` reads it."""
    text = program_text.of("encoding") + f"print({_MARK!r} + ','.join(map(str, codecs())) + '.')\n"
    tell = shlex.join(["python3", "-S", "-I", "-c", text])
    return [f"{LOOK}command -v python3 >/dev/null && {tell} 2>/dev/null"]


def read_told(text: str) -> frozenset[int]:
    """Codecs of both a place and this machine; none where it has no python3."""
    found = _TOLD.search(text)
    told = map(int, filter(None, found[1].split(","))) if found else ()
    return frozenset(told).intersection(encoding.codecs())


class Sites:
    """What the places of a run can encode; each is asked once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], frozenset[int]] = {}
        self._asking: dict[tuple[str, str], asyncio.Lock] = {}

    def known(self, place: ExecutionLocation) -> Collection[int]:
        """Its codecs; none where it was not asked."""
        return self._known.get((place.deployment, place.name), frozenset())

    async def ask(self, places: Sequence[ExecutionLocation], connector_of: Callable[[str], Any]) -> None:
        """Asks those of another machine.

        Raises:
            SiteUnreachable: one of them does not answer.
        """
        await asyncio.gather(*(self._ask(each, connector_of(each.deployment)) for each in places if not each.local))

    async def _ask(self, place: ExecutionLocation, connector: Any) -> None:
        key = (place.deployment, place.name)
        async with self._asking.setdefault(key, asyncio.Lock()):
            if key in self._known:
                return
            if (
                await end_of(connector, place) is None
            ):  # a connector that is not ours puts words into a line as they are
                self._known[key] = frozenset()
                return
            told = await connector.run(location=place, command=ask(), capture_output=True)
            self._known[key] = read_told(str(told[0]))


# ---- one stream


@dataclass(frozen=True, slots=True)
class Leg:
    """A stream between this machine and a place, or several that get the same.

    Attributes:
        is_far: they are not this machine.
        codecs: with which it is encoded; none where it goes as it is.
    """

    is_far: bool
    codecs: frozenset[int]

    def packing(self, command: Sequence[str]) -> list[str]:
        """Words of the command that writes it, or of what encodes its output."""
        return words("send", ",".join(map(str, sorted(self.codecs))), *command) if self.codecs else list(command)

    def unpacking(self, command: Sequence[str]) -> list[str]:
        """Words of the command that reads it, or of what decodes it before. A program of ours decodes it by itself."""
        if isinstance(command, CommandWithInput):
            return command
        return words("receive", "", *command) if self.codecs else list(command)


def leg(*places: ExecutionLocation) -> Leg:
    """That of the copy which is `current`: encoded where all of its places have been asked, and know the same codec."""
    known = [frozenset(current().known(each)) for each in places]
    return Leg(is_far=not places[0].local, codecs=frozenset.intersection(*known))


HERE = Leg(is_far=False, codecs=frozenset())


@dataclass(frozen=True, slots=True)
class Block:
    """What is written to each target.

    Attributes:
        num_bytes: that it stands for.
        wire_bytes: what it took on the way here, or takes from here, whichever is more; this machine's own disk is no way.
    """

    data: bytes
    num_bytes: int
    wire_bytes: int


class Passing:
    """A stream on its way through this machine: decoded, looked at, and encoded again.

    Args:
        guard: of what is in it; without one, everything passes.
    """

    def __init__(self, source: Leg, target: Leg, guard: Guard | Exactly | None) -> None:
        self._source, self._target, self._guard = source, target, guard
        self._decoder = Decoder() if source.codecs else None
        self._encoder = Encoder(target.codecs) if target.codecs else None
        self._told: int | None = None
        self._arrived = self._left_bytes = 0

    async def blocks(self, read: Read, buffer_bytes: int) -> AsyncGenerator[Block]:
        """What goes on of what is read, until there is no more.

        Raises:
            StreamRefused: it is not what was asked for.
        """
        if self._encoder is not None:  # what comes as a block need not be put together
            buffer_bytes = max(buffer_bytes, BLOCK)
        contents = self._passed(read, buffer_bytes)
        blocks = self._as_it_is(contents) if self._encoder is None else self._encoded(contents, self._encoder)
        if self._decoder is not None or self._encoder is not None:
            blocks = read_ahead(blocks)
        async with aclosing(contents), aclosing(blocks):
            async for each in blocks:
                yield each

    def end(self) -> bytes:
        """The stream has ended, and so has the program that wrote it; what is to be written last.

        Raises:
            StreamCut: not where its sender says.
            StreamRefused: the archive in it has not ended.
        """
        if self._decoder is not None and self._told != self._arrived:
            raise StreamCut("a transfer through this machine", CUT)
        if self._guard is not None:
            try:
                self._guard.end()
            except ArchiveRefused as error:
                raise StreamRefused(str(error)) from None
        return b"" if self._encoder is None else HEAD.pack(RAW, 0, 0) + COUNT.pack(self._left_bytes)

    # ---- inside

    async def _passed(self, read: Read, buffer_bytes: int) -> AsyncGenerator[tuple[bytes, int]]:
        """What may go on, and what it took on the way here."""
        contents = self._read(read, buffer_bytes) if self._decoder is None else self._decoded(read, self._decoder)
        try:
            async with aclosing(contents):
                async for data, wire_bytes in contents:
                    yield (data if self._guard is None else self._guard.passed(data)), wire_bytes
        except ArchiveRefused as error:
            raise StreamRefused(str(error)) from None
        except NotDecoded as error:
            raise StreamRefused(str(error)) from None

    async def _read(self, read: Read, buffer_bytes: int) -> AsyncGenerator[tuple[bytes, int]]:
        while data := await read(buffer_bytes):
            yield data, len(data) if self._source.is_far else 0

    async def _decoded(self, read: Read, decoder: Decoder) -> AsyncGenerator[tuple[bytes, int]]:
        held = _Held(read)
        while head := await held.exactly(HEAD.size):
            how, length, size = decoder.head(head)
            if not length:
                if last := await held.exactly(COUNT.size):
                    (self._told,) = COUNT.unpack(last)
                return
            if (body := await held.exactly(length)) is None:
                return
            content = body if how == RAW else await asyncio.to_thread(decoder.content, how, body, size)
            self._arrived += size
            yield bytes(content), HEAD.size + length

    async def _as_it_is(self, contents: AsyncGenerator[tuple[bytes, int]]) -> AsyncGenerator[Block]:
        async for data, wire_bytes in contents:
            yield Block(data, len(data), max(wire_bytes, len(data) if self._target.is_far else 0))

    async def _encoded(self, contents: AsyncGenerator[tuple[bytes, int]], encoder: Encoder) -> AsyncGenerator[Block]:
        held, before = bytearray(), 0

        async def made(piece: bytearray) -> Block:
            head, body, size = await asyncio.to_thread(encoder.block_of, piece)
            self._left_bytes += size
            return Block(b"".join((head, body)), size, max(before, len(head) + len(body)))

        async for data, wire_bytes in contents:
            before += wire_bytes
            if not held and len(data) == BLOCK and isinstance(data, bytearray):
                yield await made(data)
                before = 0
                continue
            held += data
            while len(held) >= BLOCK:
                piece = held[:BLOCK]
                del held[:BLOCK]
                yield await made(piece)
                before = 0
        if held:
            yield await made(held)


class _Held:
    """Reads so many bytes at a time as are wanted."""

    def __init__(self, read: Read) -> None:
        self._read, self._held = read, bytearray()

    async def exactly(self, size: int) -> bytearray | None:
        """None where the stream ends before."""
        while len(self._held) < size:
            if not (data := await self._read(size - len(self._held))):
                return None
            self._held += data
        wanted = self._held[:size]
        del self._held[:size]
        return wanted


async def read_ahead(items: AsyncGenerator[Item]) -> AsyncGenerator[Item]:
    """Yield the items; each is made while the item before it is used."""
    coming = asyncio.ensure_future(anext(items, None))
    try:
        while (item := await coming) is not None:
            coming = asyncio.ensure_future(anext(items, None))
            yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()
