"""Resources that tools request, checked against the limits of their places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.project.workflows import Pipeline
from medweave.validate.findings import ValidationFinding, finding_at
from medweave.validate.places import tools_of
from medweave.validate.quantities import quantity
from medweave.validate.repository import Repository
from medweave.validate.site_files import has_roles
from medweave_connectors.jobs.job_requests import NAMESPACE, full_name
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.line_numbers import FieldPath, shown, spelled
from medweave_core.documents.source_documents import SourceDocument

GPUS = f"{NAMESPACE}GPURequest"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The minimum that a tool requests: `amount` of a resource, in cores, MiB or GPUs."""

    resource: str
    amount: float
    source: SourceDocument
    field: FieldPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The limit of a resource for one job at a place."""

    resource: str
    amount: float
    source: SourceDocument
    field: FieldPath


@dataclass(slots=True)
class Excesses:
    """Pairs of a demand and a lower cap. One error at a tool or site causes many pairs."""

    pairs: list[tuple[Demand, Cap]] = field(default_factory=list)

    def add(self, source: SourceDocument, pipeline: Pipeline, repository: Repository) -> None:
        """Compare the tools of a workflow with the places of a site that has all of its roles."""
        workflow = repository.process(pipeline.path)
        if workflow is None or not has_roles(source.data["roles"], pipeline):
            return
        tools = tools_of(workflow, repository)
        for step in pipeline.steps:
            place = source.data["roles"][step.role]
            limits = {cap.resource: cap for cap in caps_of(source, place)}
            for demand in demands_of(tools[step.path]) if step.path in tools else ():
                cap = limits.get(demand.resource)
                if cap is not None and demand.amount > cap.amount:
                    self.pairs.append((demand, cap))

    def findings(self) -> Iterator[ValidationFinding]:
        """Yield one finding per error: at the tool or cap with the most pairs; at the tool in a tie."""
        remaining = {((a.source.path, a.field), (c.source.path, c.field)): (a, c) for a, c in self.pairs}
        while remaining:
            pairs_by_end: dict[tuple[Path, FieldPath], list[tuple[Demand, Cap]]] = defaultdict(list)
            for keys, pair in remaining.items():
                for key in keys:
                    pairs_by_end[key].append(pair)
            worst = max(
                pairs_by_end,
                key=lambda key: (len(pairs_by_end[key]), any(a.source.path == key[0] for a, _ in pairs_by_end[key])),
            )
            yield _finding(worst, pairs_by_end[worst])
            remaining = {keys: pair for keys, pair in remaining.items() if worst not in keys}


def _finding(key: tuple[Path, FieldPath], pairs: Sequence[tuple[Demand, Cap]]) -> ValidationFinding:
    demand, cap = pairs[0]
    at_tool = key == (demand.source.path, demand.field)
    tools = ", ".join(sorted({shown(a.source.path) for a, _ in pairs}))
    places = ", ".join(sorted({f"{shown(c.source.path)} {spelled(c.field)}" for _, c in pairs}))
    unit = {"memory": " MiB", "cores": " cores", "GPUs": " GPUs"}[demand.resource]
    lowest, highest = min(c.amount for _, c in pairs), max(a.amount for a, _ in pairs)
    holder = demand.source if at_tool else cap.source
    return finding_at(
        holder,
        "resource-cap",
        key[1],
        f"tools request more {demand.resource} than a job gets at this service.",
        seen=f"{highest:g}{unit}, requested by {tools}",
        expected=f"at most {lowest:g}{unit}, by {places}",
        fix="request less, or raise the limit of the service",
    )


def demands_of(tool: Process) -> Iterator[Demand]:
    """Yield the minimum resources of a tool."""
    resources = tool.requirements.get("ResourceRequirement")
    for key, resource in (("coresMin", "cores"), ("ramMin", "memory")):
        amount = resources.fields.get(key) if resources and isinstance(resources.fields, Mapping) else None
        if resources and isinstance(amount, (int, float)):
            field: FieldPath = (resources.section, "ResourceRequirement", key)
            yield Demand(resource=resource, amount=amount, source=tool.document, field=field)
    for name, hint in tool.requirements.items():
        gpus = hint.fields.get("gpusMin") if isinstance(hint.fields, Mapping) else None
        if full_name(name, tool.namespaces) == GPUS and isinstance(gpus, int):
            yield Demand(resource="GPUs", amount=gpus, source=tool.document, field=(hint.section, name, "gpusMin"))


def caps_of(source: SourceDocument, place: Mapping[str, Any]) -> Iterator[Cap]:
    """Yield the limits of a job at a place: of its pods, GPUs of a Slurm service, and the cap of memory retries."""
    name = place["deployment"]
    deployment = source.data["deployments"][name]
    config = deployment.get("config") or {}
    at: FieldPath = ("deployments", name, "config")
    service = place.get("service")
    if deployment["type"] == "medweave.slurm" and service in (config.get("services") or {}):
        gpus = config["services"][service].get("gpusPerNode", 0)
        yield Cap(resource="GPUs", amount=gpus, source=source, field=(*at, "services", str(service), "gpusPerNode"))
    cap = ((config.get("reactions") or {}).get("OutOfMemory") or {}).get("cap")
    if cap:
        yield Cap(resource="memory", amount=cap, source=source, field=(*at, "reactions", "OutOfMemory", "cap"))
    for inside in ((), ("worker",)):
        limits: Any = config
        for part in ("values", *inside, "resources", "limits"):
            limits = limits.get(part) if isinstance(limits, Mapping) else None
        if not isinstance(limits, Mapping):
            continue
        for key, resource, unit in (("cpu", "cores", 1), ("memory", "memory", MIB)):
            amount = quantity(limits.get(key))
            if amount is not None:
                yield Cap(
                    resource=resource,
                    amount=amount / unit,
                    source=source,
                    field=(*at, "values", *inside, "resources", "limits", key),
                )
