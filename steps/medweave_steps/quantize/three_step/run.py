"""Runs the three steps on an ONNX file, and compares the result with the integer reference."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.errors import InternalError
from medweave_steps.quantize.three_step.graph import Graph
from medweave_steps.quantize.three_step.integer import compute_integers
from medweave_steps.quantize.three_step.layers import find_layers, fold_batch_norms
from medweave_steps.quantize.three_step.qdq import QuantizedLayer, activation_names, quantize_layers
from medweave_steps.quantize.three_step.rescale import rescale_weights
from medweave_steps.quantize.three_step.storage import Storage
from medweave_steps.quantize.three_step.thresholds import Activation, ThresholdRule, observe
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]

# Both compute the same integers, except near the middle of two integers, where float32 may round differently.
_MAX_SHARE, _MAX_LOGIT_DIFFERENCE = 1e-3, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerParity:
    """The difference of the QDQ graph in ONNX Runtime from the integer reference, layer by layer, on one window.

    Attributes:
        activations: 8-bit values that were compared.
        different_share: share of them that differ.
        largest_difference: of two of them, in steps.
        max_logit_difference: largest absolute difference of two logits.
        max_logit: largest absolute logit of the reference.
    """

    activations: int
    different_share: float
    largest_difference: int
    max_logit_difference: float
    max_logit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeStepResult:
    """What the three steps did.

    Attributes:
        layers: the quantized layers.
        other_operators: how many operators of each kind stay as they are; those that only select or move values keep the integers,
            the others compute in float32.
        parity: of the first window.
    """

    layers: Sequence[QuantizedLayer]
    other_operators: dict[str, int]
    parity: IntegerParity

    @property
    def storage(self) -> Storage:
        """Return the memory of the layers' parameters."""
        return Storage(
            weights=sum(layer.weights for layer in self.layers), biases=sum(layer.biases for layer in self.layers)
        )

    def to_report(self) -> dict[str, Any]:
        """Return the figures for the run report."""
        storage = self.storage
        return {
            "quantized_layers": dict(sorted(Counter(layer.operator for layer in self.layers).items())),
            "other_operators": self.other_operators,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "parameters": {
                **dataclasses.asdict(storage),
                "float32_bytes": storage.float32_bytes,
                "int8_bits": storage.int8_bits,
                "ratio": storage.ratio,
            },
            "integer_parity": dataclasses.asdict(self.parity),
        }


def quantize_three_step(
    float32_onnx: Path,
    windows_BCIJK: Sequence[FloatArray],
    output_onnx: Path,
    *,
    rule: ThresholdRule,
    num_threads: int,
    on_window: Callable[[], None] = lambda: None,
) -> ThreeStepResult:
    """Write a QDQ graph of a float32 network.

    Args:
        float32_onnx: the exported ONNX.
        windows_BCIJK: float32 inputs of the network.
        output_onnx: file to write.
        rule: how thresholds of activations are chosen.
        num_threads: compute threads.
        on_window: called after each window of the first pass.
    Raises:
        UserInputError: the graph has an operator that cannot be quantized, or no layer that can; the message names the layer.
        InternalError: ONNX Runtime's results differ from the integer reference.
        BackendMissingError: ONNX or ONNX Runtime is not installed.
    """
    graph = rescaled_graph(float32_onnx)
    layers = find_layers(graph.graph)
    of_layers = {layer.output for layer in layers}
    others = Counter(node.op_type for node in graph.graph.nodes if node.output[0] not in of_layers)
    observed = _observe(graph.graph, activation_names(graph.graph, layers), windows_BCIJK, rule, num_threads, on_window)
    described = quantize_layers(graph.graph, layers, observed, graph.largest_weights, rule=rule)
    output_onnx.parent.mkdir(parents=True, exist_ok=True)
    output_onnx.write_bytes(graph.graph.to_model().SerializeToString(deterministic=True))
    parity = compare_with_integers(Graph.read(output_onnx), windows_BCIJK[0], num_threads=num_threads)
    _judge(parity)
    return ThreeStepResult(layers=described, other_operators=dict(sorted(others.items())), parity=parity)


@dataclass(frozen=True, slots=True)
class RescaledGraph:
    """A graph after step 1.

    Attributes:
        graph: its weights lie in [-1, 1].
        largest_weights: divisor of the weights, by layer name.
    """

    graph: Graph
    largest_weights: dict[str, float]


def rescaled_graph(float32_onnx: Path) -> RescaledGraph:
    """Return the graph of an ONNX file after step 1, with its batch norms folded."""
    graph = Graph.read(float32_onnx)
    layers = find_layers(graph)
    if fold_batch_norms(graph, layers):
        layers = find_layers(graph)
    return RescaledGraph(graph, rescale_weights(graph, layers))


def compare_with_integers(graph: Graph, window_BCIJK: FloatArray, *, num_threads: int) -> IntegerParity:
    """Compute a QDQ graph in ONNX Runtime, and each layer from the same 8-bit values with integers; return the difference."""
    quantizers = {node.output[0]: node for node in graph.nodes if node.op_type == "QuantizeLinear"}
    session = open_session(graph, num_threads, extra_outputs=tuple(quantizers))
    results = session.run(None, {graph.input_name: window_BCIJK})
    num_outputs = len(graph.output_names)
    measured = {
        name: stored.astype(np.int32) - int(graph.constants[quantizers[name].input[2]])
        for name, stored in zip(quantizers, results[num_outputs:], strict=True)
    }
    expected = compute_integers(graph, window_BCIJK, measured=measured)
    total, different, largest = 0, 0, 0
    for name, integers in measured.items():
        difference = np.abs(integers - expected[name])
        total, different = total + difference.size, different + int(np.count_nonzero(difference))
        largest = max(largest, int(difference.max()))
    logits = [(values, expected[name]) for name, values in zip(graph.output_names, results, strict=False)]
    return IntegerParity(
        activations=total,
        different_share=different / max(total, 1),
        largest_difference=largest,
        max_logit_difference=max(float(np.abs(seen - reference).max()) for seen, reference in logits),
        max_logit=max(float(np.abs(reference).max()) for _, reference in logits),
    )


def open_session(graph: Graph, num_threads: int, *, extra_outputs: tuple[str, ...] = ()) -> Any:
    """Return an onnxruntime.InferenceSession of a graph on the CPU, whose int8 products are exact on every processor."""
    onnxruntime = require("onnxruntime", extra="quantize")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 3
    # Without VNNI, sums of two products would be clipped to 16 bits.
    options.add_session_config_entry("session.x64quantprecision", "1")
    model = graph.to_model(extra_outputs=extra_outputs).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _observe(
    graph: Graph,
    names: list[str],
    windows: Sequence[FloatArray],
    rule: ThresholdRule,
    num_threads: int,
    on_window: Callable[[], None],
) -> dict[str, Activation]:
    computed = [name for name in names if name != graph.input_name]
    session = open_session(graph, num_threads, extra_outputs=tuple(computed))

    def compute(window: FloatArray) -> list[FloatArray]:
        values = dict(zip(computed, session.run(computed, {graph.input_name: window}), strict=True))
        return [values.get(name, window) for name in names]

    return observe(names, windows, compute, rule=rule, on_window=on_window)


def _judge(parity: IntegerParity) -> None:
    bound = _MAX_LOGIT_DIFFERENCE * max(1.0, parity.max_logit)
    is_rounding = parity.largest_difference <= 1 and parity.different_share <= _MAX_SHARE
    if is_rounding and parity.max_logit_difference <= bound:
        return
    raise InternalError(
        "the int8 graph does not reproduce the integer reference, in ONNX Runtime.",
        seen=f"{parity.different_share:.2%} of {parity.activations} activations differ by up to {parity.largest_difference} steps,"
        f" logits by up to {parity.max_logit_difference:.2e}",
        expected=f"at most {_MAX_SHARE:.1%}, by one step, and {bound:.2e}",
        do="quantize with the library versions of constraints.txt; if the error persists, report it",
    )
