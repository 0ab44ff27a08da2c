"""The network of a training, as its options describe it."""

from __future__ import annotations

from typing import Any

from medweave_steps.io.model.network import build_network
from medweave_steps.networks import network_type
from medweave_steps.runtime.imports import require
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.loop.cpu_kernels import replace_kernels


def architecture(config: TrainConfig, *, channels: int = 1) -> dict[str, Any]:
    """Return class and arguments of the network, as the model card and the Bundle have them.

    Args:
        channels: of an image.
    """
    network = network_type(config.network)
    return {"class": network.class_name, "arguments": network.arguments(config, channels)}


LESION_SHARE = 0.018
"""Lesion voxels among those of the training patches, about; its logit is -4."""


def seeded_network(config: TrainConfig, *, channels: int = 1) -> Any:
    """Return the network with weights drawn from the seed, on the CPU, with its CPU kernels; sets torch's global random state."""
    torch = require("torch", extra="train")
    torch.manual_seed(config.seed)
    network = build_network(architecture(config, channels=channels))
    if config.network == "unet":  # the paper's network starts from a probability of one half
        start_from_rarity(network, LESION_SHARE)
    replace_kernels(network, network_type(config.network).cpu_kernels)
    return network


def start_from_rarity(network: Any, share: float) -> None:
    """Set the bias of the output so that the untrained network predicts as few lesion voxels as patches have.

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
