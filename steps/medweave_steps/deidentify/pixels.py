"""Pixel data: comments and trailing bytes are removed, and the stored values of each plane are decoded for inspection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.deidentify.code_streams import CodeStreamError, strip_jpeg, strip_jpeg_2000, strip_rle
from medweave_steps.io.dicom import decode_worker
from medweave_steps.io.dicom.header import EXPLICIT_BIG_ENDIAN, NATIVE

_ALLOCATED = (8, 16, 32)
_LONGEST_WITH_TABLE = 1 << 32  # bytes that the 32-bit offsets of a basic offset table reach
_EXTENDED_OFFSETS = ("ExtendedOffsetTable", "ExtendedOffsetTableLengths")
_JPEG = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (50, 51, 57, 70))
_JPEG_LS = frozenset(f"1.2.840.10008.1.2.4.{number}" for number in (80, 81))
_JPEG_2000 = frozenset((*decode_worker.JPEG_2000, "1.2.840.10008.1.2.4.92", "1.2.840.10008.1.2.4.93"))


class UnreadablePixelsError(Exception):
    """Pixels that cannot be examined; the text gives the reason, without a value of the header."""


def strip_pixel_data(dataset: Any, syntax: str) -> bool:
    """Remove everything but pixels from PixelData, in place.

    Native pixels lose the bytes behind them. Compressed frames lose comments, application data and bytes after the end of the
    code stream; their offset tables are rebuilt. Pixels and the entropy-coded data of code streams stay byte for byte.

    Returns:
        True if something other than padding was removed.
    Raises:
        UnreadablePixelsError: fewer or more pixels than the header says, or a code stream of an unknown form.
    """
    try:
        options = _options(dataset)
        if syntax in NATIVE:
            return _strip_native(dataset, options)
        return _strip_compressed(dataset, options, syntax)
    except (UnreadablePixelsError, MemoryError):
        raise
    except CodeStreamError as error:
        raise UnreadablePixelsError(str(error)) from error
    except Exception as error:  # pydicom raises many kinds for damaged fragments and values
        raise UnreadablePixelsError("pixel data that do not match the header") from error


def _strip_native(dataset: Any, options: dict[str, Any]) -> bool:
    data, num_frames = dataset.PixelData, options["number_of_frames"]
    num_bits: int = _samples_per_frame(options) * options["bits_allocated"] * num_frames
    size = (num_bits + 7) // 8
    if len(data) < size:
        raise UnreadablePixelsError("fewer bytes of pixel data than declared in the header")
    # Cut off after a row, pixels of a header with wrong Columns would look like a complete, sheared image.
    if size and len(data) - size >= max(2, size // (num_frames * options["rows"])):
        raise UnreadablePixelsError("at least one row more of pixel data than declared in the header")
    dataset.PixelData = data[:size] + bytes(size % 2)
    return len(data) > size + size % 2


def _samples_per_frame(options: dict[str, Any]) -> int:
    samples: int = options["rows"] * options["columns"] * options["samples_per_pixel"]
    # Two pixels share their color differences (DICOM PS3.3, C.7.6.3.1.2).
    return samples // 3 * 2 if options["photometric_interpretation"] == "YBR_FULL_422" else samples


def _strip_compressed(dataset: Any, options: dict[str, Any], syntax: str) -> bool:
    from pydicom.encaps import encapsulate, generate_frames

    num_frames = options["number_of_frames"]
    tables = [(dataset.get(keyword) or b"")[: 8 * num_frames] for keyword in _EXTENDED_OFFSETS]
    extended = (tables[0], tables[1]) if all(tables) else None
    frames = list(generate_frames(dataset.PixelData, number_of_frames=num_frames, extended_offsets=extended))
    if len(frames) != num_frames:
        raise UnreadablePixelsError("a number of compressed frames that differs from the header")
    stripped = [_strip_frame(frame, options, syntax) for frame in frames]
    has_table = sum(len(frame) + 16 for frame in stripped) < _LONGEST_WITH_TABLE
    dataset.PixelData = encapsulate(stripped, has_bot=has_table)
    for keyword in _EXTENDED_OFFSETS:
        if keyword in dataset:
            delattr(dataset, keyword)
    return any(frame.rstrip(b"\0") != new.rstrip(b"\0") for frame, new in zip(frames, stripped, strict=True))


def _strip_frame(frame: bytes, options: dict[str, Any], syntax: str) -> bytes:
    if syntax == decode_worker.RLE:
        return strip_rle(frame, options["rows"] * options["columns"])
    if syntax in _JPEG_2000:
        return strip_jpeg_2000(frame)
    if syntax in _JPEG or syntax in _JPEG_LS:
        return strip_jpeg(frame, is_color=options["samples_per_pixel"] > 1, is_jpeg_ls=syntax in _JPEG_LS)
    raise UnreadablePixelsError("compressed pixels that cannot be decoded on this machine")


def planes_of(dataset: Any, syntax: str) -> Iterator[npt.NDArray[Any]]:
    """Yield every plane of an image as stored values [row, column]; of a color image, the brightest of its samples.

    Raises:
        UnreadablePixelsError: too few bytes, a damaged code stream, or a compression without a decoder on this machine.
    """
    if "PixelData" not in dataset:
        return
    try:
        options = _options(dataset)
        if options["bits_allocated"] not in _ALLOCATED or min(options["rows"], options["columns"]) < 1:
            raise UnreadablePixelsError("pixels that are not stored in 8, 16 or 32 bits each")
        yield from _native(dataset, options, syntax) if syntax in NATIVE else _compressed(dataset, options, syntax)
    except UnreadablePixelsError:
        raise
    except Exception as error:  # decoders raise many kinds
        raise UnreadablePixelsError("compressed pixels that cannot be decoded on this machine") from error


def _options(dataset: Any) -> dict[str, Any]:
    return {
        "rows": int(dataset.get("Rows") or 0), "columns": int(dataset.get("Columns") or 0),
        "samples_per_pixel": int(dataset.get("SamplesPerPixel") or 1),
        "number_of_frames": int(dataset.get("NumberOfFrames") or 1),
        "photometric_interpretation": str(dataset.get("PhotometricInterpretation") or "MONOCHROME2"),
        "pixel_representation": int(dataset.get("PixelRepresentation") or 0),
        "bits_allocated": int(dataset.get("BitsAllocated") or 0),
        "bits_stored": int(dataset.get("BitsStored") or dataset.get("BitsAllocated") or 0), "pixel_keyword": "PixelData",
    }  # fmt: skip


def _native(dataset: Any, options: dict[str, Any], syntax: str) -> Iterator[npt.NDArray[Any]]:
    data = dataset.PixelData
    kind = "i" if options["pixel_representation"] else "u"
    dtype = np.dtype(f"{'>' if syntax == EXPLICIT_BIG_ENDIAN else '<'}{kind}{options['bits_allocated'] // 8}")
    rows, columns, samples = options["rows"], options["columns"], options["samples_per_pixel"]
    size = rows * columns * samples
    if len(data) < size * dtype.itemsize * options["number_of_frames"]:
        raise UnreadablePixelsError("fewer bytes of pixel data than declared in the header")
    by_plane = samples > 1 and int(dataset.get("PlanarConfiguration") or 0) == 1
    for frame in range(options["number_of_frames"]):
        values = np.frombuffer(data, dtype, size, frame * size * dtype.itemsize)
        if samples == 1:
            yield values.reshape(rows, columns)
        elif by_plane:
            yield values.reshape(samples, rows, columns).max(axis=0)
        else:
            yield values.reshape(rows, columns, samples).max(axis=2)


def _compressed(dataset: Any, options: dict[str, Any], syntax: str) -> Iterator[npt.NDArray[Any]]:
    from pydicom.encaps import generate_frames
    from pydicom.pixels import get_decoder

    if options["samples_per_pixel"] > 1:
        for array, _ in get_decoder(syntax).iter_array(dataset, raw=True):
            yield array.max(axis=-1)
        return
    one = options | {"number_of_frames": 1}
    for frame in generate_frames(dataset.PixelData, number_of_frames=options["number_of_frames"]):
        dtype, _, data = decode_worker.decode(bytes(frame), syntax, one)
        yield np.frombuffer(data, dtype=dtype).reshape(options["rows"], options["columns"])
