"""Training batches of whole images: which case comes when, and how it is changed.

Every place of a batch has its own random stream, seeded by (seed, step, place): the order is the same whatever the number of
ranks, and a resumed training needs no state but the step. Suffix legend: C channel or class, I J K voxel axes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Triple
from medweave_steps.inference.intensity import scaled
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.training.data.augment import changed_intensity
from medweave_steps.training.data.batch import Batch, FloatArray, Patch, joined
from medweave_steps.training.data.case_cache import MIB, CaseCache, Sample
from medweave_steps.training.data.epoch_order import EpochOrder


class ImageSampler:
    """A sampler that draws each image of a batch alone.

    Balanced, each class is as likely as any other, then each of its cases; cases without any class count as one more class.
    Otherwise each case is as likely as any other.

    Args:
        shape: of every image, I J K.
        flip_axes: places of the axes I J K along which images are mirrored with probability one half.
    """

    def __init__(
        self,
        cases: Sequence[CaseFolder],
        *,
        targets: ClassTargets,
        shape: Triple,
        batch_size: int,
        window_hu: tuple[float, float] | None,
        scaled_range: tuple[float, float],
        is_balanced: bool,
        augment: bool,
        flip_axes: Sequence[int],
        seed: int,
    ) -> None:
        self.cases, self.targets, self.shape, self.batch_size = tuple(cases), targets, shape, batch_size
        self.window_hu, self.scaled_range, self.seed = window_hu, scaled_range, seed
        self.augment, self.flip_axes = augment, tuple(flip_axes)
        self.truth = np.stack([targets.truth_C(folder.case) for folder in cases])
        self._groups = self._by_class() if is_balanced else [np.arange(len(cases))]

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's images of a step's global batch."""
        patches = [self._drawn(step, place) for place in range(rank, self.batch_size, world_size)]
        return joined(patches, num_together=self.batch_size)

    def divide_memory(self, num_processes: int) -> None:
        """Divide the memory for cases among processes that cut a rank's batches; this sampler caches no case."""

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of images that a rank has trained on in the first steps."""
        return len(range(rank, self.batch_size, world_size)) * steps

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding images of a rank in the first steps: none."""
        return 0

    def digest(self) -> str:
        """Return the SHA-256 of the cases in their order, with their classes and shape."""
        digest = hashlib.sha256(f"{self.shape} {self.targets.names}".encode())
        for folder in self.cases:
            digest.update(f" {folder.case.case_id} {folder.case.classes}".encode())
        return digest.hexdigest()

    def _by_class(self) -> list[npt.NDArray[np.int64]]:
        columns = [*self.truth.T, ~self.truth.any(axis=1)]
        return [np.flatnonzero(column) for column in columns if column.any()]

    def _drawn(self, step: int, place: int) -> Patch:
        rng = np.random.default_rng((self.seed, step, place))
        group = self._groups[int(rng.integers(len(self._groups)))]
        number = int(group[int(rng.integers(len(group)))])
        return self._changed(self._read(number), number, rng)

    def _read(self, number: int) -> Sample:
        """Return an image, scaled, and its classes as 0 and 1; the file is opened only now: a process has few file handles."""
        image = scaled(self.cases[number].volume_CIJK(), self.window_hu, self.scaled_range)
        return np.array(image), self.truth[number].astype(np.float32)

    def _changed(self, sample: Sample, number: int, rng: np.random.Generator) -> Patch:
        image_CIJK, truth_C = sample
        if self.augment:
            image_CIJK = changed_intensity(flipped(image_CIJK, self.flip_axes, rng), rng)
        return np.ascontiguousarray(image_CIJK), truth_C, self.cases[number].case.case_id


class EpochSampler(ImageSampler):
    """A sampler with every image exactly once per epoch, as `EpochOrder`.

    A rank without an image in a step gets one that has no weight.

    Args:
        cache_mib: memory for images that were read, MiB; None caches none.
    """

    def __init__(self, cases: Sequence[CaseFolder], *, cache_mib: int | None, **options: object) -> None:
        super().__init__(cases, is_balanced=False, **options)  # type: ignore[arg-type]
        self.cache = CaseCache((cache_mib or 0) * MIB)
        # Of every image, because they have one shape: an image from memory needs no file.
        self.num_bytes = 4 * (self.cases[0].volume_CIJK().size + len(self.targets.classes))
        self.order = EpochOrder(num_cases=len(self.cases), batch_size=self.batch_size, seed=self.seed)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's images of a step."""
        return self.order.batch(step, self._at, rank=rank, world_size=world_size)

    def divide_memory(self, num_processes: int) -> None:
        """Divide the cache among processes that each cut some of a rank's batches."""
        self.cache.limit_bytes //= num_processes

    def num_counted(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of images that a rank has trained on in the first steps."""
        return self.order.num_counted(steps, rank=rank, world_size=world_size)

    def num_padding(self, steps: int, *, rank: int, world_size: int) -> int:
        """Return the number of padding images: one for each of the first steps that has no image for the rank."""
        return self.order.num_padding(steps, rank=rank)

    def _at(self, number: int, step: int, place: int) -> Patch:
        sample = self.cache.get(number, self.num_bytes, lambda: self._read(number))
        return self._changed(sample, number, np.random.default_rng((self.seed, step, place)))


def flipped(image_CIJK: FloatArray, axes: Sequence[int], rng: np.random.Generator) -> FloatArray:
    """Mirror an image along each of some axes (0 is I) with probability one half."""
    for axis in axes:
        if rng.random() < 0.5:
            image_CIJK = np.flip(image_CIJK, axis + 1)
    return image_CIJK
