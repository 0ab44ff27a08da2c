"""Sliding windows with Gaussian weights, at MONAI's positions.

Source: `monai.inferers.sliding_window_inference`, mode "gaussian", sigma_scale 0.125, padding 0 (MONAI 1.5); nnU-Net
(Isensee et al. 2021, Nat Methods 18:203) blends likewise. A test holds both to 1e-4.
Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import InputContract, ModelCard
from medweave_core.contracts.volume import Triple
from medweave_steps.inference.engine import Engine, check_finite
from medweave_steps.inference.head import OutputHead
from medweave_steps.inference.intensity import FloatArray, air_of, scaled

SIGMA_SCALE = 0.125
_SMALLEST_WEIGHT = 1e-3


def scale_hu(volume: npt.NDArray[np.floating], contract: InputContract) -> FloatArray:
    """Return the network's input, float32, as `intensity.scaled`; without a window it may be the volume itself."""
    return scaled(volume, contract.window_hu, contract.scaled_range)


def window_starts(size: int, window: int, overlap: float) -> list[int]:
    """Return the first voxel of each window on one axis; the last window is moved inwards so that it ends with the axis.

    Args:
        size: voxels on the axis, at least `window`.
        window: voxels of a window.
        overlap: share of a window that it has in common with the next, in [0, 1).
    """
    if size <= window:
        return [0]
    step = max(int(window * (1 - overlap)), 1)
    return [min(i * step, size - window) for i in range(math.ceil((size - window) / step) + 1)]


def gaussian_weights(window: Triple) -> FloatArray:
    """Return the weight of each voxel of a window, float32 [I, J, K], largest (near 1) in the middle and at least 0.001."""
    axes = []
    for size in window:
        x = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
        axes.append(np.exp(x**2 / np.float32(-2 * (SIGMA_SCALE * size) ** 2)))
    weights: FloatArray = axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]
    return np.maximum(weights, np.float32(max(float(weights.min()), _SMALLEST_WEIGHT)))


def window_slices(shape: Triple, window: Triple, overlap: float) -> list[tuple[slice, slice, slice]]:
    """Return all windows of a volume at least as large as a window, last axis fastest."""
    starts = [window_starts(size, side, overlap) for size, side in zip(shape, window, strict=True)]
    return [
        (slice(i, i + window[0]), slice(j, j + window[1]), slice(k, k + window[2]))
        for i, j, k in itertools.product(*starts)
    ]


def predict_probability(engine: Engine, volume_CIJK: npt.NDArray[np.floating], card: ModelCard) -> FloatArray:
    """Return the probability of each channel of the network's output, for a whole volume.

    Overlapping logits are averaged with Gaussian weights, then put through the activation of the output contract. A volume smaller
    than a window is padded on both sides with air (the low end of the scaled range), MR with its mean, 0.

    Args:
        engine: the opened model; its batch shape is the window's shape.
        volume_CIJK: [channel, I, J, K] on the card's grid, HU or, for MR, standard deviations.
        card: contains window_hu, scaled range, overlap and output contract.
    Returns:
        float32 [C, I, J, K] in [0, 1]: one channel for one label; with softmax the first channel is the background.
    Raises:
        InternalError: the network gave values that are not finite.
    """
    window = engine.batch_shape[2:]
    air = air_of(card.input.window_hu, card.input.scaled_range)
    image_CIJK, inner = _padded(scale_hu(volume_CIJK, card.input), window, air)
    shape: Triple = image_CIJK.shape[1:]
    weights, head = gaussian_weights(window), OutputHead.of(card)
    total, weight_sum = np.zeros((head.num_channels, *shape), np.float32), np.zeros(shape, np.float32)
    for where, logits_CIJK in _logits(engine, image_CIJK, window_slices(shape, window, card.postprocessing.overlap)):
        logits_CIJK *= weights
        total[:, *where] += logits_CIJK
        weight_sum[where] += weights
    logits = total[:, *inner] / weight_sum[inner]
    # One pass over the sum instead of one per window: NaN and infinity survive additions.
    check_finite(logits, card, what="voxels" if head.is_binary else "values")
    return head.probabilities(logits)


def _logits(
    engine: Engine, image_CIJK: FloatArray, slices: list[tuple[slice, slice, slice]]
) -> Iterator[tuple[tuple[slice, slice, slice], FloatArray]]:
    batch = np.zeros(engine.batch_shape, dtype=np.float32)
    size = engine.batch_shape[0]
    for first in range(0, len(slices), size):
        group = slices[first : first + size]
        for b, where in enumerate(group):
            batch[b] = image_CIJK[:, *where]
        logits_BCIJK = engine.infer(batch)
        for b, where in enumerate(group):
            yield where, logits_BCIJK[b]


def _padded(
    image_CIJK: FloatArray, window: tuple[int, ...], air: float
) -> tuple[FloatArray, tuple[slice, slice, slice]]:
    # MONAI's split: the smaller half before, the larger half after.
    shape = image_CIJK.shape[1:]
    missing = [max(side - size, 0) for size, side in zip(shape, window, strict=True)]
    before = [m // 2 for m in missing]
    i, j, k = (slice(b, b + size) for b, size in zip(before, shape, strict=True))
    if any(missing):
        width = [(0, 0), *((b, m - b) for b, m in zip(before, missing, strict=True))]
        image_CIJK = np.pad(image_CIJK, width, constant_values=np.float32(air))
    return image_CIJK, (i, j, k)
