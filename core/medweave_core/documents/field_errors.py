"""Faults of a file, told with the path to the field: what jsonschema finds, in the words of this project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import FieldPath, Where
from medweave_core.documents.yaml_documents import not_installed
from medweave_core.errors import UserInputError


@dataclass(slots=True)
class FieldFault(UserInputError):
    """A fault at a place of a file.

    Attributes:
        path: the file.
        field: where it is in it.
        told: what is wrong, without the place.
    """

    path: Path = Path()
    field: FieldPath = ()
    told: str = ""


def check(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> None:
    """Holds a value of a file against a schema.

    Args:
        path: the file, for messages.
        field: where the value stands in it.

    Raises:
        FieldFault: the first fault, with the path to its field.
    """
    for fault in faults(value, schema, path, field):
        raise fault


def faults(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> Iterator[FieldFault]:
    """All faults of a value, as `check` tells the first: one of the whole comes before one inside it, which it may have caused."""
    try:
        import jsonschema
    except ImportError as error:
        raise not_installed(error) from error
    found = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).iter_errors(value)
    yield from of_errors(found, path, field)


def of_errors(found: Iterable[Any], path: Path, field: FieldPath = ()) -> Iterator[FieldFault]:
    """The same for what a validator of jsonschema has found; a misspelt key comes before the missing one that it was to be."""
    for fault in sorted(found, key=_order):
        yield from _told(fault, path, field)


def _order(fault: Any) -> tuple[Any, ...]:
    return len(fault.absolute_path), str(fault.absolute_path), fault.validator == "required"


def fault_at(path: Path, field: FieldPath, what: str, **parts: str) -> FieldFault:
    """`deployments/sites/x.yml:12: roles.train.service: WHAT` with its further lines."""
    return FieldFault(f"{Where(path, field)}: {what}", **parts, path=path, field=field, told=what)


def _told(fault: Any, path: Path, field: FieldPath) -> Iterator[FieldFault]:
    """What a person needs to know of a fault that jsonschema found; a fault for each key that is unknown or missing."""
    where, rule, limit = (*field, *fault.absolute_path), fault.validator, fault.validator_value
    if rule in ("oneOf", "anyOf") and fault.context:
        for each in _of_nearest(fault.context):
            yield from _told(each, path, field)
        return
    known: Mapping[str, Any] = fault.schema.get("properties", {})
    if rule in ("additionalProperties", "unevaluatedProperties"):
        patterns = fault.schema.get("patternProperties", {})
        wanted = [key for key in fault.schema.get("required", ()) if key not in fault.instance]
        for unknown in map(str, fault.instance):
            if unknown not in known and not any(re.search(p, unknown) for p in patterns):
                one_of = f"one of {', '.join(sorted(known))}" if known else "no keys here"
                yield fault_at(
                    path,
                    (*where, unknown),
                    "there is no such key." if known or not patterns else "this name cannot be used.",
                    seen=f"'{unknown}'",
                    expected=f"a name that matches {' or '.join(patterns)}" if patterns and not known else one_of,
                    do=closest(unknown, wanted)
                    or closest(unknown, list(known))
                    or f"take '{unknown}' away, or correct it",
                )
        return
    if rule == "required":
        # jsonschema tells of each missing key by itself; the message begins with it.
        missing = next(key for key in limit if fault.message.startswith(repr(key)))
        is_closed = False in (fault.schema.get("additionalProperties"), fault.schema.get("unevaluatedProperties"))
        if is_closed and any(closest(str(key), [missing]) for key in fault.instance if key not in known):
            return  # told as the key that was to be it
        meaning = known.get(missing, {}).get("description", "")
        yield fault_at(
            path,
            where,
            f"the key '{missing}' is missing.",
            seen=", ".join(map(str, fault.instance)) or "no keys",
            expected=f"{missing}: {meaning}" if meaning else f"{missing}: …",
            do=f"write '{missing}:' there",
        )
        return
    if rule == "type":
        expected = " or ".join([limit] if isinstance(limit, str) else limit)
    elif rule == "enum":
        expected = f"one of {', '.join(map(str, limit))}"
    else:
        expected = fault.message
    meaning = fault.schema.get("description", "")
    near = closest(str(fault.instance), [str(each) for each in limit]) if rule == "enum" else ""
    yield fault_at(
        path,
        where,
        "this value cannot be used.",
        seen=json.dumps(fault.instance, default=str)[:120],
        expected=f"{expected} ({meaning})" if meaning else expected,
        do=near or "write such a value",
    )


def _of_nearest(found: Iterable[Any]) -> list[Any]:
    """What the alternative finds wrong that was meant: the one of the right type, with the least faults."""
    alternatives: dict[Any, list[Any]] = {}
    for each in found:
        alternatives.setdefault(each.relative_schema_path[0], []).append(each)
    return min(
        alternatives.values(),
        key=lambda faults: (any(each.validator == "type" and not each.relative_path for each in faults), len(faults)),
    )
