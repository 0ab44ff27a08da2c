"""The model of a CWL process: a workflow or tool with its steps, ports, types, edges and requirements. Pure.

The model is complete for any document, also for one with errors: what has the wrong shape is left out, and a type with an error
is `Any`. The raw fields are available to checks that report the errors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.documents.cwl_types import ANY, BadType, Type, named, parse, required
from medweave_core.documents.file_locations import path_of_reference
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument

FIRST_NON_NULL = "first_non_null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A requirement or hint.

    Attributes:
        section: `requirements` or `hints`.
        fields: its value, a mapping unless the document has an error.
    """

    section: str
    fields: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The sources of a step input or of a workflow output.

    Attributes:
        sources: names of workflow inputs, and outputs of steps as `step/output`.
        is_list: the sources are written as a list.
        fields: of the long form; empty for the short form, which is the source itself.
    """

    sources: tuple[str, ...] = ()
    is_list: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_first_non_null(self) -> bool:
        """Return whether the first source that has a value is used."""
        return bool(self.fields.get("pickValue") == FIRST_NON_NULL)

    @property
    def has_expression(self) -> bool:
        """Return whether `valueFrom` computes the value."""
        return "valueFrom" in self.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An input or output of a process.

    Attributes:
        fields: of the long form; the short form has only `type`.
        is_short: the document writes the type alone.
        type: `Any` where it has an error.
        type_fault: that error; its field is relative to the type.
        formats: full names; empty without a format, or for an expression.
        binding: sources of a workflow output.
    """

    name: str
    fields: Mapping[str, Any]
    is_short: bool
    type: Type
    type_fault: BadType | None
    formats: tuple[str, ...]
    binding: Binding

    @property
    def has_default(self) -> bool:
        """Return whether there is a default other than null."""
        return self.fields.get("default") is not None

    @property
    def is_optional(self) -> bool:
        """Return whether a value may be missing."""
        return self.has_default or bool({"null", "Any"} & self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a workflow.

    Attributes:
        fields: as the document has them.
        run_file: document that the step runs, absolute without links; None where the process is written in the step.
        process: the process that is written in the step, empty if `run` is missing; None where `run` is a file.
        scatter: names of step inputs.
        when: the condition, as written.
    """

    name: str
    fields: Mapping[str, Any]
    run_file: Path | None
    process: Process | None
    inputs: Mapping[str, Binding]
    outputs: tuple[str, ...]
    scatter: tuple[str, ...]
    requirements: Mapping[str, Requirement]

    @property
    def path(self) -> str:
        """Return the path in a StreamFlow file, such as `/train`."""
        return f"/{self.name}"

    @property
    def scatter_method(self) -> str:
        """Return the method, or an empty text."""
        return str(self.fields.get("scatterMethod", ""))

    @property
    def is_conditional(self) -> bool:
        """Return whether it has a condition, so that its outputs may be null."""
        return "when" in self.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A workflow or tool.

    Attributes:
        document: the document that contains it.
        field: place in that document: empty, or `("steps", NAME, "run")`.
        fields: as the document has them.
        kind: its `class`; empty without one.
        namespaces: prefixes of the document.
        steps: those of a workflow.
        requirements: hints and requirements by class; a requirement takes precedence.
    """

    document: SourceDocument
    field: FieldPath
    fields: Mapping[str, Any]
    kind: str
    namespaces: Mapping[str, str]
    inputs: Mapping[str, Parameter]
    outputs: Mapping[str, Parameter]
    steps: Mapping[str, Step]
    requirements: Mapping[str, Requirement]

    @property
    def path(self) -> Path:
        """Return the file of its document."""
        return self.document.path

    @property
    def is_workflow(self) -> bool:
        """Return whether it is a workflow."""
        return self.kind == "Workflow"

    @property
    def label(self) -> str:
        """Return the label as one line."""
        return one_line(self.fields.get("label"))

    def position(self, field: FieldPath) -> tuple[int, int]:
        """Return line and column, from 1, of a field of the process."""
        return self.document.position((*self.field, *field))


def one_line(text: Any) -> str:
    """Return a label or documentation of CWL, a text or a list of texts, as one line."""
    return " ".join(("\n".join(map(str, text)) if isinstance(text, list) else str(text or "")).split())


def process_in(document: SourceDocument) -> Process:
    """Return the process that a document contains."""
    fields = document.data if isinstance(document.data, Mapping) else {}
    return _process(document, (), fields, _mapping(fields.get("$namespaces")))


def sources_of(raw: Any) -> tuple[str, ...]:
    """Return the names in a `source`, `outputSource` or `scatter`: a text or a list of texts."""
    names = [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else []
    return tuple(str(name).lstrip("#") for name in names)


def file_of_run(folder: Path, reference: str) -> Path:
    """Return the file that a step's `run` refers to, absolute without links.

    Args:
        folder: of the workflow's document.
    """
    return Path(
        os.path.realpath(folder / path_of_reference(reference))
    )  # `resolve` raises RuntimeError on circular links


def _process(
    document: SourceDocument, at: FieldPath, fields: Mapping[str, Any], namespaces: Mapping[str, Any]
) -> Process:
    has_own_types = "SchemaDefRequirement" in required(fields)
    kind = str(fields.get("class") or "")

    def parameters(section: str) -> dict[str, Parameter]:
        return {
            name: _parameter(name, raw, has_own_types, namespaces) for name, raw in named(fields.get(section)).items()
        }

    return Process(
        document=document,
        field=at,
        fields=fields,
        kind=kind,
        namespaces=namespaces,
        inputs=parameters("inputs"),
        outputs=parameters("outputs"),
        steps={
            name: _step(document, at, name, step, namespaces)
            for name, step in (named(fields.get("steps")) if kind == "Workflow" else {}).items()
            if isinstance(step, Mapping)
        },
        requirements=_requirements(fields),
    )


def _step(
    document: SourceDocument, at: FieldPath, name: str, fields: Mapping[str, Any], namespaces: Mapping[str, Any]
) -> Step:
    run = fields.get("run")
    outputs = fields.get("out")
    return Step(
        name=name,
        fields=fields,
        run_file=file_of_run(document.path.parent, run) if isinstance(run, str) else None,
        process=None
        if isinstance(run, str)
        else _process(document, (*at, "steps", name, "run"), _mapping(run), namespaces),
        inputs={port: _binding(raw, "source") for port, raw in named(fields.get("in")).items()},
        outputs=tuple(
            str(output.get("id") if isinstance(output, Mapping) else output)
            for output in (outputs if isinstance(outputs, list) else [])
        ),
        scatter=tuple(port.removeprefix(f"{name}/") for port in sources_of(fields.get("scatter"))),
        requirements=_requirements(fields),
    )


def _binding(raw: Any, key: str) -> Binding:
    fields = _mapping(raw)
    sources = fields.get(key) if isinstance(raw, Mapping) else raw
    return Binding(sources=sources_of(sources), is_list=isinstance(sources, list), fields=fields)


def _parameter(name: str, raw: Any, has_own_types: bool, namespaces: Mapping[str, Any]) -> Parameter:
    is_short = not isinstance(raw, Mapping)
    fields = {"type": raw} if is_short else raw
    kind, fault = ANY, None
    try:
        kind = parse(fields.get("type"), has_own_types)
    except BadType as error:
        fault = error
    return Parameter(
        name=name,
        fields=fields,
        is_short=is_short,
        type=kind,
        type_fault=fault,
        formats=_formats(fields.get("format"), namespaces),
        binding=Binding() if is_short else _binding(raw, "outputSource"),
    )


def _formats(raw: Any, namespaces: Mapping[str, Any]) -> tuple[str, ...]:
    names = []
    for text in [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else []:
        prefix, colon, rest = str(text).partition(":")
        names.append(f"{namespaces[prefix]}{rest}" if colon and prefix in namespaces else str(text))
    return () if any("$(" in name or "${" in name for name in names) else tuple(names)


def _requirements(fields: Mapping[str, Any]) -> dict[str, Requirement]:
    return {name: Requirement(section=section, fields=value) for name, (section, value) in required(fields).items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
