"""Post-training quantization of an OpenVINO model by NNCF, kept quiet and without telemetry."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from medweave_steps.contracts.errors import InternalError
from medweave_steps.io.openvino_ir import save_ir
from medweave_steps.runtime.environment import on_cpus
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
Preset = Literal["mixed", "performance"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """NNCF logs to stdout and draws progress bars there; stderr is for our own lines."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        previous = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(previous)


def quantize(
    float32_xml: Path,
    windows_BCIJK: Sequence[FloatArray],
    output_xml: Path,
    *,
    preset: Preset,
    num_threads: int,
    on_window: Callable[[], None] = lambda: None,
) -> int:
    """Writes an IR whose convolutions compute in int8.

    Args:
        float32_xml: the exported IR; its input has a fixed shape.
        windows_BCIJK: float32 inputs of that shape; ranges of activations are taken from all of them.
        output_xml: where to write; `.bin` lies beside it.
        preset: `mixed` gives activations that may be negative their own zero point, `performance` never does.
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
        nncf = require("nncf", extra="quantize")
    model = openvino.Core().read_model(str(float32_xml))
    seen = 0

    def feed(number: int) -> FloatArray:
        nonlocal seen
        if number >= seen:
            seen = number + 1
            on_window()
        return windows_BCIJK[number]

    # NNCF compiles models of its own and cannot be told a number of threads.
    with quiet(), on_cpus(num_threads):
        quantized = nncf.quantize(
            model,
            nncf.Dataset(range(len(windows_BCIJK)), feed),
            preset=nncf.QuantizationPreset(preset),
            target_device=nncf.TargetDevice.CPU,
            subset_size=len(windows_BCIJK),
            fast_bias_correction=True,
        )
    num_quantizers: int = sum(operation.get_type_name() == "FakeQuantize" for operation in quantized.get_ops())
    if not num_quantizers:
        raise InternalError(
            "quantization changed nothing.",
            seen="a graph without quantizers",
            expected="convolutions that NNCF can quantize",
            do="use the float32 model",
        )
    save_ir(quantized, output_xml, extra="quantize")
    return num_quantizers
