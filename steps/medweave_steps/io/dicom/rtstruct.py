"""DICOM RT Structure Set: its ROIs, and their contours as polygons on the slices of a series.

Contours are in the patient coordinate system (LPS, mm). Each lies in the plane of one slice; slices without a contour of an ROI
are not filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import HIGHEST_VALUE
from medweave_core.contracts.volume import Grid
from medweave_steps.io.dicom.contours import Polygon, count_crossed
from medweave_steps.io.dicom.planes import Plane
from medweave_steps.io.dicom.rtstruct_header import contours_of, frames_of_reference, listed_images, names_of, points_of
from medweave_steps.io.dicom.slice_index import SlicesByImage, image_key, slices_by_image
from medweave_steps.io.findings import FindingError, SeriesName, first_of, notice
from medweave_steps.io.geometry import lps_to_ras

SAME_PLANE_VOXELS = 0.1  # share of the slice distance by which a contour may leave the plane of its slice

_CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
_HALF_A_VOXEL = 0.5 + 1e-3  # the border of the image lies half a voxel beyond the outermost centers


@dataclass(frozen=True, slots=True, kw_only=True)
class Roi:
    """One ROI on the slices of a series.

    Attributes:
        number: ROINumber, the label value.
        name: ROIName.
        polygons: vertices (row, column) of its contours by the index of their slice.
    """

    number: int
    name: str
    polygons: Mapping[int, Sequence[Polygon]]

    @property
    def text(self) -> str:
        """Return number and name, as messages show an ROI."""
        return _roi_text(self.number, self.name)


def read_rois(
    dataset: Any,
    slices: Sequence[Plane],
    grid: Grid,
    name: SeriesName,
    *,
    dropped: Collection[int],
    notices: list[Finding] | None,
) -> list[Roi]:
    """Return the ROIs of an RT Structure Set with their contours on the slices of a series.

    Args:
        slices: planes of the series in the order of the source array.
        grid: of the series, [slice, row, column].
        dropped: numbers of ROIs that are left out unchecked.
        notices: receives what does not stop the step: ROIs without contours, slices without contours, contours that cross; None
            where they are not needed, since counting the crossings rasterizes each pair of contours.
    Raises:
        FindingError: no ROI; contours of another frame of reference, of images that the series lacks, of another type than closed
            planar, between slices, across slices or outside of the image; damaged coordinates; a number above 255.
    """
    names = dict(_described_once(dataset, name))
    reader = _Reader(dataset=dataset, grid=grid, name=name, names=names, by_image=slices_by_image(slices))
    drawn = {number: items for number, items in _contours_once(dataset, name) if items and number not in dropped}
    reader.check_numbers(drawn)
    reader.check_types(drawn)
    reader.check_frames_of_reference(drawn, {plane.frame_of_reference for plane in slices})
    reader.check_series()
    rois = [
        Roi(number=number, name=names[number], polygons=reader.polygons(number, items))
        for number, items in sorted(drawn.items())
    ]
    if notices is not None:
        kept = [(number, text) for number, text in names.items() if number not in dropped]
        notices += reader.notices(rois, [_roi_text(number, text) for number, text in kept if number not in drawn])
    return rois


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """The checks and the geometry of one structure set on one series.

    Attributes:
        names: ROI number to name.
        by_image: index of the slice of each image of the series.
    """

    dataset: Any
    grid: Grid
    name: SeriesName
    names: Mapping[int, str]
    by_image: SlicesByImage

    def check_numbers(self, drawn: Mapping[int, Any]) -> None:
        """Refuse contours of ROIs that are not described or whose number is not a label value."""
        unknown = sorted(drawn.keys() - self.names.keys())
        if unknown:
            raise damaged(self.name, f"contours of ROI {unknown[0]}, which StructureSetROISequence does not describe")
        outside = [number for number in sorted(drawn) if not 0 < number <= HIGHEST_VALUE]
        if outside:
            raise self.name.refuse(
                "labels-outside-declared-set",
                "the structure set has an ROI number that is not a label value.",
                seen=f"ROINumber {first_of(outside)}",
                expected=f"ROINumber (3006,0022) 1 to {HIGHEST_VALUE}",
                do="renumber the ROIs, or remove those that are not ground truth",
            )

    def check_types(self, drawn: Mapping[int, Sequence[Any]]) -> None:
        """Refuse contours that enclose no area: points and open lines."""
        texts, numbers = [], []
        for number, items in drawn.items():
            types = Counter(str(item.get("ContourGeometricType") or "unknown") for item in items)
            wrong = [f"{count} {kind}" for kind, count in sorted(types.items()) if kind not in _CLOSED]
            if wrong:
                texts.append(f"ROI {self.text(number)}: {', '.join(wrong)}")
                numbers.append(number)
        if texts:
            raise self.name.refuse(
                "open-contour",
                "the structure set has contours that are not closed, so they enclose no voxels.",
                seen="; ".join(texts[:4]) + (f" and {len(texts) - 4} more ROIs" if len(texts) > 4 else ""),
                expected=f"ContourGeometricType (3006,0042) {' or '.join(_CLOSED)}",
                do=f"close these contours, or {_drop(numbers)}",
            )

    def check_frames_of_reference(self, drawn: Mapping[int, Any], of_series: set[str]) -> None:
        """Refuse ROIs drawn in another frame of reference than that of the series."""
        listed = {str(item.get("FrameOfReferenceUID") or "") for item in frames_of_reference(self.dataset)} - {""}
        for item in self.dataset.get("StructureSetROISequence") or ():
            number = int(item.ROINumber)
            own = {str(item.get("ReferencedFrameOfReferenceUID") or "")} - {""} or listed
            if number in drawn and own and of_series - {""} and not own & of_series:
                raise self.misplaced(
                    number,
                    "a frame of reference that the series does not have",
                    "the FrameOfReferenceUID of the series",
                )

    def check_series(self) -> None:
        """Refuse a structure set that lists images, none of which is in the series."""
        listed = listed_images(self.dataset)
        if listed and not {uid for uid, _ in self.by_image} & set(listed):
            raise self.name.refuse(
                "mask-on-another-grid",
                "the structure set was drawn on another series.",
                seen=f"{len(listed)} referenced images, none of them in the series",
                expected="the images of the series in ContourImageSequence (3006,0016)",
                do="use the structure set drawn on this series",
            )

    def polygons(self, number: int, items: Sequence[Any]) -> dict[int, list[Polygon]]:
        """Return the contours of one ROI by slice, as vertices (row, column)."""
        to_index = np.linalg.inv(lps_to_ras(np.asarray(self.grid.affine)))  # LPS <-> RAS is its own inverse
        polygons: dict[int, list[Polygon]] = {}
        seen: set[tuple[int, bytes]] = set()
        for item in items:
            points = self._points(number, item) @ to_index[:3, :3].T + to_index[:3, 3]
            index = self._slice_of(number, points)
            self._check_reference(number, item, index)
            self._check_in_image(number, points)
            polygon = np.ascontiguousarray(points[:, 1:])
            key = (index, polygon[np.lexsort(polygon.T)].round(3).tobytes())
            if key in seen:
                raise damaged(self.name, f"the same contour of ROI {self.text(number)} twice")
            seen.add(key)
            polygons.setdefault(index, []).append(polygon)
        return polygons

    def _points(self, number: int, item: Any) -> npt.NDArray[np.float64]:
        """Return the points of a contour, float64 of shape (n, 3), LPS, mm."""
        try:
            points = points_of(item)
        except ValueError as error:
            raise damaged(self.name, f"a contour of ROI {self.text(number)} with {error}") from error
        declared = item.get("NumberOfContourPoints")
        if declared is not None and int(declared) != len(points):
            raise damaged(
                self.name, f"a contour of ROI {self.text(number)} with {len(points)} of {int(declared)} points"
            )
        if len(points) < 3:
            raise self.name.refuse(
                "open-contour",
                "the structure set has a closed contour of fewer than 3 points, which encloses no area.",
                seen=f"ROI {self.text(number)}: {len(points)} points",
                expected="at least 3 points",
                do=f"delete this contour, or {_drop([number])}",
            )
        return points

    def _slice_of(self, number: int, points: npt.NDArray[np.float64]) -> int:
        low, high = float(points[:, 0].min()), float(points[:, 0].max())
        nearest = round((low + high) / 2)
        if high - low > 2 * SAME_PLANE_VOXELS:
            raise self.misplaced(
                number,
                f"a contour from slice {low:.2f} to {high:.2f} of the series grid",
                "contours in the plane of one slice",
            )
        if max(abs(low - nearest), abs(high - nearest)) > SAME_PLANE_VOXELS:
            raise self.misplaced(
                number,
                f"a contour at slice {(low + high) / 2:.2f} of the series grid, between two slices",
                f"contours on the slices, with a tolerance of {SAME_PLANE_VOXELS:g} slices",
            )
        if not 0 <= nearest < self.grid.shape[0]:
            raise self.misplaced(
                number, f"a contour at slice {nearest} of the series grid", f"slices 0 to {self.grid.shape[0] - 1}"
            )
        return nearest

    def _check_in_image(self, number: int, points: npt.NDArray[np.float64]) -> None:
        sizes = np.asarray(self.grid.shape[1:])
        outside = (points[:, 1:] < -_HALF_A_VOXEL) | (points[:, 1:] > sizes - 1 + _HALF_A_VOXEL)
        if outside.any():
            row, column = points[outside.any(axis=1)][0, 1:].tolist()
            raise self.misplaced(
                number,
                f"a contour point at row {row:.2f}, column {column:.2f} of the series grid",
                f"rows -0.5 to {self.grid.shape[1] - 0.5:g}, columns -0.5 to {self.grid.shape[2] - 0.5:g}",
            )

    def _check_reference(self, number: int, item: Any, index: int) -> None:
        """Refuse a contour that names an image of another slice, or one that the series lacks."""
        images: Sequence[Any] = item.get("ContourImageSequence") or ()
        if len(images) != 1:
            return
        key = image_key(images[0])
        if "ReferencedFrameNumber" not in images[0] and (key[0], 1) in self.by_image:
            return  # a multi-frame image without its frame: only the position identifies the slice
        if key not in self.by_image:
            raise self.misplaced(
                number,
                "a contour that references an image missing in the series",
                "all images that the contours reference (a slice is missing, or the structure set belongs to another series)",
            )
        if self.by_image[key] not in (None, index):
            raise self.misplaced(
                number,
                "a contour that references one image but has the position of another",
                "positions as in the referenced images",
            )

    def notices(self, rois: Sequence[Roi], empty: Sequence[str]) -> Iterator[Finding]:
        """Yield what a reader of the label map should know."""
        if empty:
            count = f"{len(empty)} {'ROI has' if len(empty) == 1 else 'ROIs have'}"
            what = f"{self.name}: {count} no contour."
            yield notice("roi-without-contours", what, seen=first_of(empty, 6), case_id=self.name.case_id)
        gaps = [(roi, _num_skipped(roi)) for roi in rois]
        texts = [f"ROI {roi.text}: {count} slices" for roi, count in gaps if count]
        if texts:
            what = f"{self.name}: contours skip slices; these slices are not filled."
            do = "draw the missing contours, unless the structure has separate parts"
            yield notice("slices-without-contour", what, seen=first_of(texts, 6), do=do, case_id=self.name.case_id)
        shape = (self.grid.shape[1], self.grid.shape[2])
        crossed = [(roi, sum(count_crossed(polygons, shape) for polygons in roi.polygons.values())) for roi in rois]
        texts = [f"ROI {roi.text}: {count} voxels" for roi, count in crossed if count]
        if texts:
            what = f"{self.name}: contours of one ROI cross or coincide; voxels inside both do not belong to it (even-odd rule)."
            do = "join these contours, or delete one, if the structure contains the common part"
            yield notice("crossing-contours", what, seen=first_of(texts, 6), do=do, case_id=self.name.case_id)

    def misplaced(self, number: int, seen: str, expected: str) -> FindingError:
        """Return the error about an ROI whose contours do not lie on the slices of the series."""
        return self.name.refuse(
            "mask-on-another-grid",
            "the structure set does not lie on the slices of its series.",
            seen=f"ROI {self.text(number)}: {seen}",
            expected=expected,
            do=f"use the structure set drawn on this series, or {_drop([number])}",
        )

    def text(self, number: int) -> str:
        """Return number and name of an ROI."""
        return _roi_text(number, self.names.get(number, ""))


def damaged(name: SeriesName, seen: str) -> FindingError:
    """Return the error about a structure set that cannot be read."""
    return name.refuse(
        "unreadable-mask",
        "the structure set cannot be read.",
        seen=seen,
        expected="a complete DICOM RT Structure Set",
        do="copy or export the structure set again",
    )


def _drop(numbers: Sequence[int]) -> str:
    return f"drop {'the ROI' if len(numbers) == 1 else 'the ROIs'} with --merge-labels 0,{','.join(map(str, numbers))}:background"


def _roi_text(number: int, text: str) -> str:
    return f"{number} ({text or 'without a name'})"


def _num_skipped(roi: Roi) -> int:
    indices = roi.polygons.keys()
    return max(indices) - min(indices) + 1 - len(indices)


def _described_once(dataset: Any, name: SeriesName) -> list[tuple[int, str]]:
    names = names_of(dataset)
    if not names:
        raise name.refuse(
            "no-roi",
            "the structure set has no ROI.",
            seen="no item in StructureSetROISequence (3006,0020)",
            expected="at least one ROI",
            do="export the structure set again, or remove it if this case was not annotated",
        )
    _check_unique([number for number, _ in names], "StructureSetROISequence", name)
    return names


def _contours_once(dataset: Any, name: SeriesName) -> list[tuple[int, Sequence[Any]]]:
    contours = contours_of(dataset)
    _check_unique([number for number, _ in contours], "ROIContourSequence", name)
    return contours


def _check_unique(numbers: Sequence[int], keyword: str, name: SeriesName) -> None:
    repeated = [number for number, count in Counter(numbers).items() if count > 1]
    if repeated:
        raise damaged(name, f"{keyword} with ROI {repeated[0]} more than once")
