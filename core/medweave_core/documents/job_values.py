"""The values of a job file, held against the inputs of its workflow: what is missing, what is none of them, what has another type.

`medweave validate`, `bind` and `run` tell it, and the plug-in before a run of plain `streamflow run`. Pure: no streamflow in here.
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
    """What is wrong at a place of a job file, in the parts of an error message.

    Attributes:
        field: the place; empty for the whole file.
        about: the input; empty where the file names one that there is not.
        kind_seen, fix_of_kind: the same without the value, which may be the name of a patient's file.
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
    """Keys of a job file that are no inputs of its workflow.

    Args:
        workflow: its document, as plain data.
        name: of the document's file.
    """
    inputs = _inputs(workflow)
    for key in _unknown(values, inputs):
        fix = closest(key, [each for each in inputs if each not in values]) or "take the line away"
        yield Misfit(
            field=(key,), what=f"{name} has no input '{key}'.", seen=key, kind_seen=key,
            expected=f"one of {', '.join(inputs)}" if inputs else "nothing: there is none to choose from",
            fix=fix, fix_of_kind=fix,
        )  # fmt: skip


def missing_inputs(values: Mapping[str, Any], workflow: Mapping[str, Any], name: str) -> Iterator[Misfit]:
    """Inputs that a workflow must have, and a job file lacks. The arguments are those of `unknown_inputs`."""
    inputs = _inputs(workflow)
    unknown = _unknown(values, inputs)
    for key, described in inputs.items():
        kind = type_of(described, workflow)
        if key in values or "null" in kind or _has_default(described):
            continue
        near = next((each for each in unknown if closest(each, [key])), None)
        fix = f"write '{key}:' for '{near}:'" if near else f"write '{key}:' there"
        seen = near or ", ".join(map(str, values)) or "no inputs"
        yield Misfit(
            field=(near,) if near else (), about=key, what=f"the input '{key}' is missing, which {name} must have.",
            seen=seen, kind_seen=seen, expected=f"{key}: … ({spelled_type(kind)})", fix=fix, fix_of_kind=fix,
        )  # fmt: skip


def mistyped_inputs(values: Mapping[str, Any], workflow: Mapping[str, Any]) -> Iterator[Misfit]:
    """Values, and items of them, that are not of the type of their input."""
    for key, described in _inputs(workflow).items():
        value = values.get(key)
        if key not in values or (value is None and _has_default(described)):
            continue
        for field, wrong, kind in misfits(value, type_of(described, workflow), (key,)):
            place = "the type of" if field == (key,) else "the type that is taken here in"
            yield Misfit(
                field=field, about=key, what=f"this value is not of {place} '{key}'.", seen=_spelled(wrong)[:120],
                kind_seen=_kind_of(wrong), expected=spelled_type(kind), fix=_fix_of_value(wrong, kind),
                fix_of_kind=_fix_of_value("…" if isinstance(wrong, str) else wrong, kind),
            )  # fmt: skip


def refuse(values: Mapping[str, Any], workflow: Mapping[str, Any], name: str, *, job: Path | None, at: Where) -> None:
    """Refuses what a run cannot do with: missing inputs, and values of another type. What is no input at all, CWL lets pass.

    Args:
        values, workflow, name: as for `unknown_inputs`.
        job: the job file; None where the StreamFlow file names none.
        at: where in the StreamFlow file it would be named.

    Raises:
        FieldFault: the first of them. Its words hold no value.
    """
    for each in (*missing_inputs(values, workflow, name), *mistyped_inputs(values, workflow)):
        if job is None:
            do = "write them into a job file, and name it there: settings: job.yml"
            raise fault_at(at.file, at.field, each.what, seen="no job file", expected=each.expected, do=do)
        raise fault_at(job, each.field, each.what, seen=each.kind_seen, expected=each.expected, do=each.fix_of_kind)


def _inputs(workflow: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in named(workflow.get("inputs")).items() if not key.startswith("$")}  # `$import`


def _unknown(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[str]:
    return [str(key) for key in values if str(key) not in inputs and key not in OWN_KEYS]


def _has_default(described: Any) -> bool:
    return isinstance(described, Mapping) and described.get("default") is not None


def _kind_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {value['class']}" if value.get("class") in ("File", "Directory") else "a mapping"
    return next((word for kind, word in _KINDS if isinstance(value, kind)), "nothing")


def _spelled(value: Any) -> str:
    """As JSON has it: a text in quotes is seen to be one."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _meant(text: str) -> Any:
    """The boolean or number that a text may stand for: YAML 1.2 takes `no` for a text, and whatever stands in quotes."""
    with contextlib.suppress(ValueError):
        return json.loads(_WORDS.get(text.lower(), text.lower()))
    return None


def _fix_of_value(value: Any, kind: Type) -> str:
    symbols = [word for each in kind for word in getattr(each, "symbols", ())]
    places = sorted(each for each in kind if each in ("File", "Directory"))
    if isinstance(value, str):
        if (meant := _meant(value)) is not None and of_value(meant, kind):
            return f"write {json.dumps(meant)}, without quotes"
        if near := closest(value, symbols):
            return near
        if places:
            return f"write {{class: {places[-1]}, path: {value}}}"
    widths = sorted((each for each in kind if each in NUM_BITS), key=lambda name: NUM_BITS[name])
    if isinstance(value, int) and not isinstance(value, bool) and widths:
        most = (1 << (NUM_BITS[widths[-1]] - 1)) - 1
        wider = ", or give the input the type long" if widths == ["int"] and is_in_range(value, "long") else ""
        return f"write an integer from {-most - 1} to {most}{wider}"
    if isinstance(value, Mapping) and places:
        return f"write class: {' or '.join(places)}"
    return f"write one of {', '.join(symbols)}" if symbols else f"write a value of type {spelled_type(kind)}"
