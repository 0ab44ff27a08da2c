"""The engine's step with a cache lookup before its command; its outputs are stored once the engine has collected them.

Tokens go to the next steps only after that: if the driver is killed during a step, the outputs of earlier steps are in the cache.
"""

from __future__ import annotations

import contextvars
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from streamflow.cwl.step import CWLExecuteStep
from streamflow.workflow.utils import get_token_value

from medweave_connectors.cache import session
from medweave_connectors.cache.local import LocalCacheLookup
from medweave_connectors.cache.remote import CacheSite, RemoteCacheLookup
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.connector_capabilities import DescribesWorkers
from medweave_connectors.transfer.capabilities import underlying

_delayed: contextvars.ContextVar[list[tuple[Any, Any]] | None] = contextvars.ContextVar("delayed", default=None)


class CachedStep(CWLExecuteStep):
    """Engine step whose jobs are looked up in the cache."""

    async def _execute_command(self, job: Any, connectors: MutableMapping[str, Any]) -> None:
        if (lookup := _lookup_of(self, job)) is None:
            await super()._execute_command(job, connectors)
            return
        waiting: list[tuple[Any, Any]] = []
        tokens = session.begin(lookup), _delayed.set(waiting)
        try:
            await super()._execute_command(job, connectors)
        finally:
            session.end(tokens[0])
            _delayed.reset(tokens[1])
        await lookup.store_outputs()
        for port, token in waiting:
            port.put(token)

    async def _retrieve_output(
        self, job: Any, output_name: str, output_port: Any, command_output: Any, connector: Any = None
    ) -> None:
        waiting = _delayed.get()
        port: Any = output_port if waiting is None else _HoldingPort(output_port, waiting)
        await super()._retrieve_output(job, output_name, port, command_output, connector)


class _HoldingPort:
    """Stand-in for an engine port that collects tokens until the outputs are stored."""

    def __init__(self, port: Any, waiting: list[tuple[Any, Any]]) -> None:
        self._port, self._waiting = port, waiting

    def put(self, token: Any) -> None:
        """Collect the token."""
        self._waiting.append((self._port, token))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _lookup_of(step: Any, job: Any) -> session.CacheLookup | None:
    context = step.workflow.context
    if not isinstance(context.scheduler, MedweaveScheduler) or not context.scheduler.reuse.is_enabled:
        return None
    cache = context.scheduler.reuse
    inputs = {name: get_token_value(token) for name, token in job.inputs.items()}
    allowed, locations = job_requests.hints_of(job.name).reuse, context.scheduler.get_locations(job.name)
    if all(location.local for location in locations):
        return LocalCacheLookup(cache, job.name, inputs, allowed=allowed, outputs=Path(job.output_directory))
    site = _site_of(step, job, locations)
    return None if site is None else RemoteCacheLookup(cache, job.name, inputs, allowed=allowed, at=site)


def _site_of(step: Any, job: Any, locations: Any) -> CacheSite | None:
    """Return the site of a remote job; None if it has no cache: the connector is not medweave's, or there is no store."""
    manager, location = step.workflow.context.data_manager, locations[0]
    connector = underlying(step.workflow.context.deployment_manager.get_connector(location.deployment))
    if not isinstance(manager, MedweaveDataManager) or not isinstance(connector, DescribesWorkers):
        return None
    classes = manager.guard.made_by(step.name, step.output_ports)
    store = manager.store_at(job.output_directory, classes)
    if store is None:
        return None
    request = job_requests.request_of(job.name)
    return CacheSite(
        connector=connector,
        location=location,
        inventory=manager.inventory,
        store=store,
        sweeps=lambda: manager.should_evict(store, [location]),
        outputs=job.output_directory,
        staged=step.command.initial_work_dir is not None,
        num_nodes=request.num_nodes if request is not None and request.hints.gang else 1,
    )
