"""The way between two machines that are reached by ssh: the same files, or straight, by the programs that a run starts there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paramiko

from medweave.doctor.hop import Health, Hop
from medweave.doctor.way import Closed, Login, connected, settings_of
from medweave_connectors.remote import stream_line
from medweave_connectors.transfer.direct.carry import Broke, Half, Listener, Unreached, carry
from medweave_connectors.transfer.direct.commands import PORTS
from medweave_connectors.transfer.direct.ends import End
from medweave_steps.contracts.errors import UsageError

NAME = "route"
NUM_BYTES = 8 * 2**20
_SENDS, _TAKES = ["head", "-c", str(NUM_BYTES), "/dev/urandom"], ["sh", "-c", "cat > /dev/null"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine.

    Attributes:
        name: the deployment's, with the node where it has several.
        workdir: of the deployment; None where it says none.
    """

    name: str
    login: Login
    workdir: str | None


def between(one: Place, other: Place, transfers: Mapping[str, Any]) -> Iterator[Hop]:
    """The best way between two machines, as a run takes it, and its speed.

    Args:
        transfers: of the site file.
    """
    place = f"{one.name} - {other.name}"
    try:
        with connected(one.login) as first, connected(other.login) as second:
            yield _tried(place, one, other, (first, second), transfers)
    except (Closed, UsageError) as error:
        seen = "not tried: one of the two is not reached, as its own line says"
        yield Hop(place=place, name=NAME, health=Health.UNKNOWN, seen=seen, do=getattr(error, "do", "") or "")


def _tried(
    place: str, one: Place, other: Place, clients: Sequence[paramiko.SSHClient], transfers: Mapping[str, Any]
) -> Hop:
    if transfers.get("sameFileSystem", True) and one.workdir and _sees(one, other, clients):
        return Hop(
            place=place,
            name=NAME,
            health=Health.OK,
            seen=f"same-file-system: both see {one.workdir}; copies are links there",
        )
    after = _next(transfers)
    if not transfers.get("direct", True):
        seen = f"straight copies are switched off by `transfers: {{direct: false}}`: {after}"
        return Hop(place=place, name=NAME, health=Health.OK, seen=seen)
    low, high = transfers.get("directPorts") or PORTS
    ends = [_end(each, client) for each, client in zip((one, other), clients, strict=True)]
    told = asyncio.run(_straight(ends, (low, high), one.login.limit_s))
    if isinstance(told, str):
        do = (
            f"let one of them reach the other at a port from {low} to {high} (transfers.directPorts names others), with python3 "
            "3.8 or newer on both; or name a bucket that both reach (transfers.bucket)"
        )
        return Hop(place=place, name=NAME, health=Health.WARNING, seen=f"none straight: {told}; {after}", do=do)
    there, back, listener = told
    seen = (
        f"direct: {there / 1e6:.0f} MB/s there, {back / 1e6:.0f} MB/s back, over one connection; "
        f"{(one, other)[listener].name} listens, at a port from {low} to {high}"
    )
    return Hop(place=place, name=NAME, health=Health.OK, seen=seen)


def _next(transfers: Mapping[str, Any]) -> str:
    bucket = transfers.get("bucket")
    return f"a run takes the bucket '{bucket['bucket']}'" if bucket else "a run copies through this machine"


def _sees(one: Place, other: Place, clients: Sequence[paramiko.SSHClient]) -> bool:
    """Whether the other one sees a new file in the one's workdir, or in the folder above it that is there."""
    name = f".medweave-doctor-{secrets.token_hex(8)}"
    above = f'at={shlex.quote(one.workdir or "/")}; while [ ! -d "$at" ]; do at=${{at%/*}}; at=${{at:-/}}; done'
    made = _ask(clients[0], f'{above}; : > "$at/{name}" && printf %s "$at"', one.login.limit_s)
    if not made:
        return False
    path = shlex.quote(f"{made}/{name}")
    try:
        return _ask(clients[1], f"[ -e {path} ] && echo seen", other.login.limit_s).strip() == "seen"
    finally:
        _ask(clients[0], f"rm -f {path}", one.login.limit_s)


def _ask(client: paramiko.SSHClient, line: str, limit_s: float) -> str:
    _, out, _ = client.exec_command(f"sh -c {shlex.quote(line)} 2>/dev/null", timeout=limit_s)
    return out.read().decode(errors="replace")


async def _straight(ends: Sequence[End], ports: tuple[int, int], limit_s: float) -> tuple[float, float, int] | str:
    """Bytes per second there and back, and which end listens; or why there is no such way."""
    why = []
    for listener in (1, 0):
        try:
            there = await _sent(ends[0], ends[1], Listener.TARGET if listener else Listener.SOURCE, ports, limit_s)
            back = await _sent(ends[1], ends[0], Listener.SOURCE if listener else Listener.TARGET, ports, limit_s)
            return there, back, listener
        except (Unreached, Broke) as error:
            why.append(str(error))
        except TimeoutError:
            why.append(f"no end after {limit_s:.0f} s")
    return "; ".join(dict.fromkeys(why))


async def _sent(source: End, target: End, listener: Listener, ports: tuple[int, int], limit_s: float) -> float:
    began: list[float] = []
    async with asyncio.timeout(limit_s):
        await carry(
            Half(source, _SENDS),
            Half(target, _TAKES),
            listener,
            ports=ports,
            connected=lambda: began.append(time.monotonic()),
        )
    return NUM_BYTES / (time.monotonic() - began[0])


def _end(place: Place, client: paramiko.SSHClient) -> End:
    host = settings_of(place.login).hostname

    async def begin(words: Sequence[str]) -> _Channel:
        return await asyncio.to_thread(_Channel, client, stream_line(words), place.login.limit_s)

    return End(place.name, [host], "", begin)


class _Channel:
    """A program there, with its input and output."""

    def __init__(self, client: paramiko.SSHClient, line: str, limit_s: float) -> None:
        transport = client.get_transport()
        assert transport is not None  # it is connected
        self._channel = transport.open_session(timeout=limit_s)
        self._channel.exec_command(line)

    @property
    def usable(self) -> bool:
        return not self._channel.closed

    async def write(self, data: bytes) -> None:
        await asyncio.to_thread(self._channel.sendall, data)

    async def read(self) -> bytes:
        read: Callable[[int], bytes] = self._channel.recv
        return await asyncio.to_thread(read, 2**16)

    async def close(self) -> None:
        with contextlib.suppress(OSError, paramiko.SSHException):
            self._channel.close()
