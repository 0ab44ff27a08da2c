"""The network: MONAI's 3-D U-Net as configured, or one of DistMIS' two."""

from __future__ import annotations

import math
from typing import Any

from medweave_steps.io.model.network import build_network
from medweave_steps.runtime.imports import require
from medweave_steps.train.config import TrainConfig


def architecture(config: TrainConfig, *, channels: int = 1) -> dict[str, Any]:
    """Class and arguments of the network, as the model card and the Bundle keep them.

    Batch norm unless told otherwise, because its statistics are fixed after training: the result does not depend on the window's
    size, and inference programs fold it into the convolutions. ReLU, because it costs less than PReLU and quantises well.

    Args:
        channels: of an image.
    Source: Çiçek et al. 2016, MICCAI, "3D U-Net"; Kerfoot et al. 2019, STACOM, for MONAI's form of it; `networks.distmis`.
    """
    if config.network != "unet":
        variant = config.network.removeprefix("distmis-").replace("-", "_")
        arguments: dict[str, Any] = {"variant": variant, "in_channels": channels, "norm": config.norm}
        if variant == "as_published":
            arguments |= {"depth": config.patch_shape[2]}
        return {"class": "medweave_steps.networks.distmis.DistMisUnet", "arguments": arguments}
    return {
        "class": "monai.networks.nets.UNet",
        "arguments": {
            "spatial_dims": 3,
            "in_channels": channels,
            "out_channels": 1,
            "channels": list(config.channels),
            "strides": list(config.strides),
            "num_res_units": config.residual_units,
            "norm": _norm(config),
            "act": "RELU",
        },
    }


def _norm(config: TrainConfig) -> Any:
    """As MONAI names it. Groups of DistMIS' number, or as many as divide the channels of every level."""
    if config.norm == "group":
        return ["GROUP", {"num_groups": math.gcd(NUM_GROUPS, *config.channels)}]
    return ["INSTANCE", {"affine": True}] if config.norm == "instance" else "BATCH"


NUM_GROUPS = 8
LESION_SHARE = 0.018
"""Lesion voxels among those of the training patches, about; its logit is -4."""


def seeded_network(config: TrainConfig, *, channels: int = 1) -> Any:
    """The network with weights drawn from the seed, on the CPU; the global random state of torch is set by this."""
    torch = require("torch", extra="train")
    torch.manual_seed(config.seed)
    network = build_network(architecture(config, channels=channels))
    if config.network == "unet":  # the paper's starts from a half
        start_from_rarity(network, LESION_SHARE)
    return network


def start_from_rarity(network: Any, share: float) -> None:
    """Sets the bias of the output so that an untrained network says "lesion" as rarely as lesions are.

    Args:
        network: MONAI's UNet, whose last convolution gives the logit.
        share: expected share of lesion voxels, in (0, 1).
    Source: Lin et al. 2017, ICCV, "Focal Loss for Dense Object Detection", section 4.1.
    """
    torch = require("torch", extra="train")
    biases = [
        tensor for name, tensor in network.named_parameters() if name.endswith("conv.bias") and tensor.shape == (1,)
    ]
    assert biases, "the last convolution has one output channel with a bias"
    with torch.no_grad():
        biases[-1].fill_(float(torch.logit(torch.tensor(share))))
