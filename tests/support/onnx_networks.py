"""Small networks as float32 ONNX files, for the quantization to QDQ graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_steps.export.graphs import write_onnx

Shape = tuple[int, int, int]
Described = tuple[Callable[[], Any], int, Shape]


def _vgg16() -> Any:
    from medweave_steps.networks.classifiers import Vgg16

    return Vgg16(in_channels=3, num_classes=8, image_shape=(32, 32), width=0.125)


def _mobilenet(spatial_dims: int) -> Any:
    from medweave_steps.networks.classifiers import MobileNet

    return MobileNet(spatial_dims=spatial_dims, in_channels=3, num_classes=8, width=0.25)


def _unet(norm: str, activation: str) -> Any:
    from monai.networks.nets import UNet

    options = {"strides": (2, 2), "num_res_units": 2, "norm": norm, "act": activation}
    return UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(8, 16, 16), **options)


def _distmis() -> Any:
    from medweave_steps.networks.distmis import DistMisUnet

    return DistMisUnet(in_channels=2)


def _resenc() -> Any:
    from medweave_steps.networks.resenc import ResEncUnet

    stages = {
        "channels": (8, 16),
        "strides": ((1, 1, 1), (2, 2, 2)),
        "kernels": ((3, 3, 3), (3, 3, 3)),
        "blocks": (1, 1),
    }
    return ResEncUnet(in_channels=1, out_channels=2, **stages)


NETWORKS: dict[str, Described] = {
    "vgg16": (_vgg16, 3, (32, 32, 1)),
    "mobilenet": (lambda: _mobilenet(2), 3, (32, 32, 1)),
    "mobilenet-3d": (lambda: _mobilenet(3), 3, (16, 16, 16)),
    "unet-instance-prelu": (lambda: _unet("instance", "prelu"), 1, (16, 16, 16)),
    "unet-batch-relu": (lambda: _unet("batch", "relu"), 1, (16, 16, 16)),
    "distmis": (_distmis, 2, (16, 16, 16)),
    "resenc": (_resenc, 1, (16, 16, 16)),
}
"""Constructor, channels and shape of the image."""


def write_network(name: str, path: Path) -> list[np.ndarray]:
    """Write a network with random weights and batch statistics; return images for it, float32 [1, C, I, J, K] from 0 to 1."""
    import torch

    build, channels, shape = NETWORKS[name]
    torch.manual_seed(0)
    network = build()
    for module in network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            # Statistics near those of the data: random networks would map all images to one point.
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.2)
    rng = np.random.default_rng(0)
    images = [rng.random((1, channels, *shape), dtype=np.float32) for _ in range(4)]
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        with torch.no_grad():
            for _ in range(30):
                network.train()(torch.from_numpy(np.concatenate(images)))
    write_onnx(network.eval(), shape, path, channels=channels)
    return images


def write_graph(
    path: Path,
    nodes: Sequence[Any],
    constants: dict[str, np.ndarray],
    *,
    shape: Sequence[int] = (1, 3, 8, 8),
    opsets: Sequence[tuple[str, int]] = (("", 17),),
) -> None:
    """Write a graph from `image` to `logits`.

    Args:
        nodes: onnx.NodeProto.
        constants: by name.
        shape: of the image.
    """
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper, save

    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, list(shape))],
        [ValueInfoProto(name="logits")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in opsets], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(model, str(path))


def onnx_outputs(path: Path, image: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's output of a file, with exact int8 products on every processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    output: np.ndarray = session.run(None, {"image": image})[0]
    return output
