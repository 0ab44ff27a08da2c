"""From the bytes of a plane to HU: located without decoding, read at the speed of the disk, decompressed in parallel."""

from __future__ import annotations

import contextlib
import functools
import struct
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.io.dicom import decode_worker
from medweave_steps.io.dicom.decode_pool import DecodeError, Request, decode_in_order
from medweave_steps.io.dicom.header import DEFLATED, EXPLICIT_BIG_ENDIAN, PixelLayout, Plane, load_pydicom
from medweave_steps.io.geometry import FloatArray

AIR_HU = -1024.0
READ_AHEAD = 4  # planes being read while one is used; hides the latency of network file systems

Ranges = tuple[tuple[int, int], ...]


class PixelError(Exception):
    """Pixels of one plane that cannot be read; has the parts of a finding, without the file's name."""

    def __init__(self, code: str, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(what)
        self.code, self.what, self.seen, self.expected, self.do = code, what, seen, expected, do
        self.plane: Plane | None = None


def _cut_off(seen: str, expected: str, plane: Plane | None = None) -> PixelError:
    error = PixelError(
        "truncated-file", "the file is truncated.", seen=seen, expected=expected, do="copy or export the file again"
    )
    error.plane = plane
    return error


def locate(folder: Path, planes: Sequence[Plane]) -> list[Ranges]:
    """Return the position of the stored bytes of each plane in its file, as (offset, length) pairs.

    Raises:
        PixelError: no pixel data, a file that ends too early, or a compressed stream that is not put together properly.
    """
    tables: dict[str, list[Ranges]] = {}
    found = []
    for plane in planes:
        try:
            found.append(_locate_one(folder, plane, tables))
        except PixelError as error:
            error.plane = plane
            raise
    return found


def _locate_one(folder: Path, plane: Plane, tables: dict[str, list[Ranges]]) -> Ranges:
    if plane.pixel_offset is None or plane.pixel_bytes == 0:
        raise PixelError(
            "no-pixel-data", "the file contains no pixel data.", seen="a header without PixelData",
            expected="PixelData (7FE0,0010)", do="export the images again with pixel data",
        )  # fmt: skip
    if plane.layout.transfer_syntax == DEFLATED:
        return ((plane.frame * plane.layout.plane_bytes, plane.layout.plane_bytes),)
    if plane.layout.native:
        return _native_range(plane, plane.pixel_offset)
    if plane.file not in tables:
        tables[plane.file] = _frame_table(folder / plane.file, plane, plane.pixel_offset)
    return tables[plane.file][plane.frame]


def _native_range(plane: Plane, offset: int) -> Ranges:
    size = plane.layout.plane_bytes
    promised = plane.pixel_bytes or 0
    if offset + promised > plane.file_bytes:
        raise _cut_off(f"{plane.file_bytes:,} bytes", f"{offset + promised:,} bytes, as declared in the header")
    _check_length(plane, promised)
    if promised < size * plane.num_frames:
        raise _cut_off(
            f"{promised:,} bytes of pixel data",
            f"{size * plane.num_frames:,} bytes for {plane.num_frames} x {plane.layout.rows} x {plane.layout.columns} "
            f"pixels of {plane.layout.bits_allocated} bits",
        )
    return ((offset + plane.frame * size, size),)


def _check_length(plane: Plane, num_bytes: int) -> None:
    """Refuse uncompressed pixel data with a row or more behind the last frame: then the header states the wrong size."""
    layout = plane.layout
    expected = layout.plane_bytes * plane.num_frames
    if num_bytes >= expected + layout.plane_bytes // layout.rows:
        raise PixelError(
            "pixels-disagree", "the pixel data do not match the header.",
            seen=f"{num_bytes:,} bytes of pixel data",
            expected=f"{expected:,} bytes for {plane.num_frames} x {layout.rows} x {layout.columns} pixels of "
            f"{layout.bits_allocated} bits",
            do="export the series again from the archive or the scanner",
        )  # fmt: skip


def _frame_table(path: Path, plane: Plane, offset: int) -> list[Ranges]:
    """Return the fragments of every frame of a compressed file (DICOM PS3.5, A.4)."""
    if plane.pixel_bytes is not None:
        raise _cut_off("compressed pixel data with a defined length", "compressed pixel data in fragments")
    items: list[tuple[int, int, int]] = []  # offset of the item, offset and length of its value
    with path.open("rb") as stream:
        stream.seek(offset)
        while True:
            head = stream.read(8)
            if len(head) < 8:
                raise _cut_off(
                    "compressed pixel data without a sequence delimiter", "a sequence delimiter after the last fragment"
                )
            group, element, length = struct.unpack("<HHL", head)
            if (group, element) != (0xFFFE, 0xE000):
                break
            here = stream.tell()
            if here + length > plane.file_bytes:
                raise _cut_off(
                    f"{plane.file_bytes:,} bytes", f"at least {here + length:,} bytes, as declared in its fragments"
                )
            items.append((here - 8, here, length))
            stream.seek(length, 1)
        if not items:
            raise _cut_off("compressed pixel data without fragments", "a basic offset table and at least one fragment")
        stream.seek(items[0][1])
        offsets = struct.unpack(f"<{items[0][2] // 4}L", stream.read(items[0][2] // 4 * 4))
    fragments = items[1:]
    if plane.num_frames == 1:
        return [tuple((start, length) for _, start, length in fragments)]
    if len(fragments) == plane.num_frames:
        return [((start, length),) for _, start, length in fragments]
    if len(offsets) != plane.num_frames:
        raise _cut_off(
            f"{len(fragments)} fragments and {len(offsets)} offsets for {plane.num_frames} frames",
            "one fragment or one offset per frame",
        )
    base = fragments[0][0]
    ends = [*offsets[1:], 1 << 62]
    return [
        tuple((start, length) for item, start, length in fragments if first <= item - base < end)
        for first, end in zip(offsets, ends, strict=True)
    ]


def check_decodable(layout: PixelLayout) -> None:
    """Refuse pixels that no decoder on this machine reads, or that are not gray values.

    Raises:
        PixelError: says the transfer syntax in words, and what helps.
    """
    shift = layout.high_bit + 1 - layout.bits_stored
    is_packed = layout.native or layout.transfer_syntax == decode_worker.RLE  # cells as the header describes them
    if (
        layout.bits_allocated not in (8, 16, 32)
        or not 0 <= shift <= layout.bits_allocated - layout.bits_stored
        or (shift and not is_packed)
    ):
        raise PixelError(
            "unsupported-pixels", "the pixel format is not supported.",
            seen=f"{layout.bits_stored} of {layout.bits_allocated} bits, HighBit {layout.high_bit}",
            expected="8, 16 or 32 BitsAllocated, HighBit equal to BitsStored - 1",
            do="convert the series to 16 bits",
        )  # fmt: skip
    if layout.native:
        return
    load_pydicom()
    from pydicom.pixels import get_decoder
    from pydicom.uid import UID

    uid = UID(layout.transfer_syntax)
    try:
        available = bool(get_decoder(uid).is_available)
    except NotImplementedError:
        available = False
    if not available:
        raise unsupported_syntax(uid)


def unsupported_syntax(uid: Any) -> PixelError:
    """Return the error for pixels that cannot be decompressed here."""
    words = uid.name if uid.name != str(uid) else "a private or unknown transfer syntax"
    convert = "or convert the series to Explicit VR Little Endian (dcmtk: dcmdjpeg; GDCM: gdcmconv --raw)"
    package = "pyjpegls" if "JPEG-LS" in words else "pylibjpeg-libjpeg" if words.startswith("JPEG ") else None
    return PixelError(
        "unsupported-transfer-syntax",
        "the pixel compression is not supported on this machine.",
        seen=f"transfer syntax '{words}'",
        expected="uncompressed, RLE, JPEG 2000, HTJ2K or JPEG-LS, or an installed decoder",
        do=f"pip install {package}, {convert}" if package else convert.removeprefix("or "),
    )


def stored_values(data: bytes, layout: PixelLayout) -> npt.NDArray[Any]:
    """Return an uncompressed plane as a read-only array of the stored values [row, column]."""
    order = ">" if layout.transfer_syntax == EXPLICIT_BIG_ENDIAN else "<"
    kind = "i" if layout.signed else "u"
    dtype = np.dtype(f"{order}{kind}{layout.bits_allocated // 8}")
    return np.frombuffer(data, dtype=dtype).reshape(layout.rows, layout.columns)


def _decoded_values(decoded: decode_worker.Decoded, layout: PixelLayout) -> npt.NDArray[Any]:
    """Return a decompressed plane as stored values of the signedness that the header states.

    Some writers encode signed values as unsigned ones or unsigned ones as signed; then the header is right.
    """
    dtype, precision, data = decoded
    values = np.frombuffer(data, dtype=dtype).reshape(layout.rows, layout.columns)
    if (values.dtype.kind == "i") == layout.signed:
        return values
    unused = values.dtype.itemsize * 8 - precision
    shifted = np.left_shift(values, unused)
    turned = shifted.view(f"{'i' if layout.signed else 'u'}{values.dtype.itemsize}")
    right: npt.NDArray[Any] = np.right_shift(turned, unused)
    return right


def to_hu(stored: npt.NDArray[Any], plane: Plane, *, padding_hu: float = AIR_HU) -> FloatArray:
    """Convert stored values to HU with the plane's own slope and intercept; padding becomes `padding_hu`."""
    layout = plane.layout
    assert plane.slope is not None
    assert plane.intercept is not None
    values = stored_numbers(stored, layout)
    hu = values.astype(np.float32)
    if plane.slope != 1:
        hu *= np.float32(plane.slope)
    if plane.intercept != 0:
        hu += np.float32(plane.intercept)
    if layout.padding is not None:
        low, high = layout.padding
        hu[(stored >= low) & (stored <= high)] = padding_hu
        if values is not stored:  # padding as a cell, or as the value without the bits that do not belong to it
            hu[(values >= low) & (values <= high)] = padding_hu
    return hu


def stored_numbers(stored: npt.NDArray[Any], layout: PixelLayout) -> npt.NDArray[Any]:
    """Return stored values in native byte order without bits that are not part of them, which may hold overlays."""
    values = stored.astype(stored.dtype.newbyteorder("="), copy=False)
    cell = values.dtype.itemsize * 8
    if cell <= layout.bits_stored:
        return values
    above = cell - 1 - layout.high_bit
    numbers: npt.NDArray[Any] = np.right_shift(np.left_shift(values, above), cell - layout.bits_stored)
    return numbers


def iterate(
    folder: Path, planes: Sequence[Plane], *, num_workers: int, padding_hu: float = AIR_HU
) -> Iterator[FloatArray]:
    """Yield HU planes in order; a few are read or decoded in advance.

    Args:
        num_workers: threads for reading, or processes for decompressing.
        padding_hu: value of padding, HU.
    Yields:
        float32 [row, column], HU.
    Raises:
        PixelError: see `locate`; also a stream that cannot be decoded.
    """
    ranges = locate(folder, planes)
    for layout in {plane.layout for plane in planes}:
        check_decodable(layout)
    with contextlib.closing(_stored_planes(folder, planes, ranges, num_workers)) as stored:
        for plane in planes:
            try:
                values = next(stored)
            except EOFError as error:
                raise _cut_off("fewer bytes than declared in the header", "a complete file", plane) from error
            except DecodeError as error:
                raise _undecodable(plane) from error
            yield to_hu(values, plane, padding_hu=padding_hu)


def _stored_planes(
    folder: Path, planes: Sequence[Plane], ranges: Sequence[Ranges], num_workers: int
) -> Generator[npt.NDArray[Any], None, None]:
    compressed = [not plane.layout.native for plane in planes]
    if not any(compressed):
        yield from _read_native(folder, planes, ranges, num_workers)
        return
    requests: list[Request] = [
        (str(folder / plane.file), places, plane.layout.transfer_syntax, _options(plane.layout))
        for plane, places, packed in zip(planes, ranges, compressed, strict=True)
        if packed
    ]
    with contextlib.closing(decode_in_order(requests, num_workers=num_workers)) as decoded:
        for plane, places, packed in zip(planes, ranges, compressed, strict=True):
            if packed:
                yield _decoded_values(next(decoded), plane.layout)
            else:
                yield stored_values(stored_bytes(folder, plane, places), plane.layout)


def _undecodable(plane: Plane) -> PixelError:
    from pydicom.uid import UID

    layout = plane.layout
    error = PixelError(
        "undecodable-pixels", "the compressed pixels cannot be decoded.",
        seen=f"the decoder for '{UID(layout.transfer_syntax).name}' failed",
        expected=f"a codestream of {layout.rows} x {layout.columns} pixels",
        do="export the series again, or convert it to Explicit VR Little Endian with software that can open it",
    )  # fmt: skip
    error.plane = plane
    return error


def _options(layout: PixelLayout) -> Mapping[str, Any]:
    return {
        "rows": layout.rows, "columns": layout.columns, "samples_per_pixel": layout.samples, "number_of_frames": 1,
        "photometric_interpretation": layout.photometric, "pixel_representation": int(layout.signed),
        "bits_allocated": layout.bits_allocated, "bits_stored": layout.bits_stored, "pixel_keyword": "PixelData",
    }  # fmt: skip


def _read_native(
    folder: Path, planes: Sequence[Plane], ranges: Sequence[Ranges], num_workers: int
) -> Iterator[npt.NDArray[Any]]:
    def read(index: int) -> npt.NDArray[Any]:
        plane = planes[index]
        return stored_values(stored_bytes(folder, plane, ranges[index]), plane.layout)

    pending: deque[Future[npt.NDArray[Any]]] = deque()
    executor = ThreadPoolExecutor(max_workers=max(1, min(num_workers, READ_AHEAD)), thread_name_prefix="read-planes")
    try:
        for index in range(len(planes)):
            pending.append(executor.submit(read, index))
            if len(pending) > READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def stored_bytes(folder: Path, plane: Plane, ranges: Ranges) -> bytes:
    """Return a plane's bytes as stored; for a deflated file, as inflated.

    Raises:
        EOFError: the file ends inside its pixel data.
        PixelError: a deflated file holds more pixel data than its header states.
    """
    if plane.layout.transfer_syntax != DEFLATED:
        return decode_worker.read_ranges(str(folder / plane.file), ranges)
    (start, length) = ranges[0]
    data = _inflated(str(folder / plane.file))
    _check_length(plane, len(data))
    if len(data) < start + length:
        raise EOFError("the inflated file ends within its pixel data")
    return data[start : start + length]


@functools.lru_cache(maxsize=2)
def _inflated(path: str) -> bytes:
    try:
        return bytes(load_pydicom().dcmread(path).get("PixelData") or b"")
    except Exception as error:  # zlib and pydicom raise many kinds for damaged data
        raise EOFError("the file cannot be inflated") from error
