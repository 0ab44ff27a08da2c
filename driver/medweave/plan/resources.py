"""What a step's tool asks for, beside the most that its place gives a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from medweave.plan.document import Asked, Problem
from medweave.project.sites import Place
from medweave.validate.caps import asks, caps
from medweave_connectors.jobs.job_requests import full_name, read_hints
from medweave_connectors.sites.slurm.service import minutes_of
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.source_documents import SourceDocument

_UNITS: Mapping[str, Literal["cores", "MiB", "GPUs"]] = {"cores": "cores", "memory": "MiB", "GPUs": "GPUs"}


def asked_by(tool: Process, site: SourceDocument, place: Place, inputs: Mapping[str, Any]) -> list[Asked]:
    """The resources of one job of a tool at a place.

    Args:
        site: the site file.
        inputs: those of the tool's inputs that are known before the run.

    Raises:
        UsageError: the tool has a hint of medweave's that is wrong.
    """
    target = {"deployment": place.deployment, "service": place.service}
    limits = {cap.resource: cap.amount for cap in caps(site, target)}
    most_gpus = _most_gpus(tool, inputs, place.locations)
    found = []
    for each in asks(tool):
        most = max(most_gpus, each.amount) if each.resource == "GPUs" else each.amount
        if most:
            name: Any = each.resource
            found.append(
                Asked(name=name, unit=_UNITS[name], least=each.amount, most=most, cap=limits.get(each.resource))
            )
    return [*found, *_time(tool, site, place)]


def excess(step: str, place: Place, asked: Asked) -> Problem | None:
    """Why a step cannot have what it must have; None if it can. A longer time is cut to what the site grants."""
    if asked.cap is None or asked.least <= asked.cap or asked.name == "time":
        return None
    where = f"{place.deployment}/{place.service}" if place.service else place.deployment
    return Problem(
        what=f"step {step} asks for more {asked.name} than a job gets at {where}.",
        seen=f"{asked.least:g} {asked.unit}",
        expected=f"at most {asked.cap:g} {asked.unit}",
        do="ask for less in the tool, give the place more and say so in the site file, or place the role elsewhere",
    )


def _most_gpus(tool: Process, inputs: Mapping[str, Any], num_nodes: int) -> int:
    hints = {
        full_name(name, tool.namespaces): requirement.fields
        for name, requirement in tool.requirements.items()
        if isinstance(requirement.fields, Mapping)
    }
    return read_hints(hints, where=tool.path.name).of_job(inputs, num_nodes=num_nodes).gpus_max


def _time(tool: Process, site: SourceDocument, place: Place) -> Iterator[Asked]:
    requirement = tool.requirements.get("ToolTimeLimit")
    limit = requirement.fields.get("timelimit") if requirement and isinstance(requirement.fields, Mapping) else None
    if isinstance(limit, (int, float)) and limit > 0:
        config = site.data["deployments"][place.deployment].get("config") or {}
        service = (config.get("services") or {}).get(place.service) or {}
        granted = service.get("time") if isinstance(service, Mapping) else None
        cap = 60 * minutes_of(granted, where=f"{place.deployment}/{place.service}: time") if granted else None
        yield Asked(name="time", unit="s", least=limit, most=limit, cap=cap)
