"""What can go wrong between a deployment and its pods, as StreamFlow's exceptions."""

from __future__ import annotations

from streamflow.core.exception import WorkflowDefinitionException, WorkflowExecutionException


class DeploymentRefused(WorkflowDefinitionException):  # type: ignore[misc]
    """The deployment cannot work as it is described; trying again does not help."""

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"{what}\n  seen:     {_indented(seen)}\n  expected: {expected}\n  do:       {do}")


class PodLost(WorkflowExecutionException):  # type: ignore[misc]
    """A pod, or the way to it, was lost; another try may succeed."""


def _indented(text: str) -> str:
    return "\n            ".join(text.splitlines())
