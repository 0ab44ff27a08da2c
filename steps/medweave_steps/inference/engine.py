"""One network, compiled once for one batch shape, in the precision that the model card pins.

Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import InternalError, UserInputError
from medweave_steps.inference.graph import widen_logits
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.model.folder import ONNX_FILE, check_float32, listed_file, openvino_file
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
Backend = Literal["openvino", "onnxruntime"]


class Engine(Protocol):
    """A network ready to run.

    Attributes:
        batch_shape: B, C, I, J, K of the input it was compiled for.
    """

    batch_shape: tuple[int, int, int, int, int]

    def infer(self, batch_BCIJK: FloatArray) -> FloatArray:
        """Run the network once.

        Args:
            batch_BCIJK: float32 of `batch_shape`, scaled to the card's `scaled_range`.
        Returns:
            logits, float32 [B, C, I, J, K] with the channels of the card's output contract, or [B, C] of a classification; the
            array is the caller's to keep.
        """
        ...

    def close(self) -> None:
        """Free the network's memory; the engine cannot be used afterwards."""
        ...


def open_engine(
    model_folder: Path, card: ModelCard, *, backend: Backend = "openvino", num_threads: int, batch_size: int = 1
) -> Engine:
    """Compile a model for the CPU.

    OpenVINO would compute in bfloat16 on processors that have it; here it computes in float32, and in int8 only inside a model
    that was quantized to it, so that the figures on the card hold on every machine.

    Args:
        model_folder: holds `models/<precision>.xml` and `.bin` (OpenVINO) or `models/model.onnx` (ONNX Runtime).
        card: its card, with checked digests; contains precision and patch shape.
        backend: which library runs the network; ONNX Runtime runs float32 only.
        num_threads: compute threads, at least 1.
        batch_size: patches per call, at least 1; one is as fast as more for patches of 96³, and needs least memory.
    Raises:
        UserInputError: the card lists no such file, it cannot be read, it is no network with one output of the card's
            channels, or the backend cannot run the card's precision.
        BackendMissingError: the library is not installed.
    """
    shape = (batch_size, card.input.channels, *card.input.patch_shape)
    opened: _OpenVino | _OnnxRuntime
    if backend == "openvino":
        opened = _OpenVino(model_folder, card, shape, num_threads)
    else:
        opened = _OnnxRuntime(model_folder, card, shape, num_threads)
    return opened


def check_finite(logits: npt.NDArray[np.floating], card: ModelCard, *, what: str) -> None:
    """Refuse the output of a network with values that are not finite.

    Args:
        what: the values, for the message.
    Raises:
        InternalError: a value is NaN or infinite.
    """
    is_finite = np.isfinite(logits)
    if not is_finite.all():
        raise InternalError(
            f"the network of model '{card.name}' returned values that are NaN or infinite.",
            seen=f"{int((~is_finite).sum())} of {logits.size} {what} are NaN or infinite",
            expected="finite logits",
            do="do not use this model; if it is int8, use the float32 model that it was derived from",
        )


class _OpenVino:
    def __init__(
        self, model_folder: Path, card: ModelCard, shape: tuple[int, int, int, int, int], num_threads: int
    ) -> None:
        openvino = require("openvino", extra="segment")
        name = openvino_file(card.precision)
        path = listed_file(
            model_folder, card, name, made_by="export" if card.precision == "float32" else "quantize and gate"
        )
        listed_file(model_folder, card, str(Path(name).with_suffix(".bin")), made_by="export")
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": num_threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # several steps may share a machine: pinned threads would share one processor
        }
        try:
            model = openvino.Core().read_model(path)
            model.reshape(list(shape))
            widen_logits(model)
            self._compiled: Any = openvino.Core().compile_model(model, "CPU", properties)
            out = tuple(self._compiled.output(0).shape)
        except RuntimeError as error:
            raise _unusable(card, name, str(error).strip().splitlines()[-1][:200]) from error
        _check_output(card, name, out, shape)
        self.batch_shape = shape
        self._request: Any = self._compiled.create_infer_request()

    def infer(self, batch_BCIJK: FloatArray) -> FloatArray:
        self._request.infer([np.ascontiguousarray(batch_BCIJK, dtype=np.float32)], share_inputs=True)
        return np.array(self._request.get_output_tensor(0).data, dtype=np.float32)

    def close(self) -> None:
        self._request = self._compiled = None


class _OnnxRuntime:
    def __init__(
        self, model_folder: Path, card: ModelCard, shape: tuple[int, int, int, int, int], num_threads: int
    ) -> None:
        runtime = require("onnxruntime", extra="segment-ort")
        do = "use --backend openvino, or the float32 model that it was derived from"
        check_float32(card, "run with ONNX Runtime", do=do)
        path = listed_file(model_folder, card, ONNX_FILE, made_by="export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
        options.log_severity_level = 3
        # Idle threads that spin would take the processor from the step's other work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's classes are made at run time and share no public base
            raise _unusable(card, ONNX_FILE, str(error).strip().splitlines()[-1][:200]) from error
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise _unusable(card, ONNX_FILE, f"{len(inputs)} inputs and {len(outputs)} outputs")
        self.batch_shape = shape
        self._card, self._session, self._name = card, session, inputs[0].name

    def infer(self, batch_BCIJK: FloatArray) -> FloatArray:
        assert self._session is not None
        logits: FloatArray = self._session.run(None, {self._name: np.ascontiguousarray(batch_BCIJK, dtype=np.float32)})[
            0
        ]
        _check_output(self._card, ONNX_FILE, logits.shape, self.batch_shape)
        return logits

    def close(self) -> None:
        self._session = None


def _check_output(card: ModelCard, name: str, seen: tuple[int, ...], shape: tuple[int, int, int, int, int]) -> None:
    of_voxels = (shape[0], OutputHead.of(card).num_channels, *shape[2:])
    if seen != ((shape[0], len(card.classes)) if card.classes else of_voxels):
        raise _unusable(card, name, f"an output of shape {tuple(seen)} for an input of shape {shape}")


def _unusable(card: ModelCard, name: str, seen: str) -> UserInputError:
    head = OutputHead.of(card)
    names = ", ".join(region.name for region in head.outputs)
    logits = "one channel (a logit)" if head.num_channels == 1 else f"{head.num_channels} channels ({names})"
    if head.output.activation == "softmax":
        logits = f"{head.num_channels} channels (background, {names})"
    if card.classes:
        logits = f"{len(card.classes)} logits ({', '.join(card.output_names)})"
    return UserInputError(
        f"{name} of the model '{card.name}' is not usable.",
        seen=seen,
        expected=f"a network with one input and one output of {logits}, for the patch shape of the model card, "
        f"{card.input.patch_shape}",
        do="run `medweave-step export` again",
    )
