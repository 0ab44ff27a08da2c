"""The names in a file's bindings: a step, port, deployment or service that there is not is refused before anything starts.

StreamFlow has a warning for the first two, and binds nothing; a service it asks for when the first job gets there.

Pure: no streamflow in here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_connectors.closest import closest
from medweave_connectors.placement.bindings import targets
from medweave_steps.contracts.errors import UsageError

# Their services are keys of their settings, if they have any; those of pods are containers, which the cluster knows.
_SERVICES_IN_FILE = ("medweave.local", "medweave.ssh", "medweave.slurm")


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuses deployments and services that the file does not have.

    Args:
        config: the parsed streamflow.yml with its path under `path`.

    Raises:
        UsageError: the first such name in a `wraps` or a target, or a target that names no service where there are some.
    """
    deployments = config.get("deployments") or {}
    for name, deployment in deployments.items():
        wraps = deployment.get("wraps")
        inner = wraps["deployment"] if isinstance(wraps, Mapping) else wraps
        if inner is not None and inner not in deployments:
            where = f"{Path(config['path']).name}, deployments.{name}.wraps"
            raise _unknown(where, "deployment", inner, [each for each in deployments if each != name], of="beside it")
    for name, workflow in (config.get("workflows") or {}).items():
        for place, _, target in targets(workflow):
            where, used = f"{Path(config['path']).name}, workflows.{name}.{place}", target.get("deployment")
            if used is None:
                continue  # StreamFlow's older word for it, which it tells of itself
            if used not in deployments:
                raise _unknown(f"{where}.deployment", "deployment", used, deployments, of="in `deployments`")
            if deployments[used]["type"] in _SERVICES_IN_FILE:
                services = (deployments[used].get("config") or {}).get("services") or {}
                _check_service(where, used, target.get("service"), services)


def check_paths(
    config: Mapping[str, Any], workflow: str, *, steps: Collection[str], ports: Collection[str], document: str
) -> None:
    """Refuses bindings of steps and ports that the workflow does not have.

    Args:
        config: the parsed streamflow.yml with its path under `path`.
        workflow: its name in the file.
        steps: paths of all tools: `/train`, `/prepare/resample` of a sub-workflow, `/` of a file that is one tool.
        ports: paths of the workflow's inputs and of all tools' outputs: `/series`, `/train/model`.
        document: name of the CWL file.

    Raises:
        UsageError: the first such binding.
    """
    known = {"step": _with_parents(steps) | {"/"}, "port": _with_parents(ports)}  # `/`: what there is, be it nothing
    listed = {"step": sorted(known["step"] - {"/"}) or ["/"], "port": sorted(ports)}
    for number, binding in enumerate(config["workflows"][workflow].get("bindings") or []):
        kind = "step" if "step" in binding else "port"
        path = str(PurePosixPath(binding[kind]))
        if path not in known[kind]:
            where = f"{Path(config['path']).name}, workflows.{workflow}.bindings[{number}].{kind}"
            raise _unknown(where, kind, path, listed[kind], of=f"of {document}")


def _check_service(where: str, deployment: str, service: str | None, services: Mapping[str, Any]) -> None:
    if service is not None and not services:
        raise UsageError(
            f"{where}.service: deployment '{deployment}' has no services.",
            seen=f"service '{service}'",
            expected="a target without a service",
            do="take `service` away",
        )
    if service is None and services:
        raise UsageError(
            f"{where}: deployment '{deployment}' has services, and none is chosen.",
            seen="no service",
            expected=f"one of {', '.join(services)}",
            do=f"write service: {next(iter(services))}, or another of them, beside the deployment",
        )
    if service is not None and service not in services:
        raise _unknown(f"{where}.service", "service", service, services, of=f"of deployment '{deployment}'")


def _with_parents(paths: Iterable[str]) -> set[str]:
    """What is bound with them is bound for all below: a sub-workflow, or the whole."""
    return {str(each) for path in paths for each in (PurePosixPath(path), *PurePosixPath(path).parents)}


def _unknown(where: str, kind: str, name: str, known: Iterable[str], *, of: str) -> UsageError:
    names = list(known)
    near = _nearest_first(name, names)
    return UsageError(
        f"{where}: there is no {kind} '{name}'.",
        seen=f"{kind} '{name}'",
        expected=f"a {kind} {of}: {', '.join(near) or 'there is none'}",
        do=closest(name, names) or "write one of these, or take it away",
    )


def _nearest_first(name: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda each: -difflib.SequenceMatcher(None, name, each).ratio())
