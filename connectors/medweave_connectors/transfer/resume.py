"""A copy whose stream was cut goes on with what is missing: what has arrived is kept, aside from what may still write to it."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host import transfer_reasons
from medweave_connectors.host.errors import SiteUnreachable, StreamBroke, StreamCut, StreamRefused
from medweave_connectors.runlog import console, current
from medweave_connectors.transfer import missing_parts as rests
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.manifest import manifest
from medweave_connectors.transfer.manifest.manifest import ROOT, Manifest, Unlisted
from medweave_connectors.transfer.missing_parts import Rest
from medweave_connectors.transfer.progress import Flow
from medweave_connectors.transfer.shell_commands import Place

# Before each further try. A kubelet or an API server that is started again needs some seconds.
PAUSES_S = (0.5, 1.0, 3.0, 8.0, 15.0)
PROGRESS_BYTES = 2**20  # a try that has brought as much is none in vain
_MIB = 2**20
_FINAL = (*transfer_reasons.NO_ROOM, *transfer_reasons.READ_ONLY, *transfer_reasons.NOT_ALLOWED, *transfer_reasons.GONE)
Run = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]
Places = Sequence[ExecutionLocation]


class Carrier(Protocol):
    """The way of one copy.

    Attributes:
        not_as_a_tree: called where it goes in another way than as a tree.
    """

    not_as_a_tree: Callable[[], object]

    def tree(self, places: Places) -> bytes | None:
        """What was read where it went as one tree to all of them."""

    async def send_files(self, folder: str, paths: Sequence[str], part: str, destinations: Places) -> None:
        """Sends some files of a folder, into the place of a copy whose others are there."""

    async def send_end(self, path: str, target: str, destinations: Places, *, begins: int, size: int) -> None:
        """Sends what a large file lacks."""

    def brought_more(self) -> None:
        """A stream was cut which was not in vain."""


class GoingOn:
    """One copy, to places of one deployment.

    Attributes:
        place: where it stands now, the same at each of them; a further folder after each cut.
        has_gone_on: its stream was cut at least once.

    Args:
        sent: the source as it was before, without digests.
        wanted: paths of the files that are sent.
        look: the source as it is.
    """

    def __init__(
        self,
        sent: Manifest,
        wanted: Collection[str],
        place: Place,
        *,
        to: str,
        places: Places,
        run: Run,
        look: Callable[[], Awaitable[Manifest]],
        carrier: Carrier,
        flow: Flow,
    ) -> None:
        self.place, self.has_gone_on = place, False
        self._sent, self._wanted = sent, frozenset(wanted)
        self._to, self._places, self._run, self._look = to, places, run, look
        self._carrier, self._flow = carrier, flow
        self._name = posixpath.basename(sent.real)
        self._rest: Rest | None = None

    async def carry(self, first: Callable[[Place], Awaitable[None]]) -> None:
        """Sends; and after each cut what is missing.

        Args:
            first: sends all of it to a place.

        Raises:
            StreamBroke, SiteUnreachable, ConnectionError: of the last try; or at once where another one would not help.
        """
        send: Callable[[], Awaitable[None]] = partial(first, self.place)
        left_bytes, in_vain = rests.all_bytes(self._sent, self._wanted), 0
        self._flow.total_bytes = self._flow.sent_bytes - self._flow.again_bytes + left_bytes
        while True:
            before = self._flow.sent_bytes
            try:
                await send()
                return await self._finish()
            except (SiteUnreachable, ConnectionError) as error:
                if not may_go_on(error):
                    raise
                cut = error
            while True:
                if in_vain == len(PAUSES_S):
                    raise cut
                await asyncio.sleep(PAUSES_S[in_vain])
                in_vain += 1
                try:
                    found = await self._missing()
                    break
                except (SiteUnreachable, ConnectionError) as error:
                    if not may_go_on(error):
                        raise
            if found is None:  # the source has changed: what has arrived does not fit to what would come
                raise cut if isinstance(cut, StreamBroke) else StreamCut(f"a copy to {self._to}")
            rest, places = found
            kept_bytes = left_bytes - rest.left_bytes
            self._flow.lost(self._flow.sent_bytes - before, kept_bytes)
            left_bytes = rest.left_bytes
            if kept_bytes >= PROGRESS_BYTES:
                in_vain = 0
                self._carrier.brought_more()
            self._say(cut, left_bytes)
            send = partial(first, self.place) if rest.nothing_there else partial(self._send, rest, places)

    async def start_anew(self) -> None:
        """Removes what has arrived: the next stream brings all of it."""
        await self._stand_aside(keeps=False)
        self._rest, self.has_gone_on = None, False

    # ---- inside

    async def _missing(self) -> tuple[Rest, Places] | None:
        """What is missing, and at which places; None where the source has changed. What has arrived stands aside from then on."""
        if not self._sent.unchanged(await self._look()):
            return None
        await self._stand_aside(keeps=True)
        self.has_gone_on = True
        there = list(await asyncio.gather(*(self._there(each) for each in self._places)))
        self._rest = rests.rest_of(self._sent, self._wanted, there)
        if self._rest.nothing_there:  # it is sent from its beginning, to where nothing lies
            await self._stand_aside(keeps=len(self._wanted) < self._sent.num_files)
        lacking = [
            (place, each)
            for place, each in zip(self._places, there, strict=True)
            if not rests.rest_of(self._sent, self._wanted, [each]).is_nothing
        ]
        if not lacking:
            return self._rest, []
        return rests.rest_of(self._sent, self._wanted, [each for _, each in lacking]), [place for place, _ in lacking]

    async def _stand_aside(self, *, keeps: bool) -> None:
        self.place = self.place.next()
        for location in self._places:
            text, code = await self._run(location, shell_commands.stand_aside(self.place, self._name, keeps=keeps))
            if code:
                raise StreamBroke("what has arrived cannot be kept", transfer_reasons.reason_in(text), code)

    async def _there(self, location: ExecutionLocation) -> Manifest:
        text, _ = await self._run(location, manifest.command(self.place.inside(self._name), digests=False))
        with suppress(Unlisted):
            return manifest.parse(text, digests=False)
        return Manifest("", {})

    async def _send(self, rest: Rest, places: Places) -> None:
        copy = self.place.inside(self._name)
        for words in shell_commands.each_done(rests.removing(rest, copy)):
            await self._at_each(words)
        for path, begins in rest.ends.items():
            source, target = (_below(each, path) for each in (self._sent.real, copy))
            size = self._sent.entries[path].size
            await self._carrier.send_end(source, target, places, begins=begins, size=size)
        if rest.files:
            await self._carrier.send_files(self._sent.real, rest.files, self.place.folder, places)

    async def _finish(self) -> None:
        if self._rest is not None:
            steps = rests.finishing(self._sent, self._rest, self.place.inside(self._name))
            for words in shell_commands.each_done(steps):
                await self._at_each(words)

    async def _at_each(self, words: list[str]) -> None:
        for location in self._places:
            await self._run(location, words)

    def _say(self, cut: Exception, left_bytes: int) -> None:
        # The command's own words name files.
        why = (
            getattr(cut, "why", "") or transfer_reasons.reason_in(getattr(cut, "told", "")) or "the connection was lost"
        )
        text = f"a copy was cut and goes on: {why}; {left_bytes / _MIB:.1f} MiB are still to come"
        if (run := current()) is not None:
            run.deployment_notice(self._to, text)
        else:
            console.say(f"medweave: {self._to}: {text}")


def may_go_on(error: Exception) -> bool:
    """Whether a stream that ended so was cut; a program that failed would fail once more."""
    if isinstance(error, StreamRefused):
        return False
    if isinstance(error, StreamBroke):
        return error.may_be_cut and not any(words in error.told for words in _FINAL)
    return True


def _below(folder: str, path: str) -> str:
    return folder if path == ROOT else posixpath.join(folder, path)
