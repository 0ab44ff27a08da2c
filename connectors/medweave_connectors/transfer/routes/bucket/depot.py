"""One copy by way of a bucket: the driver signs a URL for each piece, and removes it once it was fetched. No streamflow in here."""

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
from medweave_connectors.transfer.routes.bucket.settings import Bucket, tls
from medweave_connectors.transfer.routes.bucket.signing import presigned
from medweave_connectors.transfer.routes.direct.carry import Half, Unreached, all_ended, broke, opened
from medweave_connectors.transfer.routes.direct.dialogue import Dialogue, EndFailed

VALID_S = 900  # of a URL; it is signed when its piece comes next
AHEAD, ROOM = 6, 24  # pieces that the source may be sent URLs for, beyond those that were stored, or fetched
AT_ONCE = 4  # copies
REACH_S, REMOVE_S, CLEAN_S = 45.0, 15.0, 60.0
LATE_S = (0.5, 1.5)  # a piece whose sender was ended may come to be there a moment after it was removed
PROBE = "probe"
_GONE = (200, 204, 404)


@dataclass(slots=True)
class _Copy:
    """The objects of one copy.

    Attributes:
        folder: the first part of their keys, which says nothing of what is in them.
        allowed, stored, took: how many pieces may be stored, were stored, and were fetched.
        there: keys of objects that may be there.
        reached: the source has stored something.
        ended: both ends have ended well.
    """

    folder: str = field(default_factory=lambda: secrets.token_hex(16))
    allowed: int = 0
    stored: int = 0
    took: int = 0
    there: set[str] = field(default_factory=set)
    reached: bool = False
    ended: bool = False

    def key(self, name: int | str) -> str:
        """Of a piece, by its number, or of the probe."""
        return f"{self.folder}/{name}"


class Depot:
    """The bucket of a site file, in which copies lie until they are fetched.

    Args:
        left: told in words when objects could not be removed.
    """

    def __init__(self, bucket: Bucket, left: Callable[[str], None]) -> None:
        self._bucket, self._left = bucket, left
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tls = tls(bucket.ca)

    async def carry(self, source: Half, target: Half, connected: Callable[[], None] = lambda: None) -> int:
        """Sends what the source's command writes to the target's command; the bytes of it.

        Args:
            connected: called when both have reached the bucket, before the first piece.

        Raises:
            Unreached: one of the three does not reach the bucket; nothing was begun.
            Broke: something failed later.
        """
        copy, key = _Copy(), secrets.token_hex(32)
        async with self._places, aiohttp.ClientSession(trust_env=True) as session:
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
        copy: _Copy,
        key: str,
        source: Half,
        target: Half,
    ) -> list[Dialogue]:
        told = {"key": key, "ca": self._bucket.ca, "content": secrets.token_hex(16)}
        try:
            ends = await opened(open_ends, source.end, target.end, program=program_text.framed("bucket_peer"))
        except EndFailed as error:
            raise Unreached(error.why) from None
        for end, half, method, where in ((ends[0], source, "PUT", "source"), (ends[1], target, "GET", "destination")):
            try:
                probe = self._signed(copy, PROBE, method)
                await end.begin({**told, "probe": probe, **half.work}, sends=half is source)
                async with asyncio.timeout(REACH_S):
                    await end.hear("reached")
                copy.reached = True
            except EndFailed as error:
                raise Unreached(f"at the {where}: {error.why}") from None
            except TimeoutError:
                raise Unreached(f"at the {where}: the bucket does not answer") from None
        if why := await self._removed(session, copy, PROBE):
            raise Unreached(f"at this machine, which has to remove what was fetched: {why}")
        return ends

    async def _ended(self, session: aiohttp.ClientSession, copy: _Copy, first: Dialogue, second: Dialogue) -> int:
        """The bytes, once both have ended well."""
        removing: set[asyncio.Task[str]] = set()

        async def source() -> int:
            while (told := await first.hear("now"))["now"] != "ended":
                copy.stored += 1
                url = self._signed(copy, told["number"], "GET")
                await second.tell(number=told["number"], last=told["last"], url=url)
                await self._allow(copy, first)
            return int(told["bytes"])

        async def target() -> int:
            while (told := await second.hear("now"))["now"] != "ended":
                copy.took += 1
                removing.add(asyncio.create_task(self._removed(session, copy, told["number"])))
                await self._allow(copy, first)
            return int(told["bytes"])

        try:
            await self._allow(copy, first)
            num_bytes = (await all_ended(source(), target()))[0]
            copy.ended = True
            return num_bytes
        except EndFailed as error:
            raise broke(error) from None
        finally:
            await asyncio.gather(*removing, return_exceptions=True)

    async def _allow(self, copy: _Copy, source: Dialogue) -> None:
        """Gives the source URLs for the next pieces, as many as there is room for; it may have ended."""
        while copy.allowed < min(copy.stored + AHEAD, copy.took + ROOM):
            number, copy.allowed = copy.allowed, copy.allowed + 1
            with contextlib.suppress(EndFailed):  # what it said last is heard elsewhere
                await source.tell(url=self._signed(copy, number, "PUT"))

    # ---- the bucket

    def _signed(self, copy: _Copy, name: int | str, method: str) -> str:
        if method == "PUT":
            copy.there.add(copy.key(name))
        url, now = self._bucket.url_of(copy.key(name)), datetime.datetime.now(datetime.UTC)
        return presigned(method, url, self._bucket.credentials, region=self._bucket.region, now=now, valid_s=VALID_S)

    async def _removed(self, session: aiohttp.ClientSession, copy: _Copy, name: int | str) -> str:
        """Removes an object; why it could not be, or nothing."""
        url = URL(self._signed(copy, name, "DELETE"), encoded=True)
        try:
            async with asyncio.timeout(REMOVE_S), session.delete(url, ssl=self._tls, allow_redirects=False) as answer:
                if answer.status not in _GONE:
                    return f"the bucket answers {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError):
            return "the bucket is not reached"
        copy.there.discard(copy.key(name))
        return ""

    async def _clean(self, session: aiohttp.ClientSession, copy: _Copy) -> None:
        """Removes what may be there still: both ends have ended."""
        names: list[int | str] = [key.rpartition("/")[2] for key in copy.there]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S):
                await self._all_removed(session, copy, names)
                for pause_s in () if copy.ended or not copy.reached else LATE_S:
                    await asyncio.sleep(pause_s)
                    await self._all_removed(session, copy, range(copy.stored, copy.allowed))
        if copy.there and copy.reached:
            self._left(f"up to {len(copy.there)} objects are left in the bucket, under {copy.folder}/")

    async def _all_removed(self, session: aiohttp.ClientSession, copy: _Copy, names: Iterable[int | str]) -> None:
        await asyncio.gather(*(self._removed(session, copy, name) for name in names))
