"""The values of a job file, checked against the inputs of its workflow: missing, unknown and mistyped inputs.

Used by `medweave validate`, `bind` and `run`, and by the plug-in for plain `streamflow run`. Pure: no streamflow in here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_types import (
    NULL,
    NUM_BITS,
    Type,
    is_in_range,
    misfits,
    named,
    of_value,
    spelled_type,
    type_of,
)
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.line_numbers import FieldPath, Where

# Keys of a job file that name no input.
OWN_KEYS = ("cwl:requirements", "cwl:tool", "cwltool:overrides", "id", "$namespaces", "$schemas")
_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_KINDS = ((bool, "a boolean"), (int, "a number"), (float, "a number"), (str, "a text"), (list, "a list"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """An error at a place of a job file, in the parts of an error message.

    Attributes:
        field: the place; empty for the whole file.
        about: the input; empty for an unknown one.
        kind_seen, fix_of_kind: `seen` and `fix` without the value, which may be named after a patient.
    """

    field: FieldPath
    about: str = ""
    what: str
    seen: str
    kind_seen: str
    expected: str
    fix: str
    fix_of_kind: str


def unknown_inputs(values: Mapping[str, Any], workflow: Mapping[str, Any], name: str) -> Iterator[Misfit]:
    """Yield the keys of a job file that are not inputs of its workflow.

    Args:
        workflow: its document, as plain data.
        name: of the document's file.
    """
    inputs = _inputs(workflow)
    for key in _unknown(values, inputs):
        fix = closest(key, [input_name for input_name in inputs if input_name not in values]) or "remove the line"
        yield Misfit(
            field=(key,), what=f"{name} has no input '{key}'.", seen=key, kind_seen=key,
            expected=f"one of {', '.join(inputs)}" if inputs else "nothing: the workflow has no inputs",
            fix=fix, fix_of_kind=fix,
        )  # fmt: skip


def missing_inputs(values: Mapping[str, Any], workflow: Mapping[str, Any], name: str) -> Iterator[Misfit]:
    """Yield the required inputs that a job file lacks. The arguments are those of `unknown_inputs`."""
    inputs = _inputs(workflow)
    unknown = _unknown(values, inputs)
    for key, described in inputs.items():
        kind = type_of(described, workflow)
        if key in values or "null" in kind or _has_default(described):
            continue
        near = next((unknown_name for unknown_name in unknown if closest(unknown_name, [key])), None)
        fix = f"rename '{near}:' to '{key}:'" if near else f"add '{key}:'"
        seen = near or ", ".join(map(str, values)) or "no inputs"
        yield Misfit(
            field=(near,) if near else (), about=key, what=f"required input '{key}' of {name} is missing.",
            seen=seen, kind_seen=seen, expected=f"{key}: … ({spelled_type(kind)})", fix=fix, fix_of_kind=fix,
        )  # fmt: skip


def mistyped_inputs(values: Mapping[str, Any], workflow: Mapping[str, Any]) -> Iterator[Misfit]:
    """Yield the values, and items of values, that do not have the type of their input."""
    for key, described in _inputs(workflow).items():
        value = values.get(key)
        if key not in values or (value is None and _has_default(described)):
            continue
        for field, wrong, kind in misfits(value, type_of(described, workflow), (key,)):
            place = "for" if field == (key,) else "for an item of"
            yield Misfit(
                field=field, about=key, what=f"wrong type {place} input '{key}'.", seen=_spelled(wrong)[:120],
                kind_seen=_kind_of(wrong), expected=_described(kind), fix=_fix_of_value(wrong, kind),
                fix_of_kind=_fix_of_value("…" if isinstance(wrong, str) else wrong, kind),
            )  # fmt: skip


def refuse(values: Mapping[str, Any], workflow: Mapping[str, Any], name: str, *, job: Path | None, at: Where) -> None:
    """Raise an error for missing and mistyped inputs. CWL ignores unknown ones.

    Args:
        values, workflow, name: as for `unknown_inputs`.
        job: the job file; None if the StreamFlow file names none.
        at: place in the StreamFlow file that should name it.

    Raises:
        FieldFault: the first error. Its message contains no value.
    """
    for misfit in (*missing_inputs(values, workflow, name), *mistyped_inputs(values, workflow)):
        if job is None:
            do = "write the inputs into a job file, and add settings: job.yml"
            raise fault_at(at.file, at.field, misfit.what, seen="no job file", expected=misfit.expected, do=do)
        raise fault_at(
            job, misfit.field, misfit.what, seen=misfit.kind_seen, expected=misfit.expected, do=misfit.fix_of_kind
        )


def _inputs(workflow: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: described for key, described in named(workflow.get("inputs")).items() if not key.startswith("$")
    }  # `$import`


def _unknown(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[str]:
    return [str(key) for key in values if str(key) not in inputs and key not in OWN_KEYS]


def _has_default(described: Any) -> bool:
    return isinstance(described, Mapping) and described.get("default") is not None


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {value['class']}" if value.get("class") in ("File", "Directory") else "a mapping"
    return next((word for kind, word in _KINDS if isinstance(value, kind)), "nothing")


def _spelled(value: Any) -> str:
    """Return a value as JSON, which shows texts in quotes."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _intended_value(text: str) -> Any:
    """Return the boolean or number that a text may mean: YAML 1.2 reads `no` and anything in quotes as text."""
    with contextlib.suppress(ValueError):
        return json.loads(_WORDS.get(text.lower(), text.lower()))
    return None


def _fix_of_value(value: Any, kind: Type) -> str:
    symbols = [word for alternative in kind for word in getattr(alternative, "symbols", ())]
    places = sorted(alternative for alternative in kind if alternative in ("File", "Directory"))
    if isinstance(value, str):
        if (intended := _intended_value(value)) is not None and of_value(intended, kind):
            return f"write {json.dumps(intended)}, without quotes"
        if near := closest(value, symbols):
            return near
        if places:
            return f"write {{class: {places[-1]}, path: {value}}}"
    widths = sorted((alternative for alternative in kind if alternative in NUM_BITS), key=lambda name: NUM_BITS[name])
    if isinstance(value, int) and not isinstance(value, bool) and widths:
        most = (1 << (NUM_BITS[widths[-1]] - 1)) - 1
        wider = ", or give the input the type long" if widths == ["int"] and is_in_range(value, "long") else ""
        return f"write an integer from {-most - 1} to {most}{wider}"
    if isinstance(value, Mapping) and places:
        return f"write class: {' or '.join(places)}"
    if places and not isinstance(value, list):
        return f"write {{class: {places[-1]}, path: …}}"
    return f"write one of {', '.join(symbols)}" if symbols else f"write {_described(kind)}"


def _described(kind: Type) -> str:
    """Return a type for readers who do not know CWL's `?`."""
    if "null" in kind and kind != NULL:
        return f"a value of type {spelled_type(kind - NULL)}, or no value"
    return f"a value of type {spelled_type(kind)}"
