"""A workflow as a crate describes it: documents, tools with parameters, and connections."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medweave_core.documents.cwl_model import Parameter as CwlParameter
from medweave_core.documents.cwl_model import Process, one_line
from medweave_core.documents.cwl_model import Step as CwlStep
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.cwl_types import Array, Enum, Record, Type
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

# Types of the profile by CWL type; all other types are Text.
KINDS = {
    "File": "File", "Directory": "Dataset", "boolean": "Boolean", "int": "Integer",
    "long": "Integer", "float": "Float", "double": "Float", "record": "PropertyValue",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateParameter:
    """An input or output.

    Attributes:
        kind: type of the profile.
        many: a list.
    """

    name: str
    kind: str
    many: bool
    required: bool
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """The tool of a step.

    Attributes:
        document: path from the folder of the workflow.
        part: of that document, empty for all of it.
    """

    document: str
    part: str
    label: str
    doc: str
    inputs: tuple[CrateParameter, ...]
    outputs: tuple[CrateParameter, ...]


@dataclass(frozen=True, slots=True)
class FormalPort:
    """An output of a step, or an input of the workflow, whose step is `/`."""

    step: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateStep:
    """A step that runs a tool, also of a nested workflow.

    Attributes:
        path: `/segment`, `/inner/segment`.
        sources: where each input comes from.
    """

    path: str
    tool: Tool
    sources: Mapping[str, tuple[FormalPort, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The workflow.

    Attributes:
        path: of its document, absolute.
        documents: all of its documents, by path from its folder.
        results: where each output comes from.
    """

    path: Path
    documents: tuple[str, ...]
    label: str
    doc: str
    inputs: tuple[CrateParameter, ...]
    outputs: tuple[CrateParameter, ...]
    steps: tuple[CrateStep, ...]
    results: Mapping[str, tuple[FormalPort, ...]] = field(default_factory=dict)


def read_definition(path: Path, reader: CwlReader) -> Definition:
    """Return a workflow as a crate describes it.

    Raises:
        UserInputError: a document is missing, is not CWL, or has several processes (`$graph`); the first one is no workflow.
    """
    walk = _Walk(reader, path.parent)
    process = walk.read(path)
    if not process.is_workflow:
        raise UserInputError(
            f"{shown(path)}: only runs of workflows can be exported.",
            seen=f"class: {process.kind}",
            expected="class: Workflow",
            do="make the tool the only step of a workflow",
        )
    steps, results = walk.steps(process, "", {})
    return Definition(
        path=path, documents=tuple(sorted(walk.documents)), label=process.label, doc=one_line(process.fields.get("doc")),
        inputs=_parameters(process.inputs), outputs=_parameters(process.outputs), steps=steps, results=results,
    )  # fmt: skip


class _Walk:
    """Collects the steps and documents of a workflow, with those of nested workflows.

    Attributes:
        documents: paths from the folder of the workflow.
    """

    def __init__(self, reader: CwlReader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        self.documents: set[str] = set()

    def read(self, path: Path) -> Process:
        process = self._reader.read_process(path, "CWL document")
        if not process.kind:
            raise UserInputError(
                f"{shown(path)}: only documents with one process can be exported.",
                seen="$graph" if "$graph" in process.fields else "no class",
                expected="class: Workflow, CommandLineTool or ExpressionTool",
                do="write each process into a separate file",
            )
        self.documents.add(self._relative(path))
        return process

    def steps(
        self, workflow: Process, prefix: str, inputs: Mapping[str, tuple[FormalPort, ...]]
    ) -> tuple[tuple[CrateStep, ...], dict[str, tuple[FormalPort, ...]]]:
        """Return the steps of a workflow, with those of nested workflows, and the sources of its outputs.

        Args:
            prefix: path of the step that runs it; empty for the outermost.
            inputs: sources of its inputs; those of the outermost are its own.
        """
        steps: list[CrateStep] = []
        results_of: dict[str, dict[str, tuple[FormalPort, ...]]] = {}

        def origin(source: str) -> tuple[FormalPort, ...]:
            step, _, name = source.partition("/")
            if not name:
                return inputs.get(step, (FormalPort("/", step),) if not prefix else ())
            return results_of.get(step, {}).get(name, (FormalPort(f"{prefix}/{step}", name),))

        tools = {name: self._tool_of(step) for name, step in workflow.steps.items()}
        for name, tool in tools.items():
            if tool.is_workflow:  # its results first: an earlier step may read them
                results_of[name] = self.steps(tool, f"{prefix}/{name}", {})[1]
        for name, step in workflow.steps.items():
            path, tool = f"{prefix}/{name}", tools[name]
            sources = {
                port: tuple(end for source in binding.sources for end in origin(source))
                for port, binding in step.inputs.items()
            }
            if tool.is_workflow:
                steps += self.steps(tool, path, sources)[0]
            else:
                steps.append(CrateStep(path=path, tool=self._described(tool), sources=sources))
        results = {
            name: tuple(end for source in parameter.binding.sources for end in origin(source))
            for name, parameter in workflow.outputs.items()
        }
        return tuple(steps), results

    def _tool_of(self, step: CwlStep) -> Process:
        if step.run_file is not None:
            return self.read(step.run_file)
        assert step.process is not None, "a step without a file has a process"
        return step.process

    def _described(self, tool: Process) -> Tool:
        part = "/".join(map(str, tool.field[-3:-1]))  # steps/NAME of a tool that is written in its step
        return Tool(
            document=self._relative(tool.path), part=part, label=tool.label, doc=one_line(tool.fields.get("doc")),
            inputs=_parameters(tool.inputs), outputs=_parameters(tool.outputs),
        )  # fmt: skip

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path.resolve(), self._folder.resolve())


def _parameters(parameters: Mapping[str, CwlParameter]) -> tuple[CrateParameter, ...]:
    return tuple(map(_parameter, parameters.values()))


def _parameter(parameter: CwlParameter) -> CrateParameter:
    kinds = dict(_kinds(parameter.type))
    names = sorted(set(kinds) - {"null"})
    return CrateParameter(
        name=parameter.name,
        kind=KINDS.get(names[0], "Text") if names else "Text",
        many=any(kinds.values()),
        required="null" not in kinds and "default" not in parameter.fields,
        doc=one_line(parameter.fields.get("doc")),
    )


def _kinds(kind: Type) -> Iterator[tuple[str, bool]]:
    """Yield the names of a type's alternatives, and whether each is in a list."""
    for alternative in sorted(
        kind, key=lambda each: isinstance(each, Array)
    ):  # lists last: one of them makes it a list
        if isinstance(alternative, Array):
            yield from ((name, True) for name, _ in _kinds(alternative.items))
        elif isinstance(alternative, Record | Enum):
            yield type(alternative).__name__.lower(), False
        else:
            yield str(alternative), False
