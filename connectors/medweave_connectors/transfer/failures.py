"""Why a copy was not made, in messages that name no file."""

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
from medweave_connectors.runlog import console, current


class ContentDiffers(Exception):
    """The content of a copy differs from its source.

    Attributes:
        source_changed: the source has changed since the plan was made.
    """

    def __init__(self, seen: str, *, source_changed: bool = False) -> None:
        super().__init__(seen)
        self.source_changed = source_changed


@dataclass(frozen=True, slots=True)
class TransferErrors:
    """The errors of copies from one deployment to another."""

    source: str
    target: str

    def command_failed(self, text: str, code: int) -> TransferFailed:
        """Return the error of a command of ours at the destination."""
        reason = transfer_reasons.reason_in(text)
        kind = NoRoom if reason in transfer_reasons.NO_ROOM else TargetRefused
        return kind(self.source, self.target, reason or f"the shell there ended with {code}")

    async def classify(
        self,
        error: StreamBroke | OSError | SourceUnreadable | ContentDiffers,
        *,
        needed_bytes: int,
        read_source: Callable[[], Awaitable[object]],
    ) -> TransferFailed:
        """Return the error to raise for what ended a stream, or was found after it.

        Args:
            needed_bytes: what the copy needs.
            read_source: reads all of the source, which fails where the source cannot be read.
        """
        if isinstance(error, SourceUnreadable):
            return error
        if isinstance(error, StreamRefused):
            return SourceRefused(self.source, self.target, error.error_output)
        if isinstance(error, StreamCut) and error.why:
            return TransferFailed(self.source, self.target, error.why)
        if isinstance(error, ContentDiffers):
            return TransferFailed(self.source, self.target, str(error))
        reason = transfer_reasons.reason_in(error.error_output if isinstance(error, StreamBroke) else str(error))
        status = f" (exit status {error.exit_status})" if isinstance(error, StreamBroke) else ""
        seen = f"the stream broke off: {reason or 'no known reason'}{status}"
        if reason in transfer_reasons.NO_ROOM:
            return NoRoom(self.source, self.target, f"{needed_bytes} bytes are needed; {seen}")
        if reason in (*transfer_reasons.NOT_ALLOWED, *transfer_reasons.READ_ONLY):
            try:
                await read_source()  # at which end was the permission missing?
            except SourceUnreadable as unreadable:
                return unreadable
            return TargetRefused(self.source, self.target, seen)
        return TransferFailed(self.source, self.target, seen)


def notify(deployment: str, text: str) -> None:
    """Report a notice about a deployment: in the event log of the current run, or on standard error."""
    if (run := current()) is not None:
        run.deployment_notice(deployment, text)
    else:
        console.say(f"medweave: {deployment}: {text}")
