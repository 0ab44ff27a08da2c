"""One network, opened once for one batch shape, in the precision and by the runtime that the model card fixes.

Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ModelCard, Runtime
from medweave_core.errors import InternalError
from medweave_steps.inference.runtimes.devices import Device, choose_device
from medweave_steps.inference.runtimes.onnx_runtime import OnnxRuntimeEngine
from medweave_steps.inference.runtimes.openvino_runtime import OpenVinoEngine
from medweave_steps.inference.runtimes.torch_runtime import TorchEngine

FloatArray = npt.NDArray[np.float32]


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
    model_folder: Path,
    card: ModelCard,
    *,
    runtime: Runtime | None = None,
    device: Device = "cpu",
    num_threads: int,
    batch_size: int = 1,
) -> Engine:
    """Open a model with one of the runtimes.

    Each runtime computes in float32, and in int8 only inside a model that was quantized to it, so that the figures on the card
    hold on every machine: OpenVINO would compute in bfloat16 on processors that have it, GPUs in TensorFloat-32.

    Args:
        model_folder: holds the files that `network_files` names for the runtime.
        card: its card, with checked digests; contains precision, runtime and patch shape.
        runtime: the library that runs the network; None is the card's.
        device: where it computes; OpenVINO runs on the CPU only.
        num_threads: compute threads, at least 1.
        batch_size: patches per call, at least 1; one is as fast as more for patches of 96³, and needs least memory.
    Raises:
        UserInputError: the card lists no such file, it cannot be read, it is no network with one output of the card's
            channels, or the runtime cannot run the card's precision.
        UsageError: the runtime cannot use the device.
        BackendMissingError: the library is not installed.
    """
    runtime = runtime or card.runtime
    used = choose_device(runtime, device)
    shape = (batch_size, card.input.channels, *card.input.patch_shape)
    if runtime == "openvino":
        return OpenVinoEngine(model_folder, card, shape, num_threads)
    if runtime == "onnxruntime":
        return OnnxRuntimeEngine(model_folder, card, shape, num_threads, used)
    return TorchEngine(model_folder, card, shape, num_threads, used)


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
