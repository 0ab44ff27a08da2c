"""The channels of a command in a container: standard input, both outputs, and the status at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from medweave_connectors.host.deadlines import UNRESPONSIVE_S

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
PROTOCOL = {"sec-websocket-protocol": "v5.channel.k8s.io"}  # the version that can say "no more input"
_CLOSE_STDIN = bytes((255, STDIN))
_ENDS = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
_FAREWELL_S = 2.0  # for a peer that does not read any more


class Channels(Protocol):
    """Connection with the channels of one command."""

    def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield channel and bytes until the connection ends."""

    async def send(self, data: bytes) -> None:
        """Send bytes to the command's input.

        Raises:
            ConnectionError, aiohttp.ClientError: the connection is over.
        """

    async def close_input(self) -> None:
        """End the command's input."""

    async def close(self) -> None:
        """Close the connection."""


class WebsocketChannels:
    """Channels over a websocket; the API server converts every frame to SPDY."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, heartbeat_s: float) -> None:
        """Create the channels; `heartbeat_s` is the time without a message after which the API server is pinged, s."""
        self._socket, self._heartbeat_s = socket, heartbeat_s
        self._ping: asyncio.Future[None] | None = None
        self._num_sent = 0

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield channel and bytes until the connection ends, or nothing has been transferred for `UNRESPONSIVE_S`.

        Only the time spent waiting for a message counts. aiohttp's heartbeat drops the connection of a slow reader: the answer
        to its ping arrives after output that is not read yet.
        """
        silent_s, moved = 0.0, -1
        while silent_s < UNRESPONSIVE_S:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    message = await self._socket.receive()
            except TimeoutError:
                # A ping is queued after unread input of the command, so sent bytes count as progress, too.
                before, moved = moved, self._num_sent - self._num_waiting()
                silent_s = silent_s + self._heartbeat_s if moved == before else 0.0
                self._ask()
                continue
            silent_s = 0.0
            if message.type == aiohttp.WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type == aiohttp.WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]
            elif message.type in _ENDS:
                return

    def _num_waiting(self) -> int:
        connection = self._socket._conn
        transport = None if connection is None else connection.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def _ask(self) -> None:
        """Ping the API server, unless the last ping has not been sent yet."""
        if self._ping is None or self._ping.done():
            self._ping = asyncio.ensure_future(self._socket.ping())
            self._ping.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def send(self, data: bytes) -> None:
        """Send bytes to the command's input."""
        self._num_sent += len(data)
        await self._socket.send_bytes(bytes((STDIN,)) + data)

    async def close_input(self) -> None:
        """End the command's input."""
        await self._socket.send_bytes(_CLOSE_STDIN)

    async def close(self) -> None:
        """Close the connection."""
        if self._ping is not None:
            self._ping.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._socket.close(), _FAREWELL_S)
