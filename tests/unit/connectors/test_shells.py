"""Open shells of this machine: a waiter gets a freed one, and a command whose progress cannot be measured is not ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from medweave_connectors.host import deadlines, shells
from medweave_connectors.host.shells import Shells
from medweave_connectors.sites.ssh.sessions import NotReached, SessionSlots

LIMIT_S = 10.0


class LocalShell:
    """A shell of this machine.

    Args:
        close_error: raised when it is closed.
    """

    def __init__(self, process: asyncio.subprocess.Process, close_error: Exception | None) -> None:
        self._process, self._close_error = process, close_error
        self.usable = True

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(2**16)

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._close_error is not None:
            raise self._close_error


def open_shells(
    *, close_error: Exception | None = None, later_error: Exception | None = None
) -> contextlib.AbstractAsyncContextManager[Shells]:
    """Shells of which one at most is open; `later_error` is raised when a second one is opened."""
    num_opened = 0

    async def open_shell() -> LocalShell:
        nonlocal num_opened
        num_opened += 1
        if num_opened > 1 and later_error is not None:
            raise later_error
        pipe = asyncio.subprocess.PIPE
        return LocalShell(await asyncio.create_subprocess_exec("sh", stdin=pipe, stdout=pipe), close_error)

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Shells]:
        places = Shells(open_shell, "here")
        await places.keep_at_most(1)
        try:
            yield places
        finally:
            with contextlib.suppress(OSError):
                await places.close()

    return opened()


def test_a_canceled_waiter_does_not_keep_the_shell_from_the_next_one() -> None:
    async def act() -> tuple[str, int]:
        async with open_shells() as places:
            async with places._shell():
                waiters = [asyncio.create_task(places.execute("echo done", None)) for _ in range(2)]
                await asyncio.sleep(0.05)
            waiters[0].cancel()
            return await asyncio.wait_for(waiters[1], LIMIT_S)

    assert asyncio.run(act()) == ("done", 0)


def test_a_canceled_waiter_does_not_keep_a_place_from_the_next_one() -> None:
    async def act() -> None:
        places = SessionSlots(1)
        await places.enter()
        waiters = [asyncio.create_task(places.enter()) for _ in range(2)]
        await asyncio.sleep(0.05)
        await places.leave()
        waiters[0].cancel()
        await asyncio.wait_for(waiters[1], LIMIT_S)

    asyncio.run(act())


@pytest.mark.slow
def test_a_shell_that_cannot_be_closed_makes_room_for_the_next_one() -> None:
    async def act() -> tuple[str, int]:
        async with open_shells(close_error=OSError("broken pipe")) as places:
            with pytest.raises(OSError, match="broken pipe"):
                await places.execute("sleep 1", 0.2)
            return await asyncio.wait_for(places.execute("echo done", None), LIMIT_S)

    assert asyncio.run(act()) == ("done", 0)


@pytest.mark.slow
def test_a_command_whose_progress_cannot_be_measured_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "NO_PROGRESS_S", 0.5)
    monkeypatch.setattr(shells, "PROBE_S", 0.1)
    unexpected: list[str] = []

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        unexpected.append(context["message"])

    async def act() -> tuple[str, int]:
        asyncio.get_running_loop().set_exception_handler(note)
        async with open_shells(later_error=NotReached("no session")) as places:
            return await places.execute("sleep 1; echo done", None)

    assert asyncio.run(act()) == ("done", 0)
    assert not unexpected
