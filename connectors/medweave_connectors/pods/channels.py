"""The channels of a command in a container: its input, both outputs, and what the kubelet says about its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
PROTOCOL = {"sec-websocket-protocol": "v5.channel.k8s.io"}  # the version that can say "no more input"
_CLOSE_STDIN = bytes((255, STDIN))
_FAREWELL_S = 2.0  # for who reads no more


class Channels(Protocol):
    """One connection with all of them."""

    def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Channel and bytes, until the connection is over."""

    async def send(self, data: bytes) -> None:
        """Sends to the command's input.

        Raises:
            ConnectionError, aiohttp.ClientError: the connection is over.
        """

    async def close_input(self) -> None:
        """No more input."""

    async def close(self) -> None:
        """Hangs up."""


class WebsocketChannels:
    """Over the API server's websocket, which takes each frame apart and puts it together again as SPDY."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Channel and bytes, until the connection is over."""
        async for message in self._socket:
            if message.type == aiohttp.WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]

    async def send(self, data: bytes) -> None:
        """Sends to the command's input."""
        await self._socket.send_bytes(bytes((STDIN,)) + data)

    async def close_input(self) -> None:
        """No more input."""
        await self._socket.send_bytes(_CLOSE_STDIN)

    async def close(self) -> None:
        """Hangs up."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._socket.close(), _FAREWELL_S)
