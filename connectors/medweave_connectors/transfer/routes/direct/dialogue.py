"""A far end that works, and what it says meanwhile. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from medweave_connectors.host.deadlines import UNRESPONSIVE_S
from medweave_connectors.host.shells import OpenShell
from medweave_connectors.transfer.routes.direct import commands
from medweave_connectors.transfer.routes.direct.endpoints import End

START_S = 30.0  # a login may take its time
SILENCE_S = UNRESPONSIVE_S  # it says something every five seconds
LEAVE_S = 5.0
LOST = "the connection to it was lost"  # which tells nothing of why
_STOP = b"stop\n"


class EndFailed(Exception):
    """An end that gave up.

    Attributes:
        why: in words that name no file.
        tar: exit status and last words of tar, if it was that; `commands.last_words` reads them.
    """

    def __init__(self, why: str, tar: Mapping[str, Any] | None = None) -> None:
        super().__init__(why)
        self.why, self.tar = why, tar


class Dialogue:
    """The program at one end, for a `with`: it has ended after it, and its tar with it, where the place can be reached."""

    def __init__(self, end: End, program: bytes) -> None:
        self.end, self._program = end, program
        self.heard: Callable[[int], None] = lambda _: None  # told how many more bytes of the stream have passed there
        self.moved = 0  # bytes of the stream, as it has told last
        self._shell: OpenShell
        self._held = bytearray()

    async def __aenter__(self) -> Dialogue:
        try:
            self._shell = await self.end.open(commands.start())
        except Exception:  # the connector's own: its words may be anything
            raise EndFailed("no session was given there") from None
        try:
            await self._write(self._program)  # it loads while the other end is asked
        except BaseException:
            await self._shell.close()
            raise
        return self

    async def begin(self, settings: Mapping[str, Any], *, sends: bool) -> None:
        """Tells it what to do."""
        await self._write(commands.line(settings, sends=sends))

    async def tell(self, **facts: Any) -> None:
        """Tells it more, in one line; another one may hear it meanwhile, and learns why where it does not listen.

        Raises:
            EndFailed: the connection was lost.
        """
        with _losses():
            await self._shell.write(json.dumps(facts).encode() + b"\n")

    async def hear(self, what: str, *, within_s: float = SILENCE_S) -> Any:
        """What it says of this, once it does.

        Args:
            within_s: it says at least something every so often.

        Raises:
            EndFailed: it gave up, or is not heard of any more.
        """
        with _losses():
            while True:
                async with asyncio.timeout(within_s):
                    told = await self._next()
                self._note(told)
                if "failed" in told:
                    raise EndFailed(str(told["failed"]), told.get("tar"))
                if what in told:
                    return told

    def _note(self, told: Mapping[str, Any]) -> None:
        moved = next((told[each] for each in ("beat", "moved", "ended") if isinstance(told.get(each), int)), 0)
        if moved > self.moved:
            self.heard(moved - self.moved)
            self.moved = moved

    async def _write(self, data: bytes) -> None:
        try:
            with _losses():
                await self._shell.write(data)
        except EndFailed:
            await self.hear("failed", within_s=LEAVE_S)  # it may have said why it does not listen
            raise

    async def _next(self) -> dict[str, Any]:
        looked = 0  # at so many bytes of what is held
        while True:
            ends = self._held.find(b"\n", looked)
            if ends >= 0:
                text, looked = bytes(self._held[:ends]), 0
                del self._held[: ends + 1]
                if (told := commands.read(text)) is not None:
                    return told
            elif len(self._held) > commands.MOST_BYTES:
                raise EndFailed("what it says has no end")
            elif data := await self._shell.read():
                looked = len(self._held)
                self._held += data
            else:
                raise EndFailed("its program ended without a word")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing may still write there when the next way is tried.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await self._shell.write(_STOP)
                while await self._shell.read():
                    pass
        await self._shell.close()


@contextlib.contextmanager
def _losses() -> Any:
    try:
        yield
    except EndFailed:
        raise
    except TimeoutError:
        raise EndFailed("it is not heard of any more") from None
    except Exception:  # of asyncssh or aiohttp
        raise EndFailed(LOST) from None
