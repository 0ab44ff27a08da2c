"""Small NIfTI volumes and masks, for tests of folders of them."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np


def save(path: Path, values: np.ndarray) -> None:
    """Write a NIfTI file of 2 mm voxels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 2.0, 1.0]))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def volume(seed: int = 0) -> np.ndarray:
    """Return int16 noise that can be HU."""
    return np.random.default_rng(seed).integers(-1000, 100, (8, 9, 10)).astype(np.int16)


def mask(value: int = 1) -> np.ndarray:
    """Return a uint8 mask of one box."""
    values = np.zeros((8, 9, 10), np.uint8)
    values[2:4, 3:5, 4:6] = value
    return values
