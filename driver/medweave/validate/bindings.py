"""StreamFlow files: bindings refer to existing things, and files by `medweave bind` are up to date."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.placement.bind import bind
from medweave.project.deployments import part_schemas
from medweave.project.near_files import expected_path, near
from medweave.project.schemas import streamflow_schema
from medweave.project.sites import SITES
from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave.validate.images import check_containers
from medweave.validate.places import check_deployments, finding_of, services_of, tools_of
from medweave.validate.repository import Repository
from medweave_connectors.policy.data_rules import forbidden_classes
from medweave_core.documents.binding_names import too_few_hosts
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.field_errors import FieldFault, faults
from medweave_core.documents.file_locations import document_of
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument, parse_text
from medweave_core.documents.streamflow_bindings import OUR_TYPES, our_deployments, targets
from medweave_core.errors import StepError

HEADER = "#   medweave bind "
FOLDER = ", in the folder "
JOBS = "jobs"


def check_structure(source: SourceDocument) -> list[ValidationFinding]:
    """Yield the wrong keys and values of a StreamFlow file; the other checks require a file without any."""
    return [
        finding_of(source, fault, "binding-structure")
        for fault in faults(source.data, streamflow_schema(), source.path, ())
    ]


def check_bindings(source: SourceDocument, repository: Repository) -> list[ValidationFinding]:
    """Return the findings of a StreamFlow file alone."""
    findings = check_structure(source)
    if findings:
        return findings
    findings += check_deployments(source, "binding-structure", missing_rule="binding-file")
    for name, workflow in source.data["workflows"].items():
        field: FieldPath = ("workflows", name)
        findings += _files(source, field, workflow)
        path = (source.path.parent / workflow["config"]["file"]).resolve()
        document = repository.process(path)
        if document is not None and document.is_workflow:
            findings += _steps_and_ports(source, field, workflow, document, repository)
            if not workflow["config"].get("docker"):
                findings += _containers(source, workflow, document, repository)
        for number, binding in enumerate(workflow.get("bindings") or []):
            findings += _targets(source, (*field, "bindings", number), binding)
    parts = [*_parts(source)]
    return [*findings, *_names(source), *parts, *([] if parts else _data_rules(source))]


def _containers(
    source: SourceDocument, workflow: Mapping[str, Any], document: Process, repository: Repository
) -> Iterator[ValidationFinding]:
    """Yield what asks for a container in a workflow of which a step is bound to a deployment of ours."""
    if {bound.target.get("deployment") for bound in targets(workflow)} & set(our_deployments(source.data)):
        yield from check_containers(document, tools_of(document, repository))


def generated(source: SourceDocument) -> Sequence[str] | None:
    """Return the arguments of the `medweave bind` command that wrote a file; None for other files."""
    head = source.text.splitlines()[:12]
    line = next((line for line in head if line.startswith(HEADER)), None)
    if line is None or not any(FOLDER in head_line for head_line in head):
        return None
    try:
        return shlex.split(line.removeprefix(HEADER)) or None
    except ValueError:  # a quote that is not closed
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The sources of a file by `medweave bind`.

    Attributes:
        named_site: as the command names it.
        roles: other places for roles, as the command gives them.
    """

    workflow: Path
    site: Path
    named_site: str
    job: Path
    job_is_default: bool
    roles: tuple[str, ...]


def origin_of(source: SourceDocument, words: Sequence[str]) -> Origin:
    """Return the sources of a generated file, by its header."""
    header = next(line for line in source.text.splitlines() if FOLDER in line)
    folder = (source.path.parent / header.partition(FOLDER)[2].partition(" seen from here")[0]).resolve()
    options = list(zip(words[1::2], words[2::2], strict=False))
    option_values = dict(options)
    site, workflow = option_values.get("--site", ""), (folder / words[0]).resolve()
    is_path = "/" in site or site.endswith((".yml", ".yaml"))
    job = (
        folder / option_values["--job"]
        if "--job" in option_values
        else workflow.parent / JOBS / f"demo-{workflow.stem}.yml"
    )
    return Origin(
        workflow=workflow,
        site=(folder / (site if is_path else SITES / f"{site}.yml")).resolve(),
        named_site=str(folder / site) if is_path else site,
        job=job.resolve(),
        job_is_default="--job" not in option_values,
        roles=tuple(value for option, value in options if option == "--role"),
    )


def check_current(source: SourceDocument, words: Sequence[str], repository: Repository) -> list[ValidationFinding]:
    """Return a finding if a generated file differs from what `medweave bind` writes now; its sources have no findings."""
    origin = origin_of(source, words)
    job = None if origin.job_is_default else origin.job
    try:
        text = bind(origin.workflow, origin.named_site, source.path, job, origin.roles, reader=repository.reader)
    except StepError as error:
        holder = repository.source(error.path.resolve()) if isinstance(error, FieldFault) else None
        if holder is not None and isinstance(error, FieldFault):
            return [finding_of(holder, error, "site" if holder.path in repository.sites else "binding-stale")]
        return [
            finding_at(
                source,
                "binding-stale",
                (),
                f"it cannot be regenerated: {' '.join(error.what.split())}",
                seen=error.seen,
                expected=error.expected,
                fix=error.do,
            )
        ]
    now = parse_text(source.path, text).documents
    if text == source.text or [document.data for document in now] == [source.data]:
        return []  # comments may differ: other versions write other ones
    pairs = list(zip(source.text.splitlines(), text.splitlines(), strict=False))
    line = next(
        (number for number, (old, new) in enumerate(pairs) if old != new),
        min(len(source.text.splitlines()) - 1, len(pairs)),
    )
    old, new = (
        version.splitlines()[line].strip() if line < len(version.splitlines()) else "(nothing)"
        for version in (source.text, text)
    )
    return [
        ValidationFinding(
            file=source.path,
            line=line + 1,
            column=1,
            rule="binding-stale",
            what="this file differs from the output of its `medweave bind` command.",
            seen=old[:160],
            expected=new[:160],
            fix=f"regenerate it: medweave bind {shlex.join(words)}",
        )
    ]


def _files(source: SourceDocument, field: FieldPath, workflow: Mapping[str, Any]) -> Iterator[ValidationFinding]:
    for key, what in (("file", "workflow"), ("settings", "job file")):
        text = workflow["config"].get(key)
        if text is None:
            continue
        path = document_of(text, source.path.parent)
        if "://" not in text and not path.is_file():
            names, fix = near(path)
            yield finding_at(
                source, "binding-file", (*field, "config", key), f"there is no such {what}.", seen=text,
                expected=expected_path(names), fix=fix or "correct the path",
            )  # fmt: skip


def _steps_and_ports(
    source: SourceDocument, field: FieldPath, workflow: Mapping[str, Any], document: Process, repository: Repository
) -> Iterator[ValidationFinding]:
    steps = [step.path for step in document.steps.values()]
    nested = [*steps, *(path for path in tools_of(document, repository) if path not in steps)]
    inputs = [f"/{name}" for name in document.inputs]
    bound: list[str] = []
    wrong = False
    for number, binding in enumerate(workflow.get("bindings") or []):
        place = (*field, "bindings", number)
        if "step" in binding:
            bound.append(binding["step"])
            if binding["step"] not in ("/", *nested):
                wrong = True
                yield finding_at(
                    source,
                    "binding-step",
                    (*place, "step"),
                    f"{document.path.name} has no step '{binding['step']}'.",
                    seen=binding["step"],
                    expected=f"/ or one of {', '.join(nested)}",
                    fix=closest(binding["step"], nested) or "remove the binding",
                )
            elif binding["step"] in bound[:-1]:
                yield finding_at(
                    source, "binding-step", (*place, "step"), f"'{binding['step']}' is bound twice.", seen=binding["step"],
                    expected="one binding per step, with a list of targets if there are several", fix="remove one of the bindings",
                )  # fmt: skip
        elif "port" not in binding:
            yield finding_at(
                source, "binding-structure", place, "this binding has neither `step` nor `port`.", seen=", ".join(binding),
                expected="step: /… or port: /…", fix="add the bound step or port",
            )  # fmt: skip
        else:
            yield from _port(source, place, binding, inputs, steps, document)
    unbound = [step for step in steps if step not in bound]
    if "/" not in bound and unbound and not wrong:
        yield finding_at(
            source,
            "binding-step",
            (*field, "bindings"),
            f"step '{unbound[0]}' has no binding, so it would run on the driver's machine.",
            seen=f"no binding for {', '.join(unbound)}",
            expected="a binding for each step, or for / (all other steps)",
            fix=f"bind {', '.join(unbound)}",
        )


def _port(
    source: SourceDocument,
    place: FieldPath,
    binding: Mapping[str, Any],
    inputs: list[str],
    steps: list[str],
    document: Process,
) -> Iterator[ValidationFinding]:
    port = binding["port"]
    if port not in inputs and not any(port.startswith(f"{step}/") for step in steps):
        yield finding_at(
            source, "binding-port", (*place, "port"), f"{document.path.name} has no input '{port}'.", seen=port,
            expected=one_of(inputs), fix=closest(port, inputs) or "remove the binding",
        )  # fmt: skip
    if isinstance(binding["target"], Mapping) and "workdir" not in binding["target"]:
        yield finding_at(
            source, "binding-port", (*place, "target"), "the target of a port must name the folder of the input.",
            seen="no workdir",
            expected="workdir: a folder at the deployment", fix="add workdir: /…",
        )  # fmt: skip


def _targets(source: SourceDocument, field: FieldPath, binding: Mapping[str, Any]) -> Iterator[ValidationFinding]:
    deployments = source.data.get("deployments") or {}
    listed = isinstance(binding["target"], list)
    for number, target in enumerate(binding["target"] if listed else [binding["target"]]):
        place = (*field, "target", number) if listed else (*field, "target")
        name, service = target["deployment"], target.get("service")
        if name not in deployments:
            yield finding_at(
                source, "binding-target", (*place, "deployment"), f"there is no deployment '{name}'.", seen=name,
                expected=one_of(deployments), fix=closest(name, list(deployments)) or "choose a listed deployment",
            )  # fmt: skip
            continue
        services = services_of(deployments[name], source.path.parent)
        chosen = bool((deployments[name].get("config") or {}).get("services"))
        if service is None and chosen:
            yield finding_at(
                source, "binding-target", place, f"deployment '{name}' has services, but no service is chosen.", seen="no service",
                expected=f"service: one of {', '.join(sorted(services or ()))}", fix="add `service`",
            )  # fmt: skip
        elif service is not None and services is not None and service not in services:
            known = sorted(services)
            yield finding_at(
                source,
                "binding-target",
                (*place, "service"),
                f"deployment '{name}' has no service '{service}'.",
                seen=service,
                expected=f"one of {', '.join(known)}" if known else "no service",
                fix=closest(service, known) or ("choose a listed service" if known else "remove `service`"),
            )
        if (problem := too_few_hosts(name, deployments[name], target)) is not None:
            what, expected, do = problem
            yield finding_at(
                source, "binding-target", (*place, "locations"), what, seen=str(target["locations"]), expected=expected, fix=do,
            )  # fmt: skip


def _names(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield unknown filters and policies."""
    data = source.data
    filters = list(data.get("bindingFilters") or {})
    policies = list((data.get("scheduling") or {}).get("policies") or {})
    references: list[tuple[FieldPath, str, str, list[str]]] = [
        (("deployments", name, "scheduling_policy"), "policy", deployment["scheduling_policy"], policies)
        for name, deployment in (data.get("deployments") or {}).items()
        if "scheduling_policy" in deployment
    ]
    for name, workflow in data["workflows"].items():
        for number, binding in enumerate(workflow.get("bindings") or []):
            field: FieldPath = ("workflows", name, "bindings", number, "filters")
            references += [
                ((*field, place), "filter", filter_name, filters)
                for place, filter_name in enumerate(binding.get("filters") or [])
            ]
    for field, kind, name, known in references:
        if name not in known:
            yield finding_at(
                source,
                "binding-target",
                field,
                f"there is no {kind} '{name}'.",
                seen=name,
                expected=one_of(known),
                fix=closest(name, known) or f"declare the {kind}, or remove its name",
            )


def _data_rules(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield steps whose binding violates the data rules of the file."""
    for name, filter_ in (source.data.get("bindingFilters") or {}).items():
        config = filter_.get("config") or {}
        if filter_.get("type") != "medweave.filter" or not config.get("mayHold") or not config.get("holds"):
            continue
        for workflow_name, workflow in source.data["workflows"].items():
            for number, binding in enumerate(workflow.get("bindings") or []):
                classes = config["holds"].get(binding.get("step"))
                targets = binding["target"] if isinstance(binding["target"], list) else [binding["target"]]
                at: FieldPath = ("workflows", workflow_name, "bindings", number, "target", "deployment")
                for target in targets if classes else ():
                    forbidden = forbidden_classes(classes, target["deployment"], config["mayHold"])
                    if forbidden and target["deployment"] in (source.data.get("deployments") or {}):
                        able = [deployment for deployment, may in config["mayHold"].items() if set(classes) <= set(may)]
                        yield finding_at(
                            source,
                            "data-route",
                            at,
                            f"the data rules do not allow step {binding['step']} at '{target['deployment']}'.",
                            seen=f"{', '.join(forbidden)} data",
                            expected=f"a deployment that may hold {', '.join(classes)}: {', '.join(able) or 'none'}",
                            fix=f"bind it to {' or '.join(able)}" if able else f"correct {name}.config.mayHold",
                        )


def _parts(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield unknown types and wrong settings of medweave's scheduler, managers, filters and policies."""
    data, schemas = source.data, part_schemas()
    scheduling = data.get("scheduling") or {}
    parts: list[tuple[FieldPath, Any]] = [((name,), data.get(name)) for name in ("dataManager", "database")]
    parts.append((("scheduling", "scheduler"), scheduling.get("scheduler")))
    parts += [(("scheduling", "policies", name), part) for name, part in (scheduling.get("policies") or {}).items()]
    parts += [(("bindingFilters", name), part) for name, part in (data.get("bindingFilters") or {}).items()]
    for field, part in parts:
        kind = str((part or {}).get("type", ""))
        if not kind.startswith(OUR_TYPES):
            continue
        if kind not in schemas:
            yield finding_at(
                source, "binding-structure", (*field, "type"), f"there is no '{kind}'.", seen=kind,
                expected=one_of(schemas), fix=closest(kind, list(schemas)) or "choose a listed name",
            )  # fmt: skip
            continue
        for fault in faults(part.get("config") or {}, schemas[kind], source.path, (*field, "config")):
            yield finding_of(source, fault, "binding-structure")
