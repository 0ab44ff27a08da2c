"""The engine's step that says whose command a connector runs, and hands in its outputs once the engine has found them.

Nothing is handed on before that: a driver that is killed when the next step has begun has kept what the one before it has done.
"""

from __future__ import annotations

import contextvars
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from streamflow.workflow.utils import get_token_value

from medweave_connectors.cache import session
from medweave_connectors.cache.local import WorkHere
from medweave_connectors.cache.remote import At, WorkThere
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.jobs import job_requests
from medweave_connectors.transfer.capabilities import underlying

_handed_on: contextvars.ContextVar[list[tuple[Any, Any]] | None] = contextvars.ContextVar("handed_on", default=None)


class ReusesWork:
    """Of a step of the engine: its jobs may have been done before."""

    async def _execute_command(self, job: Any, connectors: MutableMapping[str, Any]) -> None:
        if (work := _work_of(self, job)) is None:
            await super()._execute_command(job, connectors)  # type: ignore[misc]
            return
        waiting: list[tuple[Any, Any]] = []
        tokens = session.begin(work), _handed_on.set(waiting)
        try:
            await super()._execute_command(job, connectors)  # type: ignore[misc]
        finally:
            session.end(tokens[0])
            _handed_on.reset(tokens[1])
        await work.keep()
        for port, token in waiting:
            port.put(token)

    async def _retrieve_output(self, *, output_port: Any, **keywords: Any) -> None:
        waiting = _handed_on.get()
        port = output_port if waiting is None else _Waiting(output_port, waiting)
        await super()._retrieve_output(output_port=port, **keywords)  # type: ignore[misc]


class _Waiting:
    """A port of the engine whose tokens are put there later."""

    def __init__(self, port: Any, waiting: list[tuple[Any, Any]]) -> None:
        self._port, self._waiting = port, waiting

    def put(self, token: Any) -> None:
        """Later."""
        self._waiting.append((self._port, token))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _work_of(step: Any, job: Any) -> session.Work | None:
    context = step.workflow.context
    reuse: session.Reuse | None = getattr(context.scheduler, "reuse", None)
    if reuse is None or not reuse.on:
        return None
    inputs = {name: get_token_value(token) for name, token in job.inputs.items()}
    allowed, locations = job_requests.hints_of(job.name).reuse, context.scheduler.get_locations(job.name)
    if all(each.local for each in locations):
        return WorkHere(reuse, job.name, inputs, allowed=allowed, outputs=Path(job.output_directory))
    at = _at(step, job, locations)
    return None if at is None else WorkThere(reuse, job.name, inputs, allowed=allowed, at=at)


def _at(step: Any, job: Any, locations: Any) -> At | None:
    """Where a job elsewhere runs; None where nothing can be kept there: another connector than ours, or no store."""
    manager, location = step.workflow.context.data_manager, locations[0]
    connector = underlying(step.workflow.context.deployment_manager.get_connector(location.deployment))
    if not isinstance(manager, MedweaveDataManager) or not hasattr(connector, "worker_of"):
        return None
    classes = manager.guard.made_by(step.name, step.output_ports)
    store = manager.store_at(job.output_directory, classes)
    if store is None:
        return None
    request = job_requests.request_of(job.name)
    return At(
        connector=connector,
        location=location,
        held=manager.inventory,
        store=store,
        sweeps=lambda: manager.should_evict(store, [location]),
        outputs=job.output_directory,
        staged=step.command.initial_work_dir is not None,
        num_nodes=request.num_nodes if request is not None and request.hints.gang else 1,
    )
