"""ONNX files: the contract in their metadata, and their validity. Imports onnx inside its functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave_core.contracts.codec import to_json
from medweave_core.contracts.model import ModelContract
from medweave_core.errors import InternalError
from medweave_steps.runtime.imports import require

CONTRACT_KEY = "medweave.contract"
"""Key of the contract in `metadata_props`: a JSON object, schema `medweave schema model-contract`."""


def add_contract(path: Path, contract: ModelContract, *, output_shape: Sequence[int]) -> None:
    """Write the contract into the metadata of an exported ONNX file, and check the file.

    Args:
        path: the file, changed in place.
        output_shape: of the output for one input; the batch axis is not compared.
    Raises:
        InternalError: the file is not valid ONNX, or shape inference gives another output.
    """
    onnx = require("onnx", extra="export")
    model = onnx.load(str(path))
    del model.metadata_props[:]
    text = json.dumps(to_json(contract), ensure_ascii=False, allow_nan=False)
    model.metadata_props.add(key=CONTRACT_KEY, value=text)
    problem = invalid(model) or _unlike(inferred_shape(model), output_shape)
    if problem:
        raise InternalError(
            "the exported ONNX file is not valid.",
            seen=problem,
            expected=f"a graph that passes onnx.checker, with an output of shape {tuple(output_shape)}",
            do="use the library versions of constraints.txt; if the error persists, report it",
        )
    path.write_bytes(model.SerializeToString(deterministic=True))


def remove_traces(model: Any) -> None:
    """Remove all metadata and doc strings: torch's exporter writes stack traces there, with paths of this machine."""
    for part in (model, *_described_parts(model)):
        del part.metadata_props[:]
        part.doc_string = ""
    for attribute in (one for node in nodes_of(model) for one in node.attribute):
        attribute.doc_string = ""  # an attribute has no metadata


def contract_text(model: Any) -> str | None:
    """Return the JSON text of the contract in the metadata of an ONNX model, None if it has none."""
    return next((one.value for one in model.metadata_props if one.key == CONTRACT_KEY), None)


def invalid(model: Any) -> str:
    """Return why a model is not valid ONNX, by the full check of `onnx.checker` with shape inference; empty if it is valid."""
    onnx = require("onnx", extra="export")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker and shape inference raise their own classes, and ValueError
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


def inferred_shape(model: Any) -> tuple[int | str, ...]:
    """Return the shape of the first output by strict shape inference; axes without a fixed size by name, `?` without one."""
    onnx = require("onnx", extra="export")
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return shape_of(inferred.graph.output[0])


def shape_of(value: Any) -> tuple[int | str, ...]:
    """Return the shape of an input or output; axes without a fixed size by name, `?` without one."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim
    )


def _unlike(seen: Sequence[int | str], expected: Sequence[int]) -> str:
    """Return the inferred shape if it contradicts the expected one behind the batch axis, else an empty text."""
    is_alike = len(seen) == len(expected) and all(
        isinstance(a, str) or a == b for a, b in zip(seen[1:], expected[1:], strict=True)
    )
    return "" if is_alike else f"an output of shape {tuple(seen)} by shape inference"


def _described_parts(model: Any) -> Iterator[Any]:
    """Yield everything in a model that has metadata and a doc string, but for the model itself."""
    for graph in graphs_of(model):
        yield graph
        yield from (*graph.input, *graph.output, *graph.value_info, *graph.node)
    for function in model.functions:
        yield function
        yield from (*function.value_info, *function.node)
    yield from tensors_of(model)


def graphs_of(model: Any) -> Iterator[Any]:
    """Yield the main graph of a model and the graphs inside its nodes (branches and loops)."""
    waiting = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while waiting or nodes:
        if waiting:
            graph = waiting.pop()
            yield graph
            nodes += graph.node
        for attribute in (one for node in nodes for one in node.attribute):
            waiting += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
        nodes = []


def nodes_of(model: Any) -> Iterator[Any]:
    """Yield all nodes of a model, those of its functions and inner graphs included."""
    for graph in graphs_of(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield all constant tensors of a model: initializers and attributes of nodes."""
    for graph in graphs_of(model):
        yield from graph.initializer
    for attribute in (one for node in nodes_of(model) for one in node.attribute):
        yield from ([attribute.t] if attribute.HasField("t") else [])
        yield from attribute.tensors


def operators_of(model: Any) -> Mapping[str, int]:
    """Return the number of nodes of each operator, by name."""
    return dict(sorted(Counter(node.op_type for node in nodes_of(model)).items()))
