"""One direct copy: an agent at each of two sites, and a TLS connection between them. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.agent.peer_link import CUT
from medweave_connectors.transfer.bandwidth import BandwidthShare
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.routes.direct import commands
from medweave_connectors.transfer.routes.direct.certificates import make_identity
from medweave_connectors.transfer.routes.direct.peer_program import LOST, START_S, PeerProgram, PeerProgramFailed

Value = TypeVar("Value")
OTHER_S = 5.0  # for the other agent's report of a failure


class Listener(StrEnum):
    """The end that listens for the other end's connection."""

    TARGET = "destination"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class PeerTask:
    """What the agent at one end does.

    Attributes:
        words: a command whose output is sent, or which gets what arrives.
        checker: of the archive that arrives, see `pieces.Piece.checker_for_agent`; None lets everything pass.
        tree: what the agent reads or writes itself, without a command: see `tree_stream_piece.TreeStream`.
    """

    end: Endpoint
    words: Sequence[str] = ()
    checker: Mapping[str, Any] | None = None
    tree: Mapping[str, Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that are sent to the agent."""
        return {"words": list(self.words), "guard": self.checker, "tree": self.tree}


@dataclass(frozen=True, slots=True)
class DirectCopyResult:
    """What went from one end to the other.

    Attributes:
        wire_bytes: what `num_bytes` took on the wire, before encryption.
        listing: of the tree that was sent, see `tree_stream.listing_of`; None where no tree was sent.
    """

    num_bytes: int
    wire_bytes: int
    listing: bytes | None


class NotConnected(Exception):
    """The two agents were not connected; nothing was sent. The message names no file."""


class CopyBroke(Exception):
    """The stream broke off.

    Attributes:
        tar_errors: the end of tar's standard error, which may name files; empty where tar did not fail.
        exit_status: of tar.
    """

    def __init__(self, why: str, tar_errors: str = "", exit_status: int | None = None) -> None:
        super().__init__(why)
        self.tar_errors, self.exit_status = tar_errors, exit_status


async def copy_directly(
    source: PeerTask,
    target: PeerTask,
    listener: Listener,
    *,
    ports: tuple[int, int],
    connected: Callable[[], None],
    meter: TransferMeter | None = None,
) -> DirectCopyResult:
    """Send what the source's task writes to the target's task.

    Args:
        ports: first and last port at which an end may listen.
        connected: called when both ends have authenticated each other, before the first byte.
        meter: counts the bytes, every few seconds; its bandwidth limit holds.

    Raises:
        NotConnected: another `listener` may help.
        CopyBroke: something failed after the connection.
    """
    meter = meter or TransferMeter()
    has_new_rate = asyncio.Event()
    async with contextlib.AsyncExitStack() as open_ends:
        try:
            first, second = await start_peers(
                open_ends, source.end, target.end, program=program_text.framed("direct_peer"), on_moved=meter.add
            )
            share = open_ends.enter_context(meter.limit.share(has_new_rate.set))
            await _connect(first, second, source, target, listener, ports, share)
        except PeerProgramFailed as error:
            raise NotConnected(error.why) from None
        connected()
        updating = asyncio.create_task(_send_rates(first, share, has_new_rate))
        try:
            report, _ = await wait_for_peers(*(peer.wait_for("ended") for peer in (first, second)))
            return DirectCopyResult(int(report["ended"]), int(report["wire"]), commands.parse_listing(report))
        except PeerProgramFailed as error:
            raise as_broken_copy(error) from None
        finally:
            updating.cancel()


async def _send_rates(sender: PeerProgram, share: BandwidthShare, has_new_rate: asyncio.Event) -> None:
    """Send each new rate to the agent that sends."""
    with contextlib.suppress(PeerProgramFailed):  # which is reported elsewhere
        while await has_new_rate.wait():
            has_new_rate.clear()
            await sender.send_line(rate=share.rate)


def as_broken_copy(error: PeerProgramFailed) -> CopyBroke:
    """Return the error of a copy that had begun."""
    tar = error.tar or {}
    return CopyBroke(error.why, commands.tar_errors(tar) if tar else "", tar.get("exit_status"))


async def start_peers(
    open_ends: contextlib.AsyncExitStack,
    source: Endpoint,
    target: Endpoint,
    *,
    program: bytes,
    on_moved: Callable[[int], None] = lambda _: None,
) -> list[PeerProgram]:
    """Start an agent at each end.

    Args:
        on_moved: called with each further number of bytes that the source's agent reports.

    Raises:
        PeerProgramFailed: an agent does not start.
    """
    # In one order for all copies: a site limits its sessions, and opposite copies must not wait for each other's.
    peers = {source.name: PeerProgram(source, program, on_moved), target.name: PeerProgram(target, program)}
    for name in sorted(peers):
        await open_ends.enter_async_context(peers[name])
    return [peers[source.name], peers[target.name]]


async def _connect(
    first: PeerProgram,
    second: PeerProgram,
    source: PeerTask,
    target: PeerTask,
    listener: Listener,
    ports: tuple[int, int],
    share: BandwidthShare,
) -> None:
    calling, waiting = (first, second) if listener == Listener.TARGET else (second, first)
    caller_task, waiter_task = (source, target) if listener == Listener.TARGET else (target, source)
    waiter_identity, caller_identity = make_identity(), make_identity()
    listening = commands.to_listen(bind=waiting.end.bind, own=waiter_identity, peer=caller_identity, ports=ports)
    rate = {"rate": share.rate}
    await waiting.start_task(listening | waiter_task.settings | rate, sends=waiting is first)
    report = await waiting.wait_for("listening", within_s=START_S)
    hosts = [*waiting.end.hosts, *report["addresses"]]
    connecting = commands.to_connect(hosts=hosts, port=report["listening"], own=caller_identity, peer=waiter_identity)
    await calling.start_task(connecting | caller_task.settings | rate, sends=calling is first)
    await calling.wait_for("connected", within_s=START_S)


async def wait_for_peers(*reports: Coroutine[Any, Any, Value]) -> list[Value]:
    """Return the reports of both agents, once both have succeeded.

    Raises:
        PeerProgramFailed: of the two failures that one cause may have, the more informative one.
    """
    tasks = [asyncio.ensure_future(report) for report in reports]
    try:
        return list(await asyncio.gather(*tasks))
    except PeerProgramFailed:
        # One agent may know the cause, the other one only that the stream was cut or nothing listens any more.
        await asyncio.wait(tasks, timeout=OTHER_S)
        errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        failures = [error for error in errors if isinstance(error, PeerProgramFailed)]
        raise max(failures, key=lambda error: (error.tar is not None, error.why not in (CUT, LOST))) from None
    finally:
        await cancel_and_wait(*tasks)
