"""One copy by a bucket: the driver signs a URL for each piece, and removes the piece once it was fetched. No streamflow in here."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from medweave_connectors.transfer.agent import program_text
from medweave_connectors.transfer.routes.bucket.settings import BucketSettings, tls
from medweave_connectors.transfer.routes.bucket.signing import presigned
from medweave_connectors.transfer.routes.direct.direct_copy import (
    NotConnected,
    PeerTask,
    as_broken_copy,
    start_peers,
    wait_for_peers,
)
from medweave_connectors.transfer.routes.direct.peer_program import PeerProgram, PeerProgramFailed

VALID_S = 900  # of a URL; it is signed when its piece comes next
AHEAD, ROOM = 6, 24  # pieces with a URL for storing, beyond the stored pieces, and beyond the fetched ones
AT_ONCE = 4  # copies
REACH_S, REMOVE_S, CLEAN_S = 45.0, 15.0, 60.0
LATE_S = (0.5, 1.5)  # a piece may appear a moment after its removal, where its sender was ended
PROBE = "probe"
_GONE = (200, 204, 404)


@dataclass(slots=True)
class _CopyObjects:
    """The objects of one copy in the bucket.

    Attributes:
        folder: the first part of their keys; it is random.
        allowed, stored, fetched: number of pieces with a URL for storing, of stored and of fetched pieces.
        present: keys of objects that may be in the bucket.
        reached: the source has stored an object.
        ended: both ends have succeeded.
    """

    folder: str = field(default_factory=lambda: secrets.token_hex(16))
    allowed: int = 0
    stored: int = 0
    fetched: int = 0
    present: set[str] = field(default_factory=set)
    reached: bool = False
    ended: bool = False

    def key(self, name: int | str) -> str:
        """Return the key of a piece, by its number, or of the probe."""
        return f"{self.folder}/{name}"


class BucketRoute:
    """The route by the bucket of a site file.

    Args:
        report_leftover: called with a message when objects could not be removed.
    """

    def __init__(self, bucket: BucketSettings, report_leftover: Callable[[str], None]) -> None:
        self._bucket, self._report_leftover = bucket, report_leftover
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tls = tls(bucket.ca)

    async def copy(self, source: PeerTask, target: PeerTask, connected: Callable[[], None] = lambda: None) -> int:
        """Send what the source's command writes to the target's command; return the number of bytes.

        Args:
            connected: called when both have reached the bucket, before the first piece.

        Raises:
            NotConnected: an end or this machine does not reach the bucket; nothing was sent.
            Broke: something failed later.
        """
        copy, key = _CopyObjects(), secrets.token_hex(32)
        async with self._slots, aiohttp.ClientSession(trust_env=True) as session:
            try:
                async with contextlib.AsyncExitStack() as open_ends:
                    ends = await self._begun(open_ends, session, copy, key, source, target)
                    connected()
                    return await self._ended(session, copy, *ends)
            finally:
                await asyncio.shield(self._clean(session, copy))

    async def _begun(
        self,
        open_ends: contextlib.AsyncExitStack,
        session: aiohttp.ClientSession,
        copy: _CopyObjects,
        key: str,
        source: PeerTask,
        target: PeerTask,
    ) -> list[PeerProgram]:
        settings = {"key": key, "ca": self._bucket.ca, "content": secrets.token_hex(16)}
        try:
            ends = await start_peers(open_ends, source.end, target.end, program=program_text.framed("bucket_peer"))
        except PeerProgramFailed as error:
            raise NotConnected(error.why) from None
        for end, task, method, where in ((ends[0], source, "PUT", "source"), (ends[1], target, "GET", "destination")):
            try:
                probe = self._signed(copy, PROBE, method)
                await end.start_task({**settings, "probe": probe, **task.settings}, sends=task is source)
                async with asyncio.timeout(REACH_S):
                    await end.wait_for("reached")
                copy.reached = True
            except PeerProgramFailed as error:
                raise NotConnected(f"at the {where}: {error.why}") from None
            except TimeoutError:
                raise NotConnected(f"at the {where}: the bucket does not respond") from None
        if why := await self._remove(session, copy, PROBE):
            raise NotConnected(f"at this machine, which has to remove the fetched objects: {why}")
        return ends

    async def _ended(
        self, session: aiohttp.ClientSession, copy: _CopyObjects, first: PeerProgram, second: PeerProgram
    ) -> int:
        """Return the number of bytes, once both ends have succeeded."""
        removing: set[asyncio.Task[str]] = set()

        async def source() -> int:
            while (message := await first.wait_for("now"))["now"] != "ended":
                copy.stored += 1
                url = self._signed(copy, message["number"], "GET")
                await second.send_line(number=message["number"], last=message["last"], url=url)
                await self._allow(copy, first)
            return int(message["bytes"])

        async def target() -> int:
            while (message := await second.wait_for("now"))["now"] != "ended":
                copy.fetched += 1
                removing.add(asyncio.create_task(self._remove(session, copy, message["number"])))
                await self._allow(copy, first)
            return int(message["bytes"])

        try:
            await self._allow(copy, first)
            num_bytes = (await wait_for_peers(source(), target()))[0]
            copy.ended = True
            return num_bytes
        except PeerProgramFailed as error:
            raise as_broken_copy(error) from None
        finally:
            await asyncio.gather(*removing, return_exceptions=True)

    async def _allow(self, copy: _CopyObjects, source: PeerProgram) -> None:
        """Send the source URLs for the next pieces, as many as may be in the bucket; the source may have ended."""
        while copy.allowed < min(copy.stored + AHEAD, copy.fetched + ROOM):
            number, copy.allowed = copy.allowed, copy.allowed + 1
            with contextlib.suppress(PeerProgramFailed):  # `wait_for` reports it
                await source.send_line(url=self._signed(copy, number, "PUT"))

    # ---- the bucket

    def _signed(self, copy: _CopyObjects, name: int | str, method: str) -> str:
        if method == "PUT":
            copy.present.add(copy.key(name))
        url, now = self._bucket.url_of(copy.key(name)), datetime.datetime.now(datetime.UTC)
        return presigned(method, url, self._bucket.credentials, region=self._bucket.region, now=now, valid_s=VALID_S)

    async def _remove(self, session: aiohttp.ClientSession, copy: _CopyObjects, name: int | str) -> str:
        """Remove an object; return why that failed, empty where it did not."""
        url = URL(self._signed(copy, name, "DELETE"), encoded=True)
        try:
            async with asyncio.timeout(REMOVE_S), session.delete(url, ssl=self._tls, allow_redirects=False) as answer:
                if answer.status not in _GONE:
                    return f"the bucket responds with status {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError):
            return "the bucket cannot be reached"
        copy.present.discard(copy.key(name))
        return ""

    async def _clean(self, session: aiohttp.ClientSession, copy: _CopyObjects) -> None:
        """Remove what may still be in the bucket, after both ends have ended."""
        names: list[int | str] = [key.rpartition("/")[2] for key in copy.present]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S):
                await self._remove_all(session, copy, names)
                for pause_s in () if copy.ended or not copy.reached else LATE_S:
                    await asyncio.sleep(pause_s)
                    await self._remove_all(session, copy, range(copy.stored, copy.allowed))
        if copy.present and copy.reached:
            self._report_leftover(f"up to {len(copy.present)} objects are left in the bucket, under {copy.folder}/")

    async def _remove_all(self, session: aiohttp.ClientSession, copy: _CopyObjects, names: Iterable[int | str]) -> None:
        await asyncio.gather(*(self._remove(session, copy, name) for name in names))
