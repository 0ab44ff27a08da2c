"""Synthetic frontal chest X-rays: the shadow of ribs, spine, heart and lungs, with findings that a list of labels names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FINDINGS = ("Cardiomegaly", "Effusion", "Mass", "Nodule", "Pneumothorax")
"""Names of NIH ChestX-ray14, in alphabetical order."""

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class XraySpec:
    """One X-ray.

    Attributes:
        patient_seed: images of one patient share it, and so the anatomy.
        image: number of the image of this patient: another position and noise.
        findings: of `FINDINGS`.
        size: columns and rows.
    """

    patient_seed: int
    image: int = 0
    findings: Collection[str] = ()
    size: int = 96


def radiograph(spec: XraySpec) -> npt.NDArray[np.uint16]:
    """Return one X-ray, uint16 [row, column] from 0 to 4095; bright is dense."""
    body, view = np.random.default_rng(spec.patient_seed), np.random.default_rng((spec.patient_seed, spec.image))
    axis = (np.arange(spec.size, dtype=np.float32) + np.float32(0.5)) / spec.size * 2 - 1
    right, down = np.asarray(view.uniform(-0.04, 0.04, 2), np.float32)
    x, y = np.meshgrid(axis + right, axis + down)
    image = _chest(x, y, body, is_large_heart="Cardiomegaly" in spec.findings)
    for name in FINDINGS:
        if name in spec.findings and name in _DRAWN:
            image = _DRAWN[name](image, x, y, np.random.default_rng((spec.patient_seed, FINDINGS.index(name))))
    noisy = image * view.uniform(0.9, 1.1) + view.normal(0, 0.015, image.shape)
    return np.asarray(np.clip(noisy, 0, 1) * 4095, np.uint16)


def _soft(distance: Any, width: float = 0.03) -> Pixels:
    return np.asarray(1 / (1 + np.exp(-np.clip(distance / width, -30, 30))), np.float32)


def _ellipse(x: Pixels, y: Pixels, center: tuple[float, float], radii: tuple[float, float]) -> Pixels:
    return _soft(1 - np.hypot((x - center[0]) / radii[0], (y - center[1]) / radii[1]), 0.08)


def _chest(x: Pixels, y: Pixels, rng: np.random.Generator, *, is_large_heart: bool) -> Pixels:
    body = _ellipse(x, y, (0, 0.15), (rng.uniform(0.88, 0.98), 1.25))
    lungs = np.maximum(*(_ellipse(x, y, (side * 0.42, -0.1), (0.33, rng.uniform(0.62, 0.7))) for side in (-1, 1)))
    ribs = _soft(np.sin((y - 0.55 * x**2) * rng.uniform(17, 20) + rng.uniform(0, 6)) - 0.55, 0.12)
    spine = _soft(0.09 - np.abs(x), 0.02)
    width = 0.48 if is_large_heart else rng.uniform(0.25, 0.29)
    heart = _ellipse(x, y, (0.1, 0.3), (width, 0.3))
    image = body * (0.62 - 0.42 * lungs + 0.1 * ribs) + 0.14 * spine * body
    return np.asarray(np.maximum(image, 0.68 * heart * body), np.float32)


def _effusion(image: Pixels, x: Pixels, y: Pixels, rng: np.random.Generator) -> Pixels:
    """Fill the base of one lung up to a meniscus that rises at the chest wall."""
    side = rng.choice([-1.0, 1.0])
    level = rng.uniform(0.12, 0.25) - 0.25 * np.clip(side * x - 0.3, 0, None)
    fluid = _soft(y - level) * _ellipse(x, y, (side * 0.45, 0.3), (0.36, 0.42))
    return np.asarray(image * (1 - fluid) + 0.75 * fluid, np.float32)


def _disc(image: Pixels, x: Pixels, y: Pixels, rng: np.random.Generator, radius: float) -> Pixels:
    center = (rng.choice([-1.0, 1.0]) * rng.uniform(0.38, 0.52), rng.uniform(-0.45, -0.05))
    return np.asarray(image + 0.35 * _ellipse(x, y, center, (radius, radius)), np.float32)


def _mass(image: Pixels, x: Pixels, y: Pixels, rng: np.random.Generator) -> Pixels:
    return _disc(image, x, y, rng, rng.uniform(0.18, 0.24))


def _nodule(image: Pixels, x: Pixels, y: Pixels, rng: np.random.Generator) -> Pixels:
    return _disc(image, x, y, rng, rng.uniform(0.06, 0.09))


def _pneumothorax(image: Pixels, x: Pixels, y: Pixels, rng: np.random.Generator) -> Pixels:
    """Blacken the top of one lung."""
    side = rng.choice([-1.0, 1.0])
    air = _soft(-0.3 - y) * _ellipse(x, y, (side * 0.42, -0.35), (0.33, 0.45))
    return np.asarray(image * (1 - 0.85 * air), np.float32)


_DRAWN = {"Effusion": _effusion, "Mass": _mass, "Nodule": _nodule, "Pneumothorax": _pneumothorax}
