"""The lesion table: one line per lesion of the delivered mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import Label
from medweave_core.contracts.segmentations import LabelTotals
from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.io.cohort.source_hu import SourceHu
from medweave_steps.metrics.components import connected_components
from medweave_steps.metrics.lesions import longest_diameters_mm
from medweave_steps.runtime.tables import csv_text

LABEL_COLUMN = {"label": "name of the label; lesions are numbered for each label"}
COLUMNS: Mapping[str, str] = {
    "lesion": "1, 2, … by falling volume",
    "volume_mm3": "number of voxels times voxel volume on the source grid, mm³",
    "longest_diameter_mm": "longest diameter within a slice, mm: centre to centre of the two farthest pixels, plus one pixel",
    "mean_hu": "mean HU of the source (neither clipped nor resampled) over the lesion's voxels, without padding; empty for MR, "
    "and for cases that were prepared without source HU",
    "slice": "source slice of the lesion's largest area, from 1 along the slice normal (NIfTI: along the axis nearest S)",
    "instance_number": "DICOM InstanceNumber of that slice; empty where the source has none",
    "first_slice": "first source slice of the lesion, counted from 1",
    "last_slice": "last source slice of the lesion",
    "centre_r_mm": "centre of mass in the patient's system, towards Right, mm",
    "centre_a_mm": "likewise towards Anterior, mm",
    "centre_s_mm": "likewise towards Superior, mm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesion:
    """One connected component (26) of the delivered mask; see `COLUMNS`. Slices are counted from 1."""

    lesion: int
    volume_mm3: float
    longest_diameter_mm: float
    mean_hu: float | None
    slice: int
    instance_number: int | None
    first_slice: int
    last_slice: int
    centre_ras_mm: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLesions:
    """The lesions of one label.

    Attributes:
        segment: number of the label's segment in the DICOM SEG, from 1.
        lesions: by falling volume.
    """

    label: Label
    segment: int
    lesions: tuple[Lesion, ...]

    @property
    def totals(self) -> LabelTotals:
        """Number and volume of the lesions."""
        return LabelTotals(
            value=self.label.value,
            name=self.label.name,
            num_lesions=len(self.lesions),
            volume_mm3=round(sum(lesion.volume_mm3 for lesion in self.lesions), 2),
        )


def columns_of(labels: Sequence[Label]) -> Mapping[str, str]:
    """Return the columns of the table: with several labels the name of the label comes first."""
    return {**LABEL_COLUMN, **COLUMNS} if len(labels) > 1 else COLUMNS


def slice_axis(info: VolumeInfo) -> int:
    """Return axis of the source array that counts slices: the first for DICOM, the one nearest to Superior for NIfTI."""
    return 0 if info.source_format == "dicom" else info.source_axis[2]


def measure_labels(
    label_map: npt.NDArray[np.uint8],
    labels: Sequence[Label],
    info: VolumeInfo,
    source_hu: SourceHu | None,
    instance_numbers: Sequence[int | None] = (),
) -> list[LabelLesions]:
    """Measure the lesions of every label of a label map; see `measure_lesions`."""
    return [
        LabelLesions(
            label=label,
            segment=segment,
            lesions=tuple(
                measure_lesions((label_map == label.value).view(np.uint8), info, source_hu, instance_numbers)
            ),
        )
        for segment, label in enumerate(labels, start=1)
    ]


def measure_lesions(
    mask: npt.NDArray[np.uint8],
    info: VolumeInfo,
    source_hu: SourceHu | None,
    instance_numbers: Sequence[int | None] = (),
) -> list[Lesion]:
    """Measure every lesion of a mask on the source grid.

    Args:
        mask: uint8, 0 or 1, of shape `info.source_grid.shape`.
        info: geometry of the case.
        source_hu: for the mean HU of CT; None leaves it out.
        instance_numbers: DICOM InstanceNumber per slice; empty for NIfTI.
    Returns:
        lesions by falling volume; of equal ones the first in array order comes first.
    """
    found = connected_components(mask.view(np.bool_))
    if not found.num:
        return []
    axis, grid = slice_axis(info), info.source_grid
    diameters = longest_diameters_mm(found, spacing_mm=grid.spacing_mm, plane_axis=axis)
    affine = np.asarray(grid.affine)
    num_voxels = found.num_voxels()
    # The voxels of one component side by side, so that thousands of components take no longer than one of their size.
    by_component = found.voxels[np.argsort(found.labels, kind="stable")]
    stop = np.cumsum(num_voxels)
    lesions = []
    for number, component in enumerate(np.lexsort((np.arange(found.num), -num_voxels)).tolist(), start=1):
        own = by_component[stop[component] - num_voxels[component] : stop[component]]
        index = np.stack(np.unravel_index(own, mask.shape), axis=1)
        slices, areas = np.unique(index[:, axis], return_counts=True)
        largest = int(slices[np.argmax(areas)])
        centre = affine[:3, :3] @ index.mean(axis=0) + affine[:3, 3]
        lesions.append(
            Lesion(
                lesion=number,
                volume_mm3=len(own) * grid.voxel_volume_mm3,
                longest_diameter_mm=diameters[component],
                mean_hu=source_hu.mean(index) if source_hu else None,
                slice=largest + 1,
                instance_number=instance_numbers[largest] if instance_numbers else None,
                first_slice=int(slices[0]) + 1,
                last_slice=int(slices[-1]) + 1,
                centre_ras_mm=(float(centre[0]), float(centre[1]), float(centre[2])),
            )
        )
    return lesions


def write_table(path: Path, groups: Sequence[LabelLesions]) -> None:
    """Write `lesions.csv`: a header and one line per lesion, with the columns of `columns_of`."""
    rows: list[list[object]] = []
    for group in groups:
        first = [group.label.name] if len(groups) > 1 else []
        rows += [[*first, *_row(lesion)] for lesion in group.lesions]
    path.write_text(csv_text(columns_of([group.label for group in groups]), rows), encoding="utf-8")


def _row(a: Lesion) -> list[object]:
    numbers = [
        f"{a.volume_mm3:.2f}",
        f"{a.longest_diameter_mm:.2f}",
        "" if a.mean_hu is None else f"{a.mean_hu:.1f}",
    ]
    place = [a.slice, "" if a.instance_number is None else a.instance_number, a.first_slice, a.last_slice]
    # Adding 0 turns a rounded -0.0 into 0.0.
    return [a.lesion, *numbers, *place, *(f"{round(x, 2) + 0.0:.2f}" for x in a.centre_ras_mm)]
