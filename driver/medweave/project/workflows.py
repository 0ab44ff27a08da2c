"""Workflows of a project: a CWL workflow with the roles of its steps and the data classes that roles.yml declares."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from medweave_connectors.jobs.job_requests import NAMESPACE, full_name
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Binding, Process, Requirement
from medweave_core.documents.cwl_model import Step as CwlStep
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.cwl_types import has_files
from medweave_core.documents.docker_requirement import image_of, refusal
from medweave_core.documents.field_errors import check, fault_at
from medweave_core.documents.file_locations import path_of
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

ROLES_FILE = "roles.yml"
ROLES_SHAPE = {
    "patternProperties": {
        r"\.cwl$": {
            "type": "object",
            "additionalProperties": {"type": "string", "description": "a role"},
            "description": "a line `/step: role` for each step",
        }
    },
    "properties": {"holds": {"type": ["object", "null"], "description": "data classes, by input and by output"}},
}
GANG = f"{NAMESPACE}Gang"  # medweave:Gang where $namespaces declares medweave, as in our tools
WORKFLOW = "CWL workflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """A step of a workflow, with its role.

    Attributes:
        definition: the step in the CWL document.
        tool: the process that it runs.
        gang: its tool declares that the same command may be started once per node.
        when: the workflow input that decides whether it runs; None if it always runs, empty for another condition.
        definition_files: inputs of the tool without a source whose default is a file or folder: part of the workflow's
            definition, such as the program that the tool runs.
    """

    definition: CwlStep
    tool: Process
    role: str
    gang: bool
    when: str | None
    definition_files: frozenset[str]

    @property
    def path(self) -> str:
        """Return the path in a StreamFlow file, such as `/train`."""
        return self.definition.path

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return the sources of its inputs: names of workflow inputs, and outputs of steps (`train/model`)."""
        return {name: binding.sources for name, binding in self.definition.inputs.items()}

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the names of its outputs."""
        return self.definition.outputs

    @property
    def firsts(self) -> frozenset[str]:
        """Return the inputs that take the first source that has a value."""
        return _firsts(self.definition.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A workflow in a folder of CWL documents with a roles.yml.

    Attributes:
        process: the workflow.
        folder_inputs: names of the inputs of all workflows in its folder.
        folder_outputs: outputs of the steps of all workflows in its folder, by role.
        holds: the block `holds` of roles.yml as written; None if it is missing.
    """

    process: Process
    steps: tuple[RoleStep, ...]
    folder_inputs: frozenset[str]
    folder_outputs: Mapping[str, frozenset[str]]
    holds: Any

    @property
    def path(self) -> Path:
        """Return the file of the workflow, absolute."""
        return self.process.path

    @property
    def name(self) -> str:
        """Return its name in streamflow.yml: `lung-nodule-segmentation-train` for train.cwl in that folder."""
        return f"{self.path.parent.name}-{self.path.stem}".lower()

    @property
    def inputs(self) -> frozenset[str]:
        """Return the names of its inputs."""
        return frozenset(self.process.inputs)

    @property
    def data_inputs(self) -> frozenset[str]:
        """Return the inputs that are files and folders; a type from another document counts as neither."""
        return frozenset(name for name, parameter in self.process.inputs.items() if has_files(parameter.type))

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the defaults of its inputs."""
        return {name: p.fields["default"] for name, p in self.process.inputs.items() if "default" in p.fields}

    @property
    def outputs(self) -> dict[str, tuple[str, ...]]:
        """Return the sources of its outputs."""
        return {name: parameter.binding.sources for name, parameter in self.process.outputs.items()}

    @property
    def firsts(self) -> frozenset[str]:
        """Return the outputs that take the first source that has a value."""
        return _firsts({name: parameter.binding for name, parameter in self.process.outputs.items()})


def read_pipeline(path: Path, reader: CwlReader | None = None) -> Pipeline:
    """Return a workflow with the roles of its steps.

    Args:
        path: absolute.
        reader: reader of the command, which reads each document once.

    Raises:
        UserInputError: the document is not a CWL workflow, or roles.yml does not give each of its steps one role.
    """
    reader = reader or CwlReader()
    process = reader.read_process(path, WORKFLOW)
    if not process.is_workflow or not process.steps:
        raise UserInputError(
            f"{shown(path)}: this document is not a workflow with steps.",
            seen=f"class: {process.fields.get('class')}",
            expected="a CWL document with class: Workflow",
            do="choose a workflow, such as workflows/lung-nodule-segmentation/train.cwl",
        )
    roles = _roles(path, list(process.steps), reader)
    all_roles = _read_roles(path.parent / ROLES_FILE, reader)
    names = {file.name for file in path.parent.glob("*.cwl")} & set(all_roles)
    others = {name: reader.read_process(path.parent / name, WORKFLOW) for name in sorted(names - {path.name})}
    workflows = {path.name: process, **others}
    return Pipeline(
        process=process,
        steps=tuple(_step(process, step, roles[step.path], reader) for step in process.steps.values()),
        folder_inputs=_inputs_of(workflows.values()),
        folder_outputs=_outputs_by_role(workflows, all_roles),
        holds=all_roles.get("holds"),
    )


def inputs_around(pipeline: Pipeline, reader: CwlReader | None = None) -> frozenset[str]:
    """Return the names of the inputs of all workflows in the sibling folders of a workflow: a site file serves them all."""
    return _inputs_of(_workflows_around(pipeline.path.parent, reader or CwlReader()))


def _workflows_around(folder: Path, reader: CwlReader) -> Iterator[Process]:
    """Yield the workflows of the sibling folders that can be read."""
    for roles in sorted(folder.parent.glob(f"*/{ROLES_FILE}")):
        if roles.parent == folder:
            continue
        with contextlib.suppress(UserInputError):
            names = set(_read_roles(roles, reader))
            for file in sorted(roles.parent.glob("*.cwl")):
                if file.name in names:
                    yield reader.read_process(file, WORKFLOW)


def _inputs_of(workflows: Iterable[Process]) -> frozenset[str]:
    return frozenset(name for workflow in workflows for name in workflow.inputs)


def _outputs_by_role(workflows: Mapping[str, Process], all_roles: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    outputs: dict[str, frozenset[str]] = {}
    for name, workflow in workflows.items():
        for step in workflow.steps.values():
            role = all_roles[name].get(step.path)
            outputs[role] = outputs.get(role, frozenset()) | frozenset(step.outputs)
    return outputs


def _firsts(bindings: Mapping[str, Binding]) -> frozenset[str]:
    return frozenset(name for name, binding in bindings.items() if binding.is_first_non_null)


def _step(workflow: Process, step: CwlStep, role: str, reader: CwlReader) -> RoleStep:
    tool = _tool(workflow, step, reader)
    image = image_of(workflow.fields, step.fields, tool.fields) or _nested_image(
        tool, reader, frozenset([workflow.path])
    )
    if image is not None:
        raise fault_at(workflow.path, ("steps", step.name), **refusal(step.path, image))
    return RoleStep(
        definition=step,
        tool=tool,
        role=role,
        gang=_has_gang_hint(step.requirements, workflow) or _has_gang_hint(tool.requirements, tool),
        when=_deciding_input(step),
        definition_files=_definition_files(tool, step),
    )


def _deciding_input(step: CwlStep) -> str | None:
    condition = step.fields.get("when")
    name = re.fullmatch(r"\$\(inputs\.(\w+)\)", str(condition))
    sources = step.inputs[name[1]].sources if name and name[1] in step.inputs else ()
    return None if condition is None else sources[0] if len(sources) == 1 else ""


def _nested_image(workflow: Process, reader: CwlReader, outer: frozenset[Path]) -> str | None:
    """Return the image that a step of a nested workflow requires; None if no step requires one.

    Args:
        outer: files of the workflows around it: recursion is reported elsewhere.
    """
    for step in workflow.steps.values():
        if step.run_file in outer:
            continue
        tool = _tool(workflow, step, reader)
        image = image_of(step.fields, tool.fields) or _nested_image(tool, reader, outer | {tool.path})
        if image is not None:
            return image
    return None


def _definition_files(tool: Process, step: CwlStep) -> frozenset[str]:
    """Return the inputs of a step that have no source and a file or folder as default.

    Inputs with `valueFrom` are excluded: the expression may return a file of another input.
    """
    defaults = {name: parameter.fields.get("default") for name, parameter in tool.inputs.items()}
    defaults |= {name: port.fields["default"] for name, port in step.inputs.items() if "default" in port.fields}
    bound = {name for name, binding in step.inputs.items() if binding.sources or binding.has_expression}
    return frozenset(
        name
        for name, value in defaults.items()
        if name not in bound
        and isinstance(value, Mapping)
        and value.get("class") in ("File", "Directory")
        and _is_in_repository(value)
    )


def _is_in_repository(value: Mapping[str, Any]) -> bool:
    """Return whether a file is a literal or has a path relative to its document; an absolute path may be patient data."""
    place = path_of(value)
    return "contents" in value or (place is not None and not PurePosixPath(place).is_absolute())


def _tool(workflow: Process, step: CwlStep, reader: CwlReader) -> Process:
    """Return the process that a step runs.

    Raises:
        UserInputError: its document is missing, or is not CWL.
    """
    if step.run_file is None:
        assert step.process is not None, "a step without a file has a process"
        return step.process
    if not step.run_file.is_file():
        run = str(step.fields["run"])
        folder = (workflow.path.parent / run).parent
        raise fault_at(
            workflow.path, ("steps", step.name, "run"), "there is no such CWL tool.", seen=run,
            expected="a path relative to the folder of this workflow",
            do=closest(Path(run).name, [tool.name for tool in folder.glob("*.cwl")]) or "correct the path",
        )  # fmt: skip
    return reader.read_process(step.run_file, "CWL tool")


def _has_gang_hint(requirements: Mapping[str, Requirement], process: Process) -> bool:
    """Return whether a step or tool declares that its command may be started once per node."""
    return any(
        requirement.section == "hints" and full_name(name, process.namespaces) == GANG
        for name, requirement in requirements.items()
    )


def _read_roles(file: Path, reader: CwlReader) -> dict[str, Any]:
    document: dict[str, Any] = reader.mapping(file, "roles file").data
    check(document, ROLES_SHAPE, file, ())
    return document


def _roles(path: Path, steps: list[str], reader: CwlReader) -> dict[str, str]:
    file = path.parent / ROLES_FILE
    document = _read_roles(file, reader)
    roles = document.get(path.name)
    if not isinstance(roles, Mapping):
        gone = [str(name) for name in document if str(name).endswith(".cwl") and not (path.parent / str(name)).exists()]
        near = next((name for name in gone if closest(path.name, [name])), path.name)
        raise fault_at(
            file,
            (near,),
            f"this file has no roles for the steps of {path.name}.",
            seen=", ".join(name for name in document if str(name).endswith(".cwl")) or "no workflow",
            expected=f"a key {path.name}: with a line `/step: role` for each step",
            do=f"write '{path.name}' for '{near}'"
            if near != path.name
            else f"add roles for {', '.join('/' + step for step in steps)}",
        )
    without = [f"/{step}" for step in steps if f"/{step}" not in roles]
    stray = [name for name in roles if name not in [f"/{step}" for step in steps]]
    if without or stray:
        raise fault_at(
            file,
            (path.name, *stray[:1]),
            "steps and roles do not match.",
            seen="; ".join(
                [f"step {name} has no role" for name in without] + [f"there is no step {name}" for name in stray]
            ),
            expected=f"one role for each of {', '.join('/' + step for step in steps)}",
            do=(closest(stray[0], without) if stray else "") or "correct these lines",
        )
    return {str(step): str(role) for step, role in roles.items()}
