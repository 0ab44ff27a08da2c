"""A workflow as a crate describes it: its documents, its tools with their parameters, and what is joined to what."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.documents.file_locations import path_of_reference
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import UserInputError

# The words of the profile for types of CWL; of all others, text.
KINDS = {
    "File": "File", "stdout": "File", "stderr": "File", "Directory": "Dataset", "boolean": "Boolean", "int": "Integer",
    "long": "Integer", "float": "Float", "double": "Float", "record": "PropertyValue",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An input or output.

    Attributes:
        kind: in the words of the profile.
        many: a list.
    """

    name: str
    kind: str
    many: bool
    required: bool
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What a step runs.

    Attributes:
        document: path from the folder of the workflow.
        part: of that document, empty for all of it.
    """

    document: str
    part: str
    label: str
    doc: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An output of a step, or an input of the workflow, whose step is `/`."""

    step: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that runs a tool; those of workflows inside stand among the others.

    Attributes:
        path: `/segment`, `/inner/segment`.
        sources: where each input comes from.
    """

    path: str
    tool: Tool
    sources: Mapping[str, tuple[Port, ...]]


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
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    steps: tuple[Step, ...]
    results: Mapping[str, tuple[Port, ...]] = field(default_factory=dict)


def read_definition(path: Path) -> Definition:
    """Reads a workflow.

    Raises:
        UserInputError: a document is missing, is no CWL, or holds several processes (`$graph`); the first one is no workflow.
    """
    reader = _Reader(path.parent)
    document = reader.read(path)
    if document["class"] != "Workflow":
        raise UserInputError(
            f"{shown(path)}: a crate describes runs of workflows.",
            seen=f"class: {document['class']}",
            expected="class: Workflow",
            do="make the tool the only step of a workflow",
        )
    steps, results = reader.steps(path, document, "", {})
    return Definition(
        path=path, documents=tuple(sorted(reader.documents)), label=_text(document.get("label")), doc=_text(document.get("doc")),
        inputs=_parameters(document.get("inputs")), outputs=_parameters(document.get("outputs")), steps=steps, results=results,
    )  # fmt: skip


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents: set[str] = set()

    def read(self, path: Path) -> dict[str, Any]:
        document = read_mapping(path, "CWL document")
        if "class" not in document:
            raise UserInputError(
                f"{shown(path)}: a crate describes documents of one process.",
                seen="$graph" if "$graph" in document else "no class",
                expected="class: Workflow, CommandLineTool or ExpressionTool",
                do="write each process into a file of its own",
            )
        self.documents.add(self._inside(path))
        return document

    def tool(self, path: Path, document: Mapping[str, Any], part: str) -> Tool:
        return Tool(
            document=self._inside(path), part=part, label=_text(document.get("label")), doc=_text(document.get("doc")),
            inputs=_parameters(document.get("inputs")), outputs=_parameters(document.get("outputs")),
        )  # fmt: skip

    def steps(
        self, path: Path, document: Mapping[str, Any], prefix: str, given: Mapping[str, tuple[Port, ...]]
    ) -> tuple[tuple[Step, ...], dict[str, tuple[Port, ...]]]:
        """The steps of a workflow, with those of workflows inside, and where its outputs come from.

        Args:
            prefix: path of the step that it is.
            given: where its inputs come from; those of the outermost are its own.
        """
        found: list[Step] = []
        inner: dict[str, dict[str, tuple[Port, ...]]] = {}

        def origin(source: str) -> tuple[Port, ...]:
            step, _, name = source.lstrip("#").partition("/")
            if not name:
                return given.get(step, (Port("/", step),) if not prefix else ())
            return inner.get(step, {}).get(name, (Port(f"{prefix}/{step}", name),))

        members = _named(document.get("steps"))
        pending = [(name, step, *self._run(path, step.get("run"), name)) for name, step in members.items()]
        for name, _, its_path, process, _ in pending:
            if process.get("class") == "Workflow":  # first its results: a step before it may read them
                inner[name] = self.steps(its_path, process, f"{prefix}/{name}", {})[1]
        for name, step, its_path, process, part in pending:
            sources = {
                each: tuple(port for source in _sources(bound, "source") for port in origin(source))
                for each, bound in _named(step.get("in")).items()
            }
            if process.get("class") == "Workflow":
                found += self.steps(its_path, process, f"{prefix}/{name}", sources)[0]
            else:
                found.append(Step(path=f"{prefix}/{name}", tool=self.tool(its_path, process, part), sources=sources))
        results = {
            name: tuple(port for source in _sources(bound, "outputSource") for port in origin(source))
            for name, bound in _named(document.get("outputs")).items()
        }
        return tuple(found), results

    def _run(self, path: Path, run: Any, name: str) -> tuple[Path, Mapping[str, Any], str]:
        """Where a step's process stands: its document, it, and which part of the document it is."""
        if isinstance(run, Mapping):
            return path, run, f"steps/{name}"
        file = path.parent / path_of_reference(str(run))
        return file, self.read(file), ""

    def _inside(self, path: Path) -> str:
        return os.path.relpath(path.resolve(), self.folder.resolve())


def _parameters(section: Any) -> tuple[Parameter, ...]:
    return tuple(_parameter(name, each) for name, each in _named(section).items())


def _parameter(name: str, said: Any) -> Parameter:
    described = said if isinstance(said, Mapping) and "type" in said else {"type": said}
    kinds, many = set(), False
    for kind, is_many in _kinds(described["type"]):
        kinds.add(kind)
        many |= is_many
    required = "null" not in kinds and "default" not in described
    known = [KINDS.get(kind, "Text") for kind in sorted(kinds - {"null"})]
    return Parameter(
        name=name, kind=known[0] if known else "Text", many=many, required=required, doc=_text(described.get("doc"))
    )


def _kinds(kind: Any) -> Iterator[tuple[str, bool]]:
    if isinstance(kind, list):
        for each in kind:
            yield from _kinds(each)
    elif isinstance(kind, Mapping):
        if kind.get("type") == "array":
            yield from ((inner, True) for inner, _ in _kinds(kind.get("items")))
        else:
            yield str(kind.get("type")), False
    elif isinstance(kind, str):
        if kind.endswith("?"):
            yield "null", False
            kind = kind[:-1]
        yield kind.removesuffix("[]"), kind.endswith("[]")


def _named(section: Any) -> dict[str, Any]:
    """Members by name, from either of the two forms that CWL has for them."""
    if isinstance(section, Mapping):
        return dict(section)
    return {str(each["id"]).lstrip("#"): each for each in section or []}


def _sources(bound: Any, key: str) -> list[str]:
    said = bound.get(key) if isinstance(bound, Mapping) else bound if key == "source" else None
    return [said] if isinstance(said, str) else list(said or [])


def _text(value: Any) -> str:
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return " ".join(text.split())
