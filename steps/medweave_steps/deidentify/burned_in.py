"""Looks for text that somebody burned into the pixels. A heuristic on the stored values; it reads no word.

Two marks tell text from anatomy. Burned-in text is *constant*: over the images of a series it stands at the same pixels with the
same stored values, where a scanner's noise changes every value. Or it is *saturated*: written with the highest value of an
image, flat and with sharp edges. Either mark counts only where the pixels look like a line of glyphs: several small pieces
of like height, side by side. What is burned in at low contrast, in one image only, or as handwriting is not found.
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
FEWEST_SATURATED_PIXELS = 10
GLYPH_HEIGHT = 5, 64  # pixels
LARGEST_SHARE = 0.25  # of the image's side: what is larger in both directions is background, no glyph
MOST_PIECES = 4000  # more is noise


@dataclass(slots=True)
class _Constant:
    first: npt.NDArray[Any]
    same: Mask
    images: int = 1


@dataclass(slots=True)
class TextSearch:
    """Collects what the images of one series have in common.

    Attributes:
        found: True as soon as one image shows a line of saturated glyphs.
    """

    found: bool = False
    _by_kind: dict[Any, _Constant] = field(default_factory=dict)

    def add(self, stored_JI: npt.NDArray[Any], kind: str = "") -> None:
        """Takes in one image.

        Args:
            stored_JI: stored values [row, column].
            kind: images of another kind (a localizer) are compared among themselves.
        """
        if self.found or stored_JI.size == 0:
            return
        self.found = saturated_text(stored_JI)
        known = self._by_kind.get((stored_JI.shape, kind))
        if known is None:
            self._by_kind[stored_JI.shape, kind] = _Constant(stored_JI.copy(), np.ones(stored_JI.shape, dtype=bool))
        else:
            known.same &= stored_JI == known.first
            known.images += 1

    def finish(self) -> bool:
        """True where the images show text."""
        return self.found or any(
            _constant_text(known.first, known.same)
            for known in self._by_kind.values()
            if known.images >= FEWEST_IMAGES and known.same.any()
        )


def saturated_text(stored_JI: npt.NDArray[Any]) -> bool:
    """True where one image shows a line of flat, sharp glyphs in its highest value."""
    top = stored_JI.max()
    if np.count_nonzero(stored_JI == top) < FEWEST_SATURATED_PIXELS:
        return False
    middle = float(np.median(stored_JI))
    if float(top) <= middle:
        return False
    bright = stored_JI >= float(top) - 0.25 * (float(top) - middle)
    line = _line_of_glyphs(bright, FEWEST_SATURATED_GLYPHS)
    return line is not None and _is_sharp(stored_JI, line, (float(top) + middle) / 2)


def _constant_text(first: npt.NDArray[Any], same: Mask) -> bool:
    """Text among pixels that never change; what is constant because nothing was measured there is taken away first."""
    candidates = same & ~_background(first, same)
    if _line_of_glyphs(candidates, FEWEST_CONSTANT_GLYPHS) is not None:
        return True
    # Soft edges mix with what lies below and change with it: strokes fall apart into pieces above one another.
    ndimage = require("scipy.ndimage", extra="deidentify")
    joined: Mask = ndimage.binary_closing(candidates, np.ones((5, 1), dtype=bool))
    return _line_of_glyphs(joined, FEWEST_CONSTANT_GLYPHS) is not None


def _background(first: npt.NDArray[Any], same: Mask) -> Mask:
    """Constant pixels of the lowest value (air below the scale) or of one value over a large region (padding)."""
    ndimage = require("scipy.ndimage", extra="deidentify")
    background: Mask = same & (first == first.min())
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
    """The pixels of a line of glyphs, or None."""
    if np.count_nonzero(mask) < 5 * fewest:
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
    """Indices of boxes of like height that stand side by side on one line."""
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
    """True where two pixels beside the glyphs most values are low; metal glows."""
    ndimage = require("scipy.ndimage", extra="deidentify")
    block = np.ones((3, 3), dtype=bool)
    near = ndimage.binary_dilation(line, block, iterations=1)
    ring = ndimage.binary_dilation(near, block, iterations=1) & ~near
    return bool(ring.any()) and float(np.median(stored_JI[ring])) < half
