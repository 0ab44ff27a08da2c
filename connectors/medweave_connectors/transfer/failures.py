"""Why a copy was not made, in words that name no file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from medweave_connectors.host import transfer_reasons
from medweave_connectors.host.errors import (
    NoRoom,
    SourceRefused,
    SourceUnreadable,
    StreamBroke,
    StreamCut,
    StreamRefused,
    TargetRefused,
    TransferFailed,
)


class Differs(Exception):
    """What arrived is not what was sent."""

    def __init__(self, seen: str, *, source_moved: bool = False) -> None:
        super().__init__(seen)
        self.source_moved = source_moved


@dataclass(frozen=True, slots=True)
class Broken:
    """The errors of copies from one deployment to another."""

    source: str
    to: str

    def refused(self, text: str, code: int) -> TransferFailed:
        """A command of ours failed where the copy goes."""
        reason = transfer_reasons.reason_in(text)
        kind = NoRoom if reason in transfer_reasons.NO_ROOM else TargetRefused
        return kind(self.source, self.to, reason or f"the shell there ended with {code}")

    async def typed(
        self,
        error: StreamBroke | OSError | SourceUnreadable | Differs,
        *,
        needed_bytes: int,
        read_source: Callable[[], Awaitable[object]],
    ) -> TransferFailed:
        """What ended a stream, or was found after it.

        Args:
            needed_bytes: what the copy needs.
            read_source: reads all of the source, which fails where that cannot be read.
        """
        if isinstance(error, SourceUnreadable):
            return error
        if isinstance(error, StreamRefused):
            return SourceRefused(self.source, self.to, error.told)
        if isinstance(error, StreamCut) and error.why:
            return TransferFailed(self.source, self.to, error.why)
        if isinstance(error, Differs):
            return TransferFailed(self.source, self.to, str(error))
        reason = transfer_reasons.reason_in(error.told if isinstance(error, StreamBroke) else str(error))
        status = f" (exit status {error.exit_status})" if isinstance(error, StreamBroke) else ""
        seen = f"the stream broke off: {reason or 'without a word that is known'}{status}"
        if reason in transfer_reasons.NO_ROOM:
            return NoRoom(self.source, self.to, f"{needed_bytes} bytes are needed; {seen}")
        if reason in (*transfer_reasons.NOT_ALLOWED, *transfer_reasons.READ_ONLY):
            try:
                await read_source()  # which end was it?
            except SourceUnreadable as unreadable:
                return unreadable
            return TargetRefused(self.source, self.to, seen)
        return TransferFailed(self.source, self.to, seen)
