"""Frames of SPDY as they are written and read, and a connection that is silent."""

from __future__ import annotations

import asyncio
import struct
import zlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave_connectors.sites.pods.api import spdy
from medweave_connectors.sites.pods.api.channels import STATUS, STDERR, STDOUT
from medweave_connectors.sites.pods.api.spdy import Frames, SpdyChannels, build_opening_frames

STREAM_OF = {STATUS: 1, STDOUT: 5, STDERR: 7}


def data_frame(stream: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", stream, flags << 24 | len(body)) + body


def control_frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", 0x80030000 | kind, len(body)) + body


def streams(frames: bytes) -> list[tuple[int, bytes]]:
    """Number and type of each stream that is opened, as a server reads them: one zlib stream for all."""
    inflate, opened = zlib.decompressobj(), []
    while frames:
        kind, length = struct.unpack(">II", frames[:8])
        assert kind == 0x80030001
        body, frames = frames[8 : 8 + length], frames[8 + length :]
        pairs = inflate.decompress(body[10:])
        assert pairs[:4] == struct.pack(">I", 1)
        assert pairs[8:18] == b"streamtype"
        opened.append((int.from_bytes(body[:4]), pairs[22:]))
    return opened


def test_a_command_has_a_stream_for_each_channel() -> None:
    assert streams(build_opening_frames(takes_input=True)) == [
        (1, b"error"),
        (3, b"stdin"),
        (5, b"stdout"),
        (7, b"stderr"),
    ]
    assert streams(build_opening_frames(takes_input=False)) == [(1, b"error"), (5, b"stdout"), (7, b"stderr")]


PIECES = st.lists(st.tuples(st.sampled_from([STATUS, STDOUT, STDERR]), st.binary(min_size=1, max_size=40)), max_size=8)


@given(PIECES, st.lists(st.integers(0, 600), max_size=12), st.integers(0, 8))
def test_frames_are_read_however_they_are_cut(pieces: list[tuple[int, bytes]], cuts: list[int], place: int) -> None:
    frames = [data_frame(STREAM_OF[channel], body) for channel, body in pieces]
    # An answer to a ping, an end of a stream, a stream that was not opened.
    frames[place:place] = [control_frame(6, b"\0\0\0\1"), data_frame(5, b"", flags=1), data_frame(99, b"unknown")]
    text, reader = b"".join(frames), Frames()
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(borders):
        assert reader.feed_data(text[start:end]) == (False, b"")
    reader.feed_eof()

    async def read() -> list[tuple[int, bytes]]:
        return [piece async for piece in _all(reader)]

    assert asyncio.run(read()) == pieces


async def _all(reader: Frames) -> Any:
    while (piece := await reader.next()) is not None:
        yield piece


class Wire:
    """Fake of aiohttp's connection; `left` written bytes are not sent yet."""

    def __init__(self) -> None:
        self.written, self.left, self.aborted, self.reads, self._paused = bytearray(), 0, False, True, False
        self.transport: Any = self

    def get_write_buffer_size(self) -> int:
        return self.left

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted, self.transport = True, None

    def set_parser(self, parser: Any, payload: Any) -> None:
        self.parser = parser

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    async def _drain_helper(self) -> None:
        """Nothing is waited for."""


def channels_on(wire: Wire, heartbeat_s: float = 0.01) -> SpdyChannels:
    response: Any = SimpleNamespace(connection=SimpleNamespace(protocol=wire), close=wire.abort)
    return SpdyChannels(response, heartbeat_s=heartbeat_s)


def test_input_goes_in_frames_and_ends_once() -> None:
    async def go() -> bytes:
        wire = Wire()
        channels = channels_on(wire, 60)
        await channels.send(bytes(spdy._FRAME_BYTES) + b"rest")
        await channels.close_input()
        await channels.close()
        return bytes(wire.written)

    written = asyncio.run(go())
    assert written == data_frame(3, bytes(2**20)) + data_frame(3, b"rest") + data_frame(3, b"", flags=1)


def test_what_nobody_reads_is_not_taken_from_the_wire() -> None:
    async def go() -> None:
        wire = Wire()
        channels = channels_on(wire, 60)
        wire.parser.feed_data(data_frame(5, bytes(2**20)))
        assert wire.reads
        wire.parser.feed_data(data_frame(5, b"more"))
        assert not wire.reads
        async for _ in channels.pieces():
            assert wire.reads
            wire.parser.feed_eof()

    asyncio.run(go())


@pytest.mark.parametrize("left", [0, 100], ids=["no answer to a ping", "no byte of the input taken"])
def test_a_silent_connection_is_over(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy, "UNRESPONSIVE_S", 0.05)

    async def go() -> Wire:
        wire = Wire()
        wire.left = left
        assert [piece async for piece in channels_on(wire).pieces()] == []
        return wire

    wire = asyncio.run(go())
    assert wire.aborted
    assert (control_frame(6, b"\0\0\0\1") in wire.written) == (not left), "a ping would wait behind the input"


def test_a_connection_on_which_something_moves_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy, "UNRESPONSIVE_S", 0.05)

    async def go() -> Wire:
        wire = Wire()
        channels, wire.left = channels_on(wire), 1000
        for _ in range(30):
            wire.left -= 10
            await asyncio.sleep(0.01)
        assert not wire.aborted
        await channels.close()
        return wire

    asyncio.run(go())
