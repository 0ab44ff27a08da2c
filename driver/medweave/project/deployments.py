"""Deployments of site files and StreamFlow files: schemas of their settings, errors, and wrapping."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from medweave_connectors.jobs.worker_environment import read_environment
from medweave_connectors.sites.slurm.service import check_service
from medweave_connectors.sites.ssh.settings import is_node
from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import FieldFault, fault_at, faults
from medweave_core.documents.line_numbers import FieldPath, spelled
from medweave_core.documents.streamflow_bindings import OUR_TYPES
from medweave_core.documents.streamflow_paths import LOCAL_TYPES
from medweave_core.errors import UsageError

_OF_KEY = re.compile(r"\.(\w+)(?:\[(\d+)\])?: ")
_OF_CONNECTOR = "/connectors/"  # in the id of a schema
_IS_FOLDER_AT_SITE = re.compile(r"(/|\$\{)\S*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFault:
    """An error of a place; `key` is the wrong key, None if a key is missing."""

    key: str | None
    what: str
    seen: str
    expected: str
    do: str


def connector_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of `config` of each medweave connector, by type."""
    return {name: schema for name, schema in _schemas().items() if _OF_CONNECTOR in schema["$id"]}


def part_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of `config` of medweave's scheduler, managers, filters and policies, by type."""
    return {name: schema for name, schema in _schemas().items() if _OF_CONNECTOR not in schema["$id"]}


@functools.cache
def _schemas() -> dict[str, dict[str, Any]]:
    root = files("medweave_connectors")
    packages = [
        package for room in ("engine", "sites") for package in root.joinpath(room).iterdir() if package.is_dir()
    ]
    texts = [
        file.read_text("utf-8")
        for package in packages
        for file in package.iterdir()
        if file.name.endswith("schema.json")
    ]
    schemas = sorted(map(json.loads, texts), key=lambda schema: str(schema["title"]))
    return {schema["title"]: schema for schema in schemas}


def as_fault(path: Path, field: FieldPath, fault: PlaceFault) -> FieldFault:
    """Return a fault of a setting as a fault of a field of a file."""
    return fault_at(path, field, fault.what, seen=fault.seen, expected=fault.expected, do=fault.do)


def faults_of_deployments(deployments: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
    """Yield the errors of the deployments of a file that has passed its schema."""
    for name, deployment in deployments.items():
        yield from _faults_of_deployment(name, deployment, path)
    in_circles: set[str] = set()
    for name in deployments:
        if name not in in_circles:
            fault, chain = _fault_of_chain(name, deployments, path)
            if fault is not None:
                in_circles.update(chain)
                yield fault


def _faults_of_deployment(name: str, deployment: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
    where: FieldPath = ("deployments", name)
    schemas, kind = connector_schemas(), deployment["type"]
    if not kind.startswith(OUR_TYPES):
        return
    if kind not in schemas:
        yield as_fault(path, (*where, "type"), unknown("connector", kind, schemas))
        return
    workdir = deployment.get("workdir")
    if workdir and kind not in LOCAL_TYPES and not _IS_FOLDER_AT_SITE.match(workdir):
        yield fault_at(
            path, (*where, "workdir"), "invalid work directory.", seen=str(workdir),
            expected="an absolute path without spaces; it may contain ${NAME}", do="write an absolute path",
        )  # fmt: skip
    of_schema = list(faults(deployment["config"], schemas[kind], path, (*where, "config")))
    yield from of_schema
    if of_schema:
        return
    for number, node in enumerate(deployment["config"].get("nodes", []) if kind == "medweave.ssh" else []):
        if "${" not in node and not is_node(node):
            yield fault_at(
                path, (*where, "config", "nodes", number), "invalid port.", seen=node,
                expected="host, or host:port with a port from 1 to 65535", do="correct the port",
            )  # fmt: skip
    for inside, keys in environments(name, deployment):
        try:
            read_environment(keys, where=spelled(inside))
        except UsageError as error:
            yield _fault_below(path, inside, error)
    services = deployment["config"].get("services", {}) if kind == "medweave.slurm" else {}
    for service, keys in services.items():
        inside = (*where, "config", "services", service)
        try:
            check_service(keys, where=spelled(inside))
        except UsageError as error:
            yield _fault_below(path, inside, error)


def _fault_below(path: Path, inside: FieldPath, error: UsageError) -> FieldFault:
    """Return an error about a key below a field, such as `deployments.hpc.config.environment.modules[0]: …`, as a fault."""
    what = error.what.removeprefix(spelled(inside))
    if key := _OF_KEY.match(what):
        inside, what = (*inside, key[1], *map(int, filter(None, [key[2]]))), what[key.end() :]
    return fault_at(path, inside, what.lstrip(": "), seen=error.seen, expected=error.expected, do=error.do)


def _fault_of_chain(name: str, deployments: Mapping[str, Any], path: Path) -> tuple[FieldFault | None, Sequence[str]]:
    """Return the error of the chain of deployments that one wraps, reported once, and the chain."""
    chain = [name]
    while (inner := wrapped(deployments[chain[-1]])) is not None:
        if inner not in deployments:
            fault = as_fault(path, ("deployments", chain[-1], "wraps"), unknown("deployment", inner, deployments))
            return (fault if len(chain) == 1 else None), chain
        if inner in chain:
            fault = fault_at(
                path, ("deployments", name, "wraps"), "these deployments wrap each other in a cycle.",
                seen=" → ".join([*chain, inner]), expected="a chain of `wraps` that ends at a deployment without `wraps`",
                do="remove one `wraps`",
            )  # fmt: skip
            return fault, chain
        chain.append(inner)
    return None, chain


def environments(name: str, deployment: Mapping[str, Any]) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """Return the worker environments of a deployment: of each of its services, or its own; with their places in the file."""
    config = deployment["config"]
    places = {(): config} | {("services", service): keys for service, keys in config.get("services", {}).items()}
    for inside, keys in places.items():
        if isinstance(keys, Mapping) and "environment" in keys:
            yield ("deployments", name, "config", *inside, "environment"), keys["environment"]


def wrapped(deployment: Mapping[str, Any]) -> str | None:
    """Return the name of the deployment through which this one is reached."""
    wraps = deployment.get("wraps")
    return wraps["deployment"] if isinstance(wraps, Mapping) else wraps


def unknown(kind: str, name: str, known: Iterable[str], *, inside: str = "") -> PlaceFault:
    """Return the fault of an unknown name.

    Args:
        kind: of thing, which is its key, too.
    """
    names = list(known)
    return PlaceFault(
        key=kind,
        what=f"there is no {kind} '{name}'{inside}.",
        seen=f"'{name}'",
        expected=f"one of {', '.join(names)}",
        do=closest(name, names) or "choose a listed name",
    )
