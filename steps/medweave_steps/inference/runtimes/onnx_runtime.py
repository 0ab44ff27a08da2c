"""ONNX Runtime on the CPU or on a CUDA device: `models/model.onnx` (float32) or `models/int8.onnx` (QDQ).

Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.inference.runtimes.devices import CUDA_PROVIDER, EXTRAS, UsedDevice, no_cuda
from medweave_steps.inference.runtimes.failures import Shape, check_output, failed_on_gpu, not_opened, unusable
from medweave_steps.io.model.folder import listed_file, network_files
from medweave_steps.runtime.imports import require


class OnnxRuntimeEngine:
    """A session of ONNX Runtime; see `open_engine`."""

    def __init__(self, model_folder: Path, card: ModelCard, shape: Shape, num_threads: int, device: UsedDevice) -> None:
        runtime = require("onnxruntime", extra=EXTRAS["onnxruntime"])
        (name,) = network_files(card, "onnxruntime")
        if card.precision != "float32" and name not in card.files:
            raise UserInputError(
                f"the model '{card.name}' cannot run with ONNX Runtime.",
                seen=f"precision {card.precision} without {name} (model_card.json)",
                expected=f"precision float32, or a quantized model with {name}",
                do="use --backend openvino, or the float32 model that it was derived from",
            )
        path = listed_file(model_folder, card, name, made_by="export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        options.log_severity_level = 3
        # Idle threads that spin would take the processor from the step's other work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # On processors without VNNI, sums of two int8 products would be clipped to 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            session = runtime.InferenceSession(path, options, providers=_providers(runtime, device))
        except Exception as error:  # ONNX Runtime's classes are made at run time and share no public base
            raise not_opened(model_folder, card, name, error) from error
        if device == "cuda" and session.get_providers()[0] != CUDA_PROVIDER:
            raise no_cuda(
                "onnxruntime",
                seen="ONNX Runtime could not load its CUDA libraries (CUDA, cuDNN)",
                do="install them with `pip install 'onnxruntime-gpu[cuda,cudnn]'`, or hide the GPU: CUDA_VISIBLE_DEVICES=-1",
            )
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise unusable(card, name, f"{len(inputs)} inputs and {len(outputs)} outputs")
        self.batch_shape, self._device = shape, device
        self._card, self._file, self._session, self._name = card, name, session, inputs[0].name

    def infer(self, batch_BCIJK: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Run the network once; see `Engine.infer`."""
        assert self._session is not None
        batch = np.ascontiguousarray(batch_BCIJK, dtype=np.float32)
        try:
            logits: npt.NDArray[np.float32] = self._session.run(None, {self._name: batch})[0]
        except Exception as error:  # as above
            if self._device == "cuda":
                raise failed_on_gpu(self._card, error) from error
            raise
        check_output(self._card, self._file, logits.shape, self.batch_shape)
        return logits

    def close(self) -> None:
        """Free the network's memory."""
        self._session = None


def _providers(runtime: Any, device: UsedDevice) -> list[Any]:
    if device == "cpu":
        return ["CPUExecutionProvider"]
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # CUDA and cuDNN from NVIDIA's packages for pip, where they are installed
    # TensorFloat-32 rounds inputs to 10 bits: the figures on the card are those of float32.
    return [(CUDA_PROVIDER, {"use_tf32": "0"}), "CPUExecutionProvider"]
