"""The virtual environments that a site file names: their machines, and the extras that their roles need."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medweave.project.deployments import connector_schemas, environments, wrapped
from medweave.project.sites import Site
from medweave_connectors.jobs.worker_environment import WorkerEnvironment
from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import shown, spelled
from medweave_core.documents.streamflow_paths import resolve_paths
from medweave_core.errors import UsageError, UserInputError

MACHINE = "medweave.ssh"
# Roles whose extra has another name, or that need several.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "check": ("check", "signals"), "deidentify": ("deidentify", "signals"), "preprocess": ("preprocess", "signals"),
    "train-distributed": ("train",), "prune": ("train",), "place-layers": ("train",),
    "bundle": ("export",), "encode-table": ("tables",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironmentSpec:
    """A virtual environment that the services of a site share, on one host.

    Attributes:
        environment: modules that are loaded before its Python is looked for, and its path.
        where: path of its `environment` in the site file; of several, the first one.
        deployment: name of the medweave.ssh deployment that reaches it.
        machine: the same, with the host if that deployment has several.
        config: settings of that deployment, with this host only, absolute paths and no variables.
        roles: roles that the site file binds to it.
    """

    environment: WorkerEnvironment
    where: str
    deployment: str
    machine: str
    config: Mapping[str, Any]
    roles: tuple[str, ...]

    @property
    def path(self) -> str:
        """Return its path at the site, absolute or from ~/."""
        return self.environment.virtualEnvironment

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the extras of medweave that its roles need, in alphabetical order."""
        return tuple(sorted({extra for role in self.roles for extra in EXTRAS.get(role, (role,))}))


def workers_of(site: Site, deployment: str | None) -> list[WorkerEnvironmentSpec]:
    """Return the virtual environments that a site file names, each once.

    Args:
        deployment: name of the only deployment to use; None for all.

    Raises:
        UsageError: there is no such deployment, or a variable of the file has no value.
        UserInputError: none is named, one cannot be reached, or two settings of one contradict each other.
    """
    if deployment is not None and deployment not in site.deployments:
        raise UsageError(
            f"--deployment {deployment}: unknown deployment.", seen=f"'{deployment}'",
            expected=f"one of {', '.join(site.deployments)}",
            do=closest(deployment, list(site.deployments)) or "choose a listed deployment",
        )  # fmt: skip
    workers: dict[tuple[str, str], WorkerEnvironmentSpec] = {}
    for name in site.deployments if deployment is None else [deployment]:
        for worker in _workers_of(site, name):
            key = worker.machine, worker.path
            workers[key] = _merged(workers[key], worker) if key in workers else worker
    if not workers:
        raise UserInputError(
            f"{shown(site.path)}: no virtual environment is declared.",
            seen=f"no `environment` with `virtualEnvironment` in {deployment or 'any deployment'}",
            expected="deployments.….config.services.….environment.virtualEnvironment: a path at the site",
            do="add the path, for example ~/medweave/worker",
        )
    return list(workers.values())


def _workers_of(site: Site, name: str) -> list[WorkerEnvironmentSpec]:
    named = [field for field, keys in environments(name, site.deployments[name]) if keys.get("virtualEnvironment")]
    if not named:
        return []
    chain = [name]
    while (inner := wrapped(site.deployments[chain[-1]])) is not None:
        chain.append(inner)
    document: dict[str, Any] = {
        "path": str(site.path),
        "deployments": copy.deepcopy({link: site.deployments[link] for link in chain}),
    }
    resolve_paths(document, site.path.parent, connector_schemas())
    machine = document["deployments"][chain[-1]]
    if machine["type"] != MACHINE:
        raise UserInputError(
            f"{shown(site.path)}: {spelled(named[0])}: this machine is not reached by ssh.",
            seen=f"deployment '{chain[-1]}' of type {machine['type']}", expected=f"a deployment of type {MACHINE}",
            do="install the worker by hand (docs/how-to/install-a-worker.md)",
        )  # fmt: skip
    config = {key: value for key, value in machine["config"].items() if key != "environment"}
    workers = []
    for field, keys in environments(name, document["deployments"][name]):
        if keys.get("virtualEnvironment"):
            service = field[-2] if field[-3] == "services" else None
            roles = [role for role, place in site.roles.items() if (place.deployment, place.service) == (name, service)]
            workers += [
                WorkerEnvironmentSpec(
                    environment=WorkerEnvironment(**keys),
                    where=f"{shown(site.path)}: {spelled(field)}",
                    deployment=chain[-1],
                    machine=chain[-1] if len(config["nodes"]) == 1 else f"{chain[-1]} {node}",
                    config=config | {"nodes": [node]},
                    roles=tuple(roles),
                )
                for node in config["nodes"]
            ]
    return workers


def _merged(first: WorkerEnvironmentSpec, other: WorkerEnvironmentSpec) -> WorkerEnvironmentSpec:
    if list(first.environment.modules) != list(other.environment.modules):
        raise UserInputError(
            f"{other.where}.modules: the same virtual environment is declared with different modules.",
            seen=f"{', '.join(other.environment.modules) or 'none'}, and {', '.join(first.environment.modules) or 'none'} "
            f"in {first.where.rpartition(': ')[2]}",
            expected="the same modules (they provide its Python) wherever the virtual environment is declared",
            do="declare the same modules, or use two paths",
        )
    return dataclasses.replace(first, roles=tuple(dict.fromkeys((*first.roles, *other.roles))))
