"""Tasks: what a model predicts and how it is judged. medweave trains one task today, segmentation.

Other packages register tasks as entry points of the group `medweave.tasks`; they are found here, but no verb can use them yet.
"""

from __future__ import annotations

from medweave_core.errors import UsageError
from medweave_steps.runtime import plugins

GROUP: plugins.Group = "medweave.tasks"
BUILT_IN = ("segmentation",)


def task_names() -> tuple[str, ...]:
    """Return the names of all installed tasks, medweave's own first."""
    return (*BUILT_IN, *(name for name in plugins.names_of(GROUP) if name not in BUILT_IN))


def check_task(name: str) -> None:
    """Check that a task can be trained.

    Raises:
        UsageError: it is not installed, or another package defines it.
    """
    if name in BUILT_IN:
        return
    raise UsageError(
        f"unsupported task '{name}'.",
        seen="a task of another package"
        if name in task_names()
        else f"not in the list of tasks: {', '.join(task_names())}",
        expected=f"a task of this version of medweave: {', '.join(BUILT_IN)}",
        do="choose one of the supported tasks",
    )
