"""Our failures as StreamFlow's exceptions: what may be tried again, and what may not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException

from medweave_steps.contracts.errors import StepError, UsageError


class TimeLimitExceeded(WorkflowExecutionException):  # type: ignore[misc]
    """A job took longer than the ToolTimeLimit of its tool."""


class ImpossibleRequest(WorkflowDefinitionException):  # type: ignore[misc]
    """No location of the bound deployments can ever give what a step asks for; trying again does not help."""


class TransferFailed(WorkflowExecutionException):  # type: ignore[misc]
    """What arrived at a site is not what was sent; the copy was removed."""

    def __init__(self, source: str, destination: str, seen: str) -> None:
        super().__init__(
            f"a copy from {source} to {destination} is not whole.\n"
            f"  seen:     {seen}\n"
            f"  expected: every file with the SHA-256 that it has at {source}\n"
            f"  do:       look at the connection and the free space of {destination}, and run again"
        )


class SiteConfigError(WorkflowDefinitionException):  # type: ignore[misc]
    """What the file says about a site cannot be used: trying again does not help."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{what}\n  seen:     {seen}\n  expected: {expected}\n  do:       {do}")

    @classmethod
    def of(cls, error: StepError) -> SiteConfigError:
        """The same words, for the engine."""
        return cls(error.what, seen=error.seen, expected=error.expected, do=error.do)


@contextlib.contextmanager
def of_the_file() -> Iterator[None]:
    """What is refused in here is wrong in the file: the engine gets its own kind of error.

    Raises:
        SiteConfigError: in place of a UsageError, with its words.
    """
    try:
        yield
    except UsageError as error:
        raise SiteConfigError.of(error) from None


class PlacementForbidden(SiteConfigError):
    """The data rules of the file keep a step's data away from a deployment it is bound to; nothing of it was copied there."""


class SiteUnreachable(WorkflowExecutionException):  # type: ignore[misc]
    """The way to a site was lost; another try may succeed."""


class CommandFailed(WorkflowExecutionException):  # type: ignore[misc]
    """A command of the engine's own (`mkdir`, `cp` …) failed, and nobody looks at its exit code."""

    def __init__(self, command: Sequence[str], place: str, told: tuple[str, int]) -> None:
        super().__init__(f"`{' '.join(command)}` in {place} ended with {told[1]}: {told[0]}")


class JobEndedBySite(WorkflowExecutionException):  # type: ignore[misc]
    """The site ended the job, or lost it: its exit code says nothing. The run's record tells the user."""
