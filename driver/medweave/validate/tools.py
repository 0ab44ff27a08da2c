"""Tools alone: hints of medweave, places of outputs, and positions on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from medweave.validate.expressions import is_expression
from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave_connectors.jobs.job_requests import HINT_KEYS, NAMESPACE, full_name, read_hints
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process, Requirement
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.errors import UsageError

STREAMS = ("stdout", "stderr")
OUTPUT_OBJECT_FILE = "cwl.output.json"  # in which a program may list its outputs


def check_hints(
    process: Process, field: FieldPath, requirements: Mapping[str, Requirement]
) -> Iterator[ValidationFinding]:
    """Yield what the plug-in would refuse in the hints of a tool or step when a run starts.

    Args:
        field: of the tool or step in the process.
        requirements: its requirements and hints.
    """
    source = process.document
    for name, requirement in requirements.items():
        full = full_name(name, process.namespaces)
        if not full.startswith(NAMESPACE):
            continue
        place, short = (*field, requirement.section, name), full.removeprefix(NAMESPACE)
        hint: Mapping[str, Any] = requirement.fields if isinstance(requirement.fields, Mapping) else {}
        stray = sorted(map(str, hint.keys() - {"class"} - HINT_KEYS.get(short, frozenset())))
        if short not in HINT_KEYS:
            prefix = name.removesuffix(short)
            known = [f"{prefix}{key}" for key in HINT_KEYS]
            yield finding_at(
                source, "cwl-requirement", place, f"medweave has no hint '{short}'.", seen=name, expected=one_of(known),
                fix=closest(name, known) or "correct the name",
            )  # fmt: skip
        elif stray:
            keys = sorted(HINT_KEYS[short])
            yield finding_at(
                source, "cwl-requirement", (*place, stray[0]), f"the hint '{name}' has no key '{stray[0]}'.", seen=stray[0],
                expected=one_of(keys) if keys else f"{name}: {{}}", fix=closest(stray[0], keys) or "remove it",
            )  # fmt: skip
        else:
            try:
                read_hints({full: hint}, where="/")
            except UsageError as error:
                yield finding_at(
                    source,
                    "cwl-requirement",
                    place,
                    f"invalid hint '{name}'.",
                    seen=error.seen,
                    expected=error.expected,
                    fix=error.do,
                )


def check_outputs(process: Process) -> Iterator[ValidationFinding]:
    """Yield the files and folders among the outputs of a tool that nothing locates."""
    if OUTPUT_OBJECT_FILE in process.document.text:
        return
    for name, parameter in process.outputs.items():
        binding = parameter.fields.get("outputBinding")
        is_located = isinstance(binding, Mapping) and ("glob" in binding or "outputEval" in binding)
        if parameter.fields.get("type") not in STREAMS and not is_located and parameter.type & {"File", "Directory"}:
            yield finding_at(
                process.document, "cwl-output", ("outputs", name),
                f"the tool does not declare where its program writes output '{name}'.",
                seen="no outputBinding with a glob", expected="outputBinding: {glob: …}",
                fix=f"add outputBinding; if the program writes {OUTPUT_OBJECT_FILE}, mention that file in the "
                    "tool's doc",
            )  # fmt: skip


def check_positions(process: Process) -> Iterator[ValidationFinding]:
    """Yield positions on the command line that are not numbers: the parser takes each text for an expression."""
    arguments = process.fields.get("arguments")
    places: list[tuple[FieldPath, Any]] = [(("arguments", number), item) for number, item in enumerate(arguments or [])]
    for name, parameter in process.inputs.items():
        places.append((("inputs", name, "inputBinding"), parameter.fields.get("inputBinding")))
    for field, binding in places:
        position = binding.get("position") if isinstance(binding, Mapping) else None
        if isinstance(position, str) and not is_expression(position):
            yield finding_at(
                process.document, "cwl-structure", (*field, "position"), "'position' is neither a number nor an expression.",
                seen=position, expected="a whole number; lower numbers come first",
                fix="write only the number, such as position: 1",
            )  # fmt: skip
