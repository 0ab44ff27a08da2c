"""Resources that a step's tool requests, and the limits of its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from medweave.plan.document import Problem, ResourceRequest
from medweave.project.sites import Place
from medweave.validate.caps import caps_of, demands_of
from medweave_connectors.jobs.job_requests import full_name, read_hints
from medweave_connectors.sites.slurm.service import minutes_of
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.source_documents import SourceDocument

_UNITS: Mapping[str, Literal["cores", "MiB", "GPUs"]] = {"cores": "cores", "memory": "MiB", "GPUs": "GPUs"}


def resources_of(tool: Process, site: SourceDocument, place: Place, inputs: Mapping[str, Any]) -> list[ResourceRequest]:
    """Return the resources of one job of a tool at a place.

    Args:
        site: the site file.
        inputs: those of the tool's inputs that are known before the run.

    Raises:
        UsageError: the tool has a hint of medweave's that is wrong.
    """
    target = {"deployment": place.deployment, "service": place.service}
    limits = {cap.resource: cap.amount for cap in caps_of(site, target)}
    most_gpus = _most_gpus(tool, inputs, place.locations)
    resources = []
    for demand in demands_of(tool):
        most = max(most_gpus, demand.amount) if demand.resource == "GPUs" else demand.amount
        if most:
            name: Any = demand.resource
            resources.append(
                ResourceRequest(
                    name=name, unit=_UNITS[name], least=demand.amount, most=most, cap=limits.get(demand.resource)
                )
            )
    return [*resources, *_time(tool, site, place)]


def excess(step: str, place: Place, resource: ResourceRequest) -> Problem | None:
    """Return the problem if a place has too little of a resource, else None. A time limit is cut to that of the site."""
    if resource.cap is None or resource.least <= resource.cap or resource.name == "time":
        return None
    where = f"{place.deployment}/{place.service}" if place.service else place.deployment
    return Problem(
        what=f"step {step} requests more {resource.name} than a job gets at {where}.",
        seen=f"{resource.least:g} {resource.unit}",
        expected=f"at most {resource.cap:g} {resource.unit}",
        do="request less in the tool, raise the limit of the service in the site file, or bind the role to "
        "another service",
    )


def _most_gpus(tool: Process, inputs: Mapping[str, Any], num_nodes: int) -> int:
    hints = {
        full_name(name, tool.namespaces): requirement.fields
        for name, requirement in tool.requirements.items()
        if isinstance(requirement.fields, Mapping)
    }
    return read_hints(hints, where=tool.path.name).of_job(inputs, num_nodes=num_nodes).gpus_max


def _time(tool: Process, site: SourceDocument, place: Place) -> Iterator[ResourceRequest]:
    requirement = tool.requirements.get("ToolTimeLimit")
    limit = requirement.fields.get("timelimit") if requirement and isinstance(requirement.fields, Mapping) else None
    if isinstance(limit, (int, float)) and limit > 0:
        config = site.data["deployments"][place.deployment].get("config") or {}
        service = (config.get("services") or {}).get(place.service) or {}
        time_limit = service.get("time") if isinstance(service, Mapping) else None
        cap = 60 * minutes_of(time_limit, where=f"{place.deployment}/{place.service}: time") if time_limit else None
        yield ResourceRequest(name="time", unit="s", least=limit, most=limit, cap=cap)
