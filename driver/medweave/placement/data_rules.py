"""Data classes: what a workflow declares of its inputs and outputs, checked against the data rules of a site."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave import DRIVER_TYPE
from medweave.placement.declared_classes import AS_READ, DeclaredClasses, Ports, classes_in, classes_of_ports
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
        "inputs": {
            "type": "object",
            "additionalProperties": _CLASS,
            "description": "data class of each input that is a file or folder",
        },
        "outputs": {
            "type": "object",
            "additionalProperties": {"anyOf": [_WRITTEN, {"type": "object", "additionalProperties": _WRITTEN}]},
            "description": "by role: one data class for all outputs of its steps, or one per output name",
        },
    },
    "required": ["inputs", "outputs"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteClasses:
    """Data classes of a workflow at a site with data rules.

    Attributes:
        by_port: classes by step and name of its input or output; the workflow's own under `/`.
        driver: classes that the driver's machine may hold.
    """

    by_port: Mapping[str, Ports]
    driver: Sequence[str]

    def of_step(self, path: str) -> list[str]:
        """Return the classes of all inputs and outputs of a step."""
        return classes_in(self.by_port[path])


def classes_at(pipeline: Pipeline, site: Site, values: Mapping[str, Any]) -> Mapping[str, Ports] | None:
    """Return the classes by step and port, without a check of data rules; None if the workflow does not declare any.

    Raises:
        UserInputError: the declaration is wrong or incomplete.
    """
    return None if pipeline.holds is None else _classes_by_port(pipeline, read_declared_classes(pipeline), site, values)


def check_data_rules(pipeline: Pipeline, site: Site, values: Mapping[str, Any]) -> SiteClasses | None:
    """Return the data classes of a workflow at a site whose data rules allow it; None if the site has no data rules.

    Args:
        values: of the workflow's inputs in the job file: some of them decide which steps run.

    Raises:
        UserInputError: the data rules forbid a place, or the workflow does not declare its data classes.
        UsageError: the rules forbid a place from the command line.
    """
    if not site.may_hold:
        return None
    declared = read_declared_classes(pipeline)
    local = [name for name, deployment in site.deployments.items() if deployment["type"] == DRIVER_TYPE]
    site_classes = SiteClasses(
        by_port=_classes_by_port(pipeline, declared, site, values),
        driver=most_sensitive_first(data_class for name in local for data_class in site.may_hold.get(name, ())),
    )
    for name, place in site.inputs.items():
        if name in pipeline.inputs and name in declared.inputs:
            _check_input(name, _class_of_input(name, declared, site), place.deployment, site)
    for step in pipeline.steps:
        _check_role(step.path, step.role, site_classes, site)
    _check_outputs(pipeline, site_classes, site)
    return site_classes


def _classes_by_port(
    pipeline: Pipeline, declared: DeclaredClasses, site: Site, values: Mapping[str, Any]
) -> Mapping[str, Ports]:
    inputs = {name: _class_of_input(name, declared, site) for name in declared.inputs if name in pipeline.inputs}
    return classes_of_ports(pipeline, dataclasses.replace(declared, inputs=inputs), values)


def read_declared_classes(pipeline: Pipeline) -> DeclaredClasses:
    """Return the block `holds` of roles.yml, which must cover all data of the workflow."""
    file = pipeline.path.parent / ROLES_FILE
    if pipeline.holds is None:
        raise fault_at(
            file, (), "the workflow declares no data classes, but the site has data rules.",
            seen="no key `holds`", expected="holds: {inputs: {…}, outputs: {…}} with data classes",
            do="add `holds` as in workflows/lung-nodule-segmentation/roles.yml",
        )  # fmt: skip
    check(pipeline.holds, _SCHEMA, file, (HOLDS,))
    declared = DeclaredClasses(inputs=pipeline.holds["inputs"], outputs=pipeline.holds["outputs"])
    _check_names(file, ("inputs",), declared.inputs, pipeline.folder_inputs)
    _check_names(file, ("outputs",), declared.outputs, pipeline.folder_outputs)
    for role, outputs in declared.outputs.items():
        if isinstance(outputs, Mapping):
            _check_names(file, ("outputs", role), outputs, pipeline.folder_outputs[role])
    for name in sorted(pipeline.data_inputs - set(declared.inputs)):
        raise _undeclared(file, ("inputs",), f"input '{name}'", name, declared.inputs, CLASSES)
    for step in pipeline.steps:
        for name in step.writes:
            if declared.written(step.role, name) is None:
                of_role = declared.outputs.get(step.role, {})
                raise _undeclared(
                    file, ("outputs", step.role), f"output '{name}' of role '{step.role}'", name,
                    of_role if isinstance(of_role, Mapping) else (), (*CLASSES, AS_READ),
                )  # fmt: skip
    return declared


def _undeclared(
    file: Path, field: FieldPath, what: str, name: str, seen: Iterable[str], known: Iterable[str]
) -> UserInputError:
    return fault_at(
        file, (HOLDS, *field), f"the data class of {what} is not declared.", seen=", ".join(seen) or "nothing",
        expected=f"{name}: one of {', '.join(known)}", do="add this line",
    )  # fmt: skip


def _check_names(file: Path, section: FieldPath, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise fault_at(
                file, (HOLDS, *section, name), "no workflow in this folder has an input, role or output of this name.",
                seen=f"'{name}'",
                expected=f"one of {', '.join(sorted(known))}", do=closest(name, sorted(known)) or "remove the line",
            )  # fmt: skip


def _class_of_input(name: str, declared: DeclaredClasses, site: Site) -> str:
    place = site.inputs.get(name)
    if place is None or place.holds is None:
        return declared.inputs[name]
    if declared.inputs[name] != IDENTIFIED:
        raise fault_at(
            site.path, ("inputs", name, HOLDS), "this data class is allowed only for an input with patient data.",
            seen=f"{place.holds}, but the workflow declares {declared.inputs[name]}",
            expected=f"no key '{HOLDS}', because the workflow does not declare the input as {IDENTIFIED}", do="remove the key",
        )  # fmt: skip
    return place.holds


def _check_input(name: str, data_class: str, deployment: str, site: Site) -> None:
    if forbidden_classes([data_class], deployment, site.may_hold):
        raise _fault(
            site, ("inputs", name, "deployment"), f"the data rules of the site do not allow this input at '{deployment}'.",
            seen=f"{data_class} data", classes=[data_class], deployment=deployment,
            do=f"correct mayHold.{deployment}, or declare the data class of the input with `{HOLDS}`",
        )  # fmt: skip


def _check_role(step: str, role: str, site_classes: SiteClasses, site: Site) -> None:
    deployment, classes = site.roles[role].deployment, site_classes.of_step(step)
    forbidden = forbidden_classes(classes, deployment, site.may_hold)
    if not forbidden:
        return
    ports = [name for name, port_classes in site_classes.by_port[step].items() if set(port_classes) & set(forbidden)]
    places = allowed_deployments(classes, site.may_hold)
    raise _fault(
        site, ("roles", role, "deployment"),
        f"the data rules do not allow step {step} at '{deployment}'.",
        seen=f"{', '.join(forbidden)} data ({', '.join(ports)})", classes=classes, deployment=deployment,
        do=f"bind role '{role}' to {' or '.join(places)}" if places else f"correct mayHold.{deployment}, if it is wrong",
        option=site.options.get(role),
    )  # fmt: skip


def _check_outputs(pipeline: Pipeline, site_classes: SiteClasses, site: Site) -> None:
    """Check the outputs of the workflow, which are copied to the driver's machine."""
    for name in pipeline.outputs:
        classes = site_classes.by_port[WORKFLOW].get(name, ())
        if forbidden := most_sensitive_first(set(classes) - set(site_classes.driver)):
            raise fault_at(
                site.path, ("mayHold",),
                f"the data rules do not allow output '{name}' on this machine, which receives the results.",
                seen=f"{', '.join(forbidden)} data; this machine may hold {', '.join(site_classes.driver) or 'nothing'}",
                expected=f"a deployment of type {DRIVER_TYPE} whose mayHold has {', '.join(classes)}",
                do="run medweave on a machine that may hold these data classes and declare that in mayHold, "
                    "or remove the output from the workflow",
            )  # fmt: skip


def _fault(
    site: Site,
    field: FieldPath,
    what: str,
    *,
    seen: str,
    classes: Sequence[str],
    deployment: str,
    do: str,
    option: str | None = None,
) -> UserInputError | UsageError:
    allowed = ", ".join(site.may_hold.get(deployment, ())) or "nothing (no line in mayHold)"
    places = ", ".join(allowed_deployments(classes, site.may_hold)) or "none"
    parts: dict[str, Any] = {
        "seen": f"{seen} at '{deployment}', which may hold {allowed}",
        "expected": f"a deployment whose mayHold in {shown(site.path)} has {', '.join(classes)}: {places}",
        "do": do,
    }
    if option is not None:
        return UsageError(f"--role {option}: {what}", **parts)
    return fault_at(site.path, field, what, **parts)
