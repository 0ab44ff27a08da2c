"""Random augmentation that preserves lesions. Pure functions of an array and a random stream."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
V = TypeVar("V", bound=np.generic)

GAIN, OFFSET = 0.05, 0.01
"""Largest relative and absolute change of the scaled image. Scanners are calibrated to air and water: 0.01 is 14 HU of a
1400 HU window, and ground glass is only some 200 HU brighter than lung."""
NOISE_CHANCE, NOISE = 0.3, 0.02
"""How often noise is added, and its largest standard deviation, on the scaled image."""


def mirrored(
    image_CIJK: FloatArray, label: npt.NDArray[V], rng: np.random.Generator
) -> tuple[FloatArray, npt.NDArray[V]]:
    """Mirror image and label along each of the last three axes with probability one half."""
    for axis in range(-3, 0):
        if rng.random() < 0.5:
            image_CIJK, label = np.flip(image_CIJK, axis), np.flip(label, axis)
    return image_CIJK, label


def augmented(image_CIJK: FloatArray, label_IJK: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Mirror each axis with probability one half and rotate the axial plane by a multiple of 90° (180° if its sides differ)."""
    image_CIJK, label_IJK = mirrored(image_CIJK, label_IJK, rng)
    turns = int(rng.integers(4))
    if label_IJK.shape[0] != label_IJK.shape[1]:
        turns -= turns % 2
    return np.rot90(image_CIJK, turns, (-3, -2)), np.rot90(label_IJK, turns, (0, 1))


def changed_intensity(image_CIJK: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return an image with another scanner's calibration and, sometimes, more noise."""
    gain, offset = rng.uniform(1 - GAIN, 1 + GAIN), rng.uniform(-OFFSET, OFFSET)
    changed = image_CIJK * np.float32(gain) + np.float32(offset)
    if rng.random() < NOISE_CHANCE:
        changed += rng.standard_normal(changed.shape, dtype=np.float32) * np.float32(rng.uniform(0, NOISE))
    return changed
