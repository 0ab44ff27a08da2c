"""The layers of a graph that are quantized, and what cannot be.

Convolutions, transposed convolutions and dense layers with constant weights compute in int8, in any number of spatial axes. Batch
norms that follow one are folded into it. All other operators stay as they are: those that only select or move values keep the
integers, the others compute in float32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from medweave_core.errors import UserInputError
from medweave_steps.quantize.three_step.graph import Array, Graph, attribute, set_attribute

LAYER_KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
CARRIERS = ("Flatten", "Identity", "MaxPool", "Relu", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators whose output values are input values, or 0: on integers they give the same integers."""
LEAST_OPSET = 11
"""Bounds of Clip and values of Pad are inputs from opset 11 on, and DequantizeLinear is from opset 10."""
_CONTROL = ("If", "Loop", "Scan")
_RECURRENT = ("GRU", "LSTM", "RNN")
_QUANTIZED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinearConv",
    "QLinearMatMul",
    "ConvInteger",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer with constant weights.

    Attributes:
        node: its onnx.NodeProto. Inputs are the activations, the weights, and the bias if there is one.
        out_axis: axis of the weights that counts the outputs.
    """

    node: Any
    out_axis: int

    @property
    def name(self) -> str:
        """Return how messages and reports name the layer."""
        return str(self.node.name)

    @property
    def source(self) -> str:
        """Return the tensor that the layer reads."""
        return str(self.node.input[0])

    @property
    def output(self) -> str:
        """Return the tensor that the layer computes."""
        return str(self.node.output[0])

    def weights(self, graph: Graph) -> Array:
        """Return the weights, float32."""
        return graph.constants[self.node.input[1]]

    def bias(self, graph: Graph) -> Array | None:
        """Return the bias, float32 [outputs], or None."""
        return graph.constants[self.node.input[2]] if len(self.node.input) > 2 and self.node.input[2] else None

    def set_weights(self, graph: Graph, weights: Array, bias: Array | None) -> None:
        """Store new weights and a bias for this layer only: layers that shared the old ones keep them."""
        names = [self.source, graph.add_constant(self.node.input[1], weights.astype(np.float32, copy=False))]
        if bias is not None:
            names.append(graph.add_constant(f"{self.output}/bias", bias.astype(np.float32)))
        del self.node.input[:]
        self.node.input.extend(names)


def find_layers(graph: Graph) -> list[Layer]:
    """Return the layers that are quantized, in topological order.

    Raises:
        UserInputError: an operator cannot be quantized (control flow, a recurrent layer, an operator that is not of the ONNX
            standard, a layer with weights that are computed, not float32 or not finite), the graph is older than opset 11 or
            quantized already, or there is no layer.
    """
    opset = next((one.version for one in graph.model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < LEAST_OPSET:
        raise _refusal("cannot be quantized", seen=f"ONNX opset {opset}, older than opset {LEAST_OPSET}")
    for node in graph.nodes:
        _check_operator(node)
    layers = [_layer(graph, node) for node in graph.nodes if _is_layer(graph, node)]
    if not layers:
        counts = Counter(node.op_type for node in graph.nodes)
        raise _refusal(
            "has no layer that can be quantized",
            seen=", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "an empty graph",
        )
    return layers


def fold_batch_norms(graph: Graph, layers: list[Layer]) -> int:
    """Fold each batch norm into the layer that alone feeds it; return how many were folded.

    `y = g (W x + b - mean) / sqrt(var + eps) + beta` is a layer with weights `g W / sqrt(var + eps)`.
    """
    by_output = {layer.output: layer for layer in layers}
    folded = [node for node in graph.nodes if node.op_type == "BatchNormalization" and _fold(graph, node, by_output)]
    graph.nodes = [node for node in graph.nodes if not any(node is other for other in folded)]
    return len(folded)


def last_layers(graph: Graph, layers: list[Layer]) -> set[str]:
    """Return the outputs of the layers whose results reach no other layer, on any path."""
    read: set[str] = set()
    waiting = [layer.source for layer in layers]
    while waiting:
        name = waiting.pop()
        if name not in read:
            read.add(name)
            node = graph.producer(name)
            waiting += list(node.input) if node is not None else []
    return {layer.output for layer in layers} - read


def result_name(graph: Graph, layer: Layer) -> str:
    """Return the tensor that holds the layer's result: after its ReLU, if it alone reads the layer's output."""
    reader = graph.sole_consumer(layer.output)
    return str(reader.output[0]) if reader is not None and ends_at_zero(graph, reader) else layer.output


def ends_at_zero(graph: Graph, node: Any) -> bool:
    """Return whether an operator sets negative values to 0: a ReLU, or a Clip from 0."""
    if node.op_type == "Clip":
        low = graph.constants.get(node.input[1]) if len(node.input) > 1 else None
        return low is not None and bool(np.all(low == 0))
    return bool(node.op_type == "Relu")


def _is_layer(graph: Graph, node: Any) -> bool:
    if node.op_type not in LAYER_KINDS or node.input[0] in graph.constants:
        return False
    if node.op_type == "MatMul":  # of two activations: a product of attention, not a layer
        return node.input[1] in graph.constants and graph.constants[node.input[1]].ndim == 2
    return True


def _layer(graph: Graph, node: Any) -> Layer:
    if any(name and name not in graph.constants for name in node.input[1:]) or attribute(node, "transA", 0):
        raise _refusal("cannot be quantized", seen=f"weights that are computed, in layer {node.name} ({node.op_type})")
    weights = graph.constants[node.input[1]]
    if weights.dtype != np.float32 or not np.isfinite(weights).all():
        seen = f"weights of type {weights.dtype}" if weights.dtype != np.float32 else "weights that are NaN or infinite"
        raise _refusal("cannot be quantized", seen=f"{seen}, in layer {node.name} ({node.op_type})")
    out_axis = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1}.get(node.op_type)
    if out_axis is not None:
        return Layer(node=node, out_axis=out_axis)
    layer = Layer(node=node, out_axis=0 if attribute(node, "transB", 0) else 1)
    _normalize_gemm(graph, layer)
    return layer


def _normalize_gemm(graph: Graph, layer: Layer) -> None:
    """Give a Gemm factors of 1 and a bias of shape [outputs], as the other layers have."""
    alpha, beta = attribute(layer.node, "alpha", 1.0), attribute(layer.node, "beta", 1.0)
    weights, bias = layer.weights(graph), layer.bias(graph)
    outputs = weights.shape[layer.out_axis]
    if (alpha, beta) == (1.0, 1.0) and (bias is None or bias.shape == (outputs,)):
        return
    if bias is not None and bias.size not in (1, outputs):
        raise _refusal("cannot be quantized", seen=f"a bias of shape {bias.shape}, in layer {layer.name} (Gemm)")
    layer.set_weights(
        graph, weights * alpha, None if bias is None else np.broadcast_to(bias.ravel() * beta, (outputs,))
    )
    set_attribute(layer.node, "alpha", 1.0)
    set_attribute(layer.node, "beta", 1.0)


def _fold(graph: Graph, node: Any, by_output: dict[str, Layer]) -> bool:
    layer = by_output.get(node.input[0])
    if layer is None or layer.node.op_type == "MatMul" or graph.sole_consumer(layer.output) is None:
        return False
    if layer.node.op_type == "ConvTranspose" and attribute(layer.node, "group", 1) != 1:
        return False
    if any(name not in graph.constants for name in node.input[1:]):
        return False
    scale, beta, mean, variance = (graph.constants[name].astype(np.float64) for name in node.input[1:])
    factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    weights, bias = layer.weights(graph), layer.bias(graph)
    shape = [-1 if axis == layer.out_axis else 1 for axis in range(weights.ndim)]
    shifted = -mean if bias is None else bias - mean
    layer.set_weights(graph, weights * factor.reshape(shape), shifted * factor + beta)
    layer.node.output[0] = node.output[0]
    return True


def _check_operator(node: Any) -> None:
    what = f"operator {node.op_type} of layer {node.name}"
    if node.op_type in _QUANTIZED:
        raise _refusal("is quantized already", seen=what)
    if node.op_type in _CONTROL or node.op_type in _RECURRENT or node.domain not in ("", "ai.onnx"):
        domain = f" ({node.domain})" if node.domain else ""
        raise _refusal("has an operator that cannot be quantized", seen=f"{what}{domain}")


def _refusal(problem: str, *, seen: str) -> UserInputError:
    return UserInputError(
        f"the model's ONNX graph {problem}.",
        seen=seen,
        expected=f"layers of the kinds {', '.join(LAYER_KINDS)} with constant float32 weights, and no control flow, recurrent"
        " layers or operators outside of the ONNX standard",
        do="use the float32 model, or a network without this operator",
    )
