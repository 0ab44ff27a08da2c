"""Names that CWL expressions read: inputs, and the variables of the runner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Step
from medweave_core.documents.cwl_types import Type
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument

_READ = re.compile(r"\binputs\.(\w+)|\binputs\[[\"'](\w+)[\"']\]")
_ROOT = re.compile(r"(?<!\\)\$\(\s*([A-Za-z_]\w*)(?=\s*[.\[)])")
_FIELD = re.compile(r"\binputs\.(\w+)\.(\w+)")
_RUNTIME = re.compile(r"(?<!\\)\$\(\s*runtime\.(\w+)\s*\)")
ROOTS = ("inputs", "self", "runtime")
RUNTIME = ("cores", "ram", "outdir", "tmpdir", "outdirSize", "tmpdirSize", "exitCode")
FIELDS = {
    "File": (
        "class", "location", "path", "basename", "dirname", "nameroot", "nameext", "checksum", "size", "secondaryFiles", "format",
        "contents",
    ),
    "Directory": ("class", "location", "path", "basename", "listing"),
}  # fmt: skip
_PROSE = (("doc",), ("label",))


def is_expression(text: str) -> bool:
    """Return whether a text contains an expression."""
    return "$(" in text or "${" in text


def expression_names(text: str) -> Iterator[str]:
    """Yield the names of inputs that an expression reads."""
    if is_expression(text):
        for dotted, quoted in _READ.findall(text):
            yield dotted or quoted


def strings(value: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, str]]:
    """Yield the strings in a value, each with its field."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(item, (*field, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from strings(item, (*field, number))
    elif isinstance(value, str):
        yield field, value


def expressions(source: SourceDocument) -> Iterator[tuple[FieldPath, str]]:
    """Yield the expressions of a document, each with its field."""
    for field, text in strings(source.data):
        if is_expression(text) and field[:1] not in _PROSE:
            yield field, text


def check_ends(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield expressions with an open bracket or quote: a runner reports it when the step starts, hours later."""
    from cwl_utils.errors import SubstitutionError
    from cwl_utils.expression import scanner

    for field, text in expressions(source):
        rest = text
        try:
            while ends := scanner(rest):
                rest = rest[ends[1] :]
        except SubstitutionError:
            yield finding_at(
                source, "cwl-expression", field, "unterminated expression.", seen=text[:80],
                expected="a closing bracket or quote for each opening one", fix="close it, or write \\$ for a plain $",
            )  # fmt: skip


def check_fields(source: SourceDocument, types: Mapping[str, Type]) -> Iterator[ValidationFinding]:
    """Yield unknown fields of files and folders that are close to a known one: a runner may have further ones.

    Args:
        types: of the inputs.
    """
    for field, text in expressions(source):
        for name, inner in _FIELD.findall(text):
            kinds = [*types.get(name, frozenset()) - {"null"}]
            known = FIELDS.get(kinds[0], ()) if len(kinds) == 1 else ()
            if known and inner not in known and (near := closest(inner, known)):
                yield finding_at(
                    source, "cwl-expression", field, f"a {kinds[0]} has no '{inner}'.", seen=text[:80], expected=one_of(known),
                    fix=near,
                )  # fmt: skip


def check_roots(source: SourceDocument) -> Iterator[ValidationFinding]:
    """Yield unknown names that are close to a variable of the runner: others may be JavaScript's."""
    for field, text in expressions(source):
        for name in _ROOT.findall(text):
            is_own = re.search(rf"\b(?:var|let|const|function)\s+{name}\b", source.text)
            if name not in ROOTS and not is_own and (near := closest(name, ROOTS)):
                yield finding_at(
                    source, "cwl-expression", field, f"unknown name '{name}' in an expression.", seen=text[:80],
                    expected=one_of(ROOTS), fix=near,
                )  # fmt: skip
        for name in _RUNTIME.findall(text):
            if name not in RUNTIME:
                yield finding_at(
                    source, "cwl-expression", field, f"there is no 'runtime.{name}'.", seen=text[:80],
                    expected=one_of(f"runtime.{key}" for key in RUNTIME), fix=closest(name, RUNTIME) or "use a listed name",
                )  # fmt: skip


def misread(document: SourceDocument, step: Step, inputs: Mapping[str, Any]) -> Iterator[tuple[str, ValidationFinding]]:
    """Yield the names of inputs that expressions of a step read and that it does not have, each with its finding.

    Args:
        document: the workflow's.
        inputs: those of the step's tool.
    """
    bound = step.inputs
    own = {
        "when": step.fields.get("when"),
        "in": {port: binding.fields.get("valueFrom") for port, binding in bound.items()},
    }
    for field, text in strings(own):
        for name in expression_names(text):
            if name not in bound and name not in inputs:
                place = (*field, "valueFrom") if field[0] == "in" else field
                what = f"this expression reads '{name}', which step '{step.name}' does not bind."
                yield name, finding_at(
                    document, "cwl-expression", ("steps", step.name, *place), what, seen=text[:80], expected=one_of(bound),
                    fix=closest(name, list(bound)) or f"bind '{name}' under 'in'",
                )  # fmt: skip
