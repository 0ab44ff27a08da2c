"""What tools ask for, against what the places that a site gives them have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.project.workflows import Pipeline
from medweave.validate.findings import Finding, finding_at
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
class Asked:
    """What a tool must have: `amount` of a resource, in cores, MiB or GPUs."""

    resource: str
    amount: float
    source: SourceDocument
    field: FieldPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most that a place gives one job."""

    resource: str
    amount: float
    source: SourceDocument
    field: FieldPath


@dataclass(slots=True)
class Excesses:
    """Pairs of what is asked and of the cap below it. One mistake makes many of them, at its tool or at its site."""

    pairs: list[tuple[Asked, Cap]] = field(default_factory=list)

    def add(self, source: SourceDocument, pipeline: Pipeline, repository: Repository) -> None:
        """Holds the tools of a workflow against a site that has places for them."""
        workflow = repository.process(pipeline.path)
        if workflow is None or not has_roles(source.data["roles"], pipeline):
            return
        tools = tools_of(workflow, repository)
        for step in pipeline.steps:
            place = source.data["roles"][step.role]
            limits = {cap.resource: cap for cap in caps(source, place)}
            for asked in asks(tools[step.path]) if step.path in tools else ():
                cap = limits.get(asked.resource)
                if cap is not None and asked.amount > cap.amount:
                    self.pairs.append((asked, cap))

    def findings(self) -> Iterator[Finding]:
        """One for each mistake: at the end, tool or cap, in which the most pairs meet; the tool where it is equal."""
        left = {((a.source.path, a.field), (c.source.path, c.field)): (a, c) for a, c in self.pairs}
        while left:
            ends: dict[tuple[Path, FieldPath], list[tuple[Asked, Cap]]] = defaultdict(list)
            for keys, pair in left.items():
                for key in keys:
                    ends[key].append(pair)
            worst = max(ends, key=lambda key: (len(ends[key]), any(a.source.path == key[0] for a, _ in ends[key])))
            yield _told(worst, ends[worst])
            left = {keys: pair for keys, pair in left.items() if worst not in keys}


def _told(key: tuple[Path, FieldPath], pairs: Sequence[tuple[Asked, Cap]]) -> Finding:
    asked, cap = pairs[0]
    at_tool = key == (asked.source.path, asked.field)
    tools = ", ".join(sorted({shown(a.source.path) for a, _ in pairs}))
    places = ", ".join(sorted({f"{shown(c.source.path)} {spelled(c.field)}" for _, c in pairs}))
    unit = {"memory": " MiB", "cores": " cores", "GPUs": " GPUs"}[asked.resource]
    lowest, highest = min(c.amount for _, c in pairs), max(a.amount for a, _ in pairs)
    holder = asked.source if at_tool else cap.source
    return finding_at(
        holder,
        "resource-cap",
        key[1],
        f"more {asked.resource} is asked for than a job gets there.",
        seen=f"{highest:g}{unit}, asked by {tools}",
        expected=f"at most {lowest:g}{unit}, by {places}",
        fix="ask for less, or give the place more and say so there",
    )


def asks(tool: Process) -> Iterator[Asked]:
    """What a tool cannot do without."""
    resources = tool.requirements.get("ResourceRequirement")
    for key, resource in (("coresMin", "cores"), ("ramMin", "memory")):
        amount = resources.fields.get(key) if resources and isinstance(resources.fields, Mapping) else None
        if resources and isinstance(amount, (int, float)):
            field: FieldPath = (resources.section, "ResourceRequirement", key)
            yield Asked(resource=resource, amount=amount, source=tool.document, field=field)
    for name, hint in tool.requirements.items():
        gpus = hint.fields.get("gpusMin") if isinstance(hint.fields, Mapping) else None
        if full_name(name, tool.namespaces) == GPUS and isinstance(gpus, int):
            yield Asked(resource="GPUs", amount=gpus, source=tool.document, field=(hint.section, name, "gpusMin"))


def caps(source: SourceDocument, place: Mapping[str, Any]) -> Iterator[Cap]:
    """The most that a job gets at a place: the limits of its pods, the GPUs of a Slurm service, the cap of more memory."""
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
