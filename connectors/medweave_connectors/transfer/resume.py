"""Resume of a copy whose stream was cut: only the missing parts are sent.

The received files are moved to a new folder first: a program whose connection was cut may still write to the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host import deadlines, transfer_reasons
from medweave_connectors.host.errors import SiteUnreachable, StreamBroke, StreamCut, StreamRefused
from medweave_connectors.transfer import shell_commands
from medweave_connectors.transfer.failures import notify
from medweave_connectors.transfer.manifest import manifest, missing_parts
from medweave_connectors.transfer.manifest.manifest import Manifest, ManifestError
from medweave_connectors.transfer.manifest.missing_parts import MissingParts, find_missing_parts, path_below
from medweave_connectors.transfer.plan import TransferPlan
from medweave_connectors.transfer.progress import TransferMeter
from medweave_connectors.transfer.shell_commands import StagingPlace

PROGRESS_BYTES = 2**20  # an attempt that has delivered so much resets the retries
_MIB = 2**20
_FINAL = (*transfer_reasons.NO_ROOM, *transfer_reasons.READ_ONLY, *transfer_reasons.NOT_ALLOWED, *transfer_reasons.GONE)
RunAt = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]
Locations = Sequence[ExecutionLocation]


class PartSender(Protocol):
    """Sends the missing parts of a copy; `routes.carrier.Carrier` is one."""

    async def send_files(self, folder: str, paths: Sequence[str], part: str, destinations: Locations) -> None:
        """Send some files of a folder into a staging folder that has the others."""

    async def send_end(self, path: str, target: str, destinations: Locations, *, begins: int, size: int) -> None:
        """Send the missing end of a large file."""

    def made_progress(self) -> None:
        """Record that a broken stream has delivered bytes."""


class ResumableCopy:
    """One copy that is resumed after each cut of its stream.

    Attributes:
        place: the current staging place, the same at each location; after each cut it has another folder.
        was_cut: its stream was cut at least once.

    Args:
        locations: where the copy is staged: the plan's receivers, and the locations at which their connector repeats copies.
        run_at: runs a command at a location.
        scan_source: returns the source's current manifest, without digests.
    """

    def __init__(
        self,
        plan: TransferPlan,
        place: StagingPlace,
        locations: Locations,
        *,
        run_at: RunAt,
        scan_source: Callable[[], Awaitable[Manifest]],
        carrier: PartSender,
        meter: TransferMeter,
    ) -> None:
        self.place, self.was_cut = place, False
        self._plan, self._sent, self._files = plan, plan.manifest, frozenset(plan.files)
        self._locations, self._run_at, self._scan_source = locations, run_at, scan_source
        self._carrier, self._meter = carrier, meter
        self._missing: MissingParts | None = None

    async def carry(self, send_all: Callable[[StagingPlace], Awaitable[None]]) -> None:
        """Send everything; after each cut, send the missing parts.

        Args:
            send_all: sends everything to a staging place.

        Raises:
            StreamBroke, SiteUnreachable, ConnectionError: of the last attempt, or at once where a retry would not help.
        """
        send: Callable[[], Awaitable[None]] = partial(send_all, self.place)
        missing_bytes, failed_attempts = missing_parts.archive_bytes(self._sent, self._files), 0
        self._meter.start_attempt(missing_bytes)
        while True:
            before = self._meter.sent_bytes
            try:
                await send()
                return await self._finish()
            except (SiteUnreachable, ConnectionError) as error:
                if not may_resume(error):
                    raise
                cut = error
            while True:
                if failed_attempts == len(deadlines.RETRY_PAUSES_S):
                    raise cut
                await asyncio.sleep(deadlines.RETRY_PAUSES_S[failed_attempts])
                failed_attempts += 1
                try:
                    remainder = await self._find_missing()
                    break
                except (SiteUnreachable, ConnectionError) as error:
                    if not may_resume(error):
                        raise
            if remainder is None:  # the source has changed: the received files are outdated
                raise cut if isinstance(cut, StreamBroke) else StreamCut(f"a copy to {self._plan.target_deployment}")
            missing, locations = remainder
            kept_bytes = missing_bytes - missing.missing_bytes
            self._meter.count_lost(self._meter.sent_bytes - before, kept_bytes)
            missing_bytes = missing.missing_bytes
            if kept_bytes >= PROGRESS_BYTES:
                failed_attempts = 0
                self._carrier.made_progress()
            self._report_cut(cut, missing_bytes)
            send = (
                partial(send_all, self.place)
                if missing.nothing_arrived
                else partial(self._send_missing, missing, locations)
            )

    async def restart(self) -> None:
        """Remove what has arrived: the next stream sends everything."""
        await self._set_aside(keeps=False)
        self._missing, self.was_cut = None, False

    # ---- internal

    async def _find_missing(self) -> tuple[MissingParts, Locations] | None:
        """Set the received files aside; return the missing parts and their locations. None if the source has changed."""
        if not self._sent.unchanged(await self._scan_source()):
            return None
        await self._set_aside(keeps=True)
        self.was_cut = True
        arrived = list(await asyncio.gather(*(self._scan_copy(location) for location in self._locations)))
        self._missing = find_missing_parts(self._sent, self._files, arrived)
        if self._missing.nothing_arrived:  # everything is sent again, to an empty folder
            await self._set_aside(keeps=len(self._files) < self._sent.num_files)
        incomplete = [
            (location, copy)
            for location, copy in zip(self._locations, arrived, strict=True)
            if not find_missing_parts(self._sent, self._files, [copy]).is_complete
        ]
        if not incomplete:
            return self._missing, []
        missing = find_missing_parts(self._sent, self._files, [copy for _, copy in incomplete])
        return missing, [location for location, _ in incomplete]

    async def _set_aside(self, *, keeps: bool) -> None:
        self.place = self.place.after_cut()
        for location in self._locations:
            text, code = await self._run_at(
                location, shell_commands.set_aside(self.place, self._plan.name, keeps=keeps)
            )
            if code:
                raise StreamBroke("the received files cannot be moved", transfer_reasons.reason_in(text), code)

    async def _scan_copy(self, location: ExecutionLocation) -> Manifest:
        text, _ = await self._run_at(location, manifest.command(self.place.inside(self._plan.name), digests=False))
        with suppress(ManifestError):
            return manifest.parse(text, digests=False)
        return Manifest("", {})

    async def _send_missing(self, missing: MissingParts, locations: Locations) -> None:
        copy = self.place.inside(self._plan.name)
        for words in shell_commands.batch_commands(missing_parts.removal_steps(missing, copy)):
            await self._run_everywhere(words)
        for path, begins in missing.partial_files.items():
            source, target = (path_below(folder, path) for folder in (self._sent.real, copy))
            size = self._sent.entries[path].size
            await self._carrier.send_end(source, target, locations, begins=begins, size=size)
        if missing.files:
            await self._carrier.send_files(self._sent.real, missing.files, self.place.folder, locations)

    async def _finish(self) -> None:
        if self._missing is not None:
            copy = self.place.inside(self._plan.name)
            steps = missing_parts.finishing_steps(self._sent, self._missing, copy)
            for words in shell_commands.batch_commands(steps):
                await self._run_everywhere(words)

    async def _run_everywhere(self, words: list[str]) -> None:
        for location in self._locations:
            await self._run_at(location, words)

    def _report_cut(self, cut: Exception, missing_bytes: int) -> None:
        # The command's own message names files.
        why = cut.why if isinstance(cut, StreamCut) else ""
        if not why and isinstance(cut, StreamBroke):
            why = transfer_reasons.reason_in(cut.error_output)
        text = f"a copy was cut and is resumed: {why or 'the connection was lost'}"
        notify(self._plan.target_deployment, f"{text}; {missing_bytes / _MIB:.1f} MiB remain")


def may_resume(error: Exception) -> bool:
    """Return whether an error may come from a lost connection; a program that failed would fail again."""
    if isinstance(error, StreamRefused):
        return False
    if isinstance(error, StreamBroke):
        return error.may_be_cut and not any(words in error.error_output for words in _FINAL)
    return True
