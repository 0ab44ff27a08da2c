"""Digest of a scan's voxels and geometry: equal for the same scan under other names, UIDs or patients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from medweave_steps.contracts.volume import Grid
from medweave_steps.io.dicom_header import Plane
from medweave_steps.io.dicom_pixels import Ranges, stored_bytes
from medweave_steps.io.geometry import FloatArray
from medweave_steps.io.nifti import NiftiVolume


def _grid_text(grid: Grid) -> str:
    # A hundredth of a micrometre: finer digits are rounding of the arithmetic, not of the scan.
    numbers = [f"{value + 0.0:.5f}" for row in grid.affine[:3] for value in row]
    return f"{grid.shape} {' '.join(numbers)}".replace("-0.00000", "0.00000")


def digest_of_series(
    folder: Path, planes: Sequence[Plane], ranges: Sequence[Ranges], grid: Grid, *, num_threads: int
) -> tuple[str, int]:
    """SHA-256 over geometry, rescaling and stored bytes of a DICOM series, and the number of pixel bytes read.

    Compressed planes are digested as stored, so a scan and its compressed copy differ.
    """

    def one(index: int) -> tuple[bytes, int]:
        plane, data = planes[index], stored_bytes(folder, planes[index], ranges[index])
        layout = plane.layout
        how = f"{plane.slope} {plane.intercept} {layout.signed} {layout.bits_stored} {layout.padding} {layout.native}"
        return hashlib.sha256(how.encode() + hashlib.sha256(data).digest()).digest(), len(data)

    digest = hashlib.sha256(_grid_text(grid).encode())
    total = 0
    with ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="digest") as pool:
        for part, size in pool.map(one, range(len(planes))):
            digest.update(part)
            total += size
    return digest.hexdigest(), total


def digest_of_nifti(nifti: NiftiVolume) -> tuple[str, int, FloatArray]:
    """SHA-256 over geometry, scaling and inflated voxels of a NIfTI volume, the bytes read, and the middle plane in HU."""
    digest = hashlib.sha256(_grid_text(nifti.grid).encode())
    digest.update(f"{nifti.dtype.str} {nifti.slope} {nifti.intercept}".encode())
    total, middle = 0, np.empty(0, dtype=np.float32)
    for index, plane in enumerate(nifti.planes()):
        digest.update(plane.T.data)  # planes are in Fortran order: transposed, their bytes are those of the file
        total += plane.nbytes
        if index == nifti.grid.shape[2] // 2:
            middle = nifti.to_hu(plane)
    return digest.hexdigest(), total, middle
