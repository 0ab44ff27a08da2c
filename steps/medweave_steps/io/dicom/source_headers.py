"""`source_headers.zip`: the DICOM headers of a series without pixels, so that results can name their source images."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.errors import UserInputError
from medweave_steps.io.dicom.decode_worker import read_ranges
from medweave_steps.io.dicom.frames import FrameCountError, frames_of, is_multi_frame, slices_of
from medweave_steps.io.dicom.header import DEFLATED, EXPLICIT_BIG_ENDIAN, Plane, load_pydicom
from medweave_steps.io.dicom.uids import fill_from_file_meta
from medweave_steps.io.dicom.values import HeaderValues

_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_IMPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # equal headers give an equal file


def read_source_header(path: Path) -> Any:
    """Return the complete header of one DICOM file, without pixel data; UIDs that only the file meta header has are filled in."""
    return fill_from_file_meta(load_pydicom().dcmread(path, stop_before_pixels=True, force=True))


def write_headers(path: Path, datasets: Sequence[Any]) -> None:
    """Write header-only datasets, in order, as DICOM files in a zip. The headers hold patient data.

    Args:
        path: the zip file.
        datasets: pydicom datasets with `file_meta`, in the order of the slices.
    """
    _write(path, map(_encoded, datasets))


def copy_headers(path: Path, folder: Path, slices: Sequence[Plane]) -> None:
    """Write the headers of a series as `write_headers` does, but take their bytes from the files as they are.

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
    """Return the bytes of a file before its pixel data, None where they do not form a file."""
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
    """Return the datasets of `write_headers`, in order.

    Raises:
        UserInputError: the file is not such a zip.
        Exception: of pydicom, for a header that it cannot read.
    """
    pydicom = load_pydicom()
    try:
        with zipfile.ZipFile(path) as archive:
            headers = [archive.read(name) for name in sorted(archive.namelist())]
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserInputError(
            "the source headers of a case cannot be read.",
            seen="an incomplete or corrupt source_headers.zip",
            expected="the source_headers.zip that preprocess wrote",
            do="run preprocess again",
        ) from error
    return [fill_from_file_meta(pydicom.dcmread(io.BytesIO(header))) for header in headers]


def frame_order(datasets: Sequence[Any]) -> list[tuple[int, int]]:
    """Return which frame of which dataset shows each slice; frames that are not slices are left out.

    Args:
        datasets: as `read_headers` returns them: one per slice, or one multi-frame dataset (or several).
    Returns:
        (index into `datasets`, 0-based frame) per slice, sorted along the slice normal as the source array is.
    Raises:
        UserInputError: a dataset is not the header of an image that `check` accepts.
    """
    if not any(is_multi_frame(dataset) for dataset in datasets):
        return [(index, 0) for index in range(len(datasets))]
    places: list[tuple[float, int, int]] = []
    for index, dataset in enumerate(datasets):
        try:
            frames = slices_of(dataset)
        except FrameCountError as error:
            raise _unusable_headers(str(error)) from error
        for frame in frames:
            if frame.orientation is None or frame.position_lps is None:
                raise _unusable_headers("a frame without position or orientation")
            cosines = np.asarray(frame.orientation)
            places.append((float(np.cross(cosines[:3], cosines[3:]) @ frame.position_lps), index, frame.number))
    return [(index, frame) for _, index, frame in sorted(places)]


def slice_position_lps(dataset: Any, number: int) -> tuple[float, ...]:
    """Return ImagePositionPatient of a frame of an image, mm.

    Raises:
        UserInputError: the frame has no usable one.
    """
    try:
        position = frames_of(HeaderValues(dataset))[number].position_lps
    except (FrameCountError, IndexError):
        position = None
    if position is None:
        raise _unusable_headers("a slice without a usable ImagePositionPatient")
    return position


def _unusable_headers(seen: str) -> UserInputError:
    return UserInputError(
        "the source headers of a case are invalid.",
        seen=f"{seen} (source_headers.zip)",
        expected="the headers of a series that check accepted",
        do="run check and preprocess again",
    )
