"""Planes of a prepared volume through a lesion, with the outlines of ground truth and prediction."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.body_parts import is_in_lungs
from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.labels import Label
from medweave_core.contracts.volume import Triple, VolumeInfo, modality_of
from medweave_core.errors import UserInputError
from medweave_steps.io import geometry
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.metrics.components import connected_components
from medweave_steps.metrics.lesions import match_lesions
from medweave_steps.report.outlines import ONLY_LABEL, Outline, ShownLabel, outlines_of, outlines_text
from medweave_steps.report.words import minus
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[np.uint8]

# The window that radiologists read lungs in.
_LUNG_LEVEL_HU, _LUNG_WIDTH_HU = -600.0, 1500.0
# A skull-stripped brain is about 0.5 to 3 standard deviations above the mean that its black background pulls down.
MR_WINDOW_SD = (-0.6, 5.0)
PET_WINDOW_SUV = (0.0, 10.0)
ZOOM_FIELD_MM = 50.0
ZOOM_PIXELS_MM = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The display of a plane: rows and columns of the picture, as axes of the volume that are read backwards.

    Patient's right on the left and anterior (or superior) on top, as radiologists see it; RAS axes rise towards the other side.
    """

    name: str
    normal: int
    row: int
    column: int
    sides: tuple[str, str, str, str]  # left, right, top, bottom


VIEWS = (
    View(name="axial", normal=2, row=1, column=0, sides=("R", "L", "A", "P")),
    View(name="coronal", normal=1, row=2, column=0, sides=("R", "L", "S", "I")),
    View(name="sagittal", normal=0, row=2, column=1, sides=("A", "P", "S", "I")),
)
AXIAL = VIEWS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The values shown as black and as white, HU, SUV or standard deviations, and their name in texts."""

    window: tuple[float, float]
    name: str
    text: str


def display_of(cohort: PreparedCohort, labels: Sequence[Label]) -> Display:
    """Return how volumes are shown: labels in the lungs in the lung window, other CT in the window of the prepared cases."""
    if modality_of(cohort.channels) == "PT":
        low, high = PET_WINDOW_SUV
        return Display(window=PET_WINDOW_SUV, name=cohort.channels[0], text=f"SUV from {low:g} to {high:g}")
    if cohort.window_hu is None:
        return Display(window=MR_WINDOW_SD, name=cohort.channels[0], text=cohort.channels[0])
    if all(map(is_in_lungs, labels)):
        level, width = _LUNG_LEVEL_HU, _LUNG_WIDTH_HU
        text = f"lung window (level {minus(level)} HU, width {width:g} HU)"
        return Display(window=(level - width / 2, level + width / 2), name="lung window", text=text)
    low, high = cohort.window_hu
    text = f"window from {minus(low)} to {minus(high)} HU"
    return Display(window=(low, high), name=text, text=text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """One case to be drawn: volume (of MR the first contrast) and ground truth on the prepared grid, the prediction on the
    source's. The masks hold the values of the shown labels."""

    case_id: str
    info: VolumeInfo
    volume_IJK: FloatArray
    truth_IJK: LabelArray
    found_RAS: LabelArray
    display: Display
    labels: tuple[ShownLabel, ...]

    @property
    def window(self) -> tuple[float, float]:
        """Values shown as black and as white."""
        return self.display.window


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One plane, ready for the page.

    Attributes:
        png: data URI.
        width, height: extent in picture units (pixels of the plane) that outlines are drawn in.
        aspect: width over height in mm.
        outlines: one for each label.
        lens: x, y, width, height of the field that the zoomed picture shows, or None.
    """

    name: str
    alt: str
    png: str
    width: float
    height: float
    aspect: float
    outlines: tuple[Outline, ...]
    lens: tuple[float, float, float, float] | None
    sides: tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """The voxel of the prepared volume that the planes go through, and its description."""

    voxel: Triple
    what: str


def read_mask(path: Path, info: VolumeInfo, labels: Sequence[ShownLabel]) -> LabelArray:
    """Return the delivered mask with the values of the labels, in the order of the prepared volume's axes, on the source's grid.

    Raises:
        UserInputError: it cannot be read, has not the source's shape, or holds several values for one label.
    """
    nibabel = require("nibabel", extra="report")
    try:
        array = np.asanyarray(nibabel.load(path).dataobj)
    except (OSError, EOFError, ValueError, nibabel.filebasedimages.ImageFileError) as error:
        raise _bad_mask(info, type(error).__name__) from error
    if info.source_format == "dicom" and array.ndim == 3:  # [column, row, slice] in the file
        array = array.transpose(2, 1, 0)
    if array.shape != info.source_grid.shape:
        raise _bad_mask(info, f"shape {array.shape}")
    if len(labels) == 1 and (foreground := array[array > 0]).size and foreground.max() != foreground.min():
        raise _bad_mask(info, "several foreground values")
    return _shown_values(geometry.to_ras_order(array, info.source_axis, info.source_flipped), labels)


def on_prepared_grid(mask_RAS: LabelArray, info: VolumeInfo) -> BoolArray:
    """Return the mask's nearest voxels on the prepared grid."""
    nearest = [np.rint(_source_index(info, axis)).astype(np.intp) for axis in range(3)]
    clipped = [np.clip(index, 0, size - 1) for index, size in zip(nearest, mask_RAS.shape, strict=True)]
    return mask_RAS[np.ix_(*clipped)] > 0


def choose_foci(found: BoolArray, truth: BoolArray, info: VolumeInfo) -> list[Focus]:
    """Return the focus of the planes: the largest lesion, else the largest false positive, else the middle.

    Where a smaller lesion was missed, the largest such one is the second focus, which gets a picture of its own.
    """
    match = match_lesions(found, truth, spacing_mm=info.grid.spacing_mm)
    columns = (match.reference_volumes_mm3, match.reference_centres, match.reference_hit)
    lesions = sorted(zip(*columns, strict=True), key=lambda lesion: -lesion[0])
    if lesions:
        _, centre, is_hit = lesions[0]
        what = "through the largest lesion" + ("" if is_hit else ", which was missed")
        missed = [other for _, other, other_is_hit in lesions[1:] if not other_is_hit]
        second = [Focus(voxel=_voxel(place), what="through the largest missed lesion") for place in missed[:1]]
        return [Focus(voxel=_voxel(centre), what=what), *(second if is_hit else [])]
    parts = connected_components(found)
    if parts.num:
        largest = parts.voxels[parts.labels == int(np.argmax(parts.num_voxels()))]
        middle = np.stack(np.unravel_index(largest, found.shape)).mean(axis=1)
        return [Focus(voxel=_voxel(middle), what="through the largest false positive; the case has no lesion")]
    centre = tuple((n - 1) / 2 for n in found.shape)
    return [Focus(voxel=_voxel(centre), what="through the center; no lesion in either mask")]


def pictures(
    case: CaseFolder, mask_path: Path, display: Display, labels: tuple[ShownLabel, ...] = ONLY_LABEL
) -> tuple[list[Picture], Focus]:
    """Draw three planes through the focus, the axial one also enlarged, and a missed lesion enlarged; return them and the focus.

    Args:
        case: a prepared case; its ground truth is drawn where it has one.
        mask_path: the delivered NIfTI mask.
        display: values shown as black and as white.
        labels: that are outlined; with one, every foreground voxel belongs to it.
    Raises:
        UserInputError: the mask cannot be read or belongs to another source.
    """
    info = case.info()
    scan = Scan(
        case_id=case.case.case_id,
        info=info,
        volume_IJK=case.volume_CIJK()[0],
        truth_IJK=_truth(case, labels) if case.case.has_label else np.zeros(info.grid.shape, np.uint8),
        found_RAS=read_mask(mask_path, info, labels),
        display=display,
        labels=labels,
    )
    foci = choose_foci(on_prepared_grid(scan.found_RAS, info), scan.truth_IJK > 0, info)
    planes = [_picture(view, scan, foci[0]) for view in VIEWS]
    names = ("axial, enlarged", "missed lesion, enlarged")
    return [*planes, *(_zoomed(AXIAL, scan, focus, name) for focus, name in zip(foci, names, strict=False))], foci[0]


def _truth(case: CaseFolder, labels: Sequence[ShownLabel]) -> LabelArray:
    """Return the ground truth with the values of the labels; voxels without annotation are background."""
    values: npt.NDArray[np.uint8] = case.label_IJK()
    if case.ignore_value is not None:
        values = np.where(values == case.ignore_value, 0, values)
    return _shown_values(values, labels)


def _shown_values(values: npt.NDArray[Any], labels: Sequence[ShownLabel]) -> LabelArray:
    """Return the values of the labels, 0 elsewhere; with one label, 1 for every foreground value."""
    if len(labels) > 1:
        return np.where(np.isin(values, [label.value for label in labels]), values, 0).astype(np.uint8)
    return (values > 0).astype(np.uint8)


def _layers(view: View, scan: Scan, focus: Focus) -> tuple[FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Return the image (HU or standard deviations) of a plane, and ground truth and prediction (0 to 1) of each label, turned as
    displayed."""
    place = focus.voxel[view.normal]
    image = _turned(np.take(scan.volume_IJK, place, axis=view.normal), view)
    truth = np.take(scan.truth_IJK, place, axis=view.normal)
    masks = []
    for label in scan.labels:
        found = _plane_of_label(scan.found_RAS, label.value, scan.info, view.normal, place)
        masks.append((_turned((truth == label.value).astype(np.float32), view), _turned(found, view)))
    return image, masks


def _turned(plane: Any, view: View) -> Any:
    first = min(view.row, view.column)
    return (plane if first == view.row else plane.T)[::-1, ::-1]


def _source_index(info: VolumeInfo, axis: int) -> npt.NDArray[np.float64]:
    """Return the fractional index, on the RAS-ordered source, of each prepared voxel of one axis."""
    step = info.grid.spacing_mm[axis] / info.source_grid.spacing_mm[info.source_axis[axis]]
    indices = np.arange(info.grid.shape[axis], dtype=np.float64)
    positions: npt.NDArray[np.float64] = (indices + info.crop_start[axis]) * step
    return positions


def _plane_of_label(mask_RAS: LabelArray, value: int, info: VolumeInfo, normal: int, place: int) -> FloatArray:
    lower, upper, weight = geometry.interpolation(
        _source_index(info, normal)[place : place + 1], mask_RAS.shape[normal]
    )
    below, above = (
        (np.take(mask_RAS, int(index[0]), axis=normal) == value).astype(np.float32) for index in (lower, upper)
    )
    plane: FloatArray = below + (above - below) * weight[0]
    others = [axis for axis in range(3) if axis != normal]
    for place_in_plane, axis in enumerate(others):
        plane = geometry.interpolate_axis(plane, _source_index(info, axis), place_in_plane)
    return plane


def _picture(view: View, scan: Scan, focus: Focus) -> Picture:
    image, masks = _layers(view, scan, focus)
    height, width = image.shape
    shown = scan.display.name
    row_mm, column_mm = scan.info.grid.spacing_mm[view.row], scan.info.grid.spacing_mm[view.column]
    return Picture(
        name=view.name,
        alt=f"{view.name.capitalize()} plane of {scan.case_id}, {focus.what}, {shown}, with {outlines_text(scan.labels, masks)}.",
        png=png_of(image, scan.window),
        width=width,
        height=height,
        aspect=round(width * column_mm / (height * row_mm), 4),
        outlines=outlines_of(scan.labels, masks),
        lens=_lens(view, image.shape, scan.info, focus) if view is AXIAL else None,
        sides=view.sides,
    )


def _zoomed(view: View, scan: Scan, focus: Focus, name: str) -> Picture:
    """Return the field around the focus on a finer grid, so that a lesion of a few voxels can be judged."""
    from scipy import ndimage

    image, masks = _layers(view, scan, focus)
    rows, columns = _field(view, image.shape, scan.info, focus)
    at = np.meshgrid(rows, columns, indexing="ij")

    def enlarged(layer: FloatArray, order: int, outside: float) -> FloatArray:
        finer: FloatArray = ndimage.map_coordinates(
            np.ascontiguousarray(layer), at, order=order, mode="constant", cval=outside
        )
        return finer

    image = enlarged(image, 3, scan.window[0])
    masks = [(enlarged(truth, 1, 0), enlarged(found, 1, 0)) for truth, found in masks]
    return Picture(
        name=name,
        alt=(
            f"{view.name.capitalize()} plane of {scan.case_id}, enlarged to a field of {ZOOM_FIELD_MM:g} mm, {focus.what}, "
            f"with {outlines_text(scan.labels, masks)}."
        ),
        png=png_of(image, scan.window),
        width=len(columns),
        height=len(rows),
        aspect=1.0,
        outlines=outlines_of(scan.labels, masks),
        lens=None,
        sides=view.sides,
    )


def _field(view: View, shape: tuple[int, ...], info: VolumeInfo, focus: Focus) -> list[npt.NDArray[np.float64]]:
    """Return rows and columns of the enlarged picture as indices of the plane, moved so that they stay inside where they fit."""
    size = round(ZOOM_FIELD_MM / ZOOM_PIXELS_MM)
    offsets_mm: npt.NDArray[np.float64] = (np.arange(size, dtype=np.float64) - (size - 1) / 2) * ZOOM_PIXELS_MM
    made = []
    for axis, length in ((view.row, shape[0]), (view.column, shape[1])):
        places: npt.NDArray[np.float64] = length - 1 - focus.voxel[axis] + offsets_mm / info.grid.spacing_mm[axis]
        if places[-1] - places[0] <= length - 1:
            places += max(0.0, -places[0]) - max(0.0, places[-1] - (length - 1))
        made.append(places)
    return made


def _lens(view: View, shape: tuple[int, ...], info: VolumeInfo, focus: Focus) -> tuple[float, float, float, float]:
    rows, columns = _field(view, shape, info, focus)
    left, top = columns[0] + 0.5, rows[0] + 0.5
    values = [round(float(v), 2) for v in (left, top, columns[-1] - columns[0], rows[-1] - rows[0])]
    return (values[0], values[1], values[2], values[3])


def png_of(image: FloatArray, window: tuple[float, float]) -> str:
    """Return a data URI.

    Args:
        image: [row, column], or [row, column, channel] with the channels red, green and blue.
        window: values shown as black and as white.
    """
    pillow = require("PIL.Image", extra="report")
    low, high = window
    gray = np.rint(np.clip((image - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    stream = io.BytesIO()
    pillow.fromarray(np.ascontiguousarray(gray)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _voxel(centre: Any) -> Triple:
    i, j, k = (round(float(x)) for x in centre)
    return (i, j, k)


def _bad_mask(info: VolumeInfo, seen: str) -> UserInputError:
    return UserInputError(
        f"the mask of {info.case_id} cannot be drawn.",
        seen=seen,
        expected=f"lesion_mask.nii.gz on the source's grid, {' x '.join(map(str, info.source_grid.shape))} voxels",
        do="use the segmentations and case batches of the same run",
    )
