"""Writes ONNX files as another program would, without torch: one 3-D convolution, or the brightest voxel of each channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SEGMENTATION = """\
name: Third-party nodules
task: Lung nodules in CT
input:
  spacing_mm: [2, 2, 2]
  window_hu: [-1000, 400]
  patch_shape: [16, 16, 16]
  patch_multiple: 1
  crop: none
labels:
  - {value: 1, name: nodule}
postprocessing: {threshold: 0.5, overlap: 0.25}
"""
CLASSIFICATION = """\
name: Third-party lesions
task_name: classification
input:
  spacing_mm: [1, 1, 1]
  window_hu: null
  patch_shape: [16, 12, 1]
  patch_multiple: 1
  crop: none
  channel_names: [red, green, blue]
output: {activation: softmax}
classes: [{name: MEL}, {name: NV}, {name: BCC}]
"""
Shape = Sequence[int | str]


def value(name: str, shape: Shape, kind: str = "FLOAT") -> Any:
    """Return the description of an input or output."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(shape))


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """Return a node."""
    from onnx import helper

    return helper.make_node(operator, list(inputs), list(outputs), **attributes)


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: dict[str, np.ndarray],
    *,
    domains: Sequence[str] = (),
) -> Any:
    """Return a model of opset 17, and of version 1 of other domains."""
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        list(nodes), "network", list(inputs), list(outputs),
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def convolution(
    *,
    shape: Shape = ("batch", 1, 16, 16, 16),
    out_channels: int = 1,
    last: Sequence[Any] = (),
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    kind: str = "FLOAT",
    domains: Sequence[str] = (),
) -> Any:
    """Return a convolution of 3 x 3 x 3 voxels that finds bright voxels.

    Args:
        shape: of the input.
        last: further nodes, from `features` to `logits`.
        inputs, outputs: further ones.
        kind: element type of the input and output as they are declared.
    """
    channels = shape[1] if isinstance(shape[1], int) else 1
    kernel = np.full((out_channels, channels, 3, 3, 3), 40 / 27)
    bias = np.linspace(-20, -10, out_channels)
    own = node("Conv", ["image", "weights", "bias"], ["features" if last else "logits"], pads=[1] * 6)
    out = (shape[0], out_channels, *shape[2:])
    return model_of(
        [own, *last],
        [value("image", shape, kind), *inputs],
        [value("logits", out, kind), *outputs],
        {"weights": kernel, "bias": bias},
        domains=domains,
    )


def brightest(*, shape: Shape = ("batch", 3, 16, 12, 1), classes: int = 3) -> Any:
    """Return a classification by the brightest pixel of each channel."""
    weights = 10 * np.eye(3, classes)
    nodes = [
        node("ReduceMax", ["image"], ["brightest"], axes=[2, 3, 4], keepdims=0),
        node("Gemm", ["brightest", "weights", "bias"], ["logits"]),
    ]
    described = [value("image", shape)], [value("logits", (shape[0], classes))]
    return model_of(nodes, *described, {"weights": weights, "bias": np.full(classes, -7.0)})


def write(folder: Path, model: Any, contract: str | None = SEGMENTATION) -> None:
    """Write network.onnx and, for a contract, contract.yml into a folder."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "network.onnx")
    if contract is not None:
        (folder / "contract.yml").write_text(contract, encoding="utf-8")
