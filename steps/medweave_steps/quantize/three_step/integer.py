"""The integer reference: computes a QDQ graph of step 3 as a processor without floating point would.

Layers add products of integers, and their results are rescaled by one multiplication and one shift. Nothing of this is shared with
the runtimes that the graph is made for. Operators that are no layers are computed by ONNX Runtime, one by one: on the integers
where the operator keeps them, otherwise in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.errors import UserInputError
from medweave_steps.quantize.three_step.graph import Array, Graph
from medweave_steps.quantize.three_step.kernels import convolve, multiply, transpose_convolve
from medweave_steps.quantize.three_step.layers import CARRIERS, LAYER_KINDS
from medweave_steps.runtime.imports import require

# Steps are float32: their ratios are only this close to factor / 2^shift.
_RATIO_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Integers:
    """A tensor that is `step * values`.

    Attributes:
        values: int32, as in the accumulators of processors.
        step: as float64.
    """

    values: npt.NDArray[np.int32]
    step: float

    def to_float(self) -> npt.NDArray[np.float32]:
        """Return the values in float32."""
        return (self.values * self.step).astype(np.float32)


Value = Integers | Array


def compute_integers(
    graph: Graph, image: Array, *, measured: Mapping[str, Array] = MappingProxyType({})
) -> dict[str, Array]:
    """Compute a QDQ graph with integers.

    Args:
        graph: as `quantize_layers` leaves it, or read from `models/int8.onnx`.
        image: float32, of the shape of the graph's input.
        measured: integers of activations, by name, that the operators after them read instead of those computed here. With all
            integers of a runtime, each result shows the rounding of one layer, not that of the layers before it.
    Returns:
        by tensor name: the integers of every 8-bit activation, from 0 or from -128 (without the zero point), and the outputs of the
        graph, float32.
    Raises:
        UserInputError: a tensor has several steps, or the ratio of two is no 8-bit factor and shift: another method made the graph.
    """
    values: dict[str, Value] = dict(graph.constants)
    values[graph.input_name] = image
    shown: dict[str, Array] = {}
    last_reader = {name: number for number, node in enumerate(graph.nodes) for name in node.input}
    for number, node in enumerate(graph.nodes):
        inputs = [values[name] if name else None for name in node.input]
        results = _compute(graph, node, inputs)
        values.update(zip(node.output, results, strict=True))
        if node.op_type == "QuantizeLinear":
            (result,) = results
            assert isinstance(result, Integers)
            shown[node.output[0]] = result.values
            if node.output[0] in measured:
                values[node.output[0]] = Integers(measured[node.output[0]], result.step)
        for name in node.input:
            if last_reader[name] == number and name not in graph.output_names:
                values.pop(name, None)  # all of them together would take many times the memory of the network
    return shown | {name: _float(values[name]) for name in graph.output_names}


def requantize(integers: npt.NDArray[np.int32], factor: int, shift: int) -> npt.NDArray[np.int64]:
    """Return `integers * factor / 2^shift`, rounded to the nearest integer, ties to the even one, with integer operations only."""
    product = integers.astype(np.int64) * factor
    if shift <= 0:
        return product << -shift
    quotient = product >> shift
    rest, half = product - (quotient << shift), 1 << (shift - 1)
    rounded: npt.NDArray[np.int64] = quotient + ((rest > half) | ((rest == half) & (quotient % 2 == 1)))
    return rounded


def _compute(graph: Graph, node: Any, inputs: list[Any]) -> list[Value]:
    kind = node.op_type
    if kind == "QuantizeLinear":
        return [_quantize(node, *inputs)]
    if kind == "DequantizeLinear":
        values, step = inputs[0], inputs[1]
        if step.size != 1:
            raise _refusal(f"{step.size} steps, one for each channel, at {node.name}")
        return [Integers(values.values if isinstance(values, Integers) else values.astype(np.int32), float(step))]
    if kind in LAYER_KINDS and all(isinstance(value, Integers) for value in inputs):
        return [_layer(node, *inputs)]
    if kind == "Relu" and isinstance(inputs[0], Integers):
        return [Integers(np.maximum(inputs[0].values, 0), inputs[0].step)]
    if kind in CARRIERS and isinstance(inputs[0], Integers):
        # There is a kernel of each of these operators for float32, which holds 8 bits exactly.
        (moved,) = _in_onnxruntime(graph, node, [inputs[0].values.astype(np.float32), *inputs[1:]])
        return [Integers(moved.astype(np.int32), inputs[0].step)]
    return list(_in_onnxruntime(graph, node, [value if value is None else _float(value) for value in inputs]))


def _quantize(node: Any, value: Value, step: Array, zero: Array) -> Integers:
    limits, offset = np.iinfo(zero.dtype), int(zero)
    integers: npt.NDArray[Any]
    if not isinstance(value, Integers):
        integers = np.rint(value / step)
    elif math.isclose(value.step, float(step), rel_tol=_RATIO_TOLERANCE):
        integers = value.values
    else:
        integers = requantize(value.values, *_factor(node, value.step / float(step)))
    clipped = np.clip(integers, limits.min - offset, limits.max - offset)
    return Integers(clipped.astype(np.int32), float(step))


def _factor(node: Any, ratio: float) -> tuple[int, int]:
    shift = 8 - math.frexp(ratio)[1]
    factor = round(math.ldexp(ratio, shift))
    if not math.isclose(math.ldexp(factor, -shift), ratio, rel_tol=_RATIO_TOLERANCE):
        raise _refusal(f"a ratio of steps of {ratio:.6g}, at {node.name}")
    return factor, shift


def _refusal(seen: str) -> UserInputError:
    return UserInputError(
        "the graph cannot be computed with integers.",
        seen=seen,
        expected="one step per tensor, with an 8-bit factor and a shift between them, as quantize --method three-step chooses them",
        do="compare graphs of this method only",
    )


def _layer(node: Any, source: Integers, weights: Integers, bias: Integers | None = None) -> Integers:
    kernels: dict[str, Callable[..., npt.NDArray[np.float64]]] = {
        "Conv": convolve, "ConvTranspose": transpose_convolve, "Gemm": multiply, "MatMul": multiply,
    }  # fmt: skip
    # Sums of products of 8 bits are below 2^53: doubles add them without rounding, and far faster than numpy adds integers.
    sums = kernels[node.op_type](node, source.values.astype(np.float64), weights.values.astype(np.float64))
    integers = sums.astype(np.int32)
    if bias is not None:
        axis = integers.ndim - 1 if node.op_type == "Gemm" else 1
        integers += bias.values.reshape([-1 if number == axis else 1 for number in range(integers.ndim)])
    return Integers(integers, float(np.float32(source.step) * np.float32(weights.step)))


def _float(value: Value) -> Array:
    return value.to_float() if isinstance(value, Integers) else value


def _in_onnxruntime(graph: Graph, node: Any, inputs: list[Array | None]) -> list[Array]:
    onnx, onnxruntime = require("onnx", extra="quantize"), require("onnxruntime", extra="quantize")
    helper = onnx.helper
    feeds = {name: np.asarray(value) for name, value in zip(node.input, inputs, strict=True) if value is not None}
    described = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    alone = helper.make_graph([node], "operator", described, [onnx.ValueInfoProto(name=name) for name in node.output])
    model = helper.make_model(alone, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # by default all of the machine, whatever --num-threads says
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results
