"""Step 1: weights scaled to [-1, 1], without any change of the network's output.

Every tensor of the rescaled graph is the original one divided by a factor. A layer multiplies the factor of its input by the
largest of its absolute weights. ReLU, pooling and all other operators with f(cx) = c f(x) pass it on; sums and concatenations bring
their inputs to one factor; a norm over the image removes it. In front of any other operator, and at the end, the factor is
multiplied back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from medweave_steps.quantize.three_step.graph import Graph, activations, attribute, replace_input, set_attribute
from medweave_steps.quantize.three_step.layers import Layer

_PASS_ON = (
    "Abs", "AveragePool", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GlobalAveragePool", "GlobalMaxPool",
    "Identity", "LeakyRelu", "MaxPool", "Neg", "PRelu", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Resize",
    "Slice", "Split",
    "Squeeze", "Transpose", "Unsqueeze", "Upsample",
)  # fmt: skip
_ONE_FACTOR = ("Add", "Clip", "Concat", "Max", "Min", "Sub", "Sum")
_NORMS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
_SHAPES = ("Shape", "Size")
# A product of many factors leaves the range of float32; from here on, it is multiplied back at once.
_LIMIT = 1e6


def rescale_weights(graph: Graph, layers: list[Layer]) -> dict[str, float]:
    """Scale the weights of each layer to [-1, 1], in place.

    Args:
        layers: of `find_layers` of this graph.
    Returns:
        the largest absolute weight by layer name, by which its weights were divided; 1 for a layer of zeros.
    Source: The DeepHealth HPC Infrastructure, book chapter 10, three steps of quantization after training, step 1.
    """
    return _Rescaling(graph, layers).run()


class _Rescaling:
    def __init__(self, graph: Graph, layers: list[Layer]) -> None:
        self.graph = graph
        self.layers = {layer.output: layer for layer in layers}
        self.factors: dict[str, float] = {}
        self.nodes: list[Any] = []

    def run(self) -> dict[str, float]:
        largest = {}
        for node in self.graph.nodes:
            layer = self.layers.get(node.output[0])
            if layer is not None:
                largest[layer.name] = self._scale_layer(layer)
            else:
                self._pass_factor(node)
            self.nodes.append(node)
            self._restore_outputs(node)
        self.graph.nodes = self.nodes
        return largest

    def _factor(self, name: str) -> float:
        return self.factors.get(name, 1.0)

    def _scale_layer(self, layer: Layer) -> float:
        weights, bias = layer.weights(self.graph), layer.bias(self.graph)
        largest = float(np.abs(weights).max(initial=0)) or 1.0
        factor = self._factor(layer.source) * largest
        layer.set_weights(
            self.graph, weights / np.float32(largest), None if bias is None else bias / np.float64(factor)
        )
        self.factors[layer.output] = factor
        return largest

    def _pass_factor(self, node: Any) -> None:
        names = list(activations(self.graph, node))
        if node.op_type in _SHAPES or all(self._factor(name) == 1 for name in names):
            return
        factor = self._factor(names[0])
        if node.op_type in _NORMS and names == [node.input[0]]:
            # The norm of x / f with eps / f² is the norm of x with eps.
            set_attribute(node, "epsilon", attribute(node, "epsilon", 1e-5) / factor**2)
        elif node.op_type in _ONE_FACTOR:
            self._share_factor(node, factor)
        elif self._passes_on(node, names):
            self.factors.update(dict.fromkeys(node.output, factor))
        else:
            for name in set(names):
                replace_input(node, name, self._multiplied(name, self._factor(name)))

    def _passes_on(self, node: Any, names: list[str]) -> bool:
        if names[0] != node.input[0] or any(self._factor(name) != 1 for name in names[1:]):
            return False
        if node.op_type == "Pad":
            filled = self.graph.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(1)
            return filled is not None and not np.any(filled)
        return node.op_type in _PASS_ON or (node.op_type in ("Mul", "Div") and len(names) == 1)

    def _share_factor(self, node: Any, factor: float) -> None:
        for name in dict.fromkeys(node.input):
            if name in self.graph.constants:
                value = self.graph.constants[name]
                replace_input(node, name, self.graph.add_constant(name, (value / factor).astype(value.dtype)))
            elif name and self._factor(name) != factor:
                replace_input(node, name, self._multiplied(name, self._factor(name) / factor))
        self.factors[node.output[0]] = factor

    def _multiplied(self, name: str, factor: float) -> str:
        if factor == 1:
            return name
        product = self.graph.unused_name(name)
        constant = self.graph.add_constant(name, np.array(factor, dtype=np.float32))
        self.nodes.append(self.graph.new_node("Mul", [name, constant], [product]))
        return product

    def _restore_outputs(self, node: Any) -> None:
        """Multiply the factor back into outputs of the graph, and where it would leave the range of float32."""
        for number, name in enumerate(node.output):
            factor = self._factor(name)
            if factor == 1 or (name not in self.graph.output_names and 1 / _LIMIT < factor < _LIMIT):
                continue
            scaled = self.graph.unused_name(name)
            node.output[number] = scaled
            constant = self.graph.add_constant(name, np.array(factor, dtype=np.float32))
            self.nodes.append(self.graph.new_node("Mul", [scaled, constant], [name]))
            del self.factors[name]
