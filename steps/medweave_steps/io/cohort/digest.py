"""Digest of a scan's voxels and geometry: equal for the same scan under other names, UIDs or patients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid
from medweave_steps.io.dicom.header import Plane
from medweave_steps.io.dicom.pixels import Ranges, stored_bytes
from medweave_steps.io.geometry import FloatArray
from medweave_steps.io.nifti.volume import NiftiVolume

MOST_LABELS = 32  # a CT volume has hundreds of distinct values


def _grid_text(grid: Grid) -> str:
    # A hundredth of a micrometre: finer digits are rounding of the arithmetic, not of the scan.
    numbers = [f"{value + 0.0:.5f}" for row in grid.affine[:3] for value in row]
    return f"{grid.shape} {' '.join(numbers)}".replace("-0.00000", "0.00000")


def digest_of_plane(plane: Plane, data: bytes) -> bytes:
    """Return the SHA-256 of one plane's rescaling and stored bytes."""
    layout = plane.layout
    how = f"{plane.slope} {plane.intercept} {layout.signed} {layout.bits_stored} {layout.padding} {layout.native}"
    if layout.high_bit != layout.bits_stored - 1:
        how += f" {layout.high_bit}"
    return hashlib.sha256(how.encode() + hashlib.sha256(data).digest()).digest()


def joined_digest(grid: Grid, planes: Iterable[bytes]) -> str:
    """Return the hex digest of a series from its geometry and the digests of its planes, in order."""
    digest = hashlib.sha256(_grid_text(grid).encode())
    for plane in planes:
        digest.update(plane)
    return digest.hexdigest()


def digest_of_series(
    folder: Path, planes: Sequence[Plane], ranges: Sequence[Ranges], grid: Grid, *, num_threads: int
) -> tuple[str, int]:
    """Return the SHA-256 over geometry, rescaling and stored bytes of a DICOM series, and the number of pixel bytes read.

    Compressed planes are digested as stored, so a scan and its compressed copy differ.
    """

    def one(index: int) -> tuple[bytes, int]:
        data = stored_bytes(folder, planes[index], ranges[index])
        return digest_of_plane(planes[index], data), len(data)

    with ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="digest") as pool:
        parts = list(pool.map(one, range(len(planes))))
    return joined_digest(grid, (part for part, _ in parts)), sum(size for _, size in parts)


def nifti_digest(nifti: NiftiVolume) -> Any:
    """Return a SHA-256 object of geometry and scaling; `update_nifti` adds the planes."""
    digest = hashlib.sha256(_grid_text(nifti.grid).encode())
    digest.update(f"{nifti.dtype.str} {nifti.slope} {nifti.intercept}".encode())
    return digest


def update_nifti(digest: Any, stored: npt.NDArray[Any]) -> None:
    """Add one plane of stored values [i, j] to a `nifti_digest`."""
    digest.update(stored.T.data)  # planes are in Fortran order: transposed, their bytes are those of the file


def joined_files_digest(digests: Sequence[str]) -> str:
    """Return the digest of a case from those of its files or series, in the order of the channels; of one its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NiftiContent:
    """The content of a NIfTI volume, from reading all its voxels.

    Attributes:
        sha256: over geometry, scaling and inflated voxels.
        num_bytes: bytes of voxels.
        middle_hu: the middle plane, float32 [i, j].
        labels: distinct values, where all are whole numbers from 0 to 255 and there are few of them; else None.
    """

    sha256: str
    num_bytes: int
    middle_hu: FloatArray
    labels: frozenset[int] | None


def read_content(nifti: NiftiVolume) -> NiftiContent:
    """Read every voxel of a NIfTI volume once; return its digest, middle plane and label values."""
    digest = nifti_digest(nifti)
    total, middle = 0, np.empty(0, dtype=np.float32)
    labels: frozenset[int] | None = frozenset() if (nifti.slope, nifti.intercept) == (1, 0) else None
    for index, plane in enumerate(nifti.planes()):
        update_nifti(digest, plane)
        total += plane.nbytes
        if index == nifti.grid.shape[2] // 2:
            middle = nifti.to_hu(plane)
        if labels is not None:
            labels = _labels_with(labels, plane)
    return NiftiContent(sha256=digest.hexdigest(), num_bytes=total, middle_hu=middle, labels=labels)


def _labels_with(labels: frozenset[int], plane: npt.NDArray[Any]) -> frozenset[int] | None:
    """Return the labels with those of another plane, None where the values are no label numbers."""
    if not (plane.min() >= 0 and plane.max() <= 255):  # NaN is neither
        return None
    whole = plane.astype(np.uint8)
    if plane.dtype.kind == "f" and not np.array_equal(whole, plane):
        return None
    labels |= frozenset(np.flatnonzero(np.bincount(whole.ravel(), minlength=256)).tolist())
    return labels if len(labels) <= MOST_LABELS else None
