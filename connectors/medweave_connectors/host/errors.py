"""medweave's failures as exceptions of StreamFlow, by whether a retry may help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException

from medweave_connectors.host.transfer_reasons import reason_in
from medweave_core.documents.line_numbers import placed
from medweave_core.errors import StepError, UsageError, UserInputError

_PROGRAM = re.compile(r"[a-z][a-z0-9_-]*")


class TimeLimitExceeded(WorkflowExecutionException):
    """A job took longer than the ToolTimeLimit of its tool."""


class ImpossibleRequest(WorkflowDefinitionException):
    """No location of the bound deployments can provide what a step requests; a retry does not help."""


class TransferFailed(WorkflowExecutionException):
    """A transfer between two sites failed; nothing of it remains. The message has no file names: they may identify patients.

    Attributes:
        source, destination: deployments.
    """

    what = "is not complete"
    expected = "every file with the SHA-256 that it has at {source}"
    do = "check the connection and the free space of {destination}, and run again"

    def __init__(self, source: str, destination: str, seen: str) -> None:
        self.source, self.destination = source, destination
        expected, do = (text.format(source=source, destination=destination) for text in (self.expected, self.do))
        super().__init__(
            f"a copy from {source} to {destination} {self.what}.\n"
            f"  seen:     {seen}\n  expected: {expected}\n  do:       {do}"
        )


class SourceChanged(TransferFailed):
    """The files changed while they were read, twice."""

    what = "failed: its files changed while they were read"
    expected = "files that do not change until they have been copied"
    do = "stop the process that writes to them at {source}, and run again"


class SourceUnreadable(TransferFailed):
    """The files cannot be read, or are not regular files."""

    what = "failed: its files cannot be read"
    expected = "files, folders and link targets that the account at {source} may read"
    do = "check the permissions and the links of the folder at {source}, and run again"


class SourceRefused(TransferFailed):
    """The source sent an archive with other contents than requested: its tar is broken or was replaced. It was not unpacked."""

    what = "was stopped"
    expected = "an archive of files and folders below the requested path, as tar makes it"
    do = "check the program tar of {source}, and ask its operators whether the machine was compromised"


class NoRoom(TransferFailed):
    """The destination has too little space; nothing was sent if that was known before."""

    what = "failed: not enough space"
    expected = "free space for all files, also within the quota"
    do = "free space in the workdir of {destination}, or set another `workdir`, and run again"


class TargetRefused(TransferFailed):
    """The destination cannot be written to: the file system is read-only, or access is denied."""

    what = "failed: nothing can be written there"
    expected = "a folder of {destination} that its account may write to"
    do = "check the permissions and the mount of the workdir of {destination}, and run again"


class SiteConfigError(WorkflowDefinitionException):
    """The site file has an error; a retry does not help."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{placed(what)}\n  seen:     {seen}\n  expected: {expected}\n  do:       {do}")

    @classmethod
    def of(cls, error: StepError) -> SiteConfigError:
        """Return a step's error as one for the engine, with the same message."""
        return cls(error.what, seen=error.seen, expected=error.expected, do=error.do)


@contextlib.contextmanager
def of_the_file() -> Iterator[None]:
    """Convert errors about the file inside the `with` block to the engine's kind of error.

    Raises:
        SiteConfigError: instead of a UsageError or UserInputError, with its message.
    """
    try:
        yield
    except (UsageError, UserInputError) as error:
        raise SiteConfigError.of(error) from None


class PlacementForbidden(SiteConfigError):
    """The data rules forbid a step's data at a deployment it is bound to; nothing was copied there."""


class TransferForbidden(SiteConfigError):
    """The data rules forbid a file at a deployment; nothing was sent, and the deployment was not contacted."""


class SiteUnreachable(WorkflowExecutionException):
    """The connection to a site was lost; a retry may succeed."""


class StreamBroke(SiteUnreachable):
    """The command at one end of a stream failed.

    Attributes:
        error_output: the end of its standard error; it may name files.
        exit_status: of the command; None after a signal.
        may_be_cut: the command may have failed only because its connection was lost.
    """

    may_be_cut = False

    def __init__(self, text: str, error_output: str, exit_status: int | None) -> None:
        super().__init__(text)
        self.error_output, self.exit_status = error_output, exit_status


class StreamCut(StreamBroke):
    """The connection to one end of a stream was lost; no failure was reported there.

    Attributes:
        why: the reason without file names; empty if unknown.
    """

    may_be_cut = True

    def __init__(self, what: str, why: str = "", *, words: str = "the connection was lost") -> None:
        """Create the error; `words` must not contain file names."""
        self.why = why
        super().__init__(f"{what} broke off: {words}", words, None)


class StreamRefused(StreamBroke):
    """A stream had other contents than requested; they were not unpacked."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"an archive was refused: {reason}", reason, None)


class CommandFailed(WorkflowExecutionException):
    """A utility command of the engine (`mkdir`, `cp` …) failed, and the engine ignores its exit code.

    The message names the program and the reason. Arguments and standard error contain file names, which may identify patients.
    """

    def __init__(self, command: Sequence[str], place: str, result: tuple[str, int]) -> None:
        """Create the error; `result` is the output of the command and its exit code."""
        reason = reason_in(result[0])
        super().__init__(f"`{program_of(command)}` in {place} ended with {result[1]}{f': {reason}' if reason else ''}")


def program_of(command: Sequence[str]) -> str:
    """Return the program of a shell command, without its arguments."""
    return next((word for word in " ".join(command).split() if _PROGRAM.fullmatch(word)), "a command")


class OutputNotCollected(WorkflowExecutionException):
    """The command of a job succeeded, and one of its outputs could not be collected."""

    def __init__(self, output: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(
            f"output '{output}' could not be collected.\n  seen:     {seen}\n  expected: {expected}\n  do:       {do}"
        )


class JobEndedBySite(WorkflowExecutionException):
    """The site ended the job, or lost it: its exit code says nothing. The run record reports the cause."""
