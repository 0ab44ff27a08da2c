"""A picture of a map over its image: the 2-D image, or three planes of a volume through the largest value of the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.volume import Triple_mm, are_images
from medweave_steps.explain.network import EXTRA
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]

# Dark violet, teal, yellow: apart from gray tissue and from skin, in this order also for color-blind readers.
_COLORS = np.array([[68, 1, 84], [33, 145, 140], [253, 231, 37]], np.float32) / 255
_OPACITY = 0.6  # of the largest value; 0 is transparent
_PLANES = ((2, 1, 0), (1, 2, 0), (0, 2, 1))  # axial, coronal, sagittal: normal, row, column
_GAP_PIXELS = 4
_LEAST_HEIGHT_PIXELS = 192
_MOST_PIXELS = 1024
_PERCENTILES = (1, 99)  # of a volume without a window in HU: shown as black and as white


def overlay_of(volume_CIJK: npt.NDArray[np.floating], map_IJK: FloatArray, cohort: PreparedCohort) -> Any:
    """Return a picture, a PIL image in RGB.

    The axial plane has the patient's right on the left and anterior on top; coronal and sagittal planes have superior on top.

    Args:
        volume_CIJK: the prepared image; of a volume the first channel is shown.
        map_IJK: float32 in [0, 1] on the same grid.
        cohort: description of the prepared cases.
    """
    if are_images(cohort.channels):
        image = np.clip(np.moveaxis(np.asarray(volume_CIJK[..., 0], np.float32), 0, -1).swapaxes(0, 1), 0, 1)
        return _enlarged(_blended(image, map_IJK[..., 0].T), (1.0, 1.0))
    volume_IJK = np.asarray(volume_CIJK[0], np.float32)
    low, high = cohort.window_hu or np.percentile(volume_IJK, _PERCENTILES)
    gray_IJK = np.clip((volume_IJK - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)
    focus = np.unravel_index(int(map_IJK.argmax()), map_IJK.shape) if map_IJK.any() else [n // 2 for n in map_IJK.shape]
    return _side_by_side([_plane(gray_IJK, map_IJK, focus, axes, cohort.spacing_mm) for axes in _PLANES])


def _plane(
    gray_IJK: FloatArray, map_IJK: FloatArray, focus: Sequence[Any], axes: tuple[int, int, int], spacing_mm: Triple_mm
) -> Any:
    normal, row, column = axes
    gray, values = (
        # The remaining axes keep their order, so the column's comes first.
        np.take(array, int(focus[normal]), axis=normal).T[::-1, ::-1]
        for array in (gray_IJK, map_IJK)
    )
    return _enlarged(_blended(gray[..., None], values), (spacing_mm[row], spacing_mm[column]))


def _blended(image: FloatArray, values: FloatArray) -> npt.NDArray[np.uint8]:
    """Return [row, column, 3] in 0..255 of an image [row, column, 1 or 3] in [0, 1] and a map [row, column]."""
    stops = np.linspace(0, 1, len(_COLORS))
    colors = np.stack([np.interp(values, stops, _COLORS[:, channel]) for channel in range(3)], axis=-1)
    opacity = _OPACITY * values[..., None]
    return np.rint(255 * np.clip((1 - opacity) * image + opacity * colors, 0, 1)).astype(np.uint8)


def _enlarged(pixels: npt.NDArray[np.uint8], spacing_mm: tuple[float, float]) -> Any:
    """Return a picture with square pixels, large enough to look at."""
    pillow = require("PIL.Image", extra=EXTRA)
    rows, columns = pixels.shape[:2]
    finest = min(spacing_mm)
    height, width = rows * spacing_mm[0] / finest, columns * spacing_mm[1] / finest
    factor = min(max(1.0, _LEAST_HEIGHT_PIXELS / height), max(1.0, _MOST_PIXELS / max(height, width)))
    picture = pillow.fromarray(np.ascontiguousarray(pixels))
    return picture.resize((max(1, round(width * factor)), max(1, round(height * factor))), pillow.Resampling.BILINEAR)


def _side_by_side(pictures: Sequence[Any]) -> Any:
    pillow = require("PIL.Image", extra=EXTRA)
    width = sum(picture.width for picture in pictures) + _GAP_PIXELS * (len(pictures) - 1)
    canvas = pillow.new("RGB", (width, max(picture.height for picture in pictures)))
    left = 0
    for picture in pictures:
        canvas.paste(picture, (left, 0))
        left += picture.width + _GAP_PIXELS
    return canvas
