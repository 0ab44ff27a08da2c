"""Parts of synthetic MR volumes: an isotropic grid, smooth random fields, ellipsoids, and the effects of a scanner.

Arrays are IJK; points are mm along these axes from the middle of the field of view. Which way they point is the caller's choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Axes_mm = tuple[Float, Float, Float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MrGrid:
    """Voxels of one size around the middle of the field of view.

    Attributes:
        shape_IJK: number of voxels along I, J, K.
        spacing_mm: side of a voxel.
        field_mm: field of view along I, J, K, which random fields depend on; voxels may cover less of it.
    """

    shape_IJK: tuple[int, int, int]
    spacing_mm: float
    field_mm: tuple[float, float, float]

    def axes_mm(self) -> Axes_mm:
        """Return the coordinates of the voxel centers from the middle of the volume, mm, ready to broadcast."""
        i, j, k = ((np.arange(n, dtype=np.float32) - (n - 1) / 2) * np.float32(self.spacing_mm) for n in self.shape_IJK)
        return i[:, None, None], j[None, :, None], k[None, None, :]


def smooth_field(grid: MrGrid, scale_mm: float, rng: np.random.Generator) -> Float:
    """Return a random field of about unit variance that changes over `scale_mm`; on another matrix the same field.

    Cubic B-splines on knots that far apart, one axis after the other.
    """
    weights, knots = [], []
    for axis, extent in zip(grid.axes_mm(), grid.field_mm, strict=True):
        number = int(np.ceil(extent / scale_mm)) + 4
        place = (axis.ravel() + extent / 2) / scale_mm + 1.5
        weights.append(_cubic(np.abs(place[:, None] - np.arange(number))).astype(np.float32))
        knots.append(number)
    field = rng.standard_normal(knots, dtype=np.float32) / np.float32(0.479**1.5)
    for weight in weights:
        field = np.asarray(np.tensordot(field, weight, axes=(0, 1)), np.float32)
    return field


def _cubic(distance: NDArray[np.floating]) -> NDArray[np.floating]:
    near = 2 / 3 - distance**2 + distance**3 / 2
    far: NDArray[np.floating] = np.maximum(2 - distance, 0) ** 3 / 6
    return np.where(distance < 1, near, far)


def ellipsoid(
    axes_mm: Axes_mm, center_mm: NDArray[np.floating], half_mm: NDArray[np.floating], turn: float = 0.0
) -> Float:
    """Return distance from a center in half axes: below 1 is inside; turned about the K axis by radians."""
    i, j, k = (axis - np.float32(c) for axis, c in zip(axes_mm, center_mm, strict=True))
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    a, b, c = np.asarray(half_mm, np.float32)
    distance: Float = np.sqrt(((cos * i + sin * j) / a) ** 2 + ((cos * j - sin * i) / b) ** 2 + (k / c) ** 2)
    return distance


def scanned(grid: MrGrid, signal_IJK: Float, rng: np.random.Generator) -> Float:
    """Return the signal with the effects of a scanner: blurred edges, an uneven coil, Rician noise, and a gain; 1 to 32000."""
    from scipy import ndimage

    blurred = ndimage.gaussian_filter(signal_IJK, 0.6 / grid.spacing_mm, truncate=3)
    bias = np.exp(np.float32(0.08) * smooth_field(grid, 90, rng))
    noise = rng.standard_normal((2, *grid.shape_IJK), dtype=np.float32) * np.float32(rng.uniform(12, 30))
    magnitude = np.hypot(blurred * bias + noise[0], noise[1])  # of a complex signal: Rician noise
    gain = np.exp(rng.normal(0, 0.35))
    clipped: Float = np.clip(magnitude * gain, 1, 32000)
    return clipped
