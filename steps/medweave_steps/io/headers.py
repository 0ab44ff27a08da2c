"""`source_headers.zip`: the DICOM headers of a series without pixels, so that results can name their source images."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_steps.contracts.errors import UserInputError
from medweave_steps.io.dicom_header import load_pydicom

_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_IMPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # equal headers give an equal file


def read_source_header(path: Path) -> Any:
    """The complete header of one DICOM file, without pixel data."""
    return load_pydicom().dcmread(path, stop_before_pixels=True, force=True)


def write_headers(path: Path, datasets: Sequence[Any]) -> None:
    """Writes header-only datasets, in order, as DICOM files in a zip. The headers hold patient data.

    Args:
        path: the zip file.
        datasets: pydicom datasets with `file_meta`, in the order of the slices.
    """
    pydicom = load_pydicom()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for index, dataset in enumerate(datasets):
            buffer = io.BytesIO()
            little = {"implicit_vr": False, "little_endian": True}
            if dataset.file_meta.get("TransferSyntaxUID") == _IMPLICIT_LITTLE_ENDIAN:
                little["implicit_vr"] = True
            else:
                # Without pixels the syntax of their compression means nothing, and every reader knows this one.
                dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(_EXPLICIT_LITTLE_ENDIAN)
            pydicom.dcmwrite(buffer, dataset, enforce_file_format=True, **little)
            entry = zipfile.ZipInfo(f"slice-{index:05d}.dcm", date_time=_FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue(), compresslevel=1)


def read_headers(path: Path) -> list[Any]:
    """The datasets of `write_headers`, in order.

    Raises:
        UserInputError: the file is not such a zip.
    """
    pydicom = load_pydicom()
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(archive.namelist())
            return [pydicom.dcmread(io.BytesIO(archive.read(name))) for name in names]
    except (zipfile.BadZipFile, EOFError) as error:
        raise UserInputError(
            "the source headers of a case cannot be read.",
            seen="source_headers.zip is not a complete zip file",
            expected="the file that preprocess wrote",
            do="run preprocess again",
        ) from error


def frame_order(datasets: Sequence[Any]) -> list[tuple[int, int]]:
    """Which frame of which dataset shows each slice.

    Args:
        datasets: what `read_headers` gives: one per slice, or one multi-frame dataset (or several).
    Returns:
        (index into `datasets`, 0-based frame) per slice, sorted along the slice normal as the source array is.
    """
    places: list[tuple[float, int, int]] = []
    for index, dataset in enumerate(datasets):
        groups = dataset.get("PerFrameFunctionalGroupsSequence")
        if not groups:
            places.append((float(index), index, 0))
            continue
        shared = dataset.SharedFunctionalGroupsSequence[0]
        for frame, group in enumerate(groups):
            oriented = group if group.get("PlaneOrientationSequence") else shared
            cosines = np.asarray(oriented.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=np.float64)
            position = np.asarray(group.PlanePositionSequence[0].ImagePositionPatient, dtype=np.float64)
            places.append((float(np.cross(cosines[:3], cosines[3:]) @ position), index, frame))
    return [(index, frame) for _, index, frame in sorted(places)]
