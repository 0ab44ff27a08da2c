"""Writes one torch network as ONNX. The same weights give the same bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]

OPSET = 17
INPUT_NAME, OUTPUT_NAME = "image", "logits"


def reference_logits(network: Any, windows: Sequence[FloatArray], *, output_shape: Sequence[int]) -> list[FloatArray]:
    """Return torch's logits, float32, on the CPU: the reference for the parity, and the test that the network takes its patch.

    Args:
        network: from [1, C, I, J, K] to the output.
        windows: float32 [1, C, I, J, K] each.
        output_shape: of the output for a window.
    Raises:
        UserInputError: it does not take the patch of the model card, or gives another shape back.
    """
    torch = require("torch", extra="export")
    logits = []
    for window in windows:
        try:
            with torch.inference_mode():
                logits.append(network(torch.from_numpy(window)).numpy())
            seen, fits = f"an output of shape {logits[-1].shape}", logits[-1].shape == tuple(output_shape)
        except (RuntimeError, ValueError, AttributeError) as error:
            seen, fits = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", False
        if not fits:
            raise UserInputError(
                "the network does not match the input definition of its model card.",
                seen=f"for an input of shape {window.shape}: {seen}",
                expected=_described(output_shape, window.shape),
                do="correct patch_shape and architecture in the model card to the values of the training",
            )
    return logits


def _described(output_shape: Sequence[int], input_shape: Sequence[int]) -> str:
    channels = output_shape[1]
    if tuple(output_shape[2:]) != tuple(input_shape[2:]):
        return f"an output of shape {tuple(output_shape)}"
    counted = "one channel" if channels == 1 else f"{channels} channels"
    return f"one logit per voxel and output: an output of the input shape, with {counted}"


def write_onnx(network: Any, patch_shape: Triple, path: Path, *, channels: int = 1) -> None:
    """Write float32 ONNX with a free batch axis and the card's patch shape; batch norms are folded into convolutions."""
    torch = require("torch", extra="export")
    require("onnx", extra="export")
    document = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The exporter based on TorchScript needs no onnxscript, and was seen to write equal bytes each time.
        torch.onnx.export(
            network,
            (torch.zeros((1, channels, *patch_shape)),),
            document,
            dynamo=False,
            opset_version=OPSET,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamic_axes={INPUT_NAME: {0: "batch"}, OUTPUT_NAME: {0: "batch"}},
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(document.getvalue())
