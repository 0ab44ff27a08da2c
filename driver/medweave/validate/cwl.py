"""CWL documents, each alone: structure, types, names, expressions, unused inputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medweave.validate.expressions import (
    check_ends,
    check_fields,
    check_roots,
    expression_names,
    expressions,
    is_expression,
)
from medweave.validate.findings import ValidationFinding, finding_at, of_fault, one_of
from medweave.validate.repository import CWL_CLASSES
from medweave.validate.tools import check_hints, check_outputs, check_positions
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process, Requirement
from medweave_core.documents.cwl_shape import CWL_SHAPE
from medweave_core.documents.cwl_types import of_value, spelled_type
from medweave_core.documents.fast_yaml import commented
from medweave_core.documents.field_errors import faults
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument

REQUIREMENTS = (
    "InlineJavascriptRequirement", "SchemaDefRequirement", "LoadListingRequirement", "DockerRequirement", "SoftwareRequirement",
    "InitialWorkDirRequirement", "EnvVarRequirement", "ShellCommandRequirement", "ResourceRequirement", "WorkReuse",
    "NetworkAccess", "InplaceUpdateRequirement", "ToolTimeLimit", "SubworkflowFeatureRequirement", "ScatterFeatureRequirement",
    "MultipleInputFeatureRequirement", "StepInputExpressionRequirement",
)  # fmt: skip
_WHOLE = re.compile(r"\binputs\b(?![.\[])")
_NUMBERS = ("ResourceRequirement", "ToolTimeLimit")  # their values are numbers
_SUCH = {"s": 3600, "cores": 2, "MiB": 4096}
_MISSING = re.compile(r"missing required field `(\w+)`")
_QUOTED = re.compile(r"`([^`]+)`")


def check_document(process: Process) -> list[ValidationFinding]:
    """Return the findings of a document alone."""
    source, kind = process.document, process.fields.get("class")
    if "$graph" in source.data:
        return []  # several documents in one; none of ours is
    if kind not in CWL_CLASSES:
        fault = finding_at(
            source,
            "cwl-structure",
            ("class",),
            "unknown class of a CWL document.",
            seen=str(kind),
            expected=one_of(CWL_CLASSES),
            fix=closest(str(kind), CWL_CLASSES) or "write class: CommandLineTool or class: Workflow",
        )
        return [fault]
    shape_findings = [
        of_fault(fault, "cwl-structure", *source.position(fault.field))
        for fault in faults(source.data, CWL_SHAPE, source.path, ())
    ]
    if shape_findings:
        return shape_findings
    own_findings = [*_types(process), *_requirements(process), *_duplicates(source)]
    # Errors of the parser in a section with findings are less precise duplicates.
    sections = {finding.field[:1] for finding in own_findings}
    findings = [*own_findings, *(finding for finding in _structure(source) if finding.field[:1] not in sections)]
    if not findings:
        findings += [*check_ends(source), *check_roots(source)]
    if not process.is_workflow and not findings:
        findings += [*_expressions(process), *check_positions(process), *check_outputs(process), *_unused(process)]
    return findings


@functools.cache
def _offline() -> Any:
    """Return a fetcher without network access: the parser's own requests each URL of a format."""
    from schema_salad.fetcher import DefaultFetcher

    class Offline(DefaultFetcher):  # type: ignore[misc]
        def check_exists(self, url: str) -> bool:
            return url.startswith(("http://", "https://")) or bool(super().check_exists(url))

    return Offline({}, None)


def _structure(source: SourceDocument) -> Iterator[ValidationFinding]:
    from cwl_utils.parser import cwl_v1_2
    from schema_salad.exceptions import ValidationException

    version = source.data.get("cwlVersion")
    if version not in ("v1.2", None):
        if version not in ("v1.0", "v1.1"):
            yield finding_at(
                source, "cwl-structure", ("cwlVersion",), "unsupported CWL version.", seen=str(version), expected="v1.2",
                fix="write cwlVersion: v1.2",
            )  # fmt: skip
        return
    try:
        uri = source.path.as_uri()
        cwl_v1_2.load_document_by_yaml(
            commented(source.root), uri, cwl_v1_2.LoadingOptions(fileuri=uri, fetcher=_offline())
        )
    except ValidationException as error:
        seen: set[tuple[int, str]] = set()
        leaves = error.leaves()
        missing = [match[1] for leaf in leaves if (match := _MISSING.match(leaf.message))]
        unknown = [
            names[0]
            for leaf in leaves
            if leaf.message.startswith("invalid field") and (names := _QUOTED.findall(leaf.message))
        ]
        for leaf in leaves:
            line, column = leaf.start or (1, 1)
            field = _field_at(source, line)
            if (line, leaf.message) in seen or field[-1:] == ("run",):  # the check of edges reports missing files
                continue
            seen.add((line, leaf.message))
            missing_field = _MISSING.match(leaf.message)
            if not missing_field or not any(
                closest(name, [missing_field[1]]) for name in unknown
            ):  # reported as a misspelt field
                yield _of_parser(source, leaf.message, field, line, column, missing)
    except Exception as error:  # the generated parser fails on some shapes
        yield finding_at(
            source,
            "cwl-structure",
            (),
            f"invalid CWL document: {error}.",
            seen=type(error).__name__,
            expected="CWL v1.2",
            fix="compare it with a document in workflows/tools",
        )


def _of_parser(
    source: SourceDocument, message: str, field: FieldPath, line: int, column: int, required: Sequence[str] = ()
) -> ValidationFinding:
    names = _QUOTED.findall(message)
    text = " ".join(message.split()).replace(source.path.parent.as_uri() + "/", "")
    if message.startswith("invalid field") and names:
        wrong, known = names[0], names[1:]
        fix = closest(wrong, required) or closest(wrong, known) or f"remove '{wrong}'"
        return ValidationFinding(
            file=source.path,
            line=line,
            column=column,
            field=field,
            rule="cwl-structure",
            what=f"there is no field '{wrong}' here.",
            seen=wrong,
            expected=one_of(known),
            fix=fix,
        )
    missing = _MISSING.match(message)
    return ValidationFinding(
        file=source.path,
        line=line,
        column=column,
        field=field,
        rule="cwl-structure",
        what=f"{text}.",
        seen="".join(source.text.splitlines()[line - 1 : line]).strip(),
        expected=f"the field '{missing[1]}'" if missing else "a value of CWL v1.2",
        fix=f"add '{missing[1]}:'" if missing else "write an expected value",
    )


def _field_at(source: SourceDocument, line: int) -> FieldPath:
    """Return the field that starts on a line."""

    def search(value: Any, field: FieldPath) -> FieldPath | None:
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, item in inner:
            inner_at = (*field, key)
            if source.position(inner_at)[0] == line:
                return inner_at
            inner_field = search(item, inner_at)
            if inner_field is not None:
                return inner_field
        return None

    return search(source.data, ()) or ()


def _types(process: Process) -> Iterator[ValidationFinding]:
    source = process.document
    for section, parameters in (("inputs", process.inputs), ("outputs", process.outputs)):
        for name, parameter in parameters.items():
            if "type" not in parameter.fields:
                continue  # reported by the parser
            if (bad := parameter.type_fault) is not None:
                yield finding_at(
                    source,
                    "cwl-type",
                    (section, name, *bad.field) if parameter.is_short else (section, name, "type", *bad.field),
                    f"'{bad.seen}' is not a CWL type.",
                    seen=bad.seen,
                    expected="null, boolean, int, long, float, double, string, File, Directory, or an array, enum or record",
                    fix=bad.fix,
                )
            elif parameter.has_default and not of_value(parameter.fields["default"], parameter.type):
                yield finding_at(
                    source, "cwl-type", (section, name, "default"), f"the default of '{name}' has another type than the input.",
                    seen=str(parameter.fields["default"]), expected=spelled_type(parameter.type),
                    fix="correct the default or the type",
                )  # fmt: skip


def _requirements(process: Process) -> Iterator[ValidationFinding]:
    yield from _requirements_of(process, (), process.requirements)
    for name, step in process.steps.items():
        yield from _requirements_of(process, ("steps", name), step.requirements)


def _requirements_of(
    process: Process, at: FieldPath, requirements: Mapping[str, Requirement]
) -> Iterator[ValidationFinding]:
    """Yield the findings of the requirements and hints of a process or step at a field."""
    source, spaces = process.document, process.namespaces
    yield from check_hints(process, at, requirements)
    for name, requirement in requirements.items():
        place, (prefix, colon, _rest) = (*at, requirement.section, name), name.partition(":")
        if name in REQUIREMENTS:
            yield from _requirement(source, place, name)
            if name in _NUMBERS:
                yield from _numbers(source, (*at, requirement.section), name, requirement.fields)
            continue
        if (colon and (prefix in spaces or "://" in name)) or name.startswith("cwltool:"):
            continue
        if colon:
            yield finding_at(
                source, "cwl-requirement", place, f"the prefix '{prefix}' is not declared.", seen=name,
                expected="a prefix of $namespaces", fix=closest(prefix, list(spaces)) or "declare it in $namespaces",
            )  # fmt: skip
        else:
            yield finding_at(
                source, "cwl-requirement", place, f"CWL has no requirement '{name}'.", seen=name, expected=one_of(REQUIREMENTS),
                fix=closest(name, REQUIREMENTS) or "correct the name",
            )  # fmt: skip


def _requirement(source: SourceDocument, field: FieldPath, name: str) -> Iterator[ValidationFinding]:
    """Yield the errors of a single requirement: for a list, the parser reports only that a member is wrong."""
    from cwl_utils.parser import cwl_v1_2
    from schema_salad.exceptions import ValidationException
    from schema_salad.sourceline import add_lc_filename

    node = source.node(field)
    value = commented(node) if node is not None else None
    if not isinstance(value, dict):
        return
    value["class"] = name
    add_lc_filename(value, source.path.as_uri())
    try:
        getattr(cwl_v1_2, name).fromDoc(
            value, source.path.as_uri(), cwl_v1_2.LoadingOptions(fileuri=source.path.as_uri(), fetcher=_offline())
        )
    except ValidationException as error:
        for leaf in error.leaves():
            line, column = leaf.start or source.position(field)
            yield _of_parser(source, leaf.message, _field_at(source, line) or field, line, column)


def _numbers(source: SourceDocument, section: FieldPath, name: str, fields: Any) -> Iterator[ValidationFinding]:
    """Yield wrong numbers of a requirement: the parser accepts any number, and takes any text for an expression."""
    numbers = {key: value for key, value in fields.items() if key != "class"} if isinstance(fields, Mapping) else {}
    for key, value in numbers.items():
        unit = "s" if name == "ToolTimeLimit" else "cores" if key.startswith("cores") else "MiB"
        if isinstance(value, str) and not is_expression(value):
            yield finding_at(
                source, "cwl-requirement", (*section, name, key), f"'{key}' is neither a number nor an expression.", seen=value,
                expected=f"a number of {unit}, without the unit", fix=f"write only the number, such as {key}: {_SUCH[unit]}",
            )  # fmt: skip
        most = numbers.get(f"{key.removesuffix('Min')}Max") if key.endswith("Min") else None
        if _is_number(value) and value < 0:
            yield finding_at(
                source, "cwl-requirement", (*section, name, key), f"'{key}' is negative.", seen=str(value),
                expected=f"a number of {unit}, 0 or more", fix=f"write such a number, for example {key}: {_SUCH[unit]}",
            )  # fmt: skip
        elif _is_number(value) and _is_number(most) and value > most:
            yield finding_at(
                source, "cwl-requirement", (*section, name, key), "the requested minimum is greater than the maximum.",
                seen=f"{key}: {value}, {key.removesuffix('Min')}Max: {most}", expected=f"at most {most} {unit}",
                fix="correct the minimum or the maximum",
            )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _duplicates(source: SourceDocument) -> Iterator[ValidationFinding]:
    sections = ("inputs", "outputs", "steps") if source.data.get("class") == "Workflow" else ("inputs", "outputs")
    first: dict[str, str] = {}
    for section in sections:
        listed = source.data.get(section)
        ids = (
            list(listed)
            if isinstance(listed, Mapping)
            else [str(member.get("id", "")).lstrip("#") for member in listed or [] if isinstance(member, Mapping)]
        )
        of_section: set[str] = set()
        for number, name in enumerate(ids):
            same_section = name in of_section
            other = first.get(name) if source.data.get("class") == "Workflow" else None
            if same_section or other not in (None, section):
                field = (section, number) if isinstance(listed, list) else (section, name)
                yield finding_at(
                    source,
                    "cwl-duplicate-id",
                    field,
                    f"the name '{name}' is used twice in this document.",
                    seen=f"also in {other or section}",
                    expected="a unique name for each input, output and step",
                    fix=f"rename one of them, such as '{name}_{section[:-1]}'",
                )
            of_section.add(name)
            first.setdefault(name, section)


def _expressions(process: Process) -> Iterator[ValidationFinding]:
    source, inputs = process.document, list(process.inputs)
    yield from check_fields(source, {name: parameter.type for name, parameter in process.inputs.items()})
    for field, text in expressions(source):
        for name in expression_names(text):
            if name not in inputs:
                yield finding_at(
                    source,
                    "cwl-expression",
                    field,
                    f"this expression reads input '{name}', which the tool does not have.",
                    seen=text[:80],
                    expected=one_of(inputs),
                    fix=closest(name, inputs) or "declare the input",
                )


def _unused(process: Process) -> Iterator[ValidationFinding]:
    source = process.document
    texts = [text for _, text in expressions(source)]
    if "$import" in source.text or any(_WHOLE.search(text) for text in texts) or process.kind == "Operation":
        return  # all of them are read at once, or in another file
    read = {name for text in texts for name in expression_names(text)}
    for name, parameter in process.inputs.items():
        is_bound = parameter.fields.get("type") == "stdin" or "inputBinding" in str(parameter.fields)
        if name not in read and not is_bound:
            yield finding_at(
                source,
                "cwl-unused-input",
                ("inputs", name),
                f"input '{name}' is not used.",
                seen="no inputBinding, and no expression with it",
                expected="an input that changes what the tool does",
                fix="add an inputBinding, or remove the input",
            )
