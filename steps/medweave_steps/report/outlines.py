"""Outlines of labels in the pictures of the report: their colors and their SVG paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.labels import Label
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]

# Bright on gray tissue, and apart for color-blind readers; the first two are those of a single label's two outlines.
_COLORS = ("#35c4ff", "#ffb000", "#ff6ec7", "#7ee081", "#f4f06c", "#b79bff", "#ff7a59", "#9fe3d8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLabel:
    """A label with outlines of its own.

    Attributes:
        value: its voxels in the masks.
        name: empty for the only label, whose outlines have the colors of the page.
        color: of both outlines; empty likewise.
    """

    value: int
    name: str = ""
    color: str = ""

    @property
    def truth_style(self) -> str:
        """CSS of the outline of the ground truth: thin, so that it shows between the dashes of the prediction."""
        return f"stroke:{self.color};stroke-width:1.2" if self.color else ""

    @property
    def found_style(self) -> str:
        """CSS of the outline of the prediction: dashes."""
        return f"stroke:{self.color};stroke-width:2.8;stroke-dasharray:5 5" if self.color else ""


ONLY_LABEL = (ShownLabel(value=1),)


def shown_labels(labels: Sequence[Label]) -> tuple[ShownLabel, ...]:
    """Return the labels in the order of their values, each with a color; more labels than colors share them."""
    if len(labels) == 1:
        return ONLY_LABEL
    return tuple(
        ShownLabel(value=label.value, name=label.name, color=_COLORS[place % len(_COLORS)])
        for place, label in enumerate(labels)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The outlines of one label in a plane: SVG path data, empty where there is none."""

    label: ShownLabel
    truth: str
    found: str


def outlines_text(labels: Sequence[ShownLabel], masks: Sequence[tuple[FloatArray, FloatArray]]) -> str:
    """Return which outlines a picture has, for its alternative text."""
    parts = []
    for place, name in enumerate(("the ground truth", "the prediction")):
        seen = [label.name for label, pair in zip(labels, masks, strict=True) if (pair[place] >= 0.5).any()]
        if seen:
            parts.append(f"{name} ({', '.join(seen)})" if len(labels) > 1 else name)
    return f"the outlines of {' and '.join(parts)}" if parts else "no lesion outlined"


def outlines_of(labels: Sequence[ShownLabel], masks: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[Outline, ...]:
    """Return the outlines of each label from its masks (0 to 1) of ground truth and prediction in a plane."""
    return tuple(
        Outline(label=label, truth=_path(truth), found=_path(found))
        for label, (truth, found) in zip(labels, masks, strict=True)
    )


def _path(mask: FloatArray) -> str:
    """Return the outline of a mask at one half as an SVG path in picture units (the first pixel's center lies at 0.5, 0.5)."""
    if not (mask >= 0.5).any():
        return ""
    contourpy = require("contourpy", extra="report")
    padded = np.pad(mask, 1)
    lines = contourpy.contour_generator(z=padded, name="serial").lines(0.5)
    parts = []
    for line in lines:
        points = [f"{_short(x - 0.5)} {_short(y - 0.5)}" for x, y in line]
        parts.append(f"M{'L'.join(points[:-1] if points[0] == points[-1] else points)}Z")
    return "".join(parts)


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
