"""Writes one torch network as ONNX. The same weights give the same bytes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UserInputError
from medweave_steps.io.model.onnx_file import remove_traces
from medweave_steps.runtime.imports import log_disabled, require

FloatArray = npt.NDArray[np.float32]

OPSET = 18
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
    """Write float32 ONNX with a free batch axis and the card's patch shape; batch norms are folded into convolutions.

    Raises:
        UserInputError: torch's exporter cannot follow the network, such as one whose branches depend on the values of the image.
    """
    torch = require("torch", extra="export")
    for library in ("onnx", "onnxscript"):
        require(library, extra="export")
    # Two inputs: the exporter takes a batch of one for a constant.
    image = torch.zeros((2, channels, *patch_shape))
    try:
        with _quiet():
            program = torch.onnx.export(
                network,
                (image,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except torch.onnx.OnnxExporterError as error:
        raise _not_exported(network, error) from error
    model = program.model_proto
    remove_traces(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter inside the block: it warns of torchvision, and prints the graph of a network that it cannot trace."""
    with log_disabled(logging.WARNING), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _not_exported(network: Any, error: Exception) -> UserInputError:
    cause = error.__cause__ or error
    return UserInputError(
        "the network cannot be exported to ONNX.",
        seen=f"{type(network).__name__}: {type(cause).__name__}: {' '.join(str(cause).split())[:200]}",
        expected="a network that torch.export can trace, for any batch size: no Python branches on values of the image",
        do="rewrite the forward method of the network, for example with torch.where or torch.cond",
    )
