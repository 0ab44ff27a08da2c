"""Post-training quantization of an OpenVINO model by NNCF, without its output and telemetry."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_core.errors import InternalError
from medweave_steps.io.model.openvino_ir import save_ir
from medweave_steps.runtime.environment import on_cpus
from medweave_steps.runtime.imports import hidden_modules, log_disabled, require, require_lean

FloatArray = npt.NDArray[np.float32]
Preset = Literal["mixed", "performance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeSettings:
    """Settings of the quantization of a graph.

    Attributes:
        preset: `mixed` gives activations that may be negative their own zero point, `performance` never does.
        float_input_layer: the convolutions that see the image itself compute in float32.
        bias_correction: shift biases so that each layer's mean output on the windows is that of float32.
    """

    preset: Preset
    float_input_layer: bool
    bias_correction: bool


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence NNCF inside the block: it logs to stdout and draws progress bars there."""
    with log_disabled(logging.ERROR), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantize(
    float32_xml: Path,
    windows_BCIJK: Sequence[FloatArray],
    output_xml: Path,
    *,
    settings: QuantizeSettings,
    num_threads: int,
    on_window: Callable[[], None] = lambda: None,
) -> int:
    """Write an IR whose convolutions compute in int8.

    Args:
        float32_xml: the exported IR; its input has a fixed shape.
        windows_BCIJK: float32 inputs of that shape; ranges of activations are taken from all of them.
        output_xml: file to write; `.bin` is written to the same folder.
        num_threads: compute threads.
        on_window: called after each window of the first pass.
    Returns:
        the number of quantizers in the graph.
    Raises:
        InternalError: NNCF left the graph as it was.
        BackendMissingError: OpenVINO or NNCF is not installed.
    """
    openvino = require("openvino", extra="quantize")
    with quiet():
        nncf = require_lean("nncf", extra="quantize")
    model = openvino.Core().read_model(str(float32_xml))
    seen = 0

    def feed(number: int) -> FloatArray:
        nonlocal seen
        if number >= seen:
            seen = number + 1
            on_window()
        return windows_BCIJK[number]

    # NNCF compiles models internally and has no option for the number of threads.
    with quiet(), on_cpus(num_threads), hidden_modules("nncf"):
        quantized = nncf.quantize(
            model,
            nncf.Dataset(range(len(windows_BCIJK)), feed),
            preset=nncf.QuantizationPreset(settings.preset),
            target_device=nncf.TargetDevice.CPU,
            subset_size=len(windows_BCIJK),
            ignored_scope=nncf.IgnoredScope(names=input_convolutions(model) if settings.float_input_layer else []),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                disable_bias_correction=not settings.bias_correction
            ),
        )
    num_quantizers = _count_quantizers(quantized)
    save_ir(quantized, output_xml, extra="quantize")
    return num_quantizers


def _count_quantizers(model: Any) -> int:
    num_quantizers: int = sum(operation.get_type_name() == "FakeQuantize" for operation in model.get_ops())
    if not num_quantizers:
        raise InternalError(
            "quantization had no effect.",
            seen="a graph without quantized layers",
            expected="convolutions that NNCF can quantize",
            do="use the float32 model",
        )
    return num_quantizers


def input_convolutions(model: Any) -> list[str]:
    """Return the sorted names of the first convolutions: no other one lies between them and the graph's inputs."""
    found, seen, waiting = set(), set(), list(model.get_parameters())
    while waiting:
        operation = waiting.pop()
        for output in operation.outputs():
            for target in output.get_target_inputs():
                node = target.get_node()
                name = node.get_friendly_name()
                if "Convolution" in node.get_type_name():
                    found.add(name)
                elif name not in seen:
                    seen.add(name)
                    waiting.append(node)
    return sorted(found)
