"""Our failures as StreamFlow's exceptions: what may be tried again, and what may not."""

from __future__ import annotations

from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException


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
