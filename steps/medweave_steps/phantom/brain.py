"""`generate_brain`: one synthetic brain in four MR contrasts with a tumor, from a seed.

Arrays are IJK = [right to left, front to back, feet to head], as files of MSD Task01 are stored; points are mm in that order from
the middle of the field of view. Skull-stripped: voxels outside the brain are 0 in every contrast. MR has no unit: each contrast of
each patient has another gain. The pure core of `medweave-step phantom brain`: no file is touched here.
Contrasts of tissues follow Menze et al. 2015, IEEE TMI 34:1993 (BRATS): edema is bright in FLAIR and T2, the enhancing rim after
gadolinium, and the core that does not enhance is dark in T1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_core.errors import UsageError
from medweave_steps.phantom.mr import Float, MrGrid, ellipsoid, scanned, smooth_field

FIELD_MM = (240.0, 240.0, 155.0)
CONTRASTS = ("FLAIR", "T1w", "T1gd", "T2w")
LABELS = {"0": "background", "1": "edema", "2": "non-enhancing tumor", "3": "enhancing tumour"}
"""As the public Task01 names them."""
OEDEMA, CORE, RIM = 1, 2, 3

_TISSUES = ("fluid", "grey", "white", "oedema", "core", "rim")
_INTENSITY = np.array(
    [
        [150, 700, 550, 1150, 750, 950],  # FLAIR
        [250, 650, 900, 550, 350, 620],  # T1w
        [250, 670, 920, 560, 380, 1450],  # T1gd
        [1500, 850, 600, 1150, 1250, 950],  # T2w
    ],
    np.float32,
)
_HALF_MM = (66.0, 83.0, 62.0)
_GREY_MM = 3.5
_LOW_GRADE = 0.2
"""Share of tumours without an enhancing part, about that of the public set's lower grades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainSpec:
    """Settings of a synthetic brain."""

    seed: int
    """Everything about the patient follows from it; another matrix shows the same brain and tumour."""
    matrix_size: int = 240
    """Rows and columns over 240 mm, 16 to 240; slices follow from the same voxel size over 155 mm."""

    def __post_init__(self) -> None:
        if not 16 <= self.matrix_size <= 240 or self.seed < 0:
            raise UsageError(
                "phantom brain: invalid geometry or seed.",
                seen=f"matrix_size {self.matrix_size}, seed {self.seed}",
                expected="16 to 240 rows, and a seed of 0 or more",
            )

    @property
    def spacing_mm(self) -> float:
        """Side of a voxel, mm."""
        return FIELD_MM[0] / self.matrix_size

    @property
    def shape_IJK(self) -> tuple[int, int, int]:
        """Number of voxels along I, J, K; 240 x 240 x 155 for the full matrix."""
        return self.matrix_size, self.matrix_size, int(FIELD_MM[2] / self.spacing_mm)

    @property
    def grid(self) -> MrGrid:
        """Voxel grid of all contrasts."""
        return MrGrid(shape_IJK=self.shape_IJK, spacing_mm=self.spacing_mm, field_mm=FIELD_MM)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainPhantom:
    """A synthetic brain: four contrasts and the ground truth.

    Attributes:
        image_CIJK: int16, arbitrary units, contrasts in the order of `CONTRASTS`, 0 outside of the brain.
        label_IJK: uint8, values of `LABELS`.
        spacing_mm: side of a voxel.
        enhances: whether the tumor has a rim.
    """

    image_CIJK: NDArray[np.int16]
    label_IJK: NDArray[np.uint8]
    spacing_mm: float
    enhances: bool


def generate_brain(spec: BrainSpec) -> BrainPhantom:
    """Return one patient: tissues, then the tumor, then the effects of a scanner.

    Args:
        spec: what to generate.
    """
    seeds = np.random.SeedSequence(spec.seed).spawn(3)
    shape_rng, tumour_rng, scan_rng = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds)
    depth_IJK = _depth_mm(spec, shape_rng)
    brain, folds = depth_IJK > 0, smooth_field(spec.grid, 9, shape_rng)
    sulci = (depth_IJK < 9) & (folds > 1.2)
    fluid = _ventricles(spec, shape_rng) | sulci
    grey = (depth_IJK < _GREY_MM + 5 * np.maximum(folds, -0.3)) | _deep_grey(spec)
    enhances = bool(tumour_rng.random() >= _LOW_GRADE)
    label = _tumour(spec, depth_IJK, fluid, tumour_rng, enhances=enhances)
    tissue = np.where(fluid, 0, np.where(grey, 1, 2)).astype(np.uint8)
    tissue = np.where(label > 0, label + 2, tissue)
    image = np.stack([_scanned(spec, intensity[tissue] * brain, brain, scan_rng) for intensity in _INTENSITY])
    return BrainPhantom(image_CIJK=image, label_IJK=label, spacing_mm=spec.spacing_mm, enhances=enhances)


def _depth_mm(spec: BrainSpec, rng: np.random.Generator) -> Float:
    """Return the approximate depth of each voxel below the folded surface of the two hemispheres, mm; negative outside."""
    half = np.array(_HALF_MM) * rng.uniform(0.94, 1.05, 3)
    depth = (1 - ellipsoid(spec.grid.axes_mm(), np.zeros(3), half)) * np.float32(half.min())
    depth += 2.0 * smooth_field(spec.grid, 30, rng) + 1.2 * smooth_field(spec.grid, 11, rng)
    i, _, k = spec.grid.axes_mm()
    fissure = np.abs(i + 1.5 * smooth_field(spec.grid, 60, rng)) - 1.5 + np.where(k < 10, 100, 0)
    cleft: Float = np.minimum(depth, fissure * 1.5 + 0.02)
    return cleft


def _ventricles(spec: BrainSpec, rng: np.random.Generator) -> NDArray[np.bool_]:
    size, axes_mm = rng.uniform(0.8, 1.35), spec.grid.axes_mm()
    inside = np.zeros(spec.shape_IJK, np.bool_)
    for side in (-1, 1):
        inside |= ellipsoid(axes_mm, np.array([side * 11.0, 2, 8]), np.array([6.0, 30, 8]) * size, side * 0.2) < 1
        inside |= ellipsoid(axes_mm, np.array([side * 20.0, 25, -2]), np.array([5.0, 9, 13]) * size) < 1
    inside |= ellipsoid(axes_mm, np.array([0.0, 2, -4]), np.array([2.5, 12, 9]) * size) < 1
    return inside


def _deep_grey(spec: BrainSpec) -> NDArray[np.bool_]:
    inside, axes_mm = np.zeros(spec.shape_IJK, np.bool_), spec.grid.axes_mm()
    for side in (-1, 1):
        inside |= ellipsoid(axes_mm, np.array([side * 12.0, 10, -6]), np.array([8.0, 14, 8])) < 1  # thalamus
        inside |= (
            ellipsoid(axes_mm, np.array([side * 25.0, -4, -4]), np.array([6.0, 16, 9]), side * -0.3) < 1
        )  # putamen
    return inside


def _tumour(
    spec: BrainSpec, depth_IJK: Float, fluid: NDArray[np.bool_], rng: np.random.Generator, *, enhances: bool
) -> NDArray[np.uint8]:
    """Return the label of a tumor inside the brain: edema, outside the ventricles, around a core, with a rim if it enhances."""
    half = rng.uniform(19, 40) * rng.uniform(0.8, 1.2, 3)
    direction = rng.normal(size=3)
    reach = np.array(_HALF_MM) - 0.6 * half.max() - 6
    centre = direction / np.linalg.norm(direction) * np.maximum(reach, 12) * rng.uniform(0.45, 0.9)
    centre[0] += np.copysign(8.0, centre[0])  # in one half of the brain
    distance = ellipsoid(spec.grid.axes_mm(), centre, half, float(rng.uniform(0, np.pi)))
    distance = distance + 0.16 * smooth_field(spec.grid, 16, rng)
    share = rng.uniform(0.42, 0.68)
    core = distance + 0.05 * smooth_field(spec.grid, 10, rng)
    rim = core > share * rng.uniform(0.62, 0.78) + 0.05 * smooth_field(spec.grid, 12, rng)
    label = np.where(distance < 1, OEDEMA, 0).astype(np.uint8)
    label[core < share] = CORE
    if enhances:
        label[(core < share) & rim] = RIM
    label[(depth_IJK <= 0) | (fluid & (label == OEDEMA))] = 0
    return label


def _scanned(
    spec: BrainSpec, signal_IJK: Float, brain: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int16]:
    """Return one contrast with the effects of a scanner, 0 outside of the brain."""
    stored: NDArray[np.int16] = np.rint(scanned(spec.grid, signal_IJK, rng) * brain).astype(np.int16)
    return stored
