"""The way between two places, machines or pods: the same files, or straight, by the programs of a run; and by the bucket."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medweave.doctor.connection import Closed
from medweave.doctor.hop import Health, Hop
from medweave.doctor.probe_host import Ground, Opened, Pods
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.routes.bucket.bucket_copy import BucketRoute
from medweave_connectors.transfer.routes.bucket.settings import BucketSettings, parse_bucket
from medweave_connectors.transfer.routes.direct.commands import PORTS
from medweave_connectors.transfer.routes.direct.direct_copy import (
    CopyBroke,
    Listener,
    NotConnected,
    PeerTask,
    copy_directly,
)
from medweave_core.errors import UsageError

NAME, BUCKET = "route", "bucket"
NUM_BYTES = 8 * 2**20
_SENDS, _TAKES = ["head", "-c", str(NUM_BYTES), "/dev/urandom"], ["sh", "-c", "cat > /dev/null"]
_FIRST = "do what its own line says, then try again"
_BY_BUCKET_S = 60.0  # its probes wait 45 s for an answer


def between(one: Ground, other: Ground, transfers: Mapping[str, Any]) -> Iterator[Hop]:
    """The best way between two places, as a run takes it, and its speed.

    Args:
        transfers: of the site file.
    """
    place = f"{one.name} - {other.name}"
    try:
        with one.opened() as first, other.opened() as second:
            yield _tried(place, (one, other), (first, second), transfers)
    except (Closed, UsageError) as error:
        seen = "not tried: one of the two is not reached, as its own line says"
        yield Hop(place=place, name=NAME, health=Health.UNKNOWN, seen=seen, do=error.do or _FIRST)


def by_bucket(ground: Ground, given: Mapping[str, Any], folder: Path) -> Iterator[Hop]:
    """The bucket of a site file, from a place: bytes are stored there, fetched again, and removed by this machine.

    Args:
        given: `transfers.bucket`.
        folder: of the site file.
    """

    def hop(health: Health, seen: str, do: str = "") -> Hop:
        return Hop(place=ground.name, name=BUCKET, health=health, seen=f"{given['bucket']}: {seen}", do=do)

    try:
        bucket = parse_bucket(given, folder=folder)
    except UsageError as error:
        what = error.what.replace("dataManager.config", "transfers")
        do = error.do or "correct transfers.bucket in the site file"
        yield hop(Health.FAULT, f"{what} {error.seen or ''}".strip(), do)
        return
    left: list[str] = []
    try:
        with ground.opened() as opened:
            speed = asyncio.run(_stored(opened.end, bucket, left))
    except (Closed, UsageError) as error:
        yield hop(Health.UNKNOWN, "not tried: this place is not reached, as its own line says", error.do or _FIRST)
        return
    except (NotConnected, CopyBroke, TimeoutError) as error:
        why = str(error).replace("at the source: ", "").replace("at the destination: ", "") or "it does not end"
        do = "correct transfers.bucket or its account, or let this place reach it; till then a run copies through this machine"
        yield hop(Health.WARNING, f"no way by it: {why}", do)
        return
    yield hop(Health.OK, f"{speed / 1e6:.0f} MB/s for what is stored there and fetched again")
    for each in left:
        yield hop(Health.WARNING, each, "remove them, and let the account do so")


async def _stored(end: Endpoint, bucket: BucketSettings, left: list[str]) -> float:
    """Bytes per second, from the place by the bucket to itself."""
    began: list[float] = []
    async with asyncio.timeout(_BY_BUCKET_S):
        await BucketRoute(bucket, left.append).copy(
            PeerTask(end, _SENDS),
            PeerTask(replace(end, name=f"{end.name}/again"), _TAKES),
            connected=lambda: began.append(time.monotonic()),
        )
    return NUM_BYTES / (time.monotonic() - began[0])


def _tried(place: str, grounds: Sequence[Ground], opened: Sequence[Opened], transfers: Mapping[str, Any]) -> Hop:
    one, _ = grounds
    if transfers.get("sameFileSystem", True) and one.workdir and _sees(one.workdir, opened):
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
    told = asyncio.run(_straight([each.end for each in opened], (low, high), max(each.limit_s for each in grounds)))
    if isinstance(told, str):
        pods = (
            "; `networkPolicy.direct` of our charts lets pods"
            if any(isinstance(each, Pods) for each in grounds)
            else ""
        )
        do = (
            f"let one of them reach the other at a port from {low} to {high} (transfers.directPorts names others{pods}), "
            "with python3 3.8 or newer on both; or name a bucket that both reach (transfers.bucket)"
        )
        return Hop(place=place, name=NAME, health=Health.WARNING, seen=f"none straight: {told}; {after}", do=do)
    there, back, listener = told
    seen = (
        f"direct: {there / 1e6:.0f} MB/s there, {back / 1e6:.0f} MB/s back, over one connection; "
        f"{grounds[listener].name} listens, at a port from {low} to {high}"
    )
    return Hop(place=place, name=NAME, health=Health.OK, seen=seen)


def _next(transfers: Mapping[str, Any]) -> str:
    bucket = transfers.get("bucket")
    return f"a run takes the bucket '{bucket['bucket']}'" if bucket else "a run copies through this machine"


def _sees(workdir: str, opened: Sequence[Opened]) -> bool:
    """Whether the other one sees a new file in the one's workdir, or in the folder above it that is there."""
    first, second = opened
    name = f".medweave-doctor-{secrets.token_hex(8)}"
    above = f'at={shlex.quote(workdir)}; while [ ! -d "$at" ]; do at=${{at%/*}}; at=${{at:-/}}; done'
    made = first.ask(f'{above}; : > "$at/{name}" && printf %s "$at"')
    if not made:
        return False
    path = shlex.quote(f"{made}/{name}")
    try:
        return second.ask(f"[ -e {path} ] && echo seen").strip() == "seen"
    finally:
        first.ask(f"rm -f {path}")


async def _straight(ends: Sequence[Endpoint], ports: tuple[int, int], limit_s: float) -> tuple[float, float, int] | str:
    """Bytes per second there and back, and which end listens; or why there is no such way."""
    why = []
    for listener in (1, 0):
        try:
            there = await _sent(ends[0], ends[1], Listener.TARGET if listener else Listener.SOURCE, ports, limit_s)
            back = await _sent(ends[1], ends[0], Listener.SOURCE if listener else Listener.TARGET, ports, limit_s)
            return there, back, listener
        except (NotConnected, CopyBroke) as error:
            why.append(str(error))
        except TimeoutError:
            why.append(f"no end after {limit_s:.0f} s")
    return "; ".join(dict.fromkeys(why))


async def _sent(
    source: Endpoint, target: Endpoint, listener: Listener, ports: tuple[int, int], limit_s: float
) -> float:
    began: list[float] = []
    async with asyncio.timeout(limit_s):
        await copy_directly(
            PeerTask(source, _SENDS),
            PeerTask(target, _TAKES),
            listener,
            ports=ports,
            connected=lambda: began.append(time.monotonic()),
        )
    return NUM_BYTES / (time.monotonic() - began[0])
