"""The output bias that a training of the U-Net starts from."""

from __future__ import annotations

import math
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.tasks.segmentation.targets import ONE_LABEL, Targets


def start_from_rarity(network: Any, share: float, *, targets: Targets = ONE_LABEL) -> None:
    """Set the bias of the output so that the untrained network predicts as few lesion voxels as patches have.

    With softmax the labels have the share together, in equal parts; each region has the share alone.

    Args:
        network: MONAI's UNet, whose last convolution gives the logits.
        share: expected share of lesion voxels, in (0, 1).
        targets: what the channels are.
    Source: Lin et al. 2017, ICCV, "Focal Loss for Dense Object Detection", section 4.1.
    """
    torch = require("torch", extra="train")
    shape = (targets.head.num_channels,)
    biases = [
        tensor for name, tensor in network.named_parameters() if name.endswith("conv.bias") and tensor.shape == shape
    ]
    assert biases, "the last convolution has a bias for each output channel"
    with torch.no_grad():
        if targets.is_softmax:
            biases[-1].fill_(math.log(share / len(targets.head.labels) / (1 - share)))
            biases[-1][0] = 0.0
        else:
            biases[-1].fill_(float(torch.logit(torch.tensor(share))))
