"""The loss: Dice plus binary cross-entropy."""

from __future__ import annotations

from typing import Any

from medweave_steps.runtime.imports import require


def dice_cross_entropy(
    *, dice_weight: float, cross_entropy_weight: float, over_batch: bool = True, smoothing: float = 1.0
) -> Any:
    """Return MONAI's DiceCELoss for one logit per voxel.

    Args:
        over_batch: one Dice over all patches: per patch it would be undefined on the background patches, and one false voxel
            there would cost as much as a missed lesion. Else the mean of the patches' Dice, of which ranks can take the mean.
        smoothing: added to both sides of the fraction, voxels; DistMIS' epsilon.

    Returns:
        a callable (logits_BCIJK float32, label_BCIJK float32 in {0, 1}) -> scalar tensor.
    Source: Milletari et al. 2016, 3DV, "V-Net"; Isensee et al. 2021, Nat Methods 18:203 (Dice + cross-entropy, batch Dice).
    """
    losses = require("monai.losses", extra="train")
    return losses.DiceCELoss(
        sigmoid=True,
        batch=over_batch,
        smooth_nr=smoothing,
        smooth_dr=smoothing,
        lambda_dice=dice_weight,
        lambda_ce=cross_entropy_weight,
    )
