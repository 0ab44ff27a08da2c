"""From the planes of one series to a volume: sorted and judged by geometry alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.dicom.header import Plane
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.geometry import affine_rows, lps_to_ras

SAME_PLACE_MM = 0.01
GAP_TOLERANCE = 0.05  # share of the spacing by which one gap may differ: rounding of positions in the header
LATTICE_TOLERANCE = 0.1  # share of the spacing by which a slice may deviate from the regular lattice
COSINE_TOLERANCE = 1e-3
SPACING_RANGE_MM = (0.001, 50.0)
MAX_EXTENT_MM = 3000.0
SIDEWAYS_TOLERANCE = 0.25  # share of a pixel by which positions may leave the slice normal

FloatVector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomVolume:
    """The planes of a series in order along the slice normal, and their grid ([slice, row, column])."""

    planes: tuple[Plane, ...]
    grid: Grid

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files of the planes in their order, each once."""
        return tuple(dict.fromkeys(plane.file for plane in self.planes))


def assemble(planes: Sequence[Plane], name: SeriesName) -> DicomVolume:
    """Sort the planes of one series along the slice normal and check that they are one regular volume.

    Raises:
        FindingError: the planes lack geometry, differ in size, orientation, spacing or frame of reference, lie on a tilted
            gantry, or are missing, doubled or unevenly spaced.
    """
    if len(planes) < 2:
        raise name.refuse(
            "too-few-slices",
            "the series is a single image.",
            seen="1 slice",
            expected="at least 2 slices at different positions",
            do="export or copy the complete series again",
        )
    _check_complete(planes, name)
    _check_alike(planes, name)
    row, column, normal = _directions(planes, name)
    points = np.asarray([plane.position_lps for plane in planes], dtype=np.float64)
    along = points @ normal
    order = np.lexsort((np.arange(len(planes)), along))
    ordered, points, along = [planes[i] for i in order], points[order], along[order]
    _check_duplicates(along, name)
    _check_sideways(points, along, normal, ordered[0], name)
    step_mm = _check_gaps(along, name)
    first = ordered[0]
    assert first.pixel_spacing_mm is not None
    affine = np.eye(4)
    # A column of the image runs along the row index: the distance between rows belongs to the column's direction.
    affine[:3, 0] = normal * step_mm
    affine[:3, 1] = column * first.pixel_spacing_mm[0]
    affine[:3, 2] = row * first.pixel_spacing_mm[1]
    affine[:3, 3] = points[0]
    shape = (len(ordered), first.layout.rows, first.layout.columns)
    grid = Grid(shape=shape, affine=affine_rows(lps_to_ras(affine)))
    _check_size(grid, name)
    return DicomVolume(planes=tuple(ordered), grid=grid)


def place_text(plane: Plane) -> str:
    """Return the position of a slice along its normal, as text for messages."""
    height_mm = _height_mm(plane)
    return "a slice at an unknown position" if height_mm is None else f"the slice at {height_mm:.2f} mm"


def _height_mm(plane: Plane) -> float | None:
    """Return the position of a slice along its own normal, None if the header does not state it."""
    if plane.orientation is None or plane.position_lps is None:
        return None
    normal = np.cross(plane.orientation[:3], plane.orientation[3:])
    return float(normal @ np.asarray(plane.position_lps))


def is_stack(planes: Sequence[Plane]) -> bool:
    """Return False for a single image and for repeated images of one place (bolus tracking): no volume is meant."""
    points = [plane.position_lps for plane in planes if plane.position_lps is not None]
    if len(planes) < 2:
        return False
    return not points or len(points) < len(planes) or bool(np.ptp(np.asarray(points), axis=0).max() > SAME_PLACE_MM)


def _check_complete(planes: Sequence[Plane], name: SeriesName) -> None:
    for words, lacking in (
        ("ImagePositionPatient", [p for p in planes if p.position_lps is None]),
        ("ImageOrientationPatient", [p for p in planes if p.orientation is None]),
        ("PixelSpacing", [p for p in planes if p.pixel_spacing_mm is None or min(p.pixel_spacing_mm) <= 0]),
    ):
        if lacking:
            raise name.refuse(
                "no-geometry",
                f"{len(lacking)} of {len(planes)} slices have no usable geometry.",
                seen=f"no usable {words}",
                expected=f"{words} in every slice",
                do="export the series again from the archive or the scanner, as the original images",
            )


def _check_size(grid: Grid, name: SeriesName) -> None:
    """Refuse voxels and volumes of a size that no scanner makes: later steps would need any amount of memory."""
    spacing_mm = grid.spacing_mm
    extent_mm = [n * step for n, step in zip(grid.shape, spacing_mm, strict=True)]
    low, high = SPACING_RANGE_MM
    if min(spacing_mm) < low or max(spacing_mm) > high or max(extent_mm) > MAX_EXTENT_MM:
        raise name.refuse(
            "unusable-geometry",
            "the voxel size or extent of the series is not plausible.",
            seen=f"voxels of {' x '.join(f'{x:g}' for x in spacing_mm)} mm, "
            f"a volume of {' x '.join(f'{x:.0f}' for x in extent_mm)} mm",
            expected=f"voxels of {low:g} to {high:g} mm and at most {MAX_EXTENT_MM:.0f} mm along each axis",
            do="export the series again from the archive or the scanner, as the original images",
        )


def _check_alike(planes: Sequence[Plane], name: SeriesName) -> None:
    orientations = Counter(tuple(round(x / COSINE_TOLERANCE) for x in p.orientation or ()) for p in planes)
    if len(orientations) > 1:
        _check_orientations(planes, name)
    sizes = Counter(f"{p.layout.rows} x {p.layout.columns} pixels" for p in planes)
    spacings = Counter(" x ".join(f"{x:.4f}" for x in p.pixel_spacing_mm or ()) + " mm" for p in planes)
    frames = Counter(p.frame_of_reference for p in planes)
    for code, what, found in (
        ("mixed-sizes", "the slices have different matrix sizes: two series are mixed.", sizes),
        ("mixed-pixel-spacings", "the slices have different pixel spacings: two series are mixed.", spacings),
    ):
        if len(found) > 1:
            raise name.refuse(
                code,
                what,
                seen=", ".join(f"{count} slices of {text}" for text, count in found.most_common(4)),
                expected="the same matrix size and pixel spacing in all slices of a series",
                do="separate the reconstructions, each under its own SeriesInstanceUID",
            )
    if len(frames) > 1:
        positions = [_span_text([p for p in planes if p.frame_of_reference == frame]) for frame in frames]
        raise name.refuse(
            "mixed-frames-of-reference",
            "the slices have different frames of reference, so their positions cannot be compared.",
            seen=f"{len(frames)} frames of reference: slices at {'; '.join(positions[:4])}",
            expected="one FrameOfReferenceUID in all slices of a series",
            do="separate the acquisitions, each under its own SeriesInstanceUID",
        )


def _span_text(planes: Sequence[Plane]) -> str:
    heights = [height for height in map(_height_mm, planes) if height is not None]
    return f"{min(heights):.2f} to {max(heights):.2f} mm ({len(planes)} slices)"


def _check_orientations(planes: Sequence[Plane], name: SeriesName) -> None:
    cosines = np.asarray([plane.orientation for plane in planes])
    differing = int((np.abs(cosines - np.median(cosines, axis=0)).max(axis=1) > COSINE_TOLERANCE).sum())
    if differing:
        raise name.refuse(
            "mixed-orientations",
            "the slices are not parallel: two series are mixed.",
            seen=f"{differing} of {len(planes)} slices have a different orientation",
            expected="the same ImageOrientationPatient in all slices of a series",
            do="separate the reconstructions, each under its own SeriesInstanceUID",
        )


def _directions(planes: Sequence[Plane], name: SeriesName) -> tuple[FloatVector, FloatVector, FloatVector]:
    cosines = np.median(np.asarray([plane.orientation for plane in planes], dtype=np.float64), axis=0)
    row, column = cosines[:3], cosines[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if not np.isfinite(cosines).all() or max(abs(x - 1) for x in lengths) > 0.01 or abs(row @ column) > 0.01:
        raise name.refuse(
            "bad-orientation",
            "ImageOrientationPatient is not a pair of perpendicular unit vectors.",
            seen=f"lengths {lengths[0]:.3f} and {lengths[1]:.3f}, cosine of the angle {row @ column:.3f}",
            expected="lengths 1 and 1, cosine 0",
            do="export the series again from the archive or the scanner",
        )
    row = row / lengths[0]
    column = column - row * (row @ column)  # the header rounds the cosines to a few decimals
    column /= np.linalg.norm(column)
    return row, column, np.cross(row, column)


def _check_duplicates(along: FloatVector, name: SeriesName) -> None:
    places = np.concatenate(([0], np.cumsum(np.diff(along) > SAME_PLACE_MM)))
    counts = np.bincount(places)
    if counts.max() == 1:
        return
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(places)) + 1))
    doubled = [float(along[firsts[place]]) for place in np.flatnonzero(counts > 1)]
    if len(counts) > 1 and counts.min() == counts.max():
        raise name.refuse(
            "two-series-mixed",
            f"every position has {counts[0]} slices: two reconstructions or phases are mixed in one series.",
            seen=f"{len(along)} slices at {len(counts)} positions from {along[0]:.2f} to {along[-1]:.2f} mm",
            expected="one slice per position",
            do="separate the reconstructions or phases, each under its own SeriesInstanceUID",
        )
    raise name.refuse(
        "duplicate-slice",
        f"{len(doubled)} {'position has' if len(doubled) == 1 else 'positions have'} more than one slice.",
        seen=f"several slices at {_positions_text(doubled)} along the slice normal",
        expected="one slice per position",
        do="remove the copies, or separate the phases if the series contains two acquisitions",
    )


def _check_sideways(
    points: npt.NDArray[np.float64], along: FloatVector, normal: FloatVector, first: Plane, name: SeriesName
) -> None:
    assert first.pixel_spacing_mm is not None
    sideways = (points - points[0]) - np.outer(along - along[0], normal)
    distance = np.linalg.norm(sideways, axis=1)
    if distance.max() <= SIDEWAYS_TOLERANCE * min(first.pixel_spacing_mm):
        return
    lift = float(along[-1] - along[0])
    tilt = float(np.degrees(np.arctan2(distance[-1], lift)))
    straight = np.linalg.norm(sideways - np.outer((along - along[0]) / lift, sideways[-1]), axis=1)
    if straight.max() <= SIDEWAYS_TOLERANCE * min(first.pixel_spacing_mm):
        raise name.refuse(
            "gantry-tilt",
            f"the gantry was tilted: the slices are sheared by {tilt:.1f} degrees.",
            seen=f"{distance[-1]:.2f} mm sideways between the slices at {along[0]:.2f} and {along[-1]:.2f} mm",
            expected="slice positions along the slice normal",
            do="resample the series to an untilted grid (for instance with dcm2niix), or skip it with --on-error skip",
        )
    worst = int(np.argmax(straight))
    raise name.refuse(
        "slices-not-in-line",
        "the slices are not stacked along one line.",
        seen=f"the slice at {along[worst]:.2f} mm is {straight[worst]:.2f} mm off the line through the other slices",
        expected="slice positions on a line along the slice normal",
        do="separate the acquisitions, each under its own SeriesInstanceUID",
    )


def _check_gaps(along: FloatVector, name: SeriesName) -> float:
    """Return the mean distance between slices, mm, once they are known to be regular."""
    gaps = np.diff(along)
    usual = float(np.sort(gaps)[(len(gaps) - 1) // 2])
    tolerance = max(2 * SAME_PLACE_MM, GAP_TOLERANCE * usual)
    odd = np.flatnonzero(np.abs(gaps - usual) > tolerance)
    if len(odd):
        times = np.round(gaps[odd] / usual)
        places = [f"{along[i]:.2f} and {along[i + 1]:.2f} mm" for i in odd[:4]]
        more = f" and {len(odd) - 4} more positions" if len(odd) > 4 else ""
        if (times >= 2).all() and (np.abs(gaps[odd] - times * usual) <= tolerance * times).all():
            missing = int((times - 1).sum())
            raise name.refuse(
                "missing-slice",
                f"{missing} {'slice is' if missing == 1 else 'slices are'} missing.",
                seen=f"a gap between {', between '.join(places)}{more}",
                expected=f"a slice every {usual:.2f} mm",
                do="export or copy the complete series again",
            )
        raise name.refuse(
            "non-uniform-spacing",
            "the slices are not evenly spaced.",
            seen=f"gaps of {', '.join(f'{gaps[i]:.2f} mm between {p}' for i, p in zip(odd, places, strict=False))}{more}",
            expected=f"a slice every {usual:.2f} mm, as for most slices",
            do="export the series again, or resample it to even spacing with another tool",
        )
    mean = float(along[-1] - along[0]) / len(gaps)
    deviation = along - (along[0] + mean * np.arange(len(along)))
    worst = int(np.argmax(np.abs(deviation)))
    if abs(deviation[worst]) > max(2 * SAME_PLACE_MM, LATTICE_TOLERANCE * mean):
        raise name.refuse(
            "non-uniform-spacing",
            "the slices are not evenly spaced: the slice distance drifts along the series.",
            seen=f"gaps from {gaps.min():.3f} to {gaps.max():.3f} mm; "
            f"the slice at {along[worst]:.2f} mm is {deviation[worst]:+.2f} mm off",
            expected=f"a slice every {mean:.3f} mm",
            do="export the series again, or resample it to even spacing with another tool",
        )
    return mean


def _positions_text(positions: Sequence[float]) -> str:
    shown = ", ".join(f"{position:.2f}" for position in positions[:6])
    return f"{shown} mm" + (f" and {len(positions) - 6} more" if len(positions) > 6 else "")
