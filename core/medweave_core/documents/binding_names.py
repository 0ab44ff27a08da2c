"""The names in a file's bindings: a missing step, port, deployment, service or host is refused before anything starts.

StreamFlow has a warning for the first two, and binds nothing; a service it asks for when the first job gets there.

Pure: no streamflow in here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import FieldFault, fault_at
from medweave_core.documents.file_locations import document_of
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.streamflow_bindings import targets

# Their services are keys of their settings, if they have any; those of pods are containers, which the cluster knows.
SSH = "medweave.ssh"
_SERVICES_IN_FILE = ("medweave.local", SSH, "medweave.slurm")


def check_targets(config: Mapping[str, Any]) -> None:
    """Check that the deployments, services and hosts of bindings exist.

    Args:
        config: the parsed streamflow.yml with its path under `path`.

    Raises:
        FieldFault: the first such name in a `wraps` or a target, a target that names no service where there are some, or that
            requests more hosts than there are.
    """
    file, deployments = Path(config["path"]), config.get("deployments") or {}
    for name, deployment in deployments.items():
        wraps = deployment.get("wraps")
        inner = wraps["deployment"] if isinstance(wraps, Mapping) else wraps
        if inner is not None and inner not in deployments:
            where = (file, ("deployments", name, "wraps"))
            raise _unknown(
                where, "deployment", inner, [other for other in deployments if other != name], of="in this file"
            )
    for name, workflow in (config.get("workflows") or {}).items():
        for place, _, target in targets(workflow):
            field: FieldPath = ("workflows", name, *place)
            used = target.get("deployment")
            if used is None:
                continue  # StreamFlow's deprecated key `model`, about which StreamFlow warns
            if used not in deployments:
                raise _unknown((file, (*field, "deployment")), "deployment", used, deployments, of="in `deployments`")
            if deployments[used]["type"] in _SERVICES_IN_FILE:
                services = (deployments[used].get("config") or {}).get("services") or {}
                _check_service(file, field, used, target.get("service"), services)
            if (problem := too_few_hosts(used, deployments[used], target)) is not None:
                what, expected, do = problem
                raise fault_at(
                    file, (*field, "locations"), what, seen=str(target["locations"]), expected=expected, do=do
                )


def check_named(config: Mapping[str, Any]) -> None:
    """Check that policies and filters are declared, and that paths of steps and ports start with `/`.

    Raises:
        FieldFault: the first of them.
    """
    file, filters = Path(config["path"]), config.get("bindingFilters") or {}
    policies = (config.get("scheduling") or {}).get("policies") or {}
    for name, deployment in (config.get("deployments") or {}).items():
        policy = deployment.get("scheduling_policy")
        # `cwl-runner` looks policies up before it makes a scheduler, and replaces the name by the policy.
        if isinstance(policy, str) and policy not in policies:
            at: FieldPath = ("deployments", name, "scheduling_policy")
            raise _unknown((file, at), "policy", policy, policies, of="of scheduling.policies")
    for name, workflow in (config.get("workflows") or {}).items():
        for number, binding in enumerate(workflow.get("bindings") or []):
            field: FieldPath = ("workflows", name, "bindings", number)
            for place, filter_name in enumerate(binding.get("filters") or []):
                if filter_name not in filters:
                    raise _unknown(
                        (file, (*field, "filters", place)), "filter", filter_name, filters, of="of bindingFilters"
                    )
            kind = "step" if "step" in binding else "port"
            if not str(binding[kind]).startswith("/"):
                raise fault_at(
                    file, (*field, kind), "the path must start at the workflow.", seen=str(binding[kind]),
                    expected=f"the path of a {kind}, starting with /", do=f"write {kind}: /{binding[kind]}",
                )  # fmt: skip


def check_files(config: Mapping[str, Any]) -> None:
    """Check that workflows and job files exist.

    Raises:
        FieldFault: the first of them.
    """
    file = Path(config["path"])
    for name, workflow in (config.get("workflows") or {}).items():
        for key, what in (("file", "CWL workflow"), ("settings", "job file")):
            text = workflow["config"].get(key)
            if text is None or "://" in text or (path := document_of(text, file.parent)).is_file():
                continue
            siblings = sorted(sibling.name for sibling in path.parent.iterdir()) if path.parent.is_dir() else []
            raise fault_at(
                file, ("workflows", name, "config", key), f"there is no such {what}.", seen=text,
                expected="a path relative to the folder of this file, or an absolute path",
                do=closest(path.name, siblings) or "correct the path",
            )  # fmt: skip


def check_paths(
    config: Mapping[str, Any], workflow: str, *, steps: Collection[str], ports: Collection[str], document: str
) -> None:
    """Check that bound steps and ports exist in the workflow.

    Args:
        config: the parsed streamflow.yml with its path under `path`.
        workflow: its name in the file.
        steps: paths of all tools: `/train`, `/prepare/resample` of a sub-workflow, `/` of a file that is one tool.
        ports: paths of the workflow's inputs and of all tools' outputs: `/series`, `/train/model`.
        document: name of the CWL file.

    Raises:
        FieldFault: the first such binding.
    """
    known = {"step": _with_parents(steps) | {"/"}, "port": _with_parents(ports)}  # `/`: what there is, be it nothing
    listed = {"step": sorted(known["step"] - {"/"}) or ["/"], "port": sorted(ports)}
    for number, binding in enumerate(config["workflows"][workflow].get("bindings") or []):
        kind = "step" if "step" in binding else "port"
        path = str(PurePosixPath(binding[kind]))
        if path not in known[kind]:
            where = (Path(config["path"]), ("workflows", workflow, "bindings", number, kind))
            raise _unknown(where, kind, path, listed[kind], of=f"of {document}")


def _check_service(
    file: Path, field: FieldPath, deployment: str, service: str | None, services: Mapping[str, Any]
) -> None:
    if service is not None and not services:
        raise fault_at(
            file,
            (*field, "service"),
            f"deployment '{deployment}' has no services.",
            seen=f"service '{service}'",
            expected="a target without a service",
            do="remove `service`",
        )
    if service is None and services:
        raise fault_at(
            file,
            field,
            f"deployment '{deployment}' has services, but no service is chosen.",
            seen="no service",
            expected=f"one of {', '.join(services)}",
            do=f"write service: {next(iter(services))}, or another of them, next to `deployment`",
        )
    if service is not None and service not in services:
        where = (file, (*field, "service"))
        raise _unknown(where, "service", service, services, of=f"of deployment '{deployment}'")


def too_few_hosts(name: str, deployment: Mapping[str, Any], target: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what is wrong with the number of nodes at a medweave.ssh deployment, what is expected, and what to do.

    Args:
        name: of the deployment.
        target: its `locations` are the nodes of one job.

    Returns:
        None if the deployment has as many hosts, or is of another type.
    """
    nodes = (deployment.get("config") or {}).get("nodes")
    if deployment.get("type") != SSH or not isinstance(nodes, list) or target.get("locations", 1) <= len(nodes):
        return None
    return (
        f"deployment '{name}' has too few hosts.",
        f"at most {len(nodes)}: its `nodes` are {', '.join(map(str, nodes))}",
        "add hosts to `nodes`, or reduce `locations`",
    )


def _with_parents(paths: Iterable[str]) -> set[str]:
    """Return the paths with all their parents: a binding of a sub-workflow applies to all of its steps."""
    return {str(parent) for path in paths for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}


def _unknown(where: tuple[Path, FieldPath], kind: str, name: str, known: Iterable[str], *, of: str) -> FieldFault:
    names = list(known)
    near = _nearest_first(name, names)
    return fault_at(
        *where,
        f"there is no {kind} '{name}'.",
        seen=f"{kind} '{name}'",
        expected=f"a {kind} {of}: {', '.join(near) or 'none'}",
        do=closest(name, names) or "write a listed name, or remove it",
    )


def _nearest_first(name: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda candidate: -difflib.SequenceMatcher(None, name, candidate).ratio())
