"""Our failures as StreamFlow's exceptions: what may be tried again, and what may not."""

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
    """No location of the bound deployments can ever give what a step asks for; trying again does not help."""


class TransferFailed(WorkflowExecutionException):
    """A copy between two sites was not made; nothing of it is left. Its words hold no name of a file: names tell about patients.

    Attributes:
        source, destination: deployments.
    """

    what = "is not whole"
    expected = "every file with the SHA-256 that it has at {source}"
    do = "look at the connection and the free space of {destination}, and run again"

    def __init__(self, source: str, destination: str, seen: str) -> None:
        self.source, self.destination = source, destination
        expected, do = (text.format(source=source, destination=destination) for text in (self.expected, self.do))
        super().__init__(
            f"a copy from {source} to {destination} {self.what}.\n"
            f"  seen:     {seen}\n  expected: {expected}\n  do:       {do}"
        )


class SourceChanged(TransferFailed):
    """The files were written to while they were read, twice."""

    what = "was not made: its files change while they are read"
    expected = "files that nobody writes to until they have been copied"
    do = "end what writes there at {source}, and run again"


class SourceUnreadable(TransferFailed):
    """The files cannot be read, or are none."""

    what = "was not made: its files cannot be read"
    expected = "files and folders, and links that lead to some, which the account at {source} may read"
    do = "look at the rights and the links of the folder at {source}, and run again"


class SourceRefused(TransferFailed):
    """What the source sent is no archive of what was asked for: its tar is broken, or somebody else's. It was let go no further."""

    what = "was stopped"
    expected = "an archive of files and folders below what was asked for, as tar makes it"
    do = "look at the tar of {source}, and ask those who run it whether the machine is still theirs"


class NoRoom(TransferFailed):
    """The destination has too little room; nothing was sent where that was known beforehand."""

    what = "has no room"
    expected = "at least as many free bytes as the files have, and a quota that allows them"
    do = "make room in the workdir of {destination}, or give it another `workdir`, and run again"


class TargetRefused(TransferFailed):
    """The destination may not be written to: a file system that is read-only, or rights."""

    what = "was not made: nothing can be written there"
    expected = "a folder of {destination} that its account may write to"
    do = "look at the rights and the mount of the workdir of {destination}, and run again"


class SiteConfigError(WorkflowDefinitionException):
    """What the file says about a site cannot be used: trying again does not help."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{placed(what)}\n  seen:     {seen}\n  expected: {expected}\n  do:       {do}")

    @classmethod
    def of(cls, error: StepError) -> SiteConfigError:
        """The same words, for the engine."""
        return cls(error.what, seen=error.seen, expected=error.expected, do=error.do)


@contextlib.contextmanager
def of_the_file() -> Iterator[None]:
    """What is refused in here is wrong in the file: the engine gets its own kind of error.

    Raises:
        SiteConfigError: in place of a UsageError or UserInputError, with its words.
    """
    try:
        yield
    except (UsageError, UserInputError) as error:
        raise SiteConfigError.of(error) from None


class PlacementForbidden(SiteConfigError):
    """The data rules of the file keep a step's data away from a deployment it is bound to; nothing of it was copied there."""


class TransferForbidden(SiteConfigError):
    """The data rules of the file keep a file away from a deployment; nothing of it was sent, and the deployment was not asked."""


class SiteUnreachable(WorkflowExecutionException):
    """The way to a site was lost; another try may succeed."""


class StreamBroke(SiteUnreachable):
    """The command at one end of a stream failed.

    Attributes:
        told: the end of what it wrote to its standard error; it may name files.
        exit_status: its own; None after a signal.
        may_be_cut: it may have failed only because its connection was lost.
    """

    may_be_cut = False

    def __init__(self, text: str, told: str, exit_status: int | None) -> None:
        super().__init__(text)
        self.told, self.exit_status = told, exit_status


class StreamCut(StreamBroke):
    """The connection to one end of a stream was lost: nobody said that anything failed there.

    Attributes:
        why: in words that name no file; empty where nothing is known.
    """

    may_be_cut = True

    def __init__(self, what: str, why: str = "", *, words: str = "the connection was lost") -> None:
        """`words` name no file."""
        self.why = why
        super().__init__(f"{what} broke off: {words}", words, None)


class StreamRefused(StreamBroke):
    """What came through a stream was not what was asked for, and was let go no further."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"an archive was refused: {reason}", reason, None)


class CommandFailed(WorkflowExecutionException):
    """A command of the engine's own (`mkdir`, `cp` …) failed, and the engine does not look at its exit code.

    Its words name the program and the reason. Arguments and standard error hold file names, which may identify patients.
    """

    def __init__(self, command: Sequence[str], place: str, result: tuple[str, int]) -> None:
        """`result` is the output of the command and its exit code."""
        reason = reason_in(result[0])
        super().__init__(f"`{program_of(command)}` in {place} ended with {result[1]}{f': {reason}' if reason else ''}")


def program_of(command: Sequence[str]) -> str:
    """Return the program of a shell command, without its arguments."""
    return next((word for word in " ".join(command).split() if _PROGRAM.fullmatch(word)), "a command")


class OutputNotCollected(WorkflowExecutionException):
    """The command of a job ended well, and one of its outputs could not be collected."""

    def __init__(self, output: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(
            f"output '{output}' could not be collected.\n  seen:     {seen}\n  expected: {expected}\n  do:       {do}"
        )


class JobEndedBySite(WorkflowExecutionException):
    """The site ended the job, or lost it: its exit code says nothing. The run's record tells the user."""
