"""Results on the source grid of a case as NIfTI: masks and maps."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.io.geometry import affine_rows
from medweave_steps.runtime.imports import require

MASK_DESCRIPTION = "medweave lesion mask. Research use only, not a medical device."
MAP_DESCRIPTION = "medweave Grad-CAM map. Research use only, not a medical device."
_SCANNER = 1  # NIFTI_XFORM_SCANNER_ANAT: the source's own coordinates


def file_grid(info: VolumeInfo) -> Grid:
    """Return the source grid with the axes of a NIfTI file; see `in_file_axes`."""
    grid = info.source_grid
    if info.source_format != "dicom":
        return grid
    slices, rows, columns = grid.shape
    return Grid(shape=(columns, rows, slices), affine=affine_rows(np.asarray(grid.affine)[:, [2, 1, 0, 3]]))


def in_file_axes(array: npt.NDArray[Any], info: VolumeInfo) -> npt.NDArray[Any]:
    """Return an array on the source grid with the axes of a NIfTI file, a view.

    A DICOM source's array [slice, row, column] becomes [i = column, j = row, k = slice], as converters write it.
    """
    return array.transpose(2, 1, 0) if info.source_format == "dicom" else array


def write_mask(path: Path, mask: npt.NDArray[np.uint8], info: VolumeInfo) -> None:
    """Write `lesion_mask.nii.gz`, equal bytes for equal masks.

    Args:
        path: ends in `.nii.gz`.
        mask: uint8 of shape `info.source_grid.shape`.
        info: source format and grid.
    """
    _write(path, mask, info, MASK_DESCRIPTION)


def write_map(path: Path, values: npt.NDArray[np.float32], info: VolumeInfo) -> None:
    """Write a map of a Grad-CAM, equal bytes for equal maps.

    Args:
        path: ends in `.nii.gz`.
        values: float32 of shape `info.source_grid.shape`, in [0, 1].
        info: source format and grid.
    """
    _write(path, values, info, MAP_DESCRIPTION)


def _write(path: Path, values: npt.NDArray[Any], info: VolumeInfo, description: str) -> None:
    nibabel = require("nibabel", extra="segment")
    affine, array = np.asarray(file_grid(info).affine), in_file_axes(values, info)
    header = nibabel.Nifti1Header()
    header.set_data_dtype(array.dtype)
    header.set_data_shape(array.shape)
    header.set_xyzt_units("mm")
    header["descrip"] = description.encode()
    header["pixdim"][1:4] = np.linalg.norm(affine[:3, :3], axis=0)
    header.set_sform(affine, code=_SCANNER)
    if _is_orthogonal(affine):
        header.set_qform(affine, code=_SCANNER)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header["scl_slope"], header["scl_inter"] = 1, 0
    # Level 1: masks are nearly all zeros, and higher levels only cost time. No name and no time: equal bytes for equal values.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as stream,
    ):
        stream.write(header.binaryblock + bytes(4))
        stream.write(_in_file_order(array))


def _in_file_order(array: npt.NDArray[Any]) -> Any:
    # NIfTI's first index runs fastest.
    return np.ascontiguousarray(array.T).reshape(-1).data.cast("B")


def _is_orthogonal(affine: npt.NDArray[np.float64]) -> bool:
    unit = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return bool(np.abs(unit.T @ unit - np.eye(3)).max() < 1e-4)
