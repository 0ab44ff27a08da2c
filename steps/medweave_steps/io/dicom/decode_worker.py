"""Decompression of planes, in this process or as a separate program (`python decode_worker.py`).

JPEG 2000 and RLE decoders hold Python's global lock, so threads do not help. As a program this file imports nothing of
medweave: it starts in a fresh interpreter whatever threads the parent runs, reads requests on its standard input, and ends
when that closes, which is also what happens when the parent is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

RLE = "1.2.840.10008.1.2.5"
JPEG_2000 = tuple(f"1.2.840.10008.1.2.4.{number}" for number in (90, 91, 201, 202, 203))  # with high throughput (HTJ2K)

Decoded = tuple[str, int, bytes | bytearray]


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return bytes of a file, from (offset, length) pairs put together.

    Raises:
        EOFError: the file ends before.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        for offset, length in ranges:
            part = os.pread(descriptor, length, offset)
            while len(part) < length:
                more = os.pread(descriptor, length - len(part), offset + len(part))
                if not more:
                    raise EOFError("the file ends within its pixel data")
                part += more
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def decode(frame: bytes, syntax: str, options: Mapping[str, Any]) -> Decoded:
    """Decompress one frame.

    Args:
        frame: the code stream.
        syntax: UID of its transfer syntax.
        options: pydicom's names for the pixel description (rows, columns, bits_stored …).
    Returns:
        numpy dtype of the values as the code stream has them, their bits that count, and their bytes in row order.
    Raises:
        ValueError: the stream is damaged or has another size; the decoders may raise other exceptions.
    """
    if syntax == RLE:
        dtype = f"<{'i' if options['pixel_representation'] else 'u'}{options['bits_allocated'] // 8}"
        return dtype, options["bits_stored"], _decode_rle(frame, options)
    if syntax in JPEG_2000:
        return _decode_jpeg_2000(frame, options)
    return _decode_other(frame, syntax, options)


def _decode_jpeg_2000(frame: bytes, options: Mapping[str, Any]) -> Decoded:
    from openjpeg.utils import decode_pixel_data, get_parameters

    about = get_parameters(frame)
    found = about["rows"], about["columns"], about["samples_per_pixel"]
    if found != (options["rows"], options["columns"], 1):
        raise ValueError("the image size in the codestream differs from the header")
    precision = int(about["precision"])
    size = 1 if precision <= 8 else 2 if precision <= 16 else 4
    return (
        f"<{'i' if about['is_signed'] else 'u'}{size}",
        precision,
        cast(bytearray, decode_pixel_data(frame, version=2)),
    )


def _decode_rle(frame: bytes, options: Mapping[str, Any]) -> bytearray:
    """Decode an RLE frame (DICOM PS3.5, Annex G): one PackBits segment per byte of a pixel, the highest byte first."""
    num_pixels, size = options["rows"] * options["columns"], options["bits_allocated"] // 8
    num_segments, *offsets = struct.unpack("<16L", frame[:64])
    if num_segments != size:
        raise ValueError("the number of segments differs from the number of bytes per pixel")
    pixels = bytearray(num_pixels * size)
    for index in range(size):
        end = offsets[index + 1] if index + 1 < size else len(frame)
        segment = _unpack_bits(frame[offsets[index] : end])
        if len(segment) < num_pixels:
            raise ValueError("a segment is truncated")
        pixels[size - 1 - index :: size] = segment[:num_pixels]
    return pixels


def _unpack_bits(packed: bytes) -> bytearray:
    unpacked, place, end = bytearray(), 0, len(packed)
    while place < end:
        count = packed[place]
        place += 1
        if count < 128:
            unpacked += packed[place : place + count + 1]
            place += count + 1
        elif count > 128:
            unpacked += packed[place : place + 1] * (257 - count)
            place += 1
    return unpacked


def _decode_other(frame: bytes, syntax: str, options: Mapping[str, Any]) -> Decoded:
    from pydicom.encaps import encapsulate
    from pydicom.pixels import get_decoder

    array, _ = get_decoder(syntax).as_array(encapsulate([frame], has_bot=False), index=0, raw=True, **options)
    if array.shape != (options["rows"], options["columns"]):
        raise ValueError("the image size in the codestream differs from the header")
    return array.dtype.str, options["bits_stored"], array.tobytes()


def main() -> None:
    """Answer each request (path, ranges, syntax, options) on stdin with the result of `decode`, or an error's type and text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides: its end closes our input
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            path, ranges, syntax, options = pickle.load(requests)
        except EOFError:
            return
        answer: tuple[Any, ...]
        try:
            answer = decode(read_ranges(path, ranges), syntax, options)
        except Exception as error:
            answer = (type(error).__name__, str(error))
        try:
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
