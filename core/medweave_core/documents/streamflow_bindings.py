"""What a parsed streamflow.yml binds: our deployments, and the targets of its bindings. No streamflow in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from medweave_core.documents.line_numbers import FieldPath

OUR_TYPES = "medweave."


class Bound(NamedTuple):
    """A target of a binding, which may name several; `where` is its place in the workflow: `bindings[0].target`."""

    where: FieldPath
    binding: Mapping[str, Any]
    target: MutableMapping[str, Any]


def our_deployments(config: Mapping[str, Any]) -> dict[str, MutableMapping[str, Any]]:
    """Return the deployments of our connectors, by name."""
    deployments: Mapping[str, MutableMapping[str, Any]] = config.get("deployments") or {}
    return {name: deployment for name, deployment in deployments.items() if deployment["type"].startswith(OUR_TYPES)}


def targets(workflow: Mapping[str, Any]) -> Iterator[Bound]:
    """Return the targets of a workflow, in their order."""
    for number, binding in enumerate(workflow.get("bindings") or []):
        where: FieldPath
        target, where = binding["target"], ("bindings", number, "target")
        if not isinstance(target, list):
            yield Bound(where, binding, target)
            continue
        for place, one_target in enumerate(target):
            yield Bound((*where, place), binding, one_target)
