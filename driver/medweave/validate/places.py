"""Deployments of site files and StreamFlow files: their settings, services and files; and the tools of workflows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.placement.bound_file import PATH_FORMAT
from medweave.project.deployments import connector_schemas, faults_of_deployments
from medweave.project.near_files import expected_path, near
from medweave.validate.findings import ValidationFinding, finding_at, of_fault, one_of
from medweave.validate.repository import Repository
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.field_errors import FieldFault
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument, parse_file

STOCK = (
    "docker", "docker-compose", "flux", "helm", "helm3", "helm4", "kubernetes", "local", "pbs", "singularity", "slurm", "ssh",
)  # fmt: skip
_CONTAINER = re.compile(r'\.container" \(dict "root" \. "(?:name|part)" "(\w+)"')  # as the charts of medweave write it
_PLAIN_CONTAINER = re.compile(r"^\s*-\s+name:\s*([a-z0-9-]+)\s*$", re.MULTILINE)


def finding_of(source: SourceDocument, fault: FieldFault, rule: str) -> ValidationFinding:
    """Return the error of a reader as a finding in its document."""
    return of_fault(fault, rule, *source.position(fault.field))


def check_deployments(source: SourceDocument, rule: str, *, missing_rule: str) -> Iterator[ValidationFinding]:
    """Yield the findings of the deployments of a document that has passed its schema."""
    deployments = source.data.get("deployments") or {}
    for fault in faults_of_deployments(deployments, source.path):
        yield finding_of(source, fault, rule)
    yield from check_types_and_files(source, rule, missing_rule=missing_rule)


def check_types_and_files(source: SourceDocument, rule: str, *, missing_rule: str) -> Iterator[ValidationFinding]:
    """Yield unknown connector types and missing files."""
    schemas = connector_schemas()
    for name, deployment in (source.data.get("deployments") or {}).items():
        kind, config = str(deployment.get("type")), deployment.get("config") or {}
        field: FieldPath = ("deployments", name)
        if kind not in schemas and kind not in STOCK and not kind.startswith("medweave."):
            known = [*schemas, *STOCK]
            yield finding_at(
                source, rule, (*field, "type"), f"unknown connector '{kind}'.", seen=kind, expected=one_of(known),
                fix=closest(kind, known) or "choose a listed connector",
            )  # fmt: skip
        schema = schemas.get(kind, {})
        named = [(("chart",), config["chart"])] if isinstance(config.get("chart"), str) and "repo" not in config else []
        for inside, text in [*named, *_paths(config, schema, ())]:
            path = _local(text, source.path.parent)
            if path is not None and not path.exists():
                names, fix = near(path)
                yield finding_at(
                    source, missing_rule, (*field, "config", *inside), f"'{text}' does not exist.", seen=str(text),
                    expected=expected_path(names), fix=fix or "correct the path",
                )  # fmt: skip


def chart_of(deployment: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the folder of the chart; None if it is not a local chart."""
    config = deployment.get("config") or {}
    text = config.get("chart")
    path = _local(text, folder) if isinstance(text, str) and "repo" not in config else None
    return path if path is not None and (path / "Chart.yaml").is_file() else None


def services_of(deployment: Mapping[str, Any], folder: Path) -> set[str] | None:
    """Return the services of a deployment; None if local files do not show them."""
    config, kind = deployment.get("config") or {}, str(deployment.get("type"))
    if isinstance(config.get("services"), Mapping):
        return set(config["services"])
    if "chart" in config:
        chart = chart_of(deployment, folder)
        if chart is None:
            return None
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in (chart / "templates").rglob("*.yaml")]
        return (
            {name for text in texts for name in _CONTAINER.findall(text)}
            or {name for text in texts for name in _PLAIN_CONTAINER.findall(text)}
            or None
        )
    if kind == "medweave.kubernetes" and isinstance(config.get("files"), list):
        paths = [_local(text, folder) for text in config["files"]]
        services = {name for path in paths if path is not None and path.is_file() for name in _containers(path)}
        return services or None
    return set() if kind in ("medweave.local", "medweave.ssh") else None


def _containers(path: Path) -> Iterator[str]:
    for document in parse_file(path).documents:
        stack = [document.data]
        while stack:
            value = stack.pop()
            if isinstance(value, Mapping):
                yield from (
                    str(container["name"])
                    for container in (value["containers"] if isinstance(value.get("containers"), list) else ())
                    if isinstance(container, Mapping) and "name" in container
                )
                stack += value.values()
            elif isinstance(value, list):
                stack += value


def _paths(value: Any, schema: Mapping[str, Any], field: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yield settings that are paths on the driver's machine."""
    if isinstance(value, str) and schema.get("format") == PATH_FORMAT:
        yield field, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _paths(item, schema.get("items", {}), (*field, number))
    elif isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, others if isinstance(others, Mapping) else {})
            yield from _paths(item, inner, (*field, key))


def _local(text: str, folder: Path) -> Path | None:
    """Return a path in this repository; None for a path elsewhere, or one with a variable."""
    if not isinstance(text, str) or "://" in text or text.startswith(("/", "~")) or "${" in text:
        return None
    return (folder / text).resolve()


def tools_of(workflow: Process, repository: Repository, outer: frozenset[Path] = frozenset()) -> dict[str, Process]:
    """Return the tools in files that a workflow's steps run, by path of the step; those in nested workflows too.

    Args:
        outer: files of the workflows around it, which are not entered again.
    """
    tools: dict[str, Process] = {}
    for step in workflow.steps.values():
        tool = repository.process(step.run_file) if step.run_file is not None else None
        if tool is None:
            continue
        tools[step.path] = tool
        if tool.is_workflow and tool.path not in {workflow.path, *outer}:
            nested = tools_of(tool, repository, outer | {workflow.path})
            tools.update({f"{step.path}{inner}": process for inner, process in nested.items()})
    return tools
