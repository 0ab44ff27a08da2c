"""An RT Structure Set as a label map on the grid of its series."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import LabelMerge
from medweave_core.contracts.volume import Grid
from medweave_steps.io.cohort.label_map import LabelMap
from medweave_steps.io.cohort.labels import LabelArray
from medweave_steps.io.dicom.contours import rasterize
from medweave_steps.io.dicom.header import Plane, load_pydicom
from medweave_steps.io.dicom.rtstruct import Roi, damaged, read_rois
from medweave_steps.io.dicom.values import has_other_cause
from medweave_steps.io.findings import SeriesName


def read_rtstruct(
    path: Path,
    slices: Sequence[Plane],
    grid: Grid,
    name: SeriesName,
    merges: Sequence[LabelMerge] = (),
    *,
    notices: list[Finding] | None = None,
) -> LabelArray:
    """Return the contours of an RT Structure Set as voxels on the grid of its series.

    A voxel belongs to an ROI if its center is inside an odd number of the ROI's contours on that slice, or on a contour. Slices
    without a contour are not filled.

    Args:
        slices: planes of the series in the order of the source array.
        grid: of the series, [slice, row, column].
        merges: ROI numbers that count as one label; an ROI merged with 0 is left out unchecked.
        notices: receives notices about ROIs without contours, skipped slices and crossing contours.
    Returns:
        uint8 [slice, row, column]; the label is the ROINumber after merging.
    Raises:
        FindingError: see `read_rois`; a damaged file; ROIs of different labels that overlap.
    """
    dropped = {value for merge in merges if merge.value == 0 for value in merge.values}
    try:
        dataset = load_pydicom().dcmread(io.BytesIO(path.read_bytes()), force=True)
        rois = read_rois(dataset, slices, grid, name, dropped=dropped, notices=notices)
    except Exception as error:  # pydicom raises many kinds for a damaged header; their texts may quote values
        if has_other_cause(error):
            raise
        raise damaged(name, f"an unusable header ({type(error).__name__})") from error
    return _painted(rois, grid, name, merges)


def _painted(rois: Sequence[Roi], grid: Grid, name: SeriesName, merges: Sequence[LabelMerge]) -> LabelArray:
    label_map = LabelMap(grid.shape, merges)
    for roi in rois:
        for index, polygons in roi.polygons.items():
            filled = rasterize(polygons, grid.shape[1:])
            label_map.paint(filled.inside * np.uint8(roi.number), index, filled.rows, filled.columns)
    label_map.check_overlaps(name, {roi.number: roi.name for roi in rois}, "ROI")
    return label_map.labels
