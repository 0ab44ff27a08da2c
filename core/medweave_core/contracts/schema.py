"""JSON Schema (2020-12) of a contract, made from its dataclass, so that the published schema cannot drift."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_core.contracts.classifications import Classifications
from medweave_core.contracts.codec import hints_of
from medweave_core.contracts.cohort import CohortIndex, PreparedCohort
from medweave_core.contracts.deidentification import Deidentification, ReidentificationMap
from medweave_core.contracts.evaluation import Evaluation
from medweave_core.contracts.events import Event
from medweave_core.contracts.explanations import Explanations
from medweave_core.contracts.gate import GateDecision
from medweave_core.contracts.model import ModelCard, ModelContract
from medweave_core.contracts.placement import PartitionLoads, Placement
from medweave_core.contracts.report import RunReport
from medweave_core.contracts.report_fragment import ReportSummary
from medweave_core.contracts.search import SearchGrid, SearchTable, Trial
from medweave_core.contracts.segmentations import Segmentations
from medweave_core.contracts.statistics import Statistics
from medweave_core.contracts.tables import TableEncoder, TableSchema
from medweave_core.contracts.volume import VolumeInfo

PUBLISHED: Mapping[str, type] = {
    "classification-evaluation": ClassificationEvaluation,
    "classifications": Classifications,
    "cohort-index": CohortIndex,
    "deidentification": Deidentification,
    "evaluation": Evaluation,
    "event": Event,
    "explanations": Explanations,
    "gate-decision": GateDecision,
    "model-card": ModelCard,
    "model-contract": ModelContract,
    "partition-loads": PartitionLoads,
    "placement": Placement,
    "prepared-cohort": PreparedCohort,
    "report-summary": ReportSummary,
    "run-report": RunReport,
    "search-grid": SearchGrid,
    "search-table": SearchTable,
    "segmentations": Segmentations,
    "statistics": Statistics,
    "table-encoder": TableEncoder,
    "table-schema": TableSchema,
    "trial": Trial,
    "volume-info": VolumeInfo,
    "way-back": ReidentificationMap,
}

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(name: str) -> dict[str, Any]:
    """Return the schema published under this name."""
    return schema_for(name, PUBLISHED[name])


def schema_for(name: str, cls: type) -> dict[str, Any]:
    """Return the schema of a dataclass: closed objects, descriptions from the docstrings."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://medweave.dev/schemas/{name}.json",
        "title": name,
    }
    return schema | _type(cls)


def _attribute_docs(cls: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in cls.__bases__:
        docs.update(_attribute_docs(base) if dataclasses.is_dataclass(base) else {})
    current: list[str] = []
    for line in inspect.getdoc(cls).partition("Attributes:")[2].splitlines():  # type: ignore[union-attr]
        head, separator, text = line.strip().partition(": ")
        names = [part.strip() for part in head.split(",")]
        if (
            separator
            and line.startswith("    ")
            and not line.startswith("        ")
            and all(n.isidentifier() for n in names)
        ):
            current = names
            docs.update(dict.fromkeys(names, text))
        else:
            for name in current:
                docs[name] = f"{docs[name]} {line.strip()}".strip()
    return docs


def _object(cls: type) -> dict[str, Any]:
    docs = _attribute_docs(cls)
    properties: dict[str, Any] = {}
    required = []
    for field in dataclasses.fields(cls):
        properties[field.name] = _type(hints_of(cls)[field.name])
        if field.name in docs:
            properties[field.name]["description"] = docs[field.name]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    summary = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
    return {
        "type": "object",
        "description": summary,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _type(expected: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return {}
    if dataclasses.is_dataclass(expected) and isinstance(expected, type):
        return _object(expected)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return {"type": "array", "items": _type(arguments[0])}
        items = [_type(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(argument) for argument in arguments]}
    if origin is not None:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    return {"type": _SCALARS[expected]}
