"""Tiny networks as real model folders, written with OpenVINO and ONNX alone: no torch, no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.labels import LUNG_NODULE, PRESETS, Label, Region
from medweave_core.contracts.model import InputContract, ModelCard, OutputContract, Postprocessing
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


def write_openvino(path: Path, kernel: np.ndarray, bias: float | Sequence[float], *, patch: Sequence[int]) -> None:
    """Write one 3-D convolution with zero padding, as OpenVINO IR.

    Args:
        kernel: [I, J, K] for one output channel, or [C, I, J, K].
        bias: one, or one for each channel.
    """
    import openvino as ov
    from openvino import opset13 as ops

    side, kernel = kernel.shape[-1] // 2, kernel.reshape(-1, 1, *kernel.shape[-3:])
    image = ops.parameter([-1, 1, *patch], np.float32, name="image")
    weights = ops.constant(kernel.astype(np.float32))
    out = ops.convolution(image, weights, [1, 1, 1], [side] * 3, [side] * 3, [1, 1, 1])
    path.parent.mkdir(parents=True, exist_ok=True)
    each = np.float32(bias) if np.ndim(bias) == 0 else np.asarray(bias, np.float32).reshape(1, -1, 1, 1, 1)
    model = ov.Model([ops.add(out, ops.constant(each))], [image], "tiny")
    ov.save_model(model, path, compress_to_fp16=False)


def write_onnx(path: Path, kernel: np.ndarray, bias: float | Sequence[float]) -> None:
    """Write the same network as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    side, kernel = kernel.shape[-1] // 2, kernel.reshape(-1, 1, *kernel.shape[-3:])
    sides = ["b", 1, "i", "j", "k"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "weights", "bias"], ["logits"], pads=[side] * 6)],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", len(kernel), "i", "j", "k"])],
        [
            numpy_helper.from_array(kernel.astype(np.float32), "weights"),
            numpy_helper.from_array(np.array(bias, dtype=np.float32).reshape(-1), "bias"),
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


# Logit = gain * mean of the scaled input + bias: soft tissue of about -720 to -230 HU, denser parts, and a label never seen.
BANDS = ((40.0, -8.0), (80.0, -30.0), (0.0, -50.0))
REGION_BANDS = ((40.0, -8.0), (40.0, -22.0), (0.0, -50.0))


def write_model_of_labels(
    folder: Path, labels: Sequence[Label], *, has_regions: bool = False, **changes: Any
) -> ModelCard:
    """Write a model folder whose network gives three labels by brightness: around, dense, and one that no voxel has.

    Args:
        labels: three, ascending by value.
        has_regions: sigmoid outputs for the nested regions `whole`, `core` and `never` instead of softmax.
    """
    bands, values = (REGION_BANDS, [label.value for label in labels])
    regions = tuple(
        Region(name=name, values=tuple(values[place:])) for place, name in enumerate(("whole", "core", "never"))
    )
    output = OutputContract(regions=regions)
    if not has_regions:
        bands, output = ((0.0, 0.0), *BANDS), OutputContract(activation="softmax")
    kernel = np.stack([np.full((3, 3, 3), gain / 27) for gain, _ in bands])
    card = tiny_card(**{"labels": tuple(labels), "output": output, "name": "tiny-labels"} | changes)
    bias = [each for _, each in bands]
    write_openvino(folder / "models/float32.xml", kernel, bias, patch=card.input.patch_shape)
    write_onnx(folder / "models/model.onnx", kernel, bias)
    return write_card(folder, card)
