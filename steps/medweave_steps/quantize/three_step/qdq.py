"""Step 3: int8 weights, int16 biases, 8-bit activations and one 8-bit rescale factor per layer, as an ONNX graph with
QuantizeLinear and DequantizeLinear nodes (QDQ).

A layer computes `sum(w x) + b` in integers of the step `step(w) step(x)`. Its result becomes an 8-bit activation by
`result * factor / 2^shift`: the step of the activation is chosen so that this is exact, with an 8-bit factor from 128 to 255.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from medweave_steps.quantize.three_step.graph import Graph, activations, replace_input
from medweave_steps.quantize.three_step.layers import CARRIERS, Layer, ends_at_zero, last_layers, result_name
from medweave_steps.quantize.three_step.thresholds import Activation, ThresholdRule, choose_threshold

WEIGHT_STEP = np.float32(1 / 127)
SIGNED_LEVELS, UNSIGNED_LEVELS, BIAS_LEVELS = 127, 255, 32767
SIGNED_ZERO = 128
_KEEP_SIGN = (*CARRIERS, "Add", "AveragePool", "Concat", "GlobalAveragePool")
# 15 bits of a bias and 14 of its shift: half of an int32 is left for the sum of the products.
_LARGEST_BIAS = 32767 * 2**14


@dataclass(frozen=True, slots=True)
class Grid:
    """How an activation is stored: `step * integer`, from 0 to 255 or from -128 to 127.

    Signed integers are stored with 128 added: ONNX Runtime has faster kernels for uint8, and does not find all layers for int8.
    """

    step: np.float32
    is_unsigned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLayer:
    """The quantization of one layer, for the report.

    Attributes:
        layer, operator: name and kind.
        largest_weight: by which the weights were divided in step 1.
        weights, biases: how many there are.
        input_step: of the activations that the layer reads, in units of the rescaled graph.
        bias_shift: integers of the bias are multiplied by 2^bias_shift, 0 unless the bias is large compared with the input.
        factor, shift: the rescale factor is factor / 2^shift; None for a last layer, whose result stays in float32.
    """

    layer: str
    operator: str
    largest_weight: float
    weights: int
    biases: int
    input_step: float
    bias_shift: int
    factor: int | None
    shift: int | None


def activation_names(graph: Graph, layers: list[Layer]) -> list[str]:
    """Return the activations whose thresholds are needed: inputs of layers and results of all but the last ones."""
    last = last_layers(graph, layers)
    names = [name for layer in layers for name in (layer.source, *_result(graph, layer, last))]
    return list(dict.fromkeys(names))


def quantize_layers(
    graph: Graph,
    layers: list[Layer],
    observed: Mapping[str, Activation],
    largest_weights: Mapping[str, float],
    *,
    rule: ThresholdRule,
) -> list[QuantizedLayer]:
    """Turn the rescaled graph into a QDQ graph, in place.

    Args:
        observed: the values of `activation_names`.
        largest_weights: of `rescale_weights`.
        rule: of the thresholds.
    Returns:
        a description of each layer.
    Source: The DeepHealth HPC Infrastructure, book chapter 10, step 3 of quantization.
    """
    return _Quantizing(graph, layers, observed, rule).run(largest_weights)


def rescale_factor(ratio: float) -> tuple[int, int]:
    """Return factor and shift of the largest factor / 2^shift that is not above a ratio, with a factor from 128 to 255."""
    shift = 8 - math.frexp(ratio)[1]
    return math.floor(math.ldexp(ratio, shift)), shift


def exact_factor(step: np.float32, ratio: float) -> tuple[int, int, np.float32]:
    """Return factor, shift and the step of a layer's result, such that float32 computes exactly `step / result_step`.

    Runtimes multiply sums by this quotient. Where it is exact, they also round those results as integers do that lie in the middle
    between two steps. These are rare if the factor is odd. Each odd factor that float32 cannot express makes the step of the result
    about 1 % larger.

    Args:
        step: of the sums of the layer.
        ratio: of `step` to the wanted step of the result; factor / 2^shift is not above it.
    """
    largest, first_shift = rescale_factor(ratio)
    tried = []
    for smaller in range((largest - 1) | 1, largest - 24, -2):
        # Below 128, twice the factor has 8 bits again.
        factor, shift = (smaller, first_shift) if smaller >= 128 else (2 * smaller, first_shift + 1)
        result_step = np.float32(math.ldexp(float(step), shift) / factor)
        tried.append((factor, shift, result_step))
        if float(step / result_step) == math.ldexp(factor, -shift):
            return tried[-1]
    return tried[0]


def _result(graph: Graph, layer: Layer, last: set[str]) -> tuple[str, ...]:
    return () if layer.output in last else (result_name(graph, layer),)


class _Quantizing:
    def __init__(
        self, graph: Graph, layers: list[Layer], observed: Mapping[str, Activation], rule: ThresholdRule
    ) -> None:
        self.graph = graph
        self.layers = {layer.output: layer for layer in layers}
        self.last = last_layers(graph, layers)
        self.observed = observed
        self.rule = rule
        self.grids: dict[str, Grid] = {}
        self.finest = self._finest_steps()

    def run(self, largest_weights: Mapping[str, float]) -> list[QuantizedLayer]:
        described = []
        constants: list[Any] = []
        for node in self.graph.nodes:
            layer = self.layers.get(node.output[0])
            if layer is not None:
                described.append(self._quantize_layer(layer, largest_weights[layer.name], constants))
            elif node.op_type in CARRIERS:
                self._carry_grid(node)
        self.graph.nodes = [*constants, *self._with_grids()]
        return described

    def _carry_grid(self, node: Any) -> None:
        """Give the output of an operator that keeps the integers the grid of its input, if that is quantized."""
        source = node.input[0]
        if source not in self.grids and source in self.observed:  # a layer after this operator reads it, too
            self.grids[source] = self._free_grid(source)
        if source in self.grids:
            self.grids.setdefault(node.output[0], self.grids[source])

    def _quantize_layer(self, layer: Layer, largest: float, constants: list[Any]) -> QuantizedLayer:
        if layer.source not in self.grids:
            self.grids[layer.source] = self._free_grid(layer.source)
        grid, weights, bias = self.grids[layer.source], layer.weights(self.graph), layer.bias(self.graph)
        step = np.float32(grid.step * WEIGHT_STEP)
        names = [layer.source, self._int8_weights(layer, weights, constants)]
        bias_shift = 0
        if bias is not None:
            name, bias_shift = self._int16_bias(layer, bias, step, constants)
            names.append(name)
        factor = shift = None
        for result in _result(self.graph, layer, self.last):
            factor, shift = self._result_grid(result, step)
        del layer.node.input[:]
        layer.node.input.extend(names)
        return QuantizedLayer(
            layer=layer.name,
            operator=layer.node.op_type,
            largest_weight=largest,
            weights=weights.size,
            biases=0 if bias is None else bias.size,
            input_step=float(grid.step),
            bias_shift=bias_shift,
            factor=factor,
            shift=shift,
        )

    def _never_negative(self, name: str) -> bool:
        """Return whether an activation comes from ReLUs, or from the image alone, whose range the windows show."""
        producer = self.graph.producer(name)
        if producer is None or ends_at_zero(self.graph, producer):
            return True
        sources = list(activations(self.graph, producer))
        return producer.op_type in _KEEP_SIGN and all(self._never_negative(source) for source in sources)

    def _free_grid(self, name: str) -> Grid:
        is_unsigned = self.observed[name].lowest >= 0 and self._never_negative(name)
        levels = UNSIGNED_LEVELS if is_unsigned else SIGNED_LEVELS
        threshold = choose_threshold(self.observed[name], rule=self.rule, levels=levels)
        return Grid(np.float32(max(threshold / levels, self.finest.get(name, 0.0))), is_unsigned)

    def _finest_steps(self) -> dict[str, float]:
        """Return the smallest step of each activation with which the biases of the layers that read it fit their integers.

        It matters only where activations are so small that they hardly change the layer's result.
        """
        finest: dict[str, float] = {}
        for layer in self.layers.values():
            bias, name = layer.bias(self.graph), layer.source
            needed = 0.0 if bias is None else float(np.abs(bias).max(initial=0)) / float(WEIGHT_STEP) / _LARGEST_BIAS
            while needed:
                finest[name] = max(finest.get(name, 0.0), needed)
                producer = self.graph.producer(name)
                if producer is None or producer.op_type not in CARRIERS:
                    break
                name = producer.input[0]
        return finest

    def _result_grid(self, name: str, step: np.float32) -> tuple[int, int]:
        """Choose the grid of a layer's result: the finest one that reaches the threshold with an 8-bit factor."""
        free = self._free_grid(name)
        factor, shift, result_step = exact_factor(step, float(step) / float(free.step))
        self.grids[name] = Grid(result_step, free.is_unsigned)
        return factor, shift

    def _int8_weights(self, layer: Layer, weights: Any, constants: list[Any]) -> str:
        integers = np.clip(np.rint(weights / WEIGHT_STEP), -127, 127).astype(np.int8)
        near = f"{layer.output}/weight"
        quantized, name = self.graph.add_constant(near, integers), self.graph.unused_name(near)
        step = self.graph.add_constant(near, np.array(WEIGHT_STEP))
        # ONNX Runtime takes a dense layer only if its weights have a zero point.
        zero = self.graph.add_constant(near, np.array(0, dtype=np.int8))
        constants.append(self.graph.new_node("DequantizeLinear", [quantized, step, zero], [name]))
        return name

    def _int16_bias(self, layer: Layer, bias: Any, step: np.float32, constants: list[Any]) -> tuple[str, int]:
        """Store the bias in int16; runtimes read the int32 that Cast and Mul make of it when the model is loaded."""
        near = f"{layer.output}/bias"
        largest = float(np.abs(bias).max(initial=0)) / float(step) / BIAS_LEVELS
        shift = max(0, math.ceil(math.log2(largest))) if largest > 0 else 0
        integers = np.clip(np.rint(bias / (float(step) * 2**shift)), -BIAS_LEVELS, BIAS_LEVELS).astype(np.int16)
        name = self.graph.add_constant(near, integers)
        wide = self.graph.unused_name(near)
        constants.append(self.graph.new_node("Cast", [name], [wide], to=6))  # 6 is INT32
        if shift:
            power = self.graph.add_constant(near, np.array(2**shift, dtype=np.int32))
            shifted = self.graph.unused_name(near)
            constants.append(self.graph.new_node("Mul", [wide, power], [shifted]))
            wide = shifted
        dequantized, scale = self.graph.unused_name(near), self.graph.add_constant(near, np.array(step))
        constants.append(self.graph.new_node("DequantizeLinear", [wide, scale], [dequantized]))
        return dequantized, shift

    def _with_grids(self) -> list[Any]:
        """Return the nodes, with a QuantizeLinear and a DequantizeLinear after each activation that has a grid."""
        image = self.graph.input_name
        nodes = self._pair(image, self.grids[image]) if image in self.grids else []
        for node in self.graph.nodes:
            nodes.append(node)
            for name in node.output:
                if name in self.grids:
                    nodes += self._pair(name, self.grids[name])
        return nodes

    def _pair(self, name: str, grid: Grid) -> list[Any]:
        step = self.graph.add_constant(name, np.array(grid.step))
        zero = self.graph.add_constant(name, np.array(0 if grid.is_unsigned else SIGNED_ZERO, dtype=np.uint8))
        integers, floats = self.graph.unused_name(name), self.graph.unused_name(name)
        for reader in self.graph.consumers(name):
            replace_input(reader, name, floats)
        return [
            self.graph.new_node("QuantizeLinear", [name, step, zero], [integers]),
            self.graph.new_node("DequantizeLinear", [integers, step, zero], [floats]),
        ]
