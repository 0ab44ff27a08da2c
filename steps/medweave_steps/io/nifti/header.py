"""Validation of a NIfTI header: fields that contradict each other are refused or reported, never repaired silently.

nibabel repairs headers while it loads them (a voxel size of 0 becomes 1 mm), so this module reads the fields as they are stored.
Field names are those of nifti1.h; the sform is a whole affine, the qform a rotation that takes its voxel sizes from pixdim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.findings import FindingError, SeriesName, notice
from medweave_steps.runtime.imports import require

UNITS = {0: "unknown", 1: "meter", 2: "mm", 3: "micron"}
_SPATIAL_UNIT_BITS = 0x07
_MOST_XFORM_CODE = 5
_MAX_NUMBER = 1e9  # no slope or intercept of an image is larger
SIZE_TOLERANCE = 0.01  # share by which voxel sizes may differ: rounding of pixdim
SAME_PLACE_VOXELS = 0.5  # share of a voxel by which sform and qform may place a corner differently without a notice
SMALLEST_VOXEL_MM, LARGEST_VOXEL_MM = 0.005, 100.0
LARGEST_EXTENT_MM = 3000.0  # a whole body is 2 m long

Affine = npt.NDArray[np.float64]


def read_raw_header(stream_of: Callable[[Path], Any], path: Path) -> Any:
    """Return the header of a NIfTI-1 or NIfTI-2 file as it is stored; None for any other file.

    Args:
        stream_of: opens the file, decompressed.
    """
    nibabel = require("nibabel", extra="dicom")
    with stream_of(path) as stream:
        block = stream.read(nibabel.Nifti2Header.sizeof_hdr)
    for kind in (nibabel.Nifti1Header, nibabel.Nifti2Header):
        sizes = {int.from_bytes(block[:4], "little"), int.from_bytes(block[:4], "big")}
        if kind.sizeof_hdr in sizes and len(block) >= kind.sizeof_hdr:
            return kind(binaryblock=block[: kind.sizeof_hdr], check=False)
    return None


def check_fields(header: Any, name: SeriesName, role: str) -> list[Finding]:
    """Validate scaling, units, form codes and voxel sizes of a raw header; return notices.

    Raises:
        FindingError: a field that the volume depends on cannot be used.
    """
    unit_code = int(header["xyzt_units"]) & _SPATIAL_UNIT_BITS
    unit = UNITS.get(unit_code, f"code {unit_code}")
    if unit not in ("mm", "unknown"):
        raise name.refuse(
            "wrong-unit", f"the voxel size of the {role} is not in mm.", seen=f"unit '{unit}'", expected="mm",
            do="write the file again with lengths in mm",
        )  # fmt: skip
    for field in ("sform_code", "qform_code"):
        if not 0 <= int(header[field]) <= _MOST_XFORM_CODE:
            raise _bad_affine(name, role, f"{field} {int(header[field])}", f"{field} from 0 to {_MOST_XFORM_CODE}")
    if int(header["sform_code"]) == 0:
        _check_sizes_are_usable(header, name, role)
    return _check_scaling(header, name, role)


def compare_forms(header: Any, affine: Affine, shape: tuple[int, ...], name: SeriesName, role: str) -> list[Finding]:
    """Compare the affine in use with pixdim and qform; return notices about differences that leave the volume usable.

    Args:
        header: raw header.
        affine: array index to RAS, mm: of the sform where it has a code, else of the qform.
        shape: of the volume, [i, j, k].
    Raises:
        FindingError: voxel sizes or the directions of axes contradict each other.
    """
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    _check_plausible(lengths, shape, name, role)
    if int(header["sform_code"]) == 0:
        return []
    sizes = np.abs(np.asarray(header["pixdim"][1:4], dtype=np.float64))
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        seen = f"pixdim {_times(header['pixdim'][1:4])}; sform {_times(lengths)} mm"
        return [_differing(name, role, "pixdim is unusable; the voxel sizes of the sform are used.", seen)]
    if (np.abs(sizes - lengths) > SIZE_TOLERANCE * lengths).any():
        raise name.refuse(
            "contradictory-voxel-sizes",
            f"the header of the {role} has two different voxel sizes.",
            seen=f"sform {_times(lengths)} mm, pixdim {_times(sizes)} mm",
            expected="the same voxel sizes in sform and pixdim",
            do="determine which one is correct, and write the file again from its source",
        )
    return _compare_qform(header, affine, shape, name, role) if int(header["qform_code"]) else []


def _compare_qform(header: Any, affine: Affine, shape: tuple[int, ...], name: SeriesName, role: str) -> list[Finding]:
    other = _qform(header)
    if other is None:
        return [
            _differing(name, role, "the qform is unusable; the sform is used.", "a quaternion that is not a rotation")
        ]
    codes = require("nibabel", extra="dicom").aff2axcodes
    forms = {"sform": affine, "qform": other}
    seen = "; ".join(
        f"{form} {''.join(codes(value))}, first voxel at {', '.join(f'{x:.1f}' for x in value[:3, 3])} mm"
        for form, value in forms.items()
    )
    if codes(affine) != codes(other):
        raise name.refuse(
            "contradictory-orientation",
            f"the header of the {role} has two different axis directions, for example left and right swapped.",
            seen=seen,
            expected="sform and qform with the same directions",
            do="determine which one is correct, and write the file again from its source",
        )
    corners = np.asarray([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=np.float64)
    corners[:, :3] *= np.asarray(shape) - 1
    apart_mm = np.linalg.norm((corners @ (affine - other).T)[:, :3], axis=1).max()
    if apart_mm <= SAME_PLACE_VOXELS * np.linalg.norm(affine[:3, :3], axis=0).min():
        return []
    return [_differing(name, role, f"the sform is used; a corner of the qform is {apart_mm:.1f} mm away.", seen)]


def _qform(header: Any) -> Affine | None:
    """Return the affine of the qform, None where its quaternion or qfac cannot be used."""
    header = header.copy()
    if header["pixdim"][0] == 0:  # the standard: 0 counts as 1
        header["pixdim"][0] = 1
    header["pixdim"][1:4] = np.abs(header["pixdim"][1:4])
    try:
        affine: Affine = np.asarray(header.get_qform(coded=False), dtype=np.float64)
    except Exception:  # nibabel raises many kinds for a quaternion of another length
        return None
    return affine if np.isfinite(affine).all() else None


def _check_sizes_are_usable(header: Any, name: SeriesName, role: str) -> None:
    """Check the voxel sizes of pixdim and the rotation of the qform, which apply to a header without an sform."""
    sizes = np.asarray(header["pixdim"][1:4], dtype=np.float64)
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise _bad_affine(name, role, f"no sform, pixdim {_times(sizes)}", "three voxel sizes above 0 mm")
    if not int(header["qform_code"]):
        return
    qfac = float(header["pixdim"][0])
    if qfac not in (-1, 0, 1):
        raise _bad_affine(name, role, f"no sform, qfac (pixdim[0]) {qfac:g}", "qfac 1 or -1")
    if _qform(header) is None:
        raise _bad_affine(
            name, role, "no sform, and a qform quaternion that is not a rotation", "a quaternion of length 1"
        )


def _check_scaling(header: Any, name: SeriesName, role: str) -> list[Finding]:
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or math.isnan(slope):  # the standard: no scaling; nibabel writes NaN for it
        if math.isfinite(intercept) and intercept != 0:
            what = f"scl_inter {intercept:g} is not applied, because scl_slope is {slope:g}."
            return [_differing(name, role, what, "a scaling that the NIfTI standard ignores")]
        return []
    if abs(slope) > _MAX_NUMBER or not abs(intercept) <= _MAX_NUMBER:
        raise name.refuse(
            "bad-scaling",
            f"the intensity scaling of the {role} is unusable.",
            seen=f"scl_slope {slope:g}, scl_inter {intercept:g}",
            expected=f"numbers up to {_MAX_NUMBER:g}",
            do="write the file again from its source",
        )
    return []


def _check_plausible(lengths: npt.NDArray[np.float64], shape: tuple[int, ...], name: SeriesName, role: str) -> None:
    extents = lengths * np.asarray(shape)
    if lengths.min() >= SMALLEST_VOXEL_MM and lengths.max() <= LARGEST_VOXEL_MM and extents.max() <= LARGEST_EXTENT_MM:
        return
    raise name.refuse(
        "implausible-voxel-size",
        f"the voxel size of the {role} is not plausible in mm.",
        seen=f"{_times(lengths)} mm, extent {_times(extents)} mm",
        expected=f"voxels of {SMALLEST_VOXEL_MM:g} to {LARGEST_VOXEL_MM:g} mm, extent at most {LARGEST_EXTENT_MM:g} mm",
        do="write the file again with lengths in mm (the numbers may be micrometres or meters)",
    )


def _differing(name: SeriesName, role: str, what: str, seen: str) -> Finding:
    return notice("nifti-header", f"{name}: {role}: {what}", seen=seen, case_id=name.case_id)


def _bad_affine(name: SeriesName, role: str, seen: str, expected: str) -> FindingError:
    return name.refuse(
        "bad-affine", f"the affine of the {role} is unusable.", seen=seen, expected=expected,
        do="write the file again from its source",
    )  # fmt: skip


def _times(numbers: Any) -> str:
    return " x ".join(f"{float(number):.4g}" for number in numbers)
