"""The engine's step that says whose command a connector runs, and hands in its outputs once the engine has found them."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from streamflow.workflow.utils import get_token_value

from medweave_connectors import requests
from medweave_connectors.reuse import session


class ReusesWork:
    """Of a step of the engine: its jobs on this machine may have been done before."""

    async def _execute_command(self, job: Any, connectors: MutableMapping[str, Any]) -> None:
        work = _work_of(self, job)
        token = session.begin(work)
        try:
            await super()._execute_command(job, connectors)  # type: ignore[misc]
        finally:
            session.end(token)
        if work is not None:
            await work.keep()


def _work_of(step: Any, job: Any) -> session.Work | None:
    scheduler = step.workflow.context.scheduler
    reuse: session.Reuse | None = getattr(scheduler, "reuse", None)
    if reuse is None or not reuse.on or not all(each.local for each in scheduler.get_locations(job.name)):
        return None
    inputs = {name: get_token_value(token) for name, token in job.inputs.items()}
    return session.Work(reuse, job.name, inputs, Path(job.output_directory), allowed=requests.hints_of(job.name).reuse)
