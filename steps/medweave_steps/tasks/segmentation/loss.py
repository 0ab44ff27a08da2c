"""The loss: Dice plus cross-entropy of each label or region; voxels without annotation have no weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.tasks.segmentation.targets import IGNORED, ONE_LABEL, Targets

MaskedLoss = Callable[[Any, Any, Any], Any]
"""From logits, labels without negative values, and 1 for voxels with annotation, else 0 ([B, 1, I, J, K]), to a scalar tensor."""


def dice_cross_entropy(
    *,
    dice_weight: float,
    cross_entropy_weight: float,
    over_batch: bool = True,
    smoothing: float = 1.0,
    targets: Targets = ONE_LABEL,
) -> Callable[[Any, Any], Any]:
    """Return MONAI's Dice loss plus cross-entropy, each with a weight.

    - One label: Dice of the sigmoid and binary cross-entropy (MONAI's DiceCELoss).
    - Several labels: Dice of the softmax, the mean over the labels without the background, as in nnU-Net, and cross-entropy over
      labels and background (MONAI's DiceCELoss).
    - Regions: the mean over the regions of Dice of the sigmoid and of binary cross-entropy. MONAI's DiceCELoss takes the
      cross-entropy of a softmax here, which regions that overlap do not have.

    Args:
        over_batch: one Dice over all patches: per patch it would be undefined on the background patches, and one false voxel
            there would cost as much as a missed lesion. Else the mean of the patches' Dice, of which ranks can take the mean.
        smoothing: added to both sides of the fraction, voxels; DistMIS' epsilon.
        targets: what the channels are, and whether there are voxels without annotation.

    Returns:
        a callable (logits_BCIJK float32, label_BCIJK float32 as `Targets.encoded` has it) -> scalar tensor.
    Source: Milletari et al. 2016, 3DV, "V-Net"; Isensee et al. 2021, Nat Methods 18:203 (Dice + cross-entropy, batch Dice).
    """
    losses = require("monai.losses", extra="train")
    is_softmax = targets.is_softmax
    dice_options = {
        "sigmoid": not is_softmax, "softmax": is_softmax, "to_onehot_y": is_softmax, "include_background": not is_softmax,
        "batch": over_batch, "smooth_nr": smoothing, "smooth_dr": smoothing,
    }  # fmt: skip
    if targets.ignore_value is not None:
        masked_dice = _masked_dice(losses, dice_options)
        masked_cross_entropy = _masked_cross_entropy(is_softmax=is_softmax, over_batch=over_batch)

        def masked(logits_BCIJK: Any, label_BCIJK: Any) -> Any:
            counted, label = (label_BCIJK[:, :1] != IGNORED).to(label_BCIJK.dtype), label_BCIJK.clamp(min=0)
            return dice_weight * masked_dice(logits_BCIJK, label, counted) + (
                cross_entropy_weight * masked_cross_entropy(logits_BCIJK, label, counted)
            )

        return masked
    if targets.head.num_channels == 1 or is_softmax:
        whole: Callable[[Any, Any], Any] = losses.DiceCELoss(
            **dice_options, lambda_dice=dice_weight, lambda_ce=cross_entropy_weight
        )
        return whole
    dice, cross_entropy = losses.DiceLoss(**dice_options), require("torch", extra="train").nn.BCEWithLogitsLoss()

    def loss(logits_BCIJK: Any, label_BCIJK: Any) -> Any:
        return dice_weight * dice(logits_BCIJK, label_BCIJK) + cross_entropy_weight * cross_entropy(
            logits_BCIJK, label_BCIJK
        )

    return loss


def _masked_dice(losses: Any, options: dict[str, Any]) -> MaskedLoss:
    dice = losses.DiceLoss(**options | {"sigmoid": False, "softmax": False, "to_onehot_y": False})
    one_hot = require("monai.networks.utils", extra="train").one_hot

    def loss(logits_BCIJK: Any, label_BCIJK: Any, counted_BCIJK: Any) -> Any:
        probability = logits_BCIJK.softmax(1) if options["softmax"] else logits_BCIJK.sigmoid()
        if options["to_onehot_y"]:
            label_BCIJK = one_hot(label_BCIJK, logits_BCIJK.shape[1])
        return dice(probability * counted_BCIJK, label_BCIJK * counted_BCIJK)

    return loss


def _masked_cross_entropy(*, is_softmax: bool, over_batch: bool) -> MaskedLoss:
    functional = require("torch.nn.functional", extra="train")

    def loss(logits_BCIJK: Any, label_BCIJK: Any, counted_BCIJK: Any) -> Any:
        if is_softmax:
            voxel_loss = functional.cross_entropy(logits_BCIJK, label_BCIJK[:, 0].long(), reduction="none")[:, None]
        else:
            voxel_loss = functional.binary_cross_entropy_with_logits(logits_BCIJK, label_BCIJK, reduction="none")
        axes = tuple(range(0 if over_batch else 1, voxel_loss.ndim))
        number = counted_BCIJK.sum(axes).clamp(min=1) * voxel_loss.shape[1]
        return ((voxel_loss * counted_BCIJK).sum(axes) / number).mean()

    return loss
