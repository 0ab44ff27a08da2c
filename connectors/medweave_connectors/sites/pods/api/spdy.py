"""The channels of a command over SPDY/3.1, which the API server forwards unchanged.

The API server converts a websocket to SPDY, the protocol of the kubelet, and that takes most of the processor time of a copy.
 Sources: the drafts of SPDY 3 and 3.1, section 2, and version 4 of Kubernetes' protocol for remote
commands, with a stream for each channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from aiohttp.http import StreamWriter

from medweave_connectors.host.deadlines import UNRESPONSIVE_S
from medweave_connectors.sites.pods.api.channels import STATUS, STDERR, STDIN, STDOUT

UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}
_STREAMS = {STATUS: 1, STDIN: 3, STDOUT: 5, STDERR: 7}  # a client's have odd numbers, which rise
_TYPES = {STATUS: b"error", STDIN: b"stdin", STDOUT: b"stdout", STDERR: b"stderr"}
_CHANNELS = {stream: channel for channel, stream in _STREAMS.items()}
_CONTROL, _SYN_STREAM, _PING, _FIN = 0x8003 << 16, 1, 6, 1
_HEAD = struct.Struct(">II")  # kind or stream; flags (8 bits) and length (24 bits)
_PING_ID = struct.pack(">I", 1)
_BUFFER_BYTES = 2**20  # received bytes that are not read yet
_FRAME_BYTES = 2**20  # of input; the kubelet buffers some frames in memory


def build_opening_frames(*, takes_input: bool) -> bytes:
    """Return the frames that open the streams of a command."""
    deflate = zlib.compressobj()  # one for all: the header blocks of a connection are one stream of zlib
    frames = b""
    for channel, stream in _STREAMS.items():
        if channel == STDIN and not takes_input:
            continue
        name, value = b"streamtype", _TYPES[channel]
        pairs = struct.pack(">II", 1, len(name)) + name + struct.pack(">I", len(value)) + value
        body = struct.pack(">IIH", stream, 0, 0) + deflate.compress(pairs) + deflate.flush(zlib.Z_SYNC_FLUSH)
        frames += _HEAD.pack(_CONTROL | _SYN_STREAM, len(body)) + body
    return frames


class Frames:
    """Parser of received frames, which aiohttp's connection feeds like the reader of a websocket.

    Args:
        on_full: called when more than `_BUFFER_BYTES` are unread.
    """

    def __init__(self, on_full: Callable[[], None] = lambda: None) -> None:
        self._on_full = on_full
        self._rest = bytearray()
        self._pieces = deque[tuple[int, bytes]]()
        self._held, self._over = 0, False
        self._something = asyncio.Event()
        self.num_received = 0

    @property
    def full(self) -> bool:
        """Return whether more than `_BUFFER_BYTES` are unread."""
        return self._held > _BUFFER_BYTES

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Parse received bytes; the parser never ends before the connection."""
        self.num_received += len(data)
        self._rest += data
        start = 0
        while len(self._rest) - start >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest, start)
            begin = start + _HEAD.size
            end = begin + (length & 0xFFFFFF)
            if len(self._rest) < end:
                break
            if end > begin and kind in _CHANNELS:  # other frames add nothing to the end of the connection
                self._pieces.append((_CHANNELS[kind], bytes(self._rest[begin:end])))
                self._held += end - begin
            start = end
        del self._rest[:start]
        self._something.set()
        if self.full:
            self._on_full()
        return False, b""

    def feed_eof(self) -> None:
        """Note that the connection has ended."""
        self._over = True
        self._something.set()

    def is_eof(self) -> bool:
        """Return whether the connection has ended."""
        return self._over

    def set_exception(self, *_: Any) -> None:
        """Note that the connection is lost."""
        self.feed_eof()

    async def next(self) -> tuple[int, bytes] | None:
        """Return channel and bytes; None at the end."""
        while not self._pieces:
            if self._over:
                return None
            self._something.clear()
            await self._something.wait()
        piece = self._pieces.popleft()
        self._held -= len(piece[1])
        return piece


class SpdyChannels:
    """Channels over SPDY.

    Args:
        response: the answer to the upgrade, which it takes over.
        heartbeat_s: interval of the pings, s.
    """

    def __init__(self, response: aiohttp.ClientResponse, *, heartbeat_s: float) -> None:
        connection = response.connection
        assert connection is not None
        assert connection.protocol is not None
        self._response, self._protocol = response, connection.protocol
        self._frames = Frames(self._protocol.pause_reading)
        self._writer = StreamWriter(self._protocol, asyncio.get_running_loop())
        self._num_sent = 0
        self._protocol.set_parser(self._frames, self._frames)
        self._heart = asyncio.create_task(self._beat(heartbeat_s))

    async def open(self, *, takes_input: bool) -> None:
        """Open the streams, for which the command waits.

        Raises:
            aiohttp.ClientError, ConnectionError: the connection is over.
        """
        await self._writer.write(build_opening_frames(takes_input=takes_input))

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield channel and bytes until the connection ends."""
        while (piece := await self._frames.next()) is not None:
            if not self._frames.full:
                self._protocol.resume_reading()
            yield piece

    async def send(self, data: bytes) -> None:
        """Send bytes to the command's input."""
        for start in range(0, len(data), _FRAME_BYTES):
            part = data[start : start + _FRAME_BYTES]
            self._num_sent += len(part)
            await self._writer.write(_HEAD.pack(_STREAMS[STDIN], len(part)) + part)

    async def close_input(self) -> None:
        """End the command's input."""
        await self._writer.write(_HEAD.pack(_STREAMS[STDIN], _FIN << 24))

    async def close(self) -> None:
        """Close the connection."""
        self._heart.cancel()
        self._response.close()

    async def _beat(self, every_s: float) -> None:
        """Abort the connection once nothing has been transferred in either direction for `UNRESPONSIVE_S`.

        A ping is queued after unread input of the command, so sent bytes count as progress, too.
        """
        try:
            await self._until_silent(every_s)
        except asyncio.CancelledError:
            raise
        except Exception:  # the connection is no longer watched: its readers must not wait for ever
            self._break()
            raise
        self._break()

    def _break(self) -> None:
        self._protocol.abort()
        self._frames.feed_eof()

    async def _until_silent(self, every_s: float) -> None:
        moved, silent_s = (-1, -1), 0.0
        while silent_s < UNRESPONSIVE_S and (transport := self._protocol.transport) is not None:
            unsent = transport.get_write_buffer_size()
            now = (self._frames.num_received, self._num_sent - unsent)
            silent_s = silent_s + every_s if now == moved and not self._frames.full else 0.0
            moved = now
            if not unsent:
                with contextlib.suppress(
                    aiohttp.ClientError, ConnectionError
                ):  # the reader gets the end of the connection
                    await self._writer.write(_HEAD.pack(_CONTROL | _PING, len(_PING_ID)) + _PING_ID)
            await asyncio.sleep(every_s)
