"""Connections to an API server in tests: certificates, a TLS front end, a CONNECT proxy, tokens, kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from support.api_server import NAMESPACE, ApiServer

HOST = "api.hospital.test"  # no name server knows it


class GuardedServer(ApiServer):
    """An API server that requires a token for lists and commands.

    Attributes:
        accepts: returns whether a token is valid.
        refused: how many requests had another one.
    """

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        super().__init__()
        self.accepts, self.refused = accepts, 0

    def _refused(self, request: web.Request) -> web.Response | None:
        if not self.accepts(request.headers.get("Authorization", "").removeprefix("Bearer ")):
            self.refused += 1
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        return super()._refused(request)


class Relay:
    """A port of 127.0.0.1 that forwards connections to another one; between `__enter__` and `__exit__`.

    Args:
        target: port that connections end at.
        tls: makes it speak TLS.
        connect: makes it a proxy: connections begin with CONNECT.
        password: `user:password` that the proxy wants.

    Attributes:
        targets: addresses that clients requested from the proxy.
        subjects: common names of the certificates that clients have shown.
    """

    def __init__(
        self, target: int, *, tls: ssl.SSLContext | None = None, connect: bool = False, password: str = ""
    ) -> None:
        self.targets: list[str] = []
        self.subjects: list[str] = []
        self._target, self._tls, self._connect = target, tls, connect
        self._password = base64.b64encode(password.encode()).decode()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Relay:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opening = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        server = asyncio.run_coroutine_threadsafe(opening, self._loop).result(10)
        self.port: int = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if shown := writer.get_extra_info("peercert"):
            self.subjects += [value for part in shown["subject"] for key, value in part if key == "commonName"]
        if self._connect and not await self._accept(reader, writer):
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        verb, address, _ = head.split(" ", 2)
        good = verb == "CONNECT" and f"Basic {self._password}" in (head if self._password else "Basic ")
        if good:
            self.targets.append(address)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if good else b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return good


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
        writer.close()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate for a name that is its own authority, and its key."""
    files = folder / f"{name}.crt", folder / f"{name}.key"
    form = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(
        ["openssl", "req", *form, *names, "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return files


def tls(certificate_and_key: tuple[Path, Path], *, clients: Path | None = None) -> ssl.SSLContext:
    """Return a server's TLS context; with `clients` it requires client certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate_and_key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def write_kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> str:
    """Write a kubeconfig of one cluster and one user; return its path."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "radiology",
        "clusters": [{"name": "hospital", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": "radiology", "context": {"cluster": "hospital", "user": "me", "namespace": NAMESPACE}}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)
