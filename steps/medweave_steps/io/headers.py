"""`source_headers.zip`: the DICOM headers of a series without pixels, so that results can name their source images."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_steps.contracts.errors import UserInputError
from medweave_steps.io.decode_worker import read_ranges
from medweave_steps.io.dicom_header import DEFLATED, EXPLICIT_BIG_ENDIAN, Plane, load_pydicom
from medweave_steps.io.dicom_uids import fill_from_file_meta

_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_IMPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # equal headers give an equal file


def read_source_header(path: Path) -> Any:
    """Return the complete header of one DICOM file, without pixel data; UIDs that only the file meta header has are filled in."""
    return fill_from_file_meta(load_pydicom().dcmread(path, stop_before_pixels=True, force=True))


def write_headers(path: Path, datasets: Sequence[Any]) -> None:
    """Writes header-only datasets, in order, as DICOM files in a zip. The headers hold patient data.

    Args:
        path: the zip file.
        datasets: pydicom datasets with `file_meta`, in the order of the slices.
    """
    _write(path, map(_encoded, datasets))


def copy_headers(path: Path, folder: Path, slices: Sequence[Plane]) -> None:
    """Writes the headers of a series as `write_headers` does, but takes their bytes from the files as they are.

    Reading and encoding a header takes milliseconds, and a series has hundreds. Headers that cannot be copied (big endian,
    deflated, no preamble) are read and encoded.

    Args:
        path: the zip file.
        folder: the cohort.
        slices: planes in the order of the source array.
    """
    first_of_file = {plane.file: plane for plane in reversed(slices)}
    files = [first_of_file[name] for name in dict.fromkeys(plane.file for plane in slices)]
    _write(path, (_copied(folder, plane) or _encoded(read_source_header(folder / plane.file)) for plane in files))


def _write(path: Path, headers: Iterable[bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for index, header in enumerate(headers):
            entry = zipfile.ZipInfo(f"slice-{index:05d}.dcm", date_time=_FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, header, compresslevel=1)


def _encoded(dataset: Any) -> bytes:
    pydicom = load_pydicom()
    buffer = io.BytesIO()
    little = {"implicit_vr": False, "little_endian": True}
    if dataset.file_meta.get("TransferSyntaxUID") == _IMPLICIT_LITTLE_ENDIAN:
        little["implicit_vr"] = True
    else:
        # Without pixels the syntax of their compression means nothing, and every reader knows this one.
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(_EXPLICIT_LITTLE_ENDIAN)
    is_named = bool(dataset.get("SOPClassUID")) and bool(dataset.get("SOPInstanceUID"))
    dataset.preamble = getattr(dataset, "preamble", None) or bytes(128)  # read_headers needs one
    pydicom.dcmwrite(buffer, dataset, enforce_file_format=is_named, **little)
    return buffer.getvalue()


def _copied(folder: Path, plane: Plane) -> bytes | None:
    """The bytes of a file before its pixel data, None where they are no file of their own."""
    syntax = plane.layout.transfer_syntax
    if plane.pixel_offset is None or syntax in (EXPLICIT_BIG_ENDIAN, DEFLATED):
        return None
    # Tag and length of the pixel data's element: 8 bytes, or 12 with a VR.
    end = plane.pixel_offset - (8 if syntax == _IMPLICIT_LITTLE_ENDIAN else 12)
    data = read_ranges(str(folder / plane.file), [(0, end)])
    if data[128:132] != b"DICM":
        return None
    if plane.layout.native:
        return data
    # A compressed file is explicit little endian but for its pixels: only its group 2 must say so.
    if len(data) < 144 or data[132:140] != b"\x02\x00\x00\x00UL\x04\x00":
        return None
    pydicom = load_pydicom()
    (length,) = struct.unpack("<L", data[140:144])
    meta = pydicom.dcmread(io.BytesIO(data[: 144 + length])).file_meta
    meta.TransferSyntaxUID = pydicom.uid.UID(_EXPLICIT_LITTLE_ENDIAN)
    buffer = io.BytesIO()
    pydicom.filewriter.write_file_meta_info(buffer, meta)
    return data[:132] + buffer.getvalue() + data[144 + length :]


def read_headers(path: Path) -> list[Any]:
    """The datasets of `write_headers`, in order.

    Raises:
        UserInputError: the file is not such a zip.
    """
    pydicom = load_pydicom()
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(archive.namelist())
            return [fill_from_file_meta(pydicom.dcmread(io.BytesIO(archive.read(name)))) for name in names]
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
