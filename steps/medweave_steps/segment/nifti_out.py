"""The mask as NIfTI on the source grid."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.runtime.imports import require

_DESCRIPTION = b"medweave lesion mask. Research use only, not a medical device."
_SCANNER = 1  # NIFTI_XFORM_SCANNER_ANAT: the source's own coordinates


def write_mask(path: Path, mask: npt.NDArray[np.uint8], info: VolumeInfo) -> None:
    """Write `lesion_mask.nii.gz`, equal bytes for equal masks.

    A DICOM source's array [slice, row, column] is written as [i = column, j = row, k = slice], as converters do.

    Args:
        path: ends in `.nii.gz`.
        mask: uint8 of shape `info.source_grid.shape`.
        info: source format and grid.
    """
    nibabel = require("nibabel", extra="segment")
    affine = np.asarray(info.source_grid.affine)
    if info.source_format == "dicom":
        mask, affine = mask.transpose(2, 1, 0), affine[:, [2, 1, 0, 3]]
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(mask.shape)
    header.set_xyzt_units("mm")
    header["descrip"] = _DESCRIPTION
    header["pixdim"][1:4] = np.linalg.norm(affine[:3, :3], axis=0)
    header.set_sform(affine, code=_SCANNER)
    if _is_orthogonal(affine):
        header.set_qform(affine, code=_SCANNER)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header["scl_slope"], header["scl_inter"] = 1, 0
    # Level 1: masks are nearly all zeros, and higher levels only cost time. No name and no time: equal bytes for equal masks.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as stream,
    ):
        stream.write(header.binaryblock + bytes(4))
        stream.write(_in_file_order(mask))


def _in_file_order(mask: npt.NDArray[np.uint8]) -> Any:
    # NIfTI's first index runs fastest.
    return np.ascontiguousarray(mask.T).reshape(-1).data


def _is_orthogonal(affine: npt.NDArray[np.float64]) -> bool:
    unit = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    return bool(np.abs(unit.T @ unit - np.eye(3)).max() < 1e-4)
