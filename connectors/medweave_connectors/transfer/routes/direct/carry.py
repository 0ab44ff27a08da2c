"""One direct copy: two programs at two ends, brought together. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.agent.peer_link import CUT
from medweave_connectors.transfer.bandwidth import Share
from medweave_connectors.transfer.progress import Flow
from medweave_connectors.transfer.routes.direct import commands
from medweave_connectors.transfer.routes.direct.certificates import make_identity
from medweave_connectors.transfer.routes.direct.dialogue import LOST, START_S, Dialogue, EndFailed
from medweave_connectors.transfer.routes.direct.endpoints import End

Value = TypeVar("Value")
OTHER_S = 5.0  # for what the other end says of a failure


class Listener(StrEnum):
    """Which end waits for the other to connect."""

    TARGET = "destination"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class Half:
    """One end with its command.

    Attributes:
        words: their output is sent; or they get what arrives.
        guard: of the archive that arrives, as `archive.for_far_end` has it; without one, everything passes.
        tree: what the end's program reads or writes by itself, without any words: see `planting.Tree`.
    """

    end: End
    words: Sequence[str] = ()
    guard: Mapping[str, Any] | None = None
    tree: Mapping[str, Any] | None = None

    @property
    def work(self) -> dict[str, Any]:
        """What the end is told of it."""
        return {"words": list(self.words), "guard": self.guard, "tree": self.tree}


@dataclass(frozen=True, slots=True)
class Carried:
    """What went from one end to the other.

    Attributes:
        wire_bytes: what `num_bytes` took on the wire, before it was encrypted.
        tree: what was read, as `tree_stream.noted` has it; None where it was no tree.
    """

    num_bytes: int
    wire_bytes: int
    tree: bytes | None


class Unreached(Exception):
    """The two were not brought together; nothing was sent. Its words name no file."""


class Broke(Exception):
    """The stream broke off.

    Attributes:
        told: tar's last words, which may name files; empty where it was not tar.
        exit_status: tar's.
    """

    def __init__(self, why: str, told: str = "", exit_status: int | None = None) -> None:
        super().__init__(why)
        self.told, self.exit_status = told, exit_status


async def carry(
    source: Half,
    target: Half,
    listener: Listener,
    *,
    ports: tuple[int, int],
    connected: Callable[[], None],
    flow: Flow | None = None,
) -> Carried:
    """Sends what the source's command writes to the target's command.

    Args:
        ports: first and last of those at which an end may listen.
        connected: called when the two have proved to each other who they are, before the first byte.
        flow: told how many more bytes have been sent, every few seconds; its limit counts.

    Raises:
        Unreached: they did not come together; another `listener` may help.
        Broke: something failed later.
    """
    flow = flow or Flow()
    async with contextlib.AsyncExitStack() as open_ends:
        try:
            first, second = await opened(open_ends, source.end, target.end, program=program_text.framed("direct_peer"))
            first.heard, share = flow.passed, open_ends.enter_context(flow.limit.share())
            await _together(first, second, source, target, listener, ports, share)
        except EndFailed as error:
            raise Unreached(error.why) from None
        connected()
        pacing = asyncio.create_task(_paced(first, share))
        try:
            told, _ = await all_ended(*(each.hear("ended") for each in (first, second)))
            return Carried(int(told["ended"]), int(told["wire"]), commands.read_tree(told))
        except EndFailed as error:
            raise broke(error) from None
        finally:
            pacing.cancel()


async def _paced(sender: Dialogue, share: Share) -> None:
    """Tells the end that sends what it may take, whenever that changes."""
    has_changed = asyncio.Event()
    share.changed = has_changed.set
    with contextlib.suppress(EndFailed):  # it is heard of elsewhere
        while await has_changed.wait():
            has_changed.clear()
            await sender.tell(rate=share.rate)


def broke(error: EndFailed) -> Broke:
    """The same, of what was begun."""
    tar = error.tar or {}
    return Broke(error.why, commands.last_words(tar) if tar else "", tar.get("exit_status"))


async def opened(open_ends: contextlib.AsyncExitStack, *ends: End, program: bytes) -> list[Dialogue]:
    """A program at each of the ends.

    Raises:
        EndFailed: at one of them it does not start.
    """
    # A site gives so many sessions at a time: two copies that go opposite ways do not each hold what the other waits for.
    there = {}
    for end in sorted(ends, key=lambda each: each.name):
        there[end.name] = await open_ends.enter_async_context(Dialogue(end, program))
    return [there[end.name] for end in ends]


async def _together(
    first: Dialogue,
    second: Dialogue,
    source: Half,
    target: Half,
    listener: Listener,
    ports: tuple[int, int],
    share: Share,
) -> None:
    calling, waiting = (first, second) if listener == Listener.TARGET else (second, first)
    callers, waiters = (source, target) if listener == Listener.TARGET else (target, source)
    own, other = make_identity(), make_identity()
    listening = commands.to_listen(bind=waiting.end.bind, own=own, peer=other, ports=ports)
    rate = {"rate": share.rate}
    await waiting.begin(listening | waiters.work | rate, sends=waiting is first)
    told = await waiting.hear("listening", within_s=START_S)
    hosts = [*waiting.end.hosts, *told["addresses"]]
    connecting = commands.to_connect(hosts=hosts, port=told["listening"], own=other, peer=own)
    await calling.begin(connecting | callers.work | rate, sends=calling is first)
    await calling.hear("connected", within_s=START_S)


async def all_ended(*work: Coroutine[Any, Any, Value]) -> list[Value]:
    """What each of the ends tells, once all have ended well.

    Raises:
        EndFailed: of those that one failure has made, the one that says most.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except EndFailed:
        # One of them knows why, and the other one only that the stream was cut, or that nobody listens any more.
        await asyncio.wait(tasks, timeout=OTHER_S)
        failures = [each.exception() for each in tasks if each.done() and not each.cancelled()]
        failed = [each for each in failures if isinstance(each, EndFailed)]
        raise max(failed, key=lambda each: (each.tar is not None, each.why not in (CUT, LOST))) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
