"""A StreamFlow file that is to be run: what the engine would refuse is told before it starts, by line and field."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from medweave.sites import connector_schemas
from medweave_connectors.documents import read_mapping
from medweave_connectors.field_faults import fault_at
from medweave_connectors.placement.managers import check_managers, check_wraps
from medweave_connectors.placement.names import check_named
from medweave_connectors.placement.paths import resolve_paths

PLUGINS = "unito.streamflow.plugin"
REFUSED = ("binding-structure", "binding-file", "binding-target")  # what else `medweave validate` finds, may run


def check_file(file: Path) -> None:
    """Refuses what cannot run. Where other plug-ins are installed, whose parts are not known here, it is left to the engine.

    Raises:
        FieldFault: the first fault.
        UsageError: a variable has no value.
    """
    from medweave.validate.bindings import check_bindings
    from medweave.validate.repository import open_repository

    document = read_mapping(file, "StreamFlow file")
    if len(entry_points(group=PLUGINS)) > 1:
        return
    repository = open_repository([file])
    source = repository.source(file.resolve())
    for found in check_bindings(source, repository) if source is not None else ():
        if found.rule in REFUSED or found.field[-1:] == ("step",):  # a step that is not there, or bound twice
            raise fault_at(file, found.field, found.what, seen=found.seen, expected=found.expected, do=found.fix)
    config = copy.deepcopy(document) | {"path": str(file)}
    for check in (check_managers, check_wraps, check_named):
        check(config)
    resolve_paths(config, Path(), connector_schemas())


def check_variables(site: Path, deployments: Mapping[str, Any]) -> None:
    """The same of what a site file leaves to the environment, of the deployments that a run uses.

    Raises:
        UsageError: a variable has no value.
    """
    resolve_paths({"path": str(site), "deployments": copy.deepcopy(dict(deployments))}, Path(), connector_schemas())
