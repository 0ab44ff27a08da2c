"""Our failures as StreamFlow's exceptions: what may be tried again, and what may not."""

from __future__ import annotations

from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException


class TimeLimitExceeded(WorkflowExecutionException):  # type: ignore[misc]
    """A job took longer than the ToolTimeLimit of its tool."""


class ImpossibleRequest(WorkflowDefinitionException):  # type: ignore[misc]
    """No location of the bound deployments can ever give what a step asks for; trying again does not help."""
