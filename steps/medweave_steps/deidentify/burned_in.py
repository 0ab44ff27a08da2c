"""Detection of text that was burned into the pixels: a heuristic on the stored values, without character recognition.

Three properties distinguish text from anatomy. Burned-in text is *constant*: the same pixels have the same stored values in all
images of a series, where a scanner's noise changes every value. It is *lasting*: small soft letters mix with the anatomy below
them, but stay brighter in every image. Or it is *saturated*: written with the highest value of an image, flat. Lasting and
saturated pixels must have sharp edges. A property counts only where the pixels look like a line of glyphs: several small
pieces of similar height in a row. Text of low contrast, text in one image below its highest value, and handwriting are not
detected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.runtime.imports import require

Mask = npt.NDArray[np.bool_]

FEWEST_IMAGES = 3  # fewer images have too much in common by chance
FEWEST_CONSTANT_GLYPHS = 4
FEWEST_SATURATED_GLYPHS = 5
FEWEST_LASTING_GLYPHS = 6
FEWEST_SATURATED_PIXELS = 10
GLYPH_HEIGHT = 5, 64  # pixels
LARGEST_SHARE = 0.25  # of the image's side: a piece that is larger in both directions is background
MOST_PIECES = 4000  # more is noise
MOST_INK = 0.1  # share of an image that lines of text cover; more is noise, or a picture
LOWEST_CONTRAST = 0.2  # of text in a photograph, as a share of the whole range of values
CLIPPED_SHARE = 0.05  # of an image in its lowest value: air below the scale, no dark words


@dataclass(slots=True)
class _Constant:
    first: npt.NDArray[Any]
    same: Mask
    lowest: npt.NDArray[Any]
    images: int = 1


@dataclass(slots=True)
class TextSearch:
    """Search for burned-in text in the images of one series; collects what the images have in common.

    Attributes:
        found: True as soon as one image shows a line of saturated glyphs.
    """

    found: bool = False
    _by_kind: dict[Any, _Constant] = field(default_factory=dict)

    def add(self, stored_JI: npt.NDArray[Any], kind: str = "", *, is_radiograph: bool = False) -> None:
        """Add one image of the series.

        Args:
            stored_JI: stored values [row, column].
            kind: images of another kind (a localizer) are compared among themselves, and so are those of another sample type.
            is_radiograph: search for dark text, too: with MONOCHROME1, text that is displayed white has the lowest value.
        """
        if self.found or stored_JI.size == 0:
            return
        self.found = saturated_text(stored_JI) or (is_radiograph and saturated_text(inverted(stored_JI)))
        key = (stored_JI.shape, stored_JI.dtype.newbyteorder("="), kind)
        known = self._by_kind.get(key)
        if known is None:
            self._by_kind[key] = _Constant(
                first=stored_JI.copy(), same=np.ones(stored_JI.shape, dtype=bool), lowest=stored_JI.copy()
            )
        else:
            known.same &= stored_JI == known.first
            np.minimum(known.lowest, stored_JI, out=known.lowest)
            known.images += 1

    def finish(self) -> bool:
        """Return True where the images show text."""
        return self.found or any(
            _constant_text(known.first, known.same) or _lasting_text(known.lowest)
            for known in self._by_kind.values()
            if known.images >= FEWEST_IMAGES
        )


def saturated_text(stored_JI: npt.NDArray[Any]) -> bool:
    """Return True where one image shows a line of flat, sharp glyphs in its highest value."""
    if np.count_nonzero(stored_JI == stored_JI.max()) < FEWEST_SATURATED_PIXELS:
        return False
    return _bright_text(stored_JI, 0.75, FEWEST_SATURATED_GLYPHS)


def text_in_photograph(pixels_CRI: npt.NDArray[np.float32]) -> bool:
    """Return True where a photograph shows a line of sharp glyphs, as camera software writes them: white or in a strong color.

    Lossy compression changes every value, so that glyphs need not be flat. Dark glyphs are searched in gray images only, which may
    be radiographs: in color, the marks of a ruler and hairs look like them.

    Args:
        pixels_CRI: float32 [channel, row, column] from 0 to 1: gray, or red, green and blue.
    """
    lowest_RI, highest_RI = pixels_CRI.min(axis=0), pixels_CRI.max(axis=0)
    other_RI = 1 - highest_RI if len(pixels_CRI) == 1 else highest_RI - lowest_RI
    return any(
        float(values_RI.max()) - float(np.median(values_RI)) >= LOWEST_CONTRAST
        and _bright_text(values_RI, 0.6, FEWEST_LASTING_GLYPHS)
        for values_RI in (lowest_RI, other_RI)
    )


def inverted(stored_JI: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the image with its darkest value as the highest."""
    wide = stored_JI.astype(np.int64) if stored_JI.dtype.kind in "iu" else stored_JI
    return np.asarray(wide.max() - wide)


def _lasting_text(lowest_JI: npt.NDArray[Any]) -> bool:
    """Return boxes of text that is the brightest part of every image; the brightness of its soft edges varies."""
    return any(_bright_text(lowest_JI, share, FEWEST_LASTING_GLYPHS) for share in (0.5, 0.6, 0.7, 0.8))


def _bright_text(values_JI: npt.NDArray[Any], share: float, fewest: int) -> bool:
    """Return sharp glyphs among the pixels above that fraction between the median and the highest value."""
    top, middle = float(values_JI.max()), float(np.median(values_JI))
    if not top > middle:
        return False
    line = _line_of_glyphs(values_JI >= middle + share * (top - middle), fewest)
    return line is not None and _is_sharp(values_JI, line, (top + middle) / 2)


def _constant_text(first: npt.NDArray[Any], same: Mask) -> bool:
    """Return boxes of text among pixels that never change; constant background is removed first."""
    if not same.any():
        return False
    candidates = same & ~_background(first, same)
    return _line_of_glyphs(candidates, FEWEST_CONSTANT_GLYPHS) is not None


def _background(first: npt.NDArray[Any], same: Mask) -> Mask:
    """Return the constant pixels of the lowest value (air below the scale) or of one value over a large region (padding)."""
    ndimage = require("scipy.ndimage", extra="deidentify")
    lowest = first == first.min()
    background: Mask = same & lowest if lowest.mean() > CLIPPED_SHARE else np.zeros_like(same)
    values, counts = np.unique(first[same], return_counts=True)
    for value in values[counts > 0.002 * first.size]:
        mask = same & (first == value)
        labels, _ = ndimage.label(mask)
        for number, place in enumerate(ndimage.find_objects(labels), start=1):
            sides = [part.stop - part.start for part in place]
            if all(side > LARGEST_SHARE * whole for side, whole in zip(sides, first.shape, strict=True)):
                background |= labels == number
    return background


def _line_of_glyphs(mask: Mask, fewest: int) -> Mask | None:
    """Return the pixels of a line of glyphs, or None."""
    if not 5 * fewest <= np.count_nonzero(mask) <= MOST_INK * mask.size:
        return None
    ndimage = require("scipy.ndimage", extra="deidentify")
    labels, number = ndimage.label(mask, np.ones((3, 3), dtype=bool))
    boxes = np.array(
        [(p[0].start, p[0].stop, p[1].start, p[1].stop) for p in ndimage.find_objects(labels)], dtype=np.int64
    ).reshape(-1, 4)
    areas = np.bincount(labels.ravel(), minlength=number + 1)[1:]
    heights, widths = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    glyph = (heights >= GLYPH_HEIGHT[0]) & (heights <= min(GLYPH_HEIGHT[1], max(8, mask.shape[0] // 4)))
    glyph &= (widths <= 3 * heights) & (areas >= 5)
    chosen = np.flatnonzero(glyph)
    if not fewest <= len(chosen) <= MOST_PIECES:
        return None
    chain = _chain(boxes[chosen], fewest)
    return None if chain is None else np.isin(labels, chosen[chain] + 1)


def _chain(boxes: npt.NDArray[np.int64], fewest: int) -> list[int] | None:
    """Return the indices of boxes of similar height in one row."""
    middles, heights = (boxes[:, 0] + boxes[:, 1]) / 2, boxes[:, 1] - boxes[:, 0]
    for seed in range(len(boxes)):
        height = heights[seed]
        alike = (np.abs(middles - middles[seed]) <= 0.5 * height) & (heights >= 0.5 * height) & (heights <= 2 * height)
        row = np.flatnonzero(alike)
        row = row[np.argsort(boxes[row, 2], kind="stable")]
        chain: list[int] = []
        for index in row:
            if chain and boxes[index, 2] - boxes[chain[-1], 3] > 1.5 * height:
                chain = []
            chain.append(int(index))
            if len(chain) >= fewest:
                return chain
    return None


def _is_sharp(stored_JI: npt.NDArray[Any], line: Mask, half: float) -> bool:
    """Return whether most values at a distance of two pixels from the glyphs are low; around metal they are high."""
    ndimage = require("scipy.ndimage", extra="deidentify")
    block = np.ones((3, 3), dtype=bool)
    near = ndimage.binary_dilation(line, block, iterations=1)
    ring = ndimage.binary_dilation(near, block, iterations=1) & ~near
    return bool(ring.any()) and float(np.median(stored_JI[ring])) < half
