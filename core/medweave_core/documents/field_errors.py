"""Errors of jsonschema as errors with file, line and field."""

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
        field: path of the field in the file.
        problem: the error, without the place.
    """

    path: Path = Path()
    field: FieldPath = ()
    problem: str = ""


def check(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> None:
    """Check a value of a file against a schema.

    Args:
        path: the file, for messages.
        field: place of the value in it.

    Raises:
        FieldFault: the first fault, with the path to its field.
    """
    for fault in faults(value, schema, path, field):
        raise fault


def faults(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> Iterator[FieldFault]:
    """Yield all faults of a value, outermost first: an outer fault may cause an inner one."""
    try:
        import jsonschema
    except ImportError as error:
        raise not_installed(error) from error
    errors = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).iter_errors(value)
    yield from faults_of_errors(errors, path, field)


def faults_of_errors(errors: Iterable[Any], path: Path, field: FieldPath = ()) -> Iterator[FieldFault]:
    """Yield errors of jsonschema as faults, outermost first, a misspelt key before the missing key that was intended."""
    for fault in sorted(errors, key=_order):
        yield from _field_faults(fault, path, field)


def _order(fault: Any) -> tuple[Any, ...]:
    return len(fault.absolute_path), str(fault.absolute_path), fault.validator == "required"


def fault_at(path: Path, field: FieldPath, what: str, **parts: str) -> FieldFault:
    """Return an error at a field of a file: `deployments/sites/x.yml:12: roles.train.service: WHAT`."""
    return FieldFault(f"{Where(path, field)}: {what}", **parts, path=path, field=field, problem=what)


def _field_faults(error: Any, path: Path, field: FieldPath) -> Iterator[FieldFault]:
    """Yield an error of jsonschema in our words; one fault for each key that is unknown or missing."""
    place = (*field, *error.absolute_path)
    if error.validator in ("oneOf", "anyOf") and error.context:
        for inner in _of_nearest(error.context):
            yield from _field_faults(inner, path, field)
    elif error.validator in ("additionalProperties", "unevaluatedProperties"):
        yield from _unknown_keys(error, path, place)
    elif error.validator == "required":
        yield from _missing_key(error, path, place)
    else:
        yield _wrong_value(error, path, place)


def _unknown_keys(error: Any, path: Path, place: FieldPath) -> Iterator[FieldFault]:
    known: Mapping[str, Any] = error.schema.get("properties", {})
    patterns = error.schema.get("patternProperties", {})
    missing = [key for key in error.schema.get("required", ()) if key not in error.instance]
    for key in map(str, error.instance):
        if key not in known and not any(re.search(pattern, key) for pattern in patterns):
            one_of = f"one of {', '.join(sorted(known))}" if known else "no keys here"
            yield fault_at(
                path,
                (*place, key),
                "there is no such key." if known or not patterns else "invalid name.",
                seen=f"'{key}'",
                expected=f"a name that matches {' or '.join(patterns)}" if patterns and not known else one_of,
                do=closest(key, missing) or closest(key, list(known)) or f"remove '{key}', or correct it",
            )


def _missing_key(error: Any, path: Path, place: FieldPath) -> Iterator[FieldFault]:
    known: Mapping[str, Any] = error.schema.get("properties", {})
    # jsonschema reports each missing key alone; its message starts with the key.
    missing = next(key for key in error.validator_value if error.message.startswith(repr(key)))
    is_closed = False in (error.schema.get("additionalProperties"), error.schema.get("unevaluatedProperties"))
    if is_closed and any(closest(str(key), [missing]) for key in error.instance if key not in known):
        return  # reported as a misspelt key
    meaning = known.get(missing, {}).get("description", "")
    yield fault_at(
        path,
        place,
        f"the key '{missing}' is missing.",
        seen=", ".join(map(str, error.instance)) or "no keys",
        expected=f"{missing}: {meaning}" if meaning else f"{missing}: …",
        do=f"add '{missing}:'",
    )


def _wrong_value(error: Any, path: Path, place: FieldPath) -> FieldFault:
    limit, near = error.validator_value, ""
    if error.validator == "type":
        expected = " or ".join([limit] if isinstance(limit, str) else limit)
    elif error.validator == "enum":
        expected = f"one of {', '.join(map(str, limit))}"
        near = closest(str(error.instance), [str(value) for value in limit])
    else:
        expected = error.message
    meaning = error.schema.get("description", "")
    return fault_at(
        path,
        place,
        "invalid value.",
        seen=json.dumps(error.instance, default=str)[:120],
        expected=f"{expected} ({meaning})" if meaning else expected,
        do=near or "write an expected value",
    )


def _of_nearest(errors: Iterable[Any]) -> list[Any]:
    """Return the errors of the alternative that was probably meant: of the right type, with the fewest errors."""
    alternatives: dict[Any, list[Any]] = {}
    for error in errors:
        alternatives.setdefault(error.relative_schema_path[0], []).append(error)
    return min(
        alternatives.values(),
        key=lambda faults: (
            any(error.validator == "type" and not error.relative_path for error in faults),
            len(faults),
        ),
    )
