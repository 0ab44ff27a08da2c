"""Tools by themselves: hints of medweave's own, where the outputs come from, and the order on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from medweave.validate.expressions import is_expression
from medweave.validate.findings import Finding, one_of
from medweave.validate.source import Source
from medweave_connectors.jobs.job_requests import HINT_KEYS, NAMESPACE, full_name, read_hints
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_types import named, required, type_of
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.errors import UsageError

STREAMS = ("stdout", "stderr")
BY_ITSELF = "cwl.output.json"  # in which a program may say by itself where its outputs are


def check_hints(source: Source, field: FieldPath, holder: Mapping[str, Any]) -> Iterator[Finding]:
    """What the plug-in would refuse in the hints of a tool or a step, when a run begins.

    Args:
        field: of what has the hints.
    """
    spaces = source.data.get("$namespaces") or {}
    for name, (section, said) in required(holder).items():
        full = full_name(name, spaces)
        if not full.startswith(NAMESPACE):
            continue
        place, short = (*field, section, name), full.removeprefix(NAMESPACE)
        hint: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
        stray = sorted(map(str, hint.keys() - {"class"} - HINT_KEYS.get(short, frozenset())))
        if short not in HINT_KEYS:
            prefix = name.removesuffix(short)
            known = [f"{prefix}{each}" for each in HINT_KEYS]
            yield source.finding(
                "cwl-requirement", place, f"medweave has no hint '{short}'.", seen=name, expected=one_of(known),
                fix=closest(name, known) or "correct the name",
            )  # fmt: skip
        elif stray:
            keys = sorted(HINT_KEYS[short])
            yield source.finding(
                "cwl-requirement", (*place, stray[0]), f"the hint '{name}' has no key '{stray[0]}'.", seen=stray[0],
                expected=one_of(keys) if keys else f"{name}: {{}}", fix=closest(stray[0], keys) or "take it away",
            )  # fmt: skip
        else:
            try:
                read_hints({full: hint}, where="/")
            except UsageError as error:
                yield source.finding(
                    "cwl-requirement", place, f"the hint '{name}' cannot be used.", seen=error.seen, expected=error.expected,
                    fix=error.do,
                )  # fmt: skip


def check_outputs(source: Source) -> Iterator[Finding]:
    """Files and folders of which a tool does not say where its program leaves them."""
    if BY_ITSELF in source.text:
        return
    for name, described in named(source.data.get("outputs")).items():
        raw = described.get("type") if isinstance(described, Mapping) else described
        bound = described.get("outputBinding") if isinstance(described, Mapping) else None
        is_bound = isinstance(bound, Mapping) and ("glob" in bound or "outputEval" in bound)
        if raw not in STREAMS and not is_bound and type_of(described, source.data) & {"File", "Directory"}:
            yield source.finding(
                "cwl-output", ("outputs", name), f"nothing says where the program leaves the output '{name}'.",
                seen="no outputBinding with a glob", expected="outputBinding: {glob: …}",
                fix=f"say it; or let the program write {BY_ITSELF}, and say so in the tool's doc",
            )  # fmt: skip


def check_positions(source: Source) -> Iterator[Finding]:
    """Places on the command line that are no numbers: the parser takes every text for an expression."""
    arguments = source.data.get("arguments")
    places: list[tuple[FieldPath, Any]] = [(("arguments", number), each) for number, each in enumerate(arguments or [])]
    for name, each in named(source.data.get("inputs")).items():
        places.append(
            (("inputs", name, "inputBinding"), each.get("inputBinding") if isinstance(each, Mapping) else None)
        )
    for field, bound in places:
        position = bound.get("position") if isinstance(bound, Mapping) else None
        if isinstance(position, str) and not is_expression(position):
            yield source.finding(
                "cwl-structure", (*field, "position"), "'position' is neither a number nor an expression.", seen=position,
                expected="a whole number: lower ones come first", fix="write the number alone, such as position: 1",
            )  # fmt: skip
