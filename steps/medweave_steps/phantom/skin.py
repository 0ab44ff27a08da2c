"""Synthetic dermoscopy photographs: a lesion on skin, whose class shows in border and structure and not in its color.

Structures are caricatures of the dermoscopic criteria of each class (Kittler et al. 2016, J Am Acad Dermatol 74:1093). Skin and
lesion colors are drawn from one palette for all classes, so that a color histogram says little about the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.errors import UsageError

Pixels = npt.NDArray[np.float32]
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
"""Classes of ISIC 2019 in the order of its columns, without UNK."""

SMALLEST_SIZE, LARGEST_SIZE = 32, 1024
_SKIN = ((0.72, 0.93), (0.52, 0.74), (0.42, 0.64))
_LESION = ((0.32, 0.62), (0.18, 0.40), (0.12, 0.34))


@dataclass(frozen=True, slots=True, kw_only=True)
class SkinSpec:
    """One photograph.

    Attributes:
        name: class, of `CLASSES`.
        lesion_seed: photographs of one lesion share it.
        view: number of the photograph of this lesion: another rotation, distance and light.
        size: columns and rows.
    """

    name: str
    lesion_seed: int
    view: int = 0
    size: int = 96

    def __post_init__(self) -> None:
        if self.name not in CLASSES or not SMALLEST_SIZE <= self.size <= LARGEST_SIZE:
            raise UsageError(
                "invalid specification of a photograph.",
                seen=f"class {self.name}, size {self.size}",
                expected=f"a class of {', '.join(CLASSES)}, and {SMALLEST_SIZE} to {LARGEST_SIZE} pixels",
            )


@dataclass(frozen=True, slots=True)
class _Plane:
    """Coordinates of each pixel on the skin: 0 at the middle of the lesion, 1 near its border."""

    x: Pixels
    y: Pixels

    @property
    def radius(self) -> Pixels:
        return np.asarray(np.hypot(self.x, self.y), np.float32)

    @property
    def angle(self) -> Pixels:
        return np.asarray(np.arctan2(self.y, self.x), np.float32)

    def blob(self, x: float, y: float, radius: float) -> Pixels:
        """Return a soft disc, 1 inside and 0 outside."""
        return _soft(radius - np.hypot(self.x - x, self.y - y), 0.03)


def photograph(spec: SkinSpec) -> npt.NDArray[np.uint8]:
    """Return one photograph, uint8 [row, column, channel], red, green and blue."""
    lesion, view = np.random.default_rng(spec.lesion_seed), np.random.default_rng((spec.lesion_seed, spec.view))
    plane = _viewed(spec.size, view)
    skin, color = (_color(lesion, ranges) for ranges in (_SKIN, _LESION))
    inside = _border(spec.name, plane, lesion)
    modulation = _STRUCTURES[spec.name](plane, lesion)
    grain = view.normal(0, 0.02, (spec.size, spec.size, 1)).astype(np.float32)
    lesion_color = color * (1 + modulation[..., None] * np.float32(lesion.uniform(0.25, 0.75)))
    image = skin + (lesion_color - skin) * inside[..., None]
    shade = 1 + view.uniform(-0.12, 0.12) * plane.x + view.uniform(-0.12, 0.12) * plane.y
    image = image * shade[..., None] * view.uniform(0.88, 1.08) + grain
    return np.asarray(np.clip(image * 255, 0, 255), np.uint8)


def _viewed(size: int, rng: np.random.Generator) -> _Plane:
    """Return the coordinates of the pixels for a random rotation, distance and position of the camera."""
    axis = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / size * 2 - 1
    angle, zoom = rng.uniform(0, 2 * np.pi), rng.uniform(1.35, 1.85)
    column, row = np.meshgrid(axis * zoom + rng.uniform(-0.2, 0.2), axis * zoom + rng.uniform(-0.2, 0.2))
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return _Plane(np.asarray(column * cosine - row * sine), np.asarray(column * sine + row * cosine))


def _color(rng: np.random.Generator, ranges: tuple[tuple[float, float], ...]) -> Pixels:
    share = rng.uniform(0, 1)
    values = [low + (high - low) * np.clip(share + rng.normal(0, 0.15), 0, 1) for low, high in ranges]
    return np.asarray(values, np.float32)


def _soft(distance: Any, width: float) -> Pixels:
    return np.asarray(1 / (1 + np.exp(-np.clip(distance / width, -30, 30))), np.float32)


def _border(name: str, plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return the share of lesion in each pixel: a ragged border for MEL, scallops for BKL, no clear one for AK, else smooth."""
    waves = {"MEL": (2, 3, 5, 7), "BKL": (9, 11)}.get(name, (2,))
    height = {"MEL": 0.15, "BKL": 0.07}.get(name, 0.08)
    border = np.full_like(plane.radius, rng.uniform(0.78, 0.95))
    for wave in waves:
        border += (
            height * rng.uniform(0.6, 1) * np.cos(wave * plane.angle + rng.uniform(0, 2 * np.pi)).astype(np.float32)
        )
    return _soft(border - plane.radius, 0.16 if name == "AK" else 0.035)


def _melanoma(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return a dark blotch off the middle and a pale veil opposite to it."""
    angle = rng.uniform(0, 2 * np.pi)
    x, y = 0.4 * np.cos(angle), 0.4 * np.sin(angle)
    return plane.blob(-x, -y, rng.uniform(0.25, 0.35)) * 0.7 - plane.blob(x, y, rng.uniform(0.3, 0.42)) * 0.8


def _nevus(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return a regular network of lines."""
    lines = rng.uniform(11, 14)
    return np.asarray(0.6 * np.sin(lines * plane.x) * np.sin(lines * plane.y), np.float32)


def _basal_cell(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return vessels that branch from the border inwards."""
    result = np.zeros_like(plane.x)
    for _ in range(3):
        angle = rng.uniform(0, 2 * np.pi)
        x, y = 0.85 * np.cos(angle), 0.85 * np.sin(angle)
        for heading in angle + np.pi + rng.uniform(-0.6, 0.6, 3):
            along = (plane.x - x) * np.cos(heading) + (plane.y - y) * np.sin(heading)
            across = (plane.y - y) * np.cos(heading) - (plane.x - x) * np.sin(heading)
            vessel = _soft(0.045 - np.abs(across - 0.08 * np.sin(5 * along)), 0.015) * ((along > 0) & (along < 1.2))
            result = np.maximum(result, vessel)
    return np.asarray(0.2 - 0.9 * result, np.float32)


def _keratosis(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return pale scales, short strokes in one direction."""
    heading = rng.uniform(0, np.pi)
    result = np.zeros_like(plane.x)
    for x, y in rng.uniform(-0.75, 0.75, (16, 2)):
        along = (plane.x - x) * np.cos(heading) + (plane.y - y) * np.sin(heading)
        across = (plane.y - y) * np.cos(heading) - (plane.x - x) * np.sin(heading)
        result = np.maximum(result, _soft(1 - (along / 0.2) ** 2 - (across / 0.055) ** 2, 0.15))
    return np.asarray(0.9 * result - 0.15, np.float32)


def _seborrheic(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return many small pale cysts."""
    cysts = [plane.blob(x, y, rng.uniform(0.06, 0.09)) for x, y in rng.uniform(-0.7, 0.7, (14, 2))]
    return np.asarray(0.9 * np.max(cysts, axis=0) - 0.15, np.float32)


def _dermatofibroma(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return a pale middle within a darker ring."""
    radius = rng.uniform(0.34, 0.46)
    return np.asarray(plane.blob(0, 0, radius) * 1.0 - 0.25, np.float32)


def _vascular(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return a few large dark lacunae with pale septa between them."""
    turn, number = rng.uniform(0, 2 * np.pi), int(rng.integers(4, 6))
    angles = turn + np.arange(number) * 2 * np.pi / number
    lacunae = [plane.blob(0.5 * np.cos(angle), 0.5 * np.sin(angle), 0.23) for angle in angles]
    return np.asarray(0.35 - 0.9 * np.max(lacunae, axis=0), np.float32)


def _squamous(plane: _Plane, rng: np.random.Generator) -> Pixels:
    """Return streaks that radiate from the middle."""
    streaks = np.cos(int(rng.integers(9, 13)) * plane.angle + rng.uniform(0, 2 * np.pi))
    return np.asarray(0.6 * streaks * np.clip(plane.radius / 0.5, 0, 1), np.float32)


_STRUCTURES = {
    "MEL": _melanoma, "NV": _nevus, "BCC": _basal_cell, "AK": _keratosis, "BKL": _seborrheic, "DF": _dermatofibroma,
    "VASC": _vascular, "SCC": _squamous,
}  # fmt: skip
