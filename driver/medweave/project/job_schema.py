"""The JSON Schema (2020-12) of a workflow's job files, from the inputs of its CWL document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medweave_core.documents.cwl_model import Parameter, Process, one_line
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.cwl_types import Array, Enum, Record, Type
from medweave_core.documents.job_values import OWN_KEYS
from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {
    "null": "null", "boolean": "boolean", "int": "integer", "long": "integer", "float": "number", "double": "number",
    "string": "string",
}  # fmt: skip
_PLACE = {
    "location": {"type": "string", "description": "URI, or path relative to the folder of the job file."},
    "path": {"type": "string", "description": "Path relative to the folder of the job file."},
    "basename": {"type": "string", "description": "File name for the step."},
}
_CONTENTS = {"type": "string", "description": "Text of the file, instead of a path."}
_LISTING = {"type": "array", "items": {"type": "object"}, "description": "Content of the folder, instead of a path."}
_DEFINED = {
    "File": {
        "type": "object",
        "properties": {
            "class": {"const": "File"},
            **_PLACE,
            "contents": _CONTENTS,
            "format": {"type": "string", "description": "Format of the file."},
            "checksum": {"type": "string", "description": "`sha1$` and 40 hexadecimal digits."},
            "size": {"type": "integer", "description": "Bytes."},
            "secondaryFiles": {"type": "array", "items": {"type": "object"}, "description": "Secondary files."},
        },
        "required": ["class"],
        "anyOf": [{"required": ["path"]}, {"required": ["location"]}, {"required": ["contents"]}],
        "additionalProperties": False,
    },
    "Directory": {
        "type": "object",
        "properties": {"class": {"const": "Directory"}, **_PLACE, "listing": _LISTING},
        "required": ["class"],
        "anyOf": [{"required": ["path"]}, {"required": ["location"]}, {"required": ["listing"]}],
        "additionalProperties": False,
    },
}


def job_schema(path: Path) -> dict[str, Any]:
    """Return the schema of the job files of a workflow: closed, with the documentation and defaults of its inputs.

    Raises:
        UserInputError: there is no such file, or it is no CWL document with inputs.
    """
    if not path.is_file():
        raise UserInputError(
            f"{shown(path)}: no such workflow.", expected="a CWL document, such as workflows/mine/train.cwl",
            do="correct the path",
        )  # fmt: skip
    reader = CwlReader()
    faults, process = reader.parse(path).faults, reader.find_process(path)
    if faults or process is None or "class" not in process.fields or "inputs" not in process.fields:
        raise UserInputError(
            f"{shown(path)}: not a CWL document with inputs.",
            seen=faults[0].seen if faults else "no `class` and `inputs`",
            expected="a CWL workflow or tool",
            do="choose another file, or run `medweave validate` to see its errors",
        )
    return schema_of_inputs(process, f"{path.parent.name}/{path.name}")


def schema_of_inputs(process: Process, name: str) -> dict[str, Any]:
    """Return the schema of the inputs of a CWL document.

    Args:
        name: the document's, for people.
    """
    return {
        "$schema": DRAFT,
        "title": f"Job file of {name}",
        "description": f"{process.label or f'Inputs of {name}'}.",
        "type": "object",
        "properties": {
            **{key: _input(parameter) for key, parameter in process.inputs.items()},
            **{key: {"description": "For CWL runners; not an input."} for key in OWN_KEYS},
        },
        "required": [key for key, parameter in process.inputs.items() if not parameter.is_optional],
        "additionalProperties": False,
        "$defs": _DEFINED,
    }


def _input(parameter: Parameter) -> dict[str, Any]:
    schema = _any_of(parameter.type, parameter.formats)
    doc = one_line(parameter.fields.get("doc") or parameter.fields.get("label"))
    if doc:
        schema["description"] = doc[0].upper() + doc[1:] + ("" if doc.endswith(".") else ".")
    if parameter.has_default:
        schema["default"] = parameter.fields["default"]
    return schema


def _any_of(kind: Type, formats: tuple[str, ...]) -> dict[str, Any]:
    alternatives = sorted(
        (_alternative(alternative, formats) for alternative in kind),
        key=lambda alternative: (alternative.get("type") == "null", str(alternative)),
    )
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _alternative(alternative: Any, formats: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(alternative, Array):
        return {"type": "array", "items": _any_of(alternative.items, formats)}
    if isinstance(alternative, Enum):
        return {"enum": list(alternative.symbols)}
    if isinstance(alternative, Record):
        fields = dict(alternative.fields)
        return {
            "type": "object",
            "properties": {name: _any_of(kind, formats) for name, kind in fields.items()},
            "required": [name for name, kind in fields.items() if not {"null", "Any"} & kind],
        }
    if alternative in _DEFINED:
        return _file(alternative, formats)
    return {"type": _PLAIN[alternative]} if alternative in _PLAIN else {"not": {"type": "null"}}


def _file(kind: str, formats: tuple[str, ...]) -> dict[str, Any]:
    known = list(_spellings(formats)) if kind == "File" else []
    of_format = {"properties": {"format": {"enum": known}}} if known else {}
    return {"$ref": f"#/$defs/{kind}", **of_format}


def _spellings(formats: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of formats in job files: in full, and for EDAM with its usual prefix."""
    for full in formats:
        yield full
        if full.startswith("http://edamontology.org/"):
            yield f"edam:{full.rpartition('/')[2]}"
