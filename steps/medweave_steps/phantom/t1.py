"""`generate_t1`: one synthetic T1-weighted head whose ventricles and hippocampi depend on the group of the subject, from a seed.

Arrays are IJK = [left to right, back to front, feet to head] (RAS); points are mm in that order from the middle of the field of
view. MR has no unit: each subject has another gain. The pure core of `medweave-step phantom t1`: no file is touched here.
Sizes of structures are those of the phantom: they separate the groups well enough to try a classifier, and describe no patients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.mr import Float, MrGrid, ellipsoid, scanned, smooth_field

Mask = NDArray[np.bool_]

FIELD_MM = (192.0, 224.0, 192.0)
VENTRICLE, HIPPOCAMPUS = 1, 2
LABELS = {VENTRICLE: "ventricle", HIPPOCAMPUS: "hippocampus"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Mean scale of the axes of two structures in a group; 1 is the size in the group NC."""

    ventricle: float
    hippocampus: float


SIZES: Mapping[str, Sizes] = {
    "AD": Sizes(ventricle=1.36, hippocampus=0.84),
    "pMCI": Sizes(ventricle=1.24, hippocampus=0.89),
    "sMCI": Sizes(ventricle=1.12, hippocampus=0.95),
    "NC": Sizes(ventricle=1.0, hippocampus=1.0),
}
SPREAD = Sizes(ventricle=0.12, hippocampus=0.05)
"""Standard deviation of the scale among the subjects of a group."""
_SIDE_SPREAD = 0.03

_SIGNAL = {"air": 0, "bone": 90, "fluid": 200, "gray": 620, "white": 900, "skin": 1000}
_BRAIN_CENTER_MM = np.array([0.0, -4.0, 16.0])
_BRAIN_HALF_MM = np.array([66.0, 83.0, 62.0])
_FLUID_MM, _BONE_MM = 2.5, 9.0
"""Depth below the brain's surface at which the fluid around it and the skull end, with the opposite sign."""
_HEAD = (np.array([0.0, -4.0, 0.0]), np.array([79.0, 99.0, 93.0]))
_NOSE = (np.array([0.0, 97.0, -30.0]), np.array([12.0, 13.0, 20.0]))
_GRAY_MM = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class T1Spec:
    """Settings of a synthetic head.

    Attributes:
        seed: everything about the subject follows from it and from the group; another spacing shows the same head.
        group: one of `SIZES`.
        spacing_mm: side of a voxel.
    """

    seed: int
    group: str
    spacing_mm: float = 2.0

    @property
    def grid(self) -> MrGrid:
        """Voxel grid; 96 x 112 x 96 voxels of 2 mm."""
        i, j, k = (round(side / self.spacing_mm) for side in FIELD_MM)
        return MrGrid(shape_IJK=(i, j, k), spacing_mm=self.spacing_mm, field_mm=FIELD_MM)


@dataclass(frozen=True, slots=True, kw_only=True)
class T1Phantom:
    """A synthetic head.

    Attributes:
        image_IJK: int16, arbitrary units.
        brain_IJK: uint8, 1 inside of the skull, with ventricles and the fluid around the brain.
        label_IJK: uint8, values of `LABELS`.
        spacing_mm: side of a voxel.
    """

    image_IJK: NDArray[np.int16]
    brain_IJK: NDArray[np.uint8]
    label_IJK: NDArray[np.uint8]
    spacing_mm: float

    def volume_ml(self, label: int) -> float:
        """Return the volume of a structure."""
        return float(np.count_nonzero(self.label_IJK == label)) * self.spacing_mm**3 / 1000


def generate_t1(spec: T1Spec) -> T1Phantom:
    """Return one head: the surface of the brain, its structures, then the effects of a scanner."""
    grid = spec.grid
    seeds = np.random.SeedSequence(spec.seed).spawn(3)
    shape_rng, size_rng, scan_rng = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds)
    depth_mm, folds = _depth_mm(grid, shape_rng), smooth_field(grid, 9, shape_rng)
    brain = depth_mm > -_FLUID_MM
    label = _structures(spec, size_rng)
    label[~brain] = 0
    signal = _outside(grid, depth_mm)
    # The two hemispheres: their surface has folds and a fissure between them.
    folded_mm = np.minimum(depth_mm, _fissure_mm(grid, shape_rng))
    gray = (folded_mm < _GRAY_MM + 5 * np.maximum(folds, -0.3)) | _deep_gray(grid) | (label == HIPPOCAMPUS)
    fluid = (folded_mm < 0) | ((folded_mm < 9) & (folds > 1.2)) | (label == VENTRICLE)
    tissue = np.where(fluid, _SIGNAL["fluid"], np.where(gray, _SIGNAL["gray"], _SIGNAL["white"]))
    signal = np.where(brain, tissue, signal).astype(np.float32)
    image = np.rint(scanned(grid, signal, scan_rng)).astype(np.int16)
    return T1Phantom(image_IJK=image, brain_IJK=brain.astype(np.uint8), label_IJK=label, spacing_mm=spec.spacing_mm)


def _depth_mm(grid: MrGrid, rng: np.random.Generator) -> Float:
    """Return the approximate depth below the surface of the brain, mm; negative outside."""
    half = _BRAIN_HALF_MM * rng.uniform(0.94, 1.03, 3)
    depth = (1 - ellipsoid(grid.axes_mm(), _BRAIN_CENTER_MM, half)) * np.float32(half.min())
    depth += 1.5 * smooth_field(grid, 30, rng) + 1.0 * smooth_field(grid, 11, rng)
    return depth


def _fissure_mm(grid: MrGrid, rng: np.random.Generator) -> Float:
    """Return the distance from the fissure between the hemispheres, mm; far away below the upper part of the brain."""
    i, _, k = grid.axes_mm()
    distance = (np.abs(i + np.float32(1.5) * smooth_field(grid, 60, rng)) - np.float32(1.5)) * np.float32(1.5)
    below: Mask = k < _BRAIN_CENTER_MM[2] + 12
    return np.where(below, np.float32(100), distance)


def _outside(grid: MrGrid, depth_mm: Float) -> Float:
    """Return the signal outside of the brain: bone, and the soft tissue of a head with a nose, in air."""
    head = np.zeros(grid.shape_IJK, np.bool_)
    for center_mm, half_mm in (_HEAD, _NOSE):
        _add(head, grid, center_mm, half_mm)
    bone = depth_mm > -_BONE_MM
    return np.where(bone, _SIGNAL["bone"], np.where(head, _SIGNAL["skin"], _SIGNAL["air"])).astype(np.float32)


def _structures(spec: T1Spec, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return ventricles and hippocampi as values of `LABELS`; the inferior horn of a ventricle fills what a hippocampus leaves."""
    grid, mean = spec.grid, SIZES[spec.group]
    ventricle_size, hippocampus_size = (
        mean.ventricle + SPREAD.ventricle * float(np.clip(rng.standard_normal(), -2.5, 2.5)),
        mean.hippocampus + SPREAD.hippocampus * float(np.clip(rng.standard_normal(), -2.5, 2.5)),
    )
    ventricle, hippocampus = (np.zeros(grid.shape_IJK, np.bool_) for _ in range(2))
    for side in (-1, 1):
        wide = ventricle_size * (1 + _SIDE_SPREAD * rng.uniform(-1, 1))
        thick = hippocampus_size * (1 + _SIDE_SPREAD * rng.uniform(-1, 1))
        _add(ventricle, grid, _at(side * 11, -2, 8), np.array([6.0, 30, 8]) * wide, side * -0.2)
        _add(ventricle, grid, _at(side * 20, -25, -2), np.array([5.0, 9, 13]) * wide)
        _add(ventricle, grid, _at(side * 28, -10, -16), np.array([6.5, 19, 6.5]))
        _add(hippocampus, grid, _at(side * 26, -10, -18), np.array([6.5, 19, 6.5]) * thick)
    _add(ventricle, grid, _at(0, -2, -4), np.array([2.5, 12, 9]) * ventricle_size)
    return np.where(hippocampus, HIPPOCAMPUS, np.where(ventricle, VENTRICLE, 0)).astype(np.uint8)


def _deep_gray(grid: MrGrid) -> Mask:
    inside = np.zeros(grid.shape_IJK, np.bool_)
    for side in (-1, 1):
        _add(inside, grid, _at(side * 12, -10, -6), np.array([8.0, 14, 8]))  # thalamus
        _add(inside, grid, _at(side * 25, 4, -4), np.array([6.0, 16, 9]), side * 0.3)  # putamen
    return inside


def _at(right: float, front: float, up: float) -> NDArray[np.floating]:
    """Return a point of the brain, mm from its middle."""
    point: NDArray[np.floating] = _BRAIN_CENTER_MM + np.array([right, front, up])
    return point


def _add(
    inside: Mask, grid: MrGrid, center_mm: NDArray[np.floating], half_mm: NDArray[np.floating], turn: float = 0.0
) -> None:
    """Add an ellipsoid to a mask; only voxels around it are computed."""
    axes_mm, reach = grid.axes_mm(), float(np.max(half_mm))
    box = tuple(
        slice(*np.searchsorted(axis.ravel(), (center - reach, center + reach)))
        for axis, center in zip(axes_mm, center_mm, strict=True)
    )
    i, j, k = (axis.ravel()[part] for axis, part in zip(axes_mm, box, strict=True))
    inside[box] |= ellipsoid((i[:, None, None], j[None, :, None], k[None, None, :]), center_mm, half_mm, turn) < 1
