"""Training patches: where they are cut, and in which order.

Every patch has its own random stream, seeded by (seed, step, place in the batch): the order is the same whatever the number of
ranks, and a resumed training needs no state but the step. Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple, Triple_mm
from medweave_core.errors import UserInputError
from medweave_steps.inference.intensity import air_of, scaled
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.components import connected_components
from medweave_steps.runtime.imports import require
from medweave_steps.tasks.segmentation.targets import ONE_LABEL, Targets
from medweave_steps.training.data import full_augmentation
from medweave_steps.training.data.augment import augmented, changed_intensity, mirrored
from medweave_steps.training.data.batch import Batch, FloatArray, Patch, joined
from medweave_steps.training.data.case_cache import Sample

BRIGHT_HU = -400.0
"""Midway between aerated lung (-850 HU) and blood (45 HU): a bright voxel is mostly vessel, airway wall or nodule."""
THICK_HU, THICK_MM, THICK_SHARE = -300.0, 4.0, 0.85
"""A voxel is in a thick structure if this share of a box of about this width around it is brighter than that."""
MAX_POINTS = 4000
BRIGHT_JITTER, THICK_JITTER = 6.0, 8.0
EDGE_VOXELS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingCase:
    """One case: its arrays, memory-mapped, and the positions for patches.

    Attributes:
        case_id: for messages.
        volume_CIJK: float32, HU or, for MR, standard deviations.
        label_IJK: uint8, 0 is background.
        lesion_centres: (n, 3), voxels: middle of each lesion's bounding box.
        lesion_extents: (n, 3), voxels: sides of that box.
        lesion_values: (n,) label of each lesion.
        bright_points: (m, 3) int16: bright lung voxels that are no lesion.
        thick_points: (t, 3) int16: those of them that lie inside thick structures, mostly the vessels of the hila.
    """

    case_id: str
    volume_CIJK: FloatArray
    label_IJK: npt.NDArray[np.uint8]
    lesion_centres: npt.NDArray[np.float64]
    lesion_extents: npt.NDArray[np.float64]
    lesion_values: npt.NDArray[np.uint8]
    bright_points: npt.NDArray[np.int16]
    thick_points: npt.NDArray[np.int16]


def open_training_case(
    case: CaseFolder, *, spacing_mm: Triple_mm, seed: int, has_lungs: bool = True, targets: Targets = ONE_LABEL
) -> TrainingCase:
    """Return a case with its lesions and bright structures; reads its arrays once and leaves them memory-mapped.

    Args:
        has_lungs: the cases were cropped to the lungs, in which bright structures are searched.
        seed: for the choice of points, where there are more than `MAX_POINTS`.
        targets: labels whose lesions are searched.
    Raises:
        UserInputError: volume, label and lung mask differ in shape.
    """
    volume, label = case.volume_CIJK(), case.label_IJK()
    lung = case.lung_IJK() if has_lungs else None
    if not volume.shape[1:] == label.shape == (label if lung is None else lung).shape:
        raise UserInputError(
            f"the arrays of {case.case.case_id} have different shapes.",
            seen=f"volume {volume.shape[1:]}, label {label.shape}" + ("" if lung is None else f", lung {lung.shape}"),
            expected="arrays of the same shape",
            do="run preprocess again",
        )
    centres, extents, values = _lesions(label, targets)
    bright = thick = np.zeros((0, 3), np.int16)
    if lung is not None:
        free_lung, rng = np.asarray(lung & (label == 0)), np.random.default_rng(seed)
        bright = _some_points(free_lung & (volume[0] > BRIGHT_HU), rng)
        thick = _some_points(free_lung & _thick(volume[0], spacing_mm), rng)
    return TrainingCase(
        case_id=case.case.case_id,
        volume_CIJK=volume,
        label_IJK=label,
        lesion_centres=centres,
        lesion_extents=extents,
        lesion_values=values,
        bright_points=bright,
        thick_points=thick,
    )


def _thick(volume_IJK: FloatArray, spacing_mm: Triple_mm) -> npt.NDArray[np.bool_]:
    ndimage = require("scipy.ndimage", extra="train")
    box = [round(THICK_MM / spacing) + 1 for spacing in spacing_mm]
    bright = (volume_IJK > THICK_HU).astype(np.float32)
    thick: npt.NDArray[np.bool_] = ndimage.uniform_filter(bright, box) > THICK_SHARE
    return thick


def _some_points(mask_IJK: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.int16]:
    voxels = np.flatnonzero(mask_IJK)
    if len(voxels) > MAX_POINTS:
        voxels = np.sort(rng.choice(voxels, MAX_POINTS, replace=False))
    return np.stack(np.unravel_index(voxels, mask_IJK.shape), axis=1).astype(np.int16)


def _lesions(
    label_IJK: npt.NDArray[np.uint8], targets: Targets
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """Return centers, sides and labels of the lesions of all labels, label by label."""
    boxes = [lesion_boxes(targets.mask_of_label(label_IJK, label)) for label in targets.head.labels]
    values = [
        np.full(len(centres), label.value, np.uint8)
        for (centres, _), label in zip(boxes, targets.head.labels, strict=True)
    ]
    return (
        np.concatenate([centres for centres, _ in boxes]),
        np.concatenate([extents for _, extents in boxes]),
        np.concatenate(values),
    )


def lesion_boxes(
    label_IJK: npt.NDArray[np.uint8] | npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return center and sides, in voxels, of the bounding box of each 26-connected lesion; both of shape (n, 3)."""
    lesions = connected_components(label_IJK > 0)
    index = np.stack(np.unravel_index(lesions.voxels, label_IJK.shape), axis=1)
    low, high = np.full((lesions.num, 3), np.iinfo(np.int64).max), np.full((lesions.num, 3), -1)
    np.minimum.at(low, lesions.labels, index)
    np.maximum.at(high, lesions.labels, index)
    return (low + high) / 2, (high - low + 1).astype(np.float64)


class PatchSampler:
    """A sampler that cuts the patches of any step.

    A patch lies on a lesion with chance `lesion_share`, each lesion of the training set being as likely as any other (by
    voxels, one large lesion would hide ten small ones); it holds the whole lesion where that fits. Of several labels, each label
    that has a lesion is as likely as any other, then each of its lesions. The other patches come from a random case: in cases
    cropped to the lungs, around a bright structure with chance `bright_share` or a thick one with chance `thick_share`, where
    false positives arise; else, and in all other cases, anywhere.
    """

    def __init__(
        self,
        cases: Sequence[TrainingCase],
        *,
        patch_shape: Triple,
        batch_size: int,
        window_hu: tuple[float, float] | None,
        lesion_share: float,
        bright_share: float,
        thick_share: float,
        augment: bool,
        seed: int,
        scaled_range: tuple[float, float] = (0.0, 1.0),
        is_fully_augmented: bool = False,
        targets: Targets = ONE_LABEL,
    ) -> None:
        self.targets = targets
        self.cases, self.batch_size, self.window_hu, self.seed = tuple(cases), batch_size, window_hu, seed
        self.lesion_share, self.bright_share, self.thick_share = lesion_share, bright_share, thick_share
        self.augment = augment
        self.scaled_range, self.is_fully_augmented = scaled_range, augment and is_fully_augmented
        self.patch_shape = np.array(patch_shape)
        self.lesions = [(c, n) for c, case in enumerate(self.cases) for n in range(len(case.lesion_centres))]
        values = [int(self.cases[c].lesion_values[n]) for c, n in self.lesions]
        self._by_label = [
            [place for place, own in zip(self.lesions, values, strict=True) if own == value]
            for value in sorted(set(values))
        ]

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's patches of a step's global batch."""
        patches = [self._patch(step, place) for place in range(rank, self.batch_size, world_size)]
        return joined(patches, num_together=self.batch_size)

    def divide_memory(self, num_processes: int) -> None:
        """Divide the memory for cases among processes that cut a rank's batches; this sampler caches no case."""

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of patches that a rank has trained on in the first steps."""
        return len(range(rank, self.batch_size, world_size)) * steps

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding patches of a rank in the first steps: none, because every rank has patches in every step."""
        return 0

    def digest(self) -> str:
        """Return the SHA-256 of lesions and bright structures, from all voxels of the cases."""
        digest = hashlib.sha256()
        for case in self.cases:
            digest.update(f"{case.case_id} {case.volume_CIJK.shape[-3:]}".encode())
            for places in (case.lesion_centres, case.lesion_extents, case.bright_points, case.thick_points):
                digest.update(f" {places.shape} ".encode() + places.tobytes())
            if len(self.targets.head.labels) > 1:
                digest.update(case.lesion_values.tobytes())
        return digest.hexdigest()

    def _patch(self, step: int, place: int) -> Patch:
        rng = np.random.default_rng((self.seed, step, place))
        case, middle = self._middle(rng)
        return self._cut(case, middle, rng)

    def _cut(self, case: TrainingCase, middle: npt.NDArray[np.float64], rng: np.random.Generator) -> Patch:
        matrix = full_augmentation.draw_matrix(self.patch_shape.tolist(), rng) if self.is_fully_augmented else None
        sample = self._plain(case, middle) if matrix is None else self._interpolated(case, middle, matrix)
        return self._changed(sample, case, rng)

    def _low(self, case: TrainingCase, middle: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the first voxel of a patch, which stays in the volume where it can."""
        most = np.maximum(np.array(case.label_IJK.shape) - self.patch_shape, 0)
        low: npt.NDArray[np.int64] = np.clip(np.rint(middle - self.patch_shape / 2).astype(int), 0, most)
        return low

    def _interpolated(
        self, case: TrainingCase, middle: npt.NDArray[np.float64], matrix: npt.NDArray[np.float64]
    ) -> Sample:
        """Cut a rotated and scaled sample and scale its intensities."""
        shape, interpolated = self.patch_shape.tolist(), full_augmentation.interpolated
        center = self._low(case, middle) + (self.patch_shape - 1) / 2
        box = full_augmentation.box_of(matrix, center, shape, case.label_IJK.shape)
        center = center - np.array([side.start for side in box])
        image_CIJK = scaled(case.volume_CIJK[:, *box], self.window_hu, self.scaled_range)
        image = np.stack(
            [interpolated(channel, matrix, center, shape, order=1, outside=self._air) for channel in image_CIJK]
        )
        label = interpolated(case.label_IJK[box], matrix, center, shape, order=0, outside=0)
        return image, label.astype(np.float32)

    @property
    def _air(self) -> float:
        """Return the value beyond the volume: the low end of CT, and the mean of MR, as at inference."""
        return air_of(self.window_hu, self.scaled_range)

    def _plain(self, case: TrainingCase, middle: npt.NDArray[np.float64]) -> Sample:
        """Cut a sample and scale it, without augmentation."""
        low = self._low(case, middle)
        where = tuple(slice(a, a + n) for a, n in zip(low, self.patch_shape, strict=True))
        image = scaled(case.volume_CIJK[:, *where], self.window_hu, self.scaled_range)
        label = case.label_IJK[where].astype(np.float32)
        if label.shape != tuple(self.patch_shape):
            # A volume smaller than a patch is filled up with air, as a window is at inference.
            width = [(0, int(n - m)) for n, m in zip(self.patch_shape, label.shape, strict=True)]
            image, label = np.pad(image, [(0, 0), *width], constant_values=self._air), np.pad(label, width)
        return image, label

    def _changed(self, sample: Sample, case: TrainingCase, rng: np.random.Generator) -> Patch:
        """Return a sample as a patch, with random augmentation if enabled; the sample itself is not changed."""
        image, label = sample
        if self.is_fully_augmented:
            image, label = mirrored(image, label, rng)
            image = full_augmentation.with_full_intensity_changes(image, rng)
        elif self.augment:
            image, label = augmented(image, label, rng)
            image = changed_intensity(image, rng)
        return np.ascontiguousarray(image), self.targets.encoded(label), case.case_id

    def _middle(self, rng: np.random.Generator) -> tuple[TrainingCase, npt.NDArray[np.float64]]:
        if self.lesions and rng.random() < self.lesion_share:
            number, lesion = self._lesion(rng)
            case = self.cases[number]
            room = self.patch_shape / 2 - case.lesion_extents[lesion] / 2 - EDGE_VOXELS
            # Structures of several labels are often larger than a patch, which then lies anywhere in their box.
            room = np.maximum(room, 0) if len(self.targets.head.labels) == 1 else np.abs(room)
            return case, case.lesion_centres[lesion] + 0.5 + rng.uniform(-1, 1, 3) * room
        case = self.cases[int(rng.integers(len(self.cases)))]
        chance = rng.random()
        if chance < self.thick_share:
            points, jitter = case.thick_points, THICK_JITTER
        else:
            points, jitter = case.bright_points, BRIGHT_JITTER
        if len(points) and chance < self.thick_share + self.bright_share:
            point = points[int(rng.integers(len(points)))]
            return case, point + rng.uniform(-jitter, jitter, 3)
        return case, rng.uniform(0, 1, 3) * np.array(case.label_IJK.shape)

    def _lesion(self, rng: np.random.Generator) -> tuple[int, int]:
        """Draw a lesion: its case and its number there."""
        lesions = self.lesions
        if len(self.targets.head.labels) > 1:
            lesions = self._by_label[int(rng.integers(len(self._by_label)))]
        return lesions[int(rng.integers(len(lesions)))]
