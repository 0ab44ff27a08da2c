"""Faults of a file, told with the path to the field: what jsonschema finds, in the words of this project."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave.documents import FieldPath, shown, spelled
from medweave_connectors.closest import closest
from medweave_steps.contracts.errors import BackendMissingError, UserInputError


def check(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> None:
    """Holds a value of a file against a schema.

    Args:
        path: the file, for messages.
        field: where the value stands in it.

    Raises:
        UserInputError: the first fault, with the path to its field.
    """
    try:
        import jsonschema
    except ImportError as error:
        raise BackendMissingError(
            "the library 'jsonschema' is not installed.",
            seen=str(error),
            expected="medweave installed with its extra 'driver'",
            do="pip install 'medweave[driver]'",
        ) from error
    faults = jsonschema.Draft202012Validator(schema).iter_errors(value)
    # A fault of the whole comes before one inside it, which it may have caused.
    fault = min(faults, key=lambda found: (len(found.absolute_path), str(found.absolute_path)), default=None)
    if fault is not None:
        raise _told(fault, path, field)


def fault_at(path: Path, field: FieldPath, what: str, **parts: str) -> UserInputError:
    """`deployments/sites/x.yml: roles.train.service: WHAT` with its further lines."""
    where = f"{shown(path)}: {spelled(field)}" if field else shown(path)
    return UserInputError(f"{where}: {what}", **parts)


def _told(fault: Any, path: Path, field: FieldPath) -> UserInputError:
    """What a person needs to know of a fault that jsonschema found."""
    where, rule, limit = (*field, *fault.absolute_path), fault.validator, fault.validator_value
    known: Mapping[str, Any] = fault.schema.get("properties", {})
    if rule in ("additionalProperties", "unevaluatedProperties"):
        patterns = fault.schema.get("patternProperties", {})
        unknown = next(
            str(key) for key in fault.instance if key not in known and not any(re.search(p, str(key)) for p in patterns)
        )
        return fault_at(
            path,
            (*where, unknown),
            "there is no such key.",
            seen=f"'{unknown}'",
            expected=f"one of {', '.join(sorted(known))}" if known else "no keys here",
            do=closest(unknown, list(known)) or f"take '{unknown}' away",
        )
    if rule == "required":
        missing = next(key for key in limit if key not in fault.instance)
        meaning = known.get(missing, {}).get("description", "")
        return fault_at(
            path,
            where,
            f"the key '{missing}' is missing.",
            seen=", ".join(map(str, fault.instance)) or "no keys",
            expected=f"{missing}: {meaning}" if meaning else f"{missing}: …",
            do=f"write '{missing}:' there",
        )
    if rule == "type":
        expected = " or ".join([limit] if isinstance(limit, str) else limit)
    elif rule == "enum":
        expected = f"one of {', '.join(map(str, limit))}"
    else:
        expected = fault.message
    meaning = fault.schema.get("description", "")
    return fault_at(
        path,
        where,
        "this value cannot be used.",
        seen=json.dumps(fault.instance, default=str)[:120],
        expected=f"{expected} ({meaning})" if meaning else expected,
        do="write such a value",
    )
