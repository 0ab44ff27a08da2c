"""Classes of data: what a workflow says of its inputs and outputs, held against what a site may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave import DRIVER_TYPE
from medweave.placement.declared_classes import AS_READ, Ports, Said, carried, held
from medweave.project.sites import Site
from medweave.project.workflows import ROLES_FILE, Pipeline
from medweave_connectors.policy.data_classes import WORKFLOW, most_sensitive_first
from medweave_connectors.policy.data_rules import CLASSES, allowed_deployments, forbidden_classes
from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import check, fault_at
from medweave_core.documents.line_numbers import FieldPath, shown
from medweave_core.errors import UsageError, UserInputError

HOLDS, IDENTIFIED = "holds", "identified"
_CLASS, _WRITTEN = {"enum": list(CLASSES)}, {"enum": [*CLASSES, AS_READ]}
_SCHEMA = {
    "type": "object",
    "properties": {
        "inputs": {"type": "object", "additionalProperties": _CLASS, "description": "class of each input that is data"},
        "outputs": {
            "type": "object",
            "additionalProperties": {"anyOf": [_WRITTEN, {"type": "object", "additionalProperties": _WRITTEN}]},
            "description": "by role: one class for all that its steps write, or one by name of the output",
        },
    },
    "required": ["inputs", "outputs"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a workflow holds at a site.

    Attributes:
        carries: classes by step and name of its input or output; the workflow's own under `/`.
        driver: what the machine that drives the run may hold.
    """

    carries: Mapping[str, Ports]
    driver: Sequence[str]

    def of_step(self, path: str) -> list[str]:
        """Classes of all that a step reads and writes."""
        return held(self.carries[path])


def classes_at(pipeline: Pipeline, site: Site, values: Mapping[str, Any]) -> Mapping[str, Ports] | None:
    """Classes by step and port, whatever the site may hold; None where the workflow does not say what its steps hold.

    Raises:
        UserInputError: what it says is wrong, or says nothing of some of the data.
    """
    return None if pipeline.holds is None else _carried(pipeline, said_of(pipeline), site, values)


def held_at(pipeline: Pipeline, site: Site, values: Mapping[str, Any]) -> Held | None:
    """What the steps hold at the site, after checking that they may be where it puts them; None where it has no data rules.

    Args:
        values: of the workflow's inputs, by the job file: some of them say which steps run.

    Raises:
        UserInputError: the data rules forbid a place, or the workflow does not say what its steps hold.
        UsageError: they forbid one that the command line gave.
    """
    if not site.may_hold:
        return None
    said = said_of(pipeline)
    local = [name for name, deployment in site.deployments.items() if deployment["type"] == DRIVER_TYPE]
    found = Held(
        carries=_carried(pipeline, said, site, values),
        driver=most_sensitive_first(each for name in local for each in site.may_hold.get(name, ())),
    )
    for name, place in site.inputs.items():
        if name in pipeline.inputs and name in said.inputs:
            _check_input(name, _class_of_input(name, said, site), place.deployment, site)
    for step in pipeline.steps:
        _check_role(step.path, step.role, found, site)
    _check_outputs(pipeline, found, site)
    return found


def _carried(pipeline: Pipeline, said: Said, site: Site, values: Mapping[str, Any]) -> Mapping[str, Ports]:
    inputs = {name: _class_of_input(name, said, site) for name in said.inputs if name in pipeline.inputs}
    return carried(pipeline, dataclasses.replace(said, inputs=inputs), values)


def said_of(pipeline: Pipeline) -> Said:
    """The block `holds` of roles.yml, which has to say something of all data."""
    file = pipeline.path.parent / ROLES_FILE
    if pipeline.holds is None:
        raise fault_at(
            file, (), "nothing says which data the steps read and write, and the site has data rules.",
            seen="no block 'holds'", expected="holds: {inputs: {…}, outputs: {…}} with classes of data",
            do="add it as in workflows/lung-nodule-segmentation/roles.yml",
        )  # fmt: skip
    check(pipeline.holds, _SCHEMA, file, (HOLDS,))
    said = Said(inputs=pipeline.holds["inputs"], outputs=pipeline.holds["outputs"])
    _check_names(file, ("inputs",), said.inputs, pipeline.folder_inputs)
    _check_names(file, ("outputs",), said.outputs, pipeline.folder_outputs)
    for role, outputs in said.outputs.items():
        if isinstance(outputs, Mapping):
            _check_names(file, ("outputs", role), outputs, pipeline.folder_outputs[role])
    for name in sorted(pipeline.data_inputs - set(said.inputs)):
        raise _unsaid(file, ("inputs",), f"the input '{name}'", name, said.inputs, CLASSES)
    for step in pipeline.steps:
        for name in step.writes:
            if said.written(step.role, name) is None:
                of_role = said.outputs.get(step.role, {})
                raise _unsaid(
                    file, ("outputs", step.role), f"the output '{name}' of role '{step.role}'", name,
                    of_role if isinstance(of_role, Mapping) else (), (*CLASSES, AS_READ),
                )  # fmt: skip
    return said


def _unsaid(
    file: Path, field: FieldPath, what: str, name: str, seen: Iterable[str], known: Iterable[str]
) -> UserInputError:
    return fault_at(
        file, (HOLDS, *field), f"nothing says which data {what} is.", seen=", ".join(seen) or "nothing",
        expected=f"{name}: one of {', '.join(known)}", do="add that line",
    )  # fmt: skip


def _check_names(file: Path, section: FieldPath, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise fault_at(
                file, (HOLDS, *section, name), "the workflows beside have none of this name.", seen=f"'{name}'",
                expected=f"one of {', '.join(sorted(known))}", do=closest(name, sorted(known)) or "take the line away",
            )  # fmt: skip


def _class_of_input(name: str, said: Said, site: Site) -> str:
    place = site.inputs.get(name)
    if place is None or place.holds is None:
        return said.inputs[name]
    if said.inputs[name] != IDENTIFIED:
        raise fault_at(
            site.path, ("inputs", name, HOLDS), "this input has no people in it.",
            seen=f"{place.holds}, and the workflow says {said.inputs[name]}",
            expected=f"no key '{HOLDS}' for an input that the workflow does not call {IDENTIFIED}", do="take it away",
        )  # fmt: skip
    return place.holds


def _check_input(name: str, its_class: str, deployment: str, site: Site) -> None:
    if forbidden_classes([its_class], deployment, site.may_hold):
        raise _fault(
            site, ("inputs", name, "deployment"), f"this input must not lie at '{deployment}', by the site's own rules.",
            seen=f"{its_class} data", held=[its_class], deployment=deployment,
            do=f"correct mayHold.{deployment}, or say what the input holds there",
        )  # fmt: skip


def _check_role(step: str, role: str, found: Held, site: Site) -> None:
    deployment, classes = site.roles[role].deployment, found.of_step(step)
    forbidden = forbidden_classes(classes, deployment, site.may_hold)
    if not forbidden:
        return
    ports = [name for name, of_it in found.carries[step].items() if set(of_it) & set(forbidden)]
    places = allowed_deployments(classes, site.may_hold)
    raise _fault(
        site, ("roles", role, "deployment"), f"step {step} must not run at '{deployment}', for what it reads and writes.",
        seen=f"{', '.join(forbidden)} data ({', '.join(ports)})", held=classes, deployment=deployment,
        do=f"place '{role}' at {' or '.join(places)}" if places else f"correct mayHold.{deployment}, if it is wrong",
        option=site.options.get(role),
    )  # fmt: skip


def _check_outputs(pipeline: Pipeline, found: Held, site: Site) -> None:
    """The results come to the machine that drives the run."""
    for name in pipeline.outputs:
        classes = found.carries[WORKFLOW].get(name, ())
        if forbidden := most_sensitive_first(set(classes) - set(found.driver)):
            raise fault_at(
                site.path, ("mayHold",), f"the output '{name}' must not come to this machine, which gets the results.",
                seen=f"{', '.join(forbidden)} data; this machine may hold {', '.join(found.driver) or 'nothing'}",
                expected=f"a deployment of type {DRIVER_TYPE} with a line that has {', '.join(classes)}",
                do="run it on a machine that may hold them and say so in its line, or leave the output out of the workflow",
            )  # fmt: skip


def _fault(
    site: Site,
    field: FieldPath,
    what: str,
    *,
    seen: str,
    held: Sequence[str],
    deployment: str,
    do: str,
    option: str | None = None,
) -> UserInputError | UsageError:
    allowed = ", ".join(site.may_hold.get(deployment, ())) or "nothing: mayHold has no line for it"
    places = ", ".join(allowed_deployments(held, site.may_hold)) or "there is none"
    parts: dict[str, Any] = {
        "seen": f"{seen} at '{deployment}', which may hold {allowed}",
        "expected": f"a deployment whose line in mayHold of {shown(site.path)} has {', '.join(held)}: {places}",
        "do": do,
    }
    if option is not None:
        return UsageError(f"--role {option}: {what}", **parts)
    return fault_at(site.path, field, what, **parts)
