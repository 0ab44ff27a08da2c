"""OpenVINO on the CPU: the IR of the card's precision, or its ONNX file.

Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ModelCard
from medweave_steps.inference.graph import widen_logits
from medweave_steps.inference.runtimes.devices import EXTRAS
from medweave_steps.inference.runtimes.failures import Shape, check_output, not_opened
from medweave_steps.io.model.folder import listed_file, network_files
from medweave_steps.runtime.imports import require

# Processors whose int8 instructions add without overflow. Older x86 processors add pairs of products in 16 bits, which
# saturates: on one with AVX2 only, the logits of an int8 network were wrong by 39 % of their size.
_EXACT_INT8 = {"avx512_vnni", "avx_vnni", "amx_int8"}


def int8_properties(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return OpenVINO's properties for int8 networks on this machine.

    On an x86 processor whose int8 instructions may saturate, the int8 values are computed in float32: exact, and slower.

    Args:
        cpuinfo: Linux's list of processors; without it (macOS), or without `flags` in it (ARM), the instructions are exact.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), _EXACT_INT8)
    return {} if flags & _EXACT_INT8 else {"LP_TRANSFORMS_MODE": "NO"}


class OpenVinoEngine:
    """A network compiled by OpenVINO; see `open_engine`."""

    def __init__(self, model_folder: Path, card: ModelCard, shape: Shape, num_threads: int) -> None:
        openvino = require("openvino", extra=EXTRAS["openvino"])
        name, *weights = network_files(card, "openvino")
        path = listed_file(
            model_folder, card, name, made_by="export" if card.precision == "float32" else "quantize and gate"
        )
        for file in weights:
            listed_file(model_folder, card, file, made_by="export")
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": num_threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # several steps may share a machine: pinned threads would share one processor
        }
        if card.precision == "int8":
            properties |= int8_properties()
        try:
            model = openvino.Core().read_model(path)
            model.reshape(list(shape))
            widen_logits(model)
            self._compiled: Any = openvino.Core().compile_model(model, "CPU", properties)
            out = tuple(self._compiled.output(0).shape)
        except RuntimeError as error:
            raise not_opened(model_folder, card, name, error) from error
        check_output(card, name, out, shape)
        self.batch_shape = shape
        self._request: Any = self._compiled.create_infer_request()

    def infer(self, batch_BCIJK: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Run the network once; see `Engine.infer`."""
        self._request.infer([np.ascontiguousarray(batch_BCIJK, dtype=np.float32)], share_inputs=True)
        return np.array(self._request.get_output_tensor(0).data, dtype=np.float32)

    def close(self) -> None:
        """Free the network's memory."""
        self._request = self._compiled = None
