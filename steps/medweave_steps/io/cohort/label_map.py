"""A label map that is painted structure by structure; structures of different labels that overlap are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from medweave_core.contracts.labels import LabelMerge
from medweave_steps.io.cohort.labels import LabelArray, value_table
from medweave_steps.io.findings import SeriesName

_WHOLE = slice(None)


class LabelMap:
    """Label values after merging, uint8 of the shape of a volume, and the voxels that two labels claimed.

    Attributes:
        labels: the array, [slice, row, column]; 0 where nothing was painted.
    """

    def __init__(self, shape: Sequence[int], merges: Sequence[LabelMerge]) -> None:
        self.labels: LabelArray = np.zeros(tuple(shape), dtype=np.uint8)
        self._values = value_table(merges)
        self._overlaps: dict[tuple[int, int], int] = {}

    def paint(self, numbers: LabelArray, index: int, rows: slice = _WHOLE, columns: slice = _WHOLE) -> None:
        """Merge the values of one structure and write them into a part of a slice.

        Args:
            numbers: uint8 [row, column] of that part, values before merging; 0 changes nothing.
            index: of the slice.
        """
        plane, values = self.labels[index, rows, columns], self._values[numbers]
        differing = (plane != values) & (plane > 0) & (values > 0)
        if differing.any():
            pairs, counts = np.unique(np.stack((plane[differing], values[differing])), axis=1, return_counts=True)
            for (first, second), count in zip(np.sort(pairs, axis=0).T.tolist(), counts.tolist(), strict=True):
                self._overlaps[first, second] = self._overlaps.get((first, second), 0) + count
        np.maximum(plane, values, out=plane)

    def check_overlaps(self, name: SeriesName, names: Mapping[int, str], noun: str) -> None:
        """Refuse voxels that structures of different labels claimed.

        Args:
            names: of the structures by number.
            noun: what a structure is called in its file: segment or ROI.
        Raises:
            FindingError: structures overlap; names the labels and the number of voxels.
        """
        if not self._overlaps:
            return
        pairs = [
            f"{noun}s {first} ({names.get(first, 'without a label')}) and {second} ({names.get(second, 'without a label')}) "
            f"in {count} voxels"
            for (first, second), count in list(self._overlaps.items())[:4]
        ]
        numbers = sorted({number for pair in self._overlaps for number in pair})
        what = {"segment": "segments of the DICOM segmentation", "ROI": "ROIs of the structure set"}[noun]
        raise name.refuse(
            "overlapping-segments",
            f"{what} overlap, but a voxel can have only one label.",
            seen="; ".join(pairs),
            expected=f"{noun}s that do not overlap, or overlapping {noun}s merged into one label",
            do=f"merge them with --merge-labels {','.join(map(str, numbers))}:NAME, or drop one with "
            f"--merge-labels 0,{numbers[-1]}:background",
        )
