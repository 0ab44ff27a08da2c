"""Site files and roles.yml: alone, and together with the workflows that are bound to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.placement.data_rules import check_data_rules
from medweave.project.sites import OF_GATE, faults_of_site, read_site, role_names
from medweave.project.workflows import ROLES_SHAPE, Pipeline, read_pipeline
from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave.validate.places import check_types_and_files, finding_of, services_of
from medweave.validate.repository import Repository
from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import FieldFault, faults
from medweave_core.documents.source_documents import SourceDocument
from medweave_core.errors import StepError


def check_site(source: SourceDocument, repository: Repository) -> list[ValidationFinding]:
    """Return the findings of a site file alone."""
    findings = [finding_of(source, fault, "site") for fault in faults_of_site(source.data, source.path)]
    of_whole = not isinstance(source.data.get("deployments"), Mapping)
    if of_whole or any(
        finding.field != OF_GATE for finding in findings
    ):  # the place of gate or segment may be misspelt
        return findings
    findings = [*check_types_and_files(source, "site", missing_rule="binding-file"), *_check_services(source)]
    if not findings:
        try:
            read_site(source.path, repository.reader)  # which also requires separate lines for each deployment
        except FieldFault as fault:
            return [finding_of(source, fault, "site")]
    return findings


def _check_services(source: SourceDocument) -> Iterator[ValidationFinding]:
    for section in ("roles", "inputs"):
        for name, place in (source.data.get(section) or {}).items():
            deployment, service = source.data["deployments"][place["deployment"]], place.get("service")
            services = services_of(deployment, source.path.parent)
            if service is not None and services is not None and service not in services:
                known = sorted(services)
                yield finding_at(
                    source, "site", (section, name, "service"), f"deployment '{place['deployment']}' has no service '{service}'.",
                    seen=service, expected=f"one of {', '.join(known)}" if known else "no service",
                    fix=closest(service, known) or "choose a listed service",
                )  # fmt: skip


def check_roles(source: SourceDocument, repository: Repository) -> Iterator[ValidationFinding]:
    """Yield the findings of a roles.yml: its workflows, their steps, the roles."""
    shape_findings = [finding_of(source, fault, "roles") for fault in faults(source.data, ROLES_SHAPE, source.path, ())]
    yield from shape_findings
    if shape_findings:
        return
    known_roles = role_names()
    for name, roles in source.data.items():
        if name == "holds":
            continue
        path = source.path.parent / str(name)
        document = repository.process(path.resolve())
        if path.resolve() in repository.unsound:
            continue
        if document is None or not isinstance(roles, Mapping):
            siblings = sorted(file.name for file in source.path.parent.glob("*.cwl"))
            yield finding_at(
                source,
                "roles",
                (name,),
                f"there is no workflow '{name}' in this folder."
                if document is None
                else "this is not a mapping of steps to roles.",
                seen=str(name),
                expected=f"one of {', '.join([*siblings, 'holds'])}, with lines `/step: role`",
                fix=closest(str(name), [*siblings, "holds"]) or "correct the name",
            )
            continue
        steps = [step.path for step in document.steps.values()]
        stray = [step for step in roles if step not in steps]
        for step in stray:
            free = [file for file in steps if file not in roles]
            yield finding_at(
                source, "roles", (name, step), f"{name} has no step '{step}'.", seen=str(step), expected=one_of(steps),
                fix=closest(str(step), free) or "remove the line",
            )  # fmt: skip
        for step in steps:
            if step not in roles and not stray:
                yield finding_at(
                    source,
                    "roles",
                    (name,),
                    f"step '{step}' has no role.",
                    seen=", ".join(map(str, roles)),
                    expected=f"{step}: one of {', '.join(known_roles)}",
                    fix=f"add a line `{step}: …`",
                )
        for step, role in roles.items():
            if role not in known_roles:
                yield finding_at(
                    source,
                    "roles",
                    (name, step),
                    f"there is no role '{role}'.",
                    seen=str(role),
                    expected=one_of(known_roles),
                    fix=closest(str(role), known_roles) or "choose a listed role",
                )


def pipelines(repository: Repository, broken: Collection[Path]) -> list[Pipeline]:
    """Return the workflows with roles and without errors."""
    readable = []
    for source in repository.roles.values():
        if {source.path.parent / str(name) for name in source.data} & repository.unsound:
            continue  # the outputs of a workflow are checked against those of all workflows in its folder
        for name in source.data:
            path = source.path.parent / str(name)
            if path.suffix == ".cwl" and not {path, source.path} & set(broken):
                try:
                    readable.append(read_pipeline(path, repository.reader))
                except StepError:
                    continue  # reported by another check
    return readable


def check_bound_roles(
    source: SourceDocument, bound: Mapping[Path, Collection[Path]], known: list[Pipeline]
) -> Iterator[ValidationFinding]:
    """Yield missing roles of workflows that generated files bind to the site."""
    missing: dict[str, Pipeline] = {}
    for pipeline in known:
        if pipeline.path in bound.get(source.path, ()):
            for step in pipeline.steps:
                if step.role not in source.data["roles"]:
                    missing.setdefault(step.role, pipeline)
    for role, pipeline in missing.items():
        yield finding_at(
            source,
            "site-role",
            ("roles",),
            f"the site file has no deployment for role '{role}'.",
            seen=", ".join(source.data["roles"]),
            expected=f"{role}: {{deployment: …}}, for {pipeline.path.parent.name}/{pipeline.path.name}",
            fix=f"add '{role}' under `roles`",
        )


def check_inputs(source: SourceDocument, known: list[Pipeline]) -> Iterator[ValidationFinding]:
    """Yield inputs of a site whose name is close to an input of a workflow: other workflows may have other inputs."""
    names = sorted({name for pipeline in known for name in pipeline.inputs})
    for name in source.data.get("inputs") or {}:
        if name not in names and (near := closest(name, names)):
            yield finding_at(
                source,
                "site",
                ("inputs", name),
                f"no workflow has an input '{name}'.",
                seen=name,
                expected=one_of(names),
                fix=near,
            )


def check_routes(
    source: SourceDocument, repository: Repository, known: list[Pipeline], bound: Mapping[Path, Path]
) -> list[ValidationFinding]:
    """Return the first violation of the site's data rules by the workflows that are bound to it.

    Args:
        bound: job file by workflow; its values decide which steps run.
    """
    site = read_site(source.path, repository.reader)
    for pipeline in known:
        job = repository.source(bound[pipeline.path]) if pipeline.path in bound else None
        if job is None or not has_roles(site.roles, pipeline):
            continue
        inputs = {name: place for name, place in site.inputs.items() if name in pipeline.folder_inputs}
        try:
            check_data_rules(pipeline, dataclasses.replace(site, inputs=inputs), job.data)
        except FieldFault as fault:
            holder = repository.source(fault.path) or source
            return [finding_of(holder, fault, "data-route")]
    return []


def has_roles(roles: Mapping[str, Any], pipeline: Pipeline) -> bool:
    """Return whether a site has a place for each step of a workflow."""
    return all(step.role in roles for step in pipeline.steps)
