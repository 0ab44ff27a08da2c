"""The shape of a CWL document that can be read: lists and mappings where CWL has them. Its parser checks the rest."""

from __future__ import annotations

from typing import Any

_WORDS = {"type": ["string", "array", "null"], "items": {"type": "string"}}
_NAME = {"type": "string", "description": "Its name."}


def _section(item: dict[str, Any], *, what: str, inside: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a section in the mapping or the list form of CWL.

    Args:
        inside: types of an entry of the mapping; in a list each is a mapping with an `id`.
    """
    return {
        "type": ["object", "array"],
        "description": f"{what} by name, or a list of mappings with an `id`",
        "items": {"type": "object", "required": ["id"], "properties": {**item, "id": _NAME}},
        "additionalProperties": {"type": list(inside), "properties": item, "items": {"type": ["string", "object"]}},
    }


_TYPE = {"type": {"type": ["string", "array", "object"], "description": "A type, or a list of types."}}
_PORTS = ("string", "array", "object")
_BOUND = {
    "source": _WORDS,
    "pickValue": {"type": ["string", "null"]},
    "linkMerge": {"type": ["string", "null"]},
    "valueFrom": {"type": ["string", "null"]},
}
_STEP = {
    "run": {
        "type": ["string", "object"],
        "description": "A CWL document, or its path.",
        "if": {"type": "object"},
        "then": {"$ref": "#"},
    },
    "in": _section(_BOUND, what="Inputs", inside=("string", "array", "object", "null")),
    "out": {
        "type": "array",
        "items": {"type": ["string", "object"], "required": ["id"], "properties": {"id": _NAME}},
        "description": "Names of outputs.",
    },
    "when": {"type": ["string", "null"]},
    "scatter": _WORDS,
    "scatterMethod": {"type": ["string", "null"]},
}
_LISTED = {
    "type": ["object", "array", "null"],
    "items": {"type": "object", "properties": {"class": {"type": "string"}}},
    "description": "Requirements by class, or a list of mappings with a `class`.",
}
_OUTPUT = {**_TYPE, "outputSource": _WORDS, "pickValue": _BOUND["pickValue"], "linkMerge": _BOUND["linkMerge"]}
CWL_SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "class": {"type": "string"},
        "inputs": _section(_TYPE, what="Inputs", inside=_PORTS),
        "outputs": _section(_OUTPUT, what="Outputs", inside=_PORTS),
        "steps": _section({**_STEP, "requirements": _LISTED, "hints": _LISTED}, what="Steps", inside=("object",)),
        "requirements": _LISTED,
        "hints": _LISTED,
        "$namespaces": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    },
}
