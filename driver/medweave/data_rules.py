"""Classes of data: what a workflow says that its steps hold, held against what a site may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.documents import FieldPath, shown
from medweave.field_faults import check, fault_at
from medweave.pipelines import ROLES_FILE, Pipeline
from medweave.sites import Site
from medweave_connectors.closest import closest
from medweave_connectors.placement.data_rules import CLASSES, able, too_sensitive
from medweave_steps.contracts.errors import UsageError, UserInputError

HOLDS, IDENTIFIED = "holds", "identified"
_CLASS = {"enum": list(CLASSES)}
_SCHEMA = {
    "type": "object",
    "properties": {
        "inputs": {"type": "object", "additionalProperties": _CLASS, "description": "class of each input that is data"},
        "roles": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": _CLASS, "minItems": 1},
            "description": "classes of what the steps of each role read and write",
        },
    },
    "required": ["inputs", "roles"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a workflow's steps and inputs hold at a site.

    Attributes:
        inputs: class by name of input.
        roles: classes by role.
    """

    inputs: Mapping[str, str]
    roles: Mapping[str, Sequence[str]]


def held_at(pipeline: Pipeline, site: Site) -> Held | None:
    """What the steps hold at the site, after checking that they may be where it puts them; None where it has no data rules.

    Where all identified inputs are said to lie there de-identified, what steps make of them is de-identified too.

    Raises:
        UserInputError: the data rules forbid a place, or the workflow does not say what its steps hold.
        UsageError: they forbid one that the command line gave.
    """
    if not site.may_hold:
        return None
    said = _said(pipeline)
    inputs = {name: _class_of_input(name, said, site) for name in said.inputs if name in pipeline.inputs}
    of_people = [name for name in inputs if said.inputs[name] == IDENTIFIED]
    known_to_be_safe = of_people and all(inputs[name] != IDENTIFIED for name in of_people)
    roles = {role: _deidentified(held) if known_to_be_safe else held for role, held in said.roles.items()}
    held = Held(inputs=inputs, roles=roles)
    for name, place in site.inputs.items():
        if name in pipeline.inputs:
            _check_input(name, place.deployment, held, site)
    for step in pipeline.steps:
        _check_role(step.path, step.role, held.roles[step.role], site)
    return held


def _said(pipeline: Pipeline) -> Held:
    """The block `holds` of roles.yml."""
    file = pipeline.path.parent / ROLES_FILE
    if pipeline.holds is None:
        raise fault_at(
            file, (), "nothing says which data the steps read and write, and the site has data rules.",
            seen="no block 'holds'", expected="holds: {inputs: {…}, roles: {…}} with classes of data",
            do="add it as in workflows/lung-nodule-segmentation/roles.yml",
        )  # fmt: skip
    check(pipeline.holds, _SCHEMA, file, (HOLDS,))
    said = Held(inputs=pipeline.holds["inputs"], roles=pipeline.holds["roles"])
    _check_names(file, "inputs", said.inputs, pipeline.inputs_beside)
    _check_names(file, "roles", said.roles, pipeline.roles_beside)
    missing = next((step.role for step in pipeline.steps if step.role not in said.roles), None)
    if missing is not None:
        raise fault_at(
            file, (HOLDS, "roles"), f"nothing says which data the steps of role '{missing}' read and write.",
            seen=", ".join(said.roles), expected=f"{missing}: a list out of {', '.join(CLASSES)}", do="add that line",
        )  # fmt: skip
    return said


def _check_names(file: Path, section: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise fault_at(
                file, (HOLDS, section, name), "the workflows beside have none of this name.", seen=f"'{name}'",
                expected=f"one of {', '.join(sorted(known))}", do=closest(name, sorted(known)) or "take the line away",
            )  # fmt: skip


def _class_of_input(name: str, said: Held, site: Site) -> str:
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


def _deidentified(classes: Sequence[str]) -> list[str]:
    return list(dict.fromkeys("de-identified" if each == IDENTIFIED else each for each in classes))


def _check_input(name: str, deployment: str, held: Held, site: Site) -> None:
    if name in held.inputs and too_sensitive([held.inputs[name]], deployment, site.may_hold):
        raise _fault(
            site, ("inputs", name, "deployment"), f"this input must not lie at '{deployment}', by the site's own rules.",
            seen=f"{held.inputs[name]} data", held=[held.inputs[name]], deployment=deployment,
            do=f"correct mayHold.{deployment}, or say what the input holds there",
        )  # fmt: skip


def _check_role(step: str, role: str, classes: Sequence[str], site: Site) -> None:
    deployment = site.roles[role].deployment
    forbidden = too_sensitive(classes, deployment, site.may_hold)
    if not forbidden:
        return
    places = able(classes, site.may_hold)
    raise _fault(
        site, ("roles", role, "deployment"), f"step {step} must not run at '{deployment}', for what it reads and writes.",
        seen=f"{', '.join(forbidden)} data ({HOLDS}.roles.{role} of {ROLES_FILE})", held=classes, deployment=deployment,
        do=f"place '{role}' at {' or '.join(places)}" if places else f"correct mayHold.{deployment}, if it is wrong",
        option=site.options.get(role),
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
    places = ", ".join(able(held, site.may_hold)) or "there is none"
    parts: dict[str, Any] = {
        "seen": f"{seen} at '{deployment}', which may hold {allowed}",
        "expected": f"a deployment whose line in mayHold of {shown(site.path)} has {', '.join(held)}: {places}",
        "do": do,
    }
    if option is not None:
        return UsageError(f"--role {option}: {what}", **parts)
    return fault_at(site.path, field, what, **parts)
