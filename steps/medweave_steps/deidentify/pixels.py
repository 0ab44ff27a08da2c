"""The stored values of every plane of a dataset, to be looked at; the bytes that are written are those that were read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.io import decode_worker
from medweave_steps.io.dicom_header import EXPLICIT_BIG_ENDIAN, NATIVE

_ALLOCATED = (8, 16, 32)


class UnreadablePixelsError(Exception):
    """Pixels that cannot be looked at; the text says why, without a value of the header."""


def planes_of(dataset: Any, syntax: str) -> Iterator[npt.NDArray[Any]]:
    """Every plane of an image as stored values [row, column]; of a colour image, the brightest of its samples.

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
        raise UnreadablePixelsError("fewer bytes of pixel data than the header says")
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
