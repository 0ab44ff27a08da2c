"""Tiny networks as real model folders, written with OpenVINO and ONNX alone: no torch, no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.labels import LUNG_NODULE, PRESETS
from medweave_core.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_steps.io.model.folder import write_card

WINDOW_HU = (-1000.0, 400.0)
NODULE_ANYWHERE = dataclasses.replace(LUNG_NODULE, anatomy=None)  # for volumes without lungs


def tiny_card(**changes: Any) -> ModelCard:
    """Return a card for a synthetic one-channel CT model on a 2 mm grid."""
    values: dict[str, Any] = {
        "name": "tiny-nodules",
        "task": "lung nodule segmentation",
        "architecture": {"class": "monai.networks.nets.UNet", "arguments": {}},
        "labels": PRESETS["lung-nodule"],
        "input": InputContract(
            spacing_mm=(2.0, 2.0, 2.0), window_hu=WINDOW_HU, patch_shape=(16, 16, 16), patch_multiple=4, crop="none"
        ),
        "postprocessing": Postprocessing(threshold=0.5, min_volume_mm3=0.0, overlap=0.25),
        "precision": "float32",
        "files": {},
        "parent_sha256": None,
        "data_sha256": "0" * 64,
        "synthetic_data": True,
        "code_version": "test",
        "metrics": {},
        "training": {},
    }
    return ModelCard(**(values | changes))


def write_openvino(path: Path, kernel: np.ndarray, bias: float, *, patch: Sequence[int]) -> None:
    """Write one 3-D convolution with zero padding, as OpenVINO IR."""
    import openvino as ov
    from openvino import opset13 as ops

    side = kernel.shape[0] // 2
    image = ops.parameter([-1, 1, *patch], np.float32, name="image")
    weights = ops.constant(kernel.astype(np.float32)[None, None])
    out = ops.convolution(image, weights, [1, 1, 1], [side] * 3, [side] * 3, [1, 1, 1])
    path.parent.mkdir(parents=True, exist_ok=True)
    model = ov.Model([ops.add(out, ops.constant(np.float32(bias)))], [image], "tiny")
    ov.save_model(model, path, compress_to_fp16=False)


def write_onnx(path: Path, kernel: np.ndarray, bias: float) -> None:
    """Write the same network as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    side = kernel.shape[0] // 2
    sides = ["b", 1, "i", "j", "k"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "weights", "bias"], ["logits"], pads=[side] * 6)],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, sides)],
        [
            numpy_helper.from_array(kernel.astype(np.float32)[None, None], "weights"),
            numpy_helper.from_array(np.array([bias], dtype=np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def write_tiny_model(
    folder: Path, *, kernel: np.ndarray | None = None, bias: float = -20.0, gain: float = 40.0, **changes: Any
) -> ModelCard:
    """Write a model folder whose network says "lesion" where the mean of 3 x 3 x 3 voxels is brighter than about -300 HU.

    Args:
        folder: where to write it.
        kernel: other weights, cubic, odd side.
        bias, gain: logit = gain * mean of the scaled input + bias.
        changes: other values for the card.
    """
    kernel = np.full((3, 3, 3), gain / 27) if kernel is None else kernel
    card = tiny_card(**changes)
    write_openvino(folder / "models/float32.xml", kernel, bias, patch=card.input.patch_shape)
    write_onnx(folder / "models/model.onnx", kernel, bias)
    return write_card(folder, card)
