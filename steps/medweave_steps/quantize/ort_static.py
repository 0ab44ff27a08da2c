"""Static quantization of an ONNX model by ONNX Runtime's own tool."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.errors import InternalError
from medweave_steps.quantize.three_step.graph import Graph
from medweave_steps.quantize.three_step.layers import LAYER_KINDS, find_layers, fold_batch_norms
from medweave_steps.runtime.environment import on_cpus
from medweave_steps.runtime.imports import log_disabled, require

FloatArray = npt.NDArray[np.float32]


def quantize_ort_static(
    float32_onnx: Path,
    windows_BCIJK: Sequence[FloatArray],
    output_onnx: Path,
    *,
    num_threads: int,
    on_window: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Write a QDQ graph: int8 weights per channel, uint8 activations between the smallest and largest value on the windows.

    Args:
        float32_onnx: the exported ONNX.
        windows_BCIJK: float32 inputs of the network.
        output_onnx: file to write.
        num_threads: compute threads.
        on_window: called for each window.
    Returns:
        how many layers were quantized, by operator.
    Raises:
        InternalError: the tool left the graph as it was.
        UserInputError: the graph has an operator that cannot be quantized, or no layer that can; the message names the layer.
        BackendMissingError: ONNX or ONNX Runtime is not installed.
    """
    graph = Graph.read(float32_onnx)
    fold_batch_norms(graph, find_layers(graph))
    quantization = require("onnxruntime.quantization", extra="quantize")
    output_onnx.parent.mkdir(parents=True, exist_ok=True)
    # The tool creates its sessions without an option for the number of threads, and recommends steps that export has already done.
    with on_cpus(num_threads), log_disabled(logging.WARNING):
        quantization.quantize_static(
            graph.to_model(),
            str(output_onnx),
            _Reader(graph.input_name, windows_BCIJK, on_window),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
        )
    return _count_layers(Graph.read(output_onnx))


class _Reader:
    """The windows, as onnxruntime.quantization.CalibrationDataReader."""

    def __init__(self, input_name: str, windows: Sequence[FloatArray], on_window: Callable[[], None]) -> None:
        self._windows = iter(windows)
        self._input_name = input_name
        self._on_window = on_window

    def get_next(self) -> dict[str, FloatArray] | None:
        window = next(self._windows, None)
        if window is None:
            return None
        self._on_window()
        return {self._input_name: window}


def _count_layers(graph: Graph) -> dict[str, int]:
    dequantized = {node.output[0] for node in graph.nodes if node.op_type == "DequantizeLinear"}
    kinds = Counter(
        node.op_type
        for node in graph.nodes
        if node.op_type in LAYER_KINDS and all(name in dequantized for name in node.input[:2])
    )
    if not kinds:
        raise InternalError(
            "quantization had no effect.",
            seen="a graph without quantized layers",
            expected="convolutions or dense layers that ONNX Runtime can quantize",
            do="use the float32 model",
        )
    return dict(sorted(kinds.items()))
