"""The full augmentation of nnU-Net's recipe: rotation, scaling, gamma, noise and mirroring of patches with label maps.

Pure functions of arrays and a random stream. A rotated or scaled patch is interpolated from the volume around it, so that its
corners show tissue, not padding. Chances and ranges are those of the program nnU-Net v2 (`nnUNetTrainer.get_training_transforms`);
see Isensee et al. 2021, Nat Methods 18:203, supplementary note 4. Suffix legend: C channel, I J K voxel axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]
V = TypeVar("V", bound=np.generic)

ROTATION_CHANCE, LARGEST_ANGLE = 0.2, np.pi / 6
SCALING_CHANCE, SCALES = 0.2, (0.7, 1.4)
FLAT_PATCH, LARGEST_FLAT_ANGLE = 3, np.pi
"""A patch whose sides differ by more than this factor is only rotated around its shortest side, by any angle."""
INVERTED_GAMMA_CHANCE, GAMMA_CHANCE, GAMMAS = 0.1, 0.3, (0.7, 1.5)
NOISE_CHANCE, LARGEST_NOISE = 0.1, 0.1
"""Largest standard deviation of the noise, in the unit of a z-scored image."""
_TINY = 1e-7


def draw_matrix(patch_shape: Sequence[int], rng: np.random.Generator) -> Matrix | None:
    """Return a random rotation and scaling, from voxels of the patch to voxels of the volume, both from their center; mostly None.

    Args:
        patch_shape: voxels along I J K.
    """
    matrix: Matrix = np.eye(3)
    rotates, scales = rng.random() < ROTATION_CHANCE, rng.random() < SCALING_CHANCE
    if not rotates and not scales:
        return None
    shortest = int(np.argmin(patch_shape))
    is_flat = max(patch_shape) > FLAT_PATCH * min(patch_shape)
    for axis in range(3) if rotates else ():
        if is_flat and axis != shortest:
            continue
        largest = LARGEST_FLAT_ANGLE if is_flat else LARGEST_ANGLE
        matrix = matrix @ _rotation(axis, rng.uniform(-largest, largest))
    if scales:
        # As often smaller as larger.
        low, high = (SCALES[0], 1) if rng.random() < 0.5 else (1, SCALES[1])
        matrix = matrix * rng.uniform(low, high)
    return matrix


def _rotation(axis: int, angle: float) -> Matrix:
    one, other = (free for free in range(3) if free != axis)
    matrix: Matrix = np.eye(3)
    matrix[one, one] = matrix[other, other] = np.cos(angle)
    matrix[one, other], matrix[other, one] = -np.sin(angle), np.sin(angle)
    return matrix


def box_of(
    matrix: Matrix, center: npt.NDArray[np.float64], patch_shape: Sequence[int], shape: Sequence[int]
) -> tuple[slice, ...]:
    """Return the part of a volume that a rotated and scaled patch is interpolated from; at least one voxel.

    Args:
        center: of the patch in the volume, voxels.
        shape: of the volume.
    """
    half = (np.array(patch_shape) - 1) / 2
    corners = np.array([matrix @ (half * signs) for signs in itertools.product((-1, 1), repeat=3)]) + center
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, np.array(shape) - 1)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, low + 1, shape)
    return tuple(slice(a, b) for a, b in zip(low, high, strict=True))


def interpolated(
    array_IJK: npt.NDArray[V], matrix: Matrix, center: npt.NDArray[np.float64], patch_shape: Sequence[int],
    *, order: int, outside: float,
) -> npt.NDArray[V]:  # fmt: skip
    """Return a rotated and scaled patch, in the array's dtype.

    Args:
        array_IJK: the box of the volume.
        center: of the patch in the box, voxels.
        order: 1 is linear; 0 is nearest neighbor, for labels.
        outside: value beyond the box.
    """
    ndimage = require("scipy.ndimage", extra="train")
    offset = center - matrix @ ((np.array(patch_shape) - 1) / 2)
    result: npt.NDArray[V] = ndimage.affine_transform(
        array_IJK, matrix, offset, tuple(patch_shape), order=order, mode="constant", cval=outside, prefilter=False
    )
    return result


def with_full_intensity_changes(image_CIJK: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return a z-scored image with noise and gamma changes, each only sometimes."""
    if rng.random() < NOISE_CHANCE:
        sd = np.float32(rng.uniform(0, LARGEST_NOISE))
        image_CIJK = image_CIJK + sd * rng.standard_normal(image_CIJK.shape, dtype=np.float32)
    for chance, sign in ((INVERTED_GAMMA_CHANCE, -1), (GAMMA_CHANCE, 1)):
        if rng.random() < chance:
            low, high = (GAMMAS[0], 1) if rng.random() < 0.5 else (1, GAMMAS[1])
            image_CIJK = sign * np.stack(
                [_with_gamma(sign * channel, rng.uniform(low, high)) for channel in image_CIJK]
            )
    return image_CIJK


def _with_gamma(image_IJK: FloatArray, gamma: float) -> FloatArray:
    """Return an image whose values, as fractions of their range, are raised to a power; mean and standard deviation stay."""
    low, mean, sd = image_IJK.min(), image_IJK.mean(), image_IJK.std()
    span = image_IJK.max() - low
    changed = ((image_IJK - low) / (span + np.float32(_TINY))) ** np.float32(gamma)
    scale = sd / max(float(changed.std()), _TINY)
    result: FloatArray = (changed - changed.mean()) * np.float32(scale) + mean
    return result
