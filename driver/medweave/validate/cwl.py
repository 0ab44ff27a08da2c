"""CWL documents, each by itself: structure, types, names, expressions, inputs that nothing reads."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.validate.expressions import (
    check_ends,
    check_fields,
    check_roots,
    expression_names,
    expressions,
    is_expression,
)
from medweave.validate.findings import Finding, of_fault, one_of
from medweave.validate.repository import CWL_CLASSES
from medweave.validate.source import Source
from medweave.validate.tools import check_hints, check_outputs, check_positions
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_shape import CWL_SHAPE
from medweave_core.documents.cwl_types import BadType, named, of_value, parse, required, spelled_type, type_of
from medweave_core.documents.fast_yaml import commented
from medweave_core.documents.field_errors import faults
from medweave_core.documents.file_locations import path_of_reference
from medweave_core.documents.line_numbers import FieldPath

REQUIREMENTS = (
    "InlineJavascriptRequirement", "SchemaDefRequirement", "LoadListingRequirement", "DockerRequirement", "SoftwareRequirement",
    "InitialWorkDirRequirement", "EnvVarRequirement", "ShellCommandRequirement", "ResourceRequirement", "WorkReuse",
    "NetworkAccess", "InplaceUpdateRequirement", "ToolTimeLimit", "SubworkflowFeatureRequirement", "ScatterFeatureRequirement",
    "MultipleInputFeatureRequirement", "StepInputExpressionRequirement",
)  # fmt: skip
_WHOLE = re.compile(r"\binputs\b(?![.\[])")
_NUMBERS = ("ResourceRequirement", "ToolTimeLimit")  # what they say is numbers
_SUCH = {"s": 3600, "cores": 2, "MiB": 4096}
_MISSING = re.compile(r"missing required field `(\w+)`")
_QUOTED = re.compile(r"`([^`]+)`")


def formats_of(described: Any, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Full names of the formats of an input or output; empty where it has none, or an expression."""
    raw = described.get("format") if isinstance(described, Mapping) else None
    spaces = document.get("$namespaces") or {}
    found = []
    for text in [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else []:
        prefix, colon, rest = str(text).partition(":")
        found.append(spaces[prefix] + rest if colon and prefix in spaces else str(text))
    return () if any(map(is_expression, found)) else tuple(found)


def check_document(source: Source) -> list[Finding]:
    """What is wrong with a document, whatever runs it."""
    kind = source.data.get("class")
    if "$graph" in source.data:
        return []  # several documents in one; none of ours is
    if kind not in CWL_CLASSES:
        fault = source.finding(
            "cwl-structure",
            ("class",),
            "this is no class of a CWL document.",
            seen=str(kind),
            expected=one_of(CWL_CLASSES),
            fix=closest(str(kind), CWL_CLASSES) or "write class: CommandLineTool or class: Workflow",
        )
        return [fault]
    of_shape = [
        of_fault(fault, "cwl-structure", *source.position(fault.field))
        for fault in faults(source.data, CWL_SHAPE, source.path, ())
    ]
    if of_shape:
        return of_shape
    own = [*_types(source), *_requirements(source), *_duplicates(source)]
    # The parser tells less of what was told already, at the top of the same section.
    told = {finding.field[:1] for finding in own}
    found = [*own, *(finding for finding in _structure(source) if finding.field[:1] not in told)]
    if not found:
        found += [*check_ends(source), *check_roots(source)]
    if source.data.get("class") != "Workflow" and not found:
        found += [*_expressions(source), *check_positions(source), *check_outputs(source), *_unused(source)]
    return found


@functools.cache
def _offline() -> Any:
    """Takes addresses in the network for right: the parser's own fetcher asks for each name of a format whether it is there."""
    from schema_salad.fetcher import DefaultFetcher

    class Offline(DefaultFetcher):  # type: ignore[misc]
        def check_exists(self, url: str) -> bool:
            return url.startswith(("http://", "https://")) or bool(super().check_exists(url))

    return Offline({}, None)


def _structure(source: Source) -> Iterator[Finding]:
    from cwl_utils.parser import cwl_v1_2
    from schema_salad.exceptions import ValidationException

    version = source.data.get("cwlVersion")
    if version not in ("v1.2", None):
        if version not in ("v1.0", "v1.1"):
            yield source.finding(
                "cwl-structure", ("cwlVersion",), "there is no such version of CWL.", seen=str(version), expected="v1.2",
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
        missing = [found[1] for leaf in leaves if (found := _MISSING.match(leaf.message))]
        stray = [
            names[0]
            for leaf in leaves
            if leaf.message.startswith("invalid field") and (names := _QUOTED.findall(leaf.message))
        ]
        for leaf in leaves:
            line, column = leaf.start or (1, 1)
            field = _field_at(source, line)
            if (line, leaf.message) in seen or field[-1:] == ("run",):  # a file that is missing is told with the edges
                continue
            seen.add((line, leaf.message))
            of_missing = _MISSING.match(leaf.message)
            if not of_missing or not any(closest(each, [of_missing[1]]) for each in stray):  # told as the misspelt one
                yield _of_parser(source, leaf.message, field, line, column, missing)
    except Exception as error:  # the generated parser trips over some shapes
        yield source.finding(
            "cwl-structure", (), f"the document cannot be read as CWL: {error}.", seen=type(error).__name__, expected="CWL v1.2",
            fix="compare it with one of workflows/tools",
        )  # fmt: skip


def _of_parser(
    source: Source, message: str, field: FieldPath, line: int, column: int, wanted: Sequence[str] = ()
) -> Finding:
    names = _QUOTED.findall(message)
    text = " ".join(message.split()).replace(source.path.parent.as_uri() + "/", "")
    if message.startswith("invalid field") and names:
        wrong, known = names[0], names[1:]
        fix = closest(wrong, wanted) or closest(wrong, known) or f"take '{wrong}' away"
        return Finding(
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
    return Finding(
        file=source.path,
        line=line,
        column=column,
        field=field,
        rule="cwl-structure",
        what=f"{text}.",
        seen="".join(source.text.splitlines()[line - 1 : line]).strip(),
        expected=f"the field '{missing[1]}'" if missing else "a value of CWL v1.2",
        fix=f"write '{missing[1]}:' there" if missing else "write such a value",
    )


def _field_at(source: Source, line: int) -> FieldPath:
    """Path of what begins on a line."""

    def search(value: Any, field: FieldPath) -> FieldPath | None:
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, item in inner:
            here = (*field, key)
            if source.position(here)[0] == line:
                return here
            found = search(item, here)
            if found is not None:
                return found
        return None

    return search(source.data, ()) or ()


def _types(source: Source) -> Iterator[Finding]:
    document = source.data
    declared = "SchemaDefRequirement" in required(document)
    for section in ("inputs", "outputs"):
        for name, described in named(document.get(section)).items():
            is_long = isinstance(described, Mapping)
            if is_long and "type" not in described:
                continue  # the parser tells it
            try:
                kind = parse(described["type"] if is_long else described, declared)
            except BadType as bad:
                field = (section, name, *(("type", *bad.field) if is_long else bad.field))
                yield source.finding(
                    "cwl-type",
                    field,
                    f"'{bad.seen}' is no type of CWL.",
                    seen=bad.seen,
                    expected="null, boolean, int, long, float, double, string, File, Directory, or an array, enum or record",
                    fix=bad.fix,
                )
                continue
            default = described.get("default") if is_long else None
            if default is not None and not of_value(default, kind):
                yield source.finding(
                    "cwl-type", (section, name, "default"), f"the default of '{name}' is not of its type.",
                    seen=str(default), expected=spelled_type(kind), fix="correct the default or the type",
                )  # fmt: skip


def _requirements(source: Source) -> Iterator[Finding]:
    holders: list[tuple[FieldPath, Any]] = [((), source.data)]
    if source.data.get("class") == "Workflow":
        holders += [
            (("steps", name), step)
            for name, step in named(source.data.get("steps")).items()
            if isinstance(step, Mapping)
        ]
    spaces = source.data.get("$namespaces") or {}
    for field, holder in holders:
        yield from check_hints(source, field, holder)
        for name, (section, said) in required(holder).items():
            prefix, colon, _rest = name.partition(":")
            if name in REQUIREMENTS:
                yield from _requirement(source, (*field, section, name), name)
                if name in _NUMBERS:
                    yield from _numbers(source, (*field, section), name, said)
                continue
            if (colon and (prefix in spaces or "://" in name)) or name.startswith("cwltool:"):
                continue
            known = [each.partition("#")[2] if "#" in each else each for each in REQUIREMENTS]
            undeclared = bool(colon)
            yield source.finding(
                "cwl-requirement",
                (*field, section, name),
                f"the prefix '{prefix}' is declared nowhere." if undeclared else f"CWL has no requirement '{name}'.",
                seen=name,
                expected="a prefix out of $namespaces" if undeclared else one_of(known),
                fix=closest(prefix, list(spaces)) or "declare it in $namespaces"
                if undeclared
                else closest(name, known) or "correct the name",
            )


def _requirement(source: Source, field: FieldPath, name: str) -> Iterator[Finding]:
    """A requirement by itself: the parser tells of a list of them only that something in it is wrong."""
    from cwl_utils.parser import cwl_v1_2
    from schema_salad.exceptions import ValidationException
    from schema_salad.sourceline import add_lc_filename

    node = source.node(field)
    said = commented(node) if node is not None else None
    if not isinstance(said, dict):
        return
    said["class"] = name
    add_lc_filename(said, source.path.as_uri())
    try:
        getattr(cwl_v1_2, name).fromDoc(
            said, source.path.as_uri(), cwl_v1_2.LoadingOptions(fileuri=source.path.as_uri(), fetcher=_offline())
        )
    except ValidationException as error:
        for leaf in error.leaves():
            line, column = leaf.start or source.position(field)
            yield _of_parser(source, leaf.message, _field_at(source, line) or field, line, column)


def _numbers(source: Source, section: FieldPath, name: str, said: Any) -> Iterator[Finding]:
    """Numbers with a unit: the parser takes every text for an expression, and every number."""
    numbers = {key: value for key, value in said.items() if key != "class"} if isinstance(said, Mapping) else {}
    for key, value in numbers.items():
        unit = "s" if name == "ToolTimeLimit" else "cores" if key.startswith("cores") else "MiB"
        if isinstance(value, str) and not is_expression(value):
            yield source.finding(
                "cwl-requirement", (*section, name, key), f"'{key}' is neither a number nor an expression.", seen=value,
                expected=f"a number of {unit}, without the unit", fix=f"write the number alone, such as {key}: {_SUCH[unit]}",
            )  # fmt: skip
        most = numbers.get(f"{key.removesuffix('Min')}Max") if key.endswith("Min") else None
        if _is_number(value) and value < 0:
            yield source.finding(
                "cwl-requirement", (*section, name, key), f"'{key}' is less than nothing.", seen=str(value),
                expected=f"a number of {unit} from 0 on", fix=f"write such a number, as in {key}: {_SUCH[unit]}",
            )  # fmt: skip
        elif _is_number(value) and _is_number(most) and value > most:
            yield source.finding(
                "cwl-requirement", (*section, name, key), "the least that is asked for is more than the most.",
                seen=f"{key}: {value}, {key.removesuffix('Min')}Max: {most}", expected=f"{most} {unit} at most",
                fix="correct one of the two",
            )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _duplicates(source: Source) -> Iterator[Finding]:
    sections = ("inputs", "outputs", "steps") if source.data.get("class") == "Workflow" else ("inputs", "outputs")
    first: dict[str, str] = {}
    for section in sections:
        listed = source.data.get(section)
        ids = (
            list(listed)
            if isinstance(listed, Mapping)
            else [str(each.get("id", "")).lstrip("#") for each in listed or [] if isinstance(each, Mapping)]
        )
        of_section: set[str] = set()
        for number, name in enumerate(ids):
            same_section = name in of_section
            other = first.get(name) if source.data.get("class") == "Workflow" else None
            if same_section or other not in (None, section):
                field = (section, number) if isinstance(listed, list) else (section, name)
                yield source.finding(
                    "cwl-duplicate-id",
                    field,
                    f"'{name}' is the name of two things in this document.",
                    seen=f"also in {other or section}",
                    expected="one name for each input, output and step",
                    fix=f"rename one of them, such as '{name}_{section[:-1]}'",
                )
            of_section.add(name)
            first.setdefault(name, section)


def _expressions(source: Source) -> Iterator[Finding]:
    described = named(source.data.get("inputs"))
    inputs = list(described)
    yield from check_fields(source, {name: type_of(each, source.data) for name, each in described.items()})
    for field, text in expressions(source):
        for name in expression_names(text):
            if name not in inputs:
                yield source.finding(
                    "cwl-expression",
                    field,
                    f"this expression reads an input '{name}', which the tool does not have.",
                    seen=text[:80],
                    expected=one_of(inputs),
                    fix=closest(name, inputs) or "declare the input",
                )


def _unused(source: Source) -> Iterator[Finding]:
    texts = [text for _, text in expressions(source)]
    if (
        "$import" in source.text
        or any(_WHOLE.search(text) for text in texts)
        or source.data.get("class") == "Operation"
    ):
        return  # all of them are read at once, or in another file
    read = {name for text in texts for name in expression_names(text)}
    for name, described in named(source.data.get("inputs")).items():
        kind = described.get("type") if isinstance(described, Mapping) else described
        if name not in read and kind != "stdin" and "inputBinding" not in str(described):
            yield source.finding(
                "cwl-unused-input",
                ("inputs", name),
                f"nothing reads the input '{name}'.",
                seen="no inputBinding, and no expression with it",
                expected="an input that changes what the tool does",
                fix="give it an inputBinding, or take it away",
            )


def path_of_run(source: Source, run: Any) -> Path | None:
    """The file that a step runs; None where the tool stands in the step."""
    return (source.path.parent / path_of_reference(run)).resolve() if isinstance(run, str) else None
