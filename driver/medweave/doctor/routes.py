"""Checks of the routes between two hosts (same file system, direct) and of the bucket, by the programs of a run."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medweave.doctor.connection import Unreachable
from medweave.doctor.hop_result import Health, HopResult
from medweave.doctor.probe_host import PodProbeHost, ProbeHost, ReachedHost
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
_SEND, _RECEIVE = ["head", "-c", str(NUM_BYTES), "/dev/urandom"], ["sh", "-c", "cat > /dev/null"]
_FIRST = "fix the deployment's own line first, then run doctor again"
_BY_BUCKET_S = 60.0  # its probes wait 45 s for an answer


def between(one: ProbeHost, other: ProbeHost, transfers: Mapping[str, Any]) -> Iterator[HopResult]:
    """Yield the hop of the best route between two hosts, as a run would choose it, with its speed.

    Args:
        transfers: key `transfers` of the site file.
    """
    place = f"{one.name} - {other.name}"
    try:
        with one.opened() as first, other.opened() as second:
            yield _check_route(place, (one, other), (first, second), transfers)
    except (Unreachable, UsageError) as error:
        seen = "not tested: one of the two deployments is unreachable, see its lines"
        yield HopResult(place=place, name=NAME, health=Health.UNKNOWN, seen=seen, do=error.do or _FIRST)


def by_bucket(host: ProbeHost, settings: Mapping[str, Any], folder: Path) -> Iterator[HopResult]:
    """Yield the hop of a site's bucket from a host: bytes are stored, fetched and removed.

    Args:
        settings: key `transfers.bucket` of the site file.
        folder: folder of the site file.
    """

    def hop(health: Health, seen: str, do: str = "") -> HopResult:
        return HopResult(place=host.name, name=BUCKET, health=health, seen=f"{settings['bucket']}: {seen}", do=do)

    try:
        bucket = parse_bucket(settings, folder=folder)
    except UsageError as error:
        what = error.what.replace("dataManager.config", "transfers")
        do = error.do or "correct transfers.bucket in the site file"
        yield hop(Health.FAULT, f"{what} {error.seen or ''}".strip(), do)
        return
    remains: list[str] = []
    try:
        with host.opened() as opened:
            speed = asyncio.run(_store_and_fetch(opened.end, bucket, remains))
    except (Unreachable, UsageError) as error:
        yield hop(Health.UNKNOWN, "not tested: the deployment is unreachable, see its lines", error.do or _FIRST)
        return
    except (NotConnected, CopyBroke, TimeoutError) as error:
        why = str(error).replace("at the source: ", "").replace("at the destination: ", "") or "timeout"
        do = (
            "correct transfers.bucket or its account, or allow this host to reach the bucket; until then, runs "
            "copy through this machine"
        )
        yield hop(Health.WARNING, f"the route does not work: {why}", do)
        return
    yield hop(Health.OK, f"{speed / 1e6:.0f} MB/s to store and fetch data")
    for message in remains:
        yield hop(Health.WARNING, message, "remove these objects, and allow the account to delete")


async def _store_and_fetch(end: Endpoint, bucket: BucketSettings, remains: list[str]) -> float:
    """Return bytes per second from the host by the bucket back to it; append messages about blobs that remain."""
    began: list[float] = []
    async with asyncio.timeout(_BY_BUCKET_S):
        await BucketRoute(bucket, remains.append).copy(
            PeerTask(end, _SEND),
            PeerTask(replace(end, name=f"{end.name}/again"), _RECEIVE),
            connected=lambda: began.append(time.monotonic()),
        )
    return NUM_BYTES / (time.monotonic() - began[0])


def _check_route(
    place: str, hosts: Sequence[ProbeHost], opened: Sequence[ReachedHost], transfers: Mapping[str, Any]
) -> HopResult:
    one, _ = hosts
    if transfers.get("sameFileSystem", True) and one.workdir and _shares_files(one.workdir, opened):
        return HopResult(
            place=place,
            name=NAME,
            health=Health.OK,
            seen=f"same-file-system: both sites see {one.workdir}; copies are links",
        )
    after = _next(transfers)
    if not transfers.get("direct", True):
        seen = f"direct copies are disabled (`transfers: {{direct: false}}`): {after}"
        return HopResult(place=place, name=NAME, health=Health.OK, seen=seen)
    low, high = transfers.get("directPorts") or PORTS
    result = asyncio.run(
        _measure_direct([host.end for host in opened], (low, high), max(host.limit_s for host in hosts))
    )
    if isinstance(result, str):
        pods = (
            "; allow pods with `networkPolicy.direct` of the chart"
            if any(isinstance(host, PodProbeHost) for host in hosts)
            else ""
        )
        do = (
            f"let one site reach the other on a port from {low} to {high} (change them with "
            f"transfers.directPorts{pods}), with python3 3.8 or newer at both; or configure a bucket that both "
            "reach (transfers.bucket)"
        )
        return HopResult(
            place=place, name=NAME, health=Health.WARNING, seen=f"no direct route: {result}; {after}", do=do
        )
    forward, back, listener = result
    seen = (
        f"direct: {forward / 1e6:.0f} MB/s forward, {back / 1e6:.0f} MB/s back, over one connection; "
        f"{hosts[listener].name} listens on a port from {low} to {high}"
    )
    return HopResult(place=place, name=NAME, health=Health.OK, seen=seen)


def _next(transfers: Mapping[str, Any]) -> str:
    bucket = transfers.get("bucket")
    return f"runs use the bucket '{bucket['bucket']}'" if bucket else "runs copy through this machine"


def _shares_files(workdir: str, opened: Sequence[ReachedHost]) -> bool:
    """Return whether the second host sees a new file in the first one's workdir or its nearest existing parent."""
    first, second = opened
    name = f".medweave-doctor-{secrets.token_hex(8)}"
    above = f'at={shlex.quote(workdir)}; while [ ! -d "$at" ]; do at=${{at%/*}}; at=${{at:-/}}; done'
    folder = first.ask(f'{above}; : > "$at/{name}" && printf %s "$at"')
    if not folder:
        return False
    path = shlex.quote(f"{folder}/{name}")
    try:
        return second.ask(f"[ -e {path} ] && echo seen").strip() == "seen"
    finally:
        first.ask(f"rm -f {path}")


async def _measure_direct(
    ends: Sequence[Endpoint], ports: tuple[int, int], limit_s: float
) -> tuple[float, float, int] | str:
    """Return bytes per second in both directions and the listening end; or why there is no direct route."""
    why = []
    for listener in (1, 0):
        try:
            forward = await _send_between(
                ends[0], ends[1], Listener.TARGET if listener else Listener.SOURCE, ports, limit_s
            )
            back = await _send_between(
                ends[1], ends[0], Listener.SOURCE if listener else Listener.TARGET, ports, limit_s
            )
            return forward, back, listener
        except (NotConnected, CopyBroke) as error:
            why.append(str(error))
        except TimeoutError:
            why.append(f"timeout after {limit_s:.0f} s")
    return "; ".join(dict.fromkeys(why))


async def _send_between(
    source: Endpoint, target: Endpoint, listener: Listener, ports: tuple[int, int], limit_s: float
) -> float:
    began: list[float] = []
    async with asyncio.timeout(limit_s):
        await copy_directly(
            PeerTask(source, _SEND),
            PeerTask(target, _RECEIVE),
            listener,
            ports=ports,
            connected=lambda: began.append(time.monotonic()),
        )
    return NUM_BYTES / (time.monotonic() - began[0])
