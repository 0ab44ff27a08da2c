"""Runs the verb `classify` with tiny networks on small images and radiographs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classifications import RECORD_FILE, Classifications
from medweave_core.contracts.model import InputContract, ModelCard, OutputContract, Postprocessing
from medweave_core.contracts.volume import COLOR_CHANNELS, Triple, modality_of
from medweave_steps.cli import main
from medweave_steps.io.model.folder import write_card
from support.image_set import CLASSES, SHAPE
from support.openvino_models import tiny_card

COLOR_WEIGHTS = 10 * np.eye(3)  # logit of a class = 10 * (brightest pixel of its color) - 7


def write_classifier(
    folder: Path,
    *,
    classes: Sequence[ImageClass] = tuple(ImageClass(name=name) for name in CLASSES),
    channels: tuple[str, ...] = COLOR_CHANNELS,
    shape: Triple = SHAPE,
    weights: np.ndarray = COLOR_WEIGHTS,
    bias: float | Sequence[float] = -7.0,
    is_multi_label: bool = False,
    postprocessing: Postprocessing | None = None,
    **changes: Any,
) -> ModelCard:
    """Write a model folder whose logits are a linear function of the brightest pixel of each channel.

    Args:
        weights: [channel, class].
        bias: one, or one for each class.
        changes: other values for the card; with `precision="int8"` the network is the same, under the name of an int8 model.
    """
    values: dict[str, Any] = {
        "name": "tiny-classes", "task": "classification of images", "task_name": "classification", "labels": (),
        "classes": tuple(classes), "output": OutputContract(activation="sigmoid" if is_multi_label else "softmax"),
        "input": InputContract(
            spacing_mm=(1.0, 1.0, 1.0), window_hu=None, patch_shape=shape, patch_multiple=1, crop="none", unit="1",
            channels=len(channels), channel_names=channels, modality=modality_of(channels),
        ),
        "postprocessing": postprocessing or Postprocessing(temperature=2.0),
    }  # fmt: skip
    card = tiny_card(**(values | changes))
    offsets = np.broadcast_to(np.asarray(bias, np.float32), (len(classes),))
    _write_openvino(folder / f"models/{card.precision}.xml", weights, offsets, (len(channels), *card.input.patch_shape))
    _write_onnx(folder / "models/model.onnx", weights, offsets, (len(channels), *card.input.patch_shape))
    return write_card(folder, card)


def _write_openvino(path: Path, weights: np.ndarray, bias: np.ndarray, shape: tuple[int, ...]) -> None:
    import openvino as ov
    from openvino import opset13 as ops

    image = ops.parameter([-1, *shape], np.float32, name="image")
    brightest = ops.reduce_max(image, ops.constant(np.array([2, 3, 4])), False)
    logits = ops.add(
        ops.matmul(brightest, ops.constant(weights.astype(np.float32)), False, False), ops.constant(bias[None])
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    ov.save_model(ov.Model([logits], [image], "tiny"), path, compress_to_fp16=False)


def _write_onnx(path: Path, weights: np.ndarray, bias: np.ndarray, shape: tuple[int, ...]) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["image"], ["brightest"], axes=[2, 3, 4], keepdims=0),
            helper.make_node("Gemm", ["brightest", "weights", "bias"], ["logits"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["b", *shape])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", len(bias)])],
        [
            numpy_helper.from_array(weights.astype(np.float32), "weights"),
            numpy_helper.from_array(np.array(bias, np.float32), "bias"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


@dataclass
class Run:
    """A finished run of the verb."""

    exit_code: int
    output: Path
    report: Path

    @property
    def record(self) -> Classifications:
        """Return the record that was written."""
        document = json.loads((self.output / RECORD_FILE).read_text())
        return codec.from_json(Classifications, document, where="the record")


def classify(folder: Path, model: Path, batch: Path, *extra: str, output: str = "classifications") -> Run:
    """Run `medweave-step classify` in this process, with one thread."""
    report = folder / f"{output}_report.json"
    words = ["--model", str(model), "--case-batch", str(batch), "--output", str(folder / output)]
    code = main(["classify", *words, "--run-report", str(report), "--num-threads", "1", *extra])
    return Run(code, folder / output, report)
