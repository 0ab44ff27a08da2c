"""The fingerprint of a training set: what `--preset auto` chooses its options from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import Modality, Triple, Triple_mm, VolumeInfo, modality_of, triple_of
from medweave_steps.io.cohort.prepared import CaseFolder

MOST_SAMPLES = 10_000
"""Foreground voxels of a case that are read, drawn at random; nnU-Net's number."""
PERCENTILES = (0.5, 99.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Values of one channel in the foreground of all training cases, in the unit of the prepared volumes.

    Attributes:
        low, high: 0.5th and 99.5th percentile.
    """

    mean: float
    sd: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Figures of the training cases, without patient data.

    Attributes:
        num_cases: training cases.
        spacing_mm: of the prepared volumes.
        source_spacings_mm, source_shapes: of each case before resampling, along Right, Anterior, Superior; the shapes are those of
            the part within the crop of `preprocess`.
        shapes: of the prepared volumes, voxels along I J K.
        channels: names of the contrasts.
        intensities: of each channel; empty without foreground.
        voxels_by_label: voxels of all cases by label value.
    """

    num_cases: int
    spacing_mm: Triple_mm
    source_spacings_mm: tuple[Triple_mm, ...]
    source_shapes: tuple[Triple, ...]
    shapes: tuple[Triple, ...]
    channels: tuple[str, ...]
    intensities: tuple[Intensity, ...]
    voxels_by_label: dict[int, int]

    @property
    def modality(self) -> Modality:
        """Return CT or MR."""
        return modality_of(self.channels)

    @property
    def median_shape(self) -> Triple:
        """Return the median number of voxels along I J K, rounded."""
        i, j, k = (round(float(value)) for value in np.median(np.array(self.shapes), axis=0))
        return (i, j, k)

    @property
    def num_voxels(self) -> float:
        """Return the number of voxels of all cases if each had the median shape, as nnU-Net counts them."""
        return float(np.prod(np.median(np.array(self.shapes), axis=0))) * self.num_cases


def read_fingerprint(cohort: PreparedCohort, cases: Sequence[CaseFolder]) -> Fingerprint:
    """Read every training case once and return the figures; the same cases give the same figures.

    Args:
        cases: training cases with labels.
    Source: Isensee et al. 2021, Nat Methods 18:203, supplementary note 2 ("Dataset fingerprint").
    """
    shapes: list[Triple] = []
    source_spacings: list[Triple_mm] = []
    source_shapes: list[Triple] = []
    samples: list[npt.NDArray[np.float32]] = []
    voxels: Counter[int] = Counter()
    for place, case in enumerate(cases):
        label, info = case.label_IJK(), case.info()
        shapes.append(triple_of(label.shape))
        source_spacings.append(_source_spacing_mm(info))
        source_shapes.append(_source_shape(label.shape, cohort.spacing_mm, source_spacings[-1]))
        counts = np.bincount(label.reshape(-1))
        voxels.update({value: int(count) for value, count in enumerate(counts) if value and count})
        samples.append(_foreground(case, label, cohort.ignore_value, np.random.default_rng(place)))
    voxels.pop(-1 if cohort.ignore_value is None else cohort.ignore_value, None)
    return Fingerprint(
        num_cases=len(cases),
        spacing_mm=cohort.spacing_mm,
        source_spacings_mm=tuple(source_spacings),
        source_shapes=tuple(source_shapes),
        shapes=tuple(shapes),
        channels=cohort.channels,
        intensities=_intensities(np.concatenate(samples, axis=1)),
        voxels_by_label=dict(sorted(voxels.items())),
    )


def _foreground(
    case: CaseFolder, label_IJK: npt.NDArray[np.uint8], ignore_value: int | None, rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return some foreground values of a case, float32 [C, N]; drawn with replacement, so that each case counts equally."""
    inside = np.flatnonzero((label_IJK > 0) & (label_IJK != (0 if ignore_value is None else ignore_value)))
    volume_CIJK = case.volume_CIJK()
    if not len(inside):
        return np.zeros((len(volume_CIJK), 0), np.float32)
    drawn = np.unravel_index(np.sort(rng.choice(inside, MOST_SAMPLES)), label_IJK.shape)
    return np.stack([np.asarray(channel_IJK[drawn], np.float32) for channel_IJK in volume_CIJK])


def _intensities(values_CN: npt.NDArray[np.float32]) -> tuple[Intensity, ...]:
    if not values_CN.shape[1]:
        return ()
    found = []
    for values in values_CN.astype(np.float64):
        low, high = np.percentile(values, PERCENTILES)
        figures = (float(values.mean()), float(values.std()), float(low), float(high))
        mean, sd, low, high = (round(figure, 4) for figure in figures)
        found.append(Intensity(mean=mean, sd=sd, low=low, high=high))
    return tuple(found)


def _source_spacing_mm(info: VolumeInfo) -> Triple_mm:
    i, j, k = (info.source_grid.spacing_mm[axis] for axis in info.source_axis)
    return (i, j, k)


def _source_shape(shape: Sequence[int], spacing_mm: Triple_mm, source_mm: Triple_mm) -> Triple:
    return triple_of([max(1, round(n * a / b)) for n, a, b in zip(shape, spacing_mm, source_mm, strict=True)])
