"""Compressed frames without anything but image data: comments, application data and trailing bytes removed."""

from __future__ import annotations

import re
import struct

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_SOS, _ADOBE = 0xDA, 0xEE
# COM; APP0 to APP15; JPG and its extensions, without the frame header and the parameters of JPEG-LS (F7, F8).
_JPEG_WITHOUT_IMAGE_DATA = frozenset((0xFE, *range(0xE0, 0xF7), *range(0xF9, 0xFE)))
_JPEG_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
# A marker that ends entropy-coded data; JPEG-LS stuffs a bit after FF, JPEG a zero byte.
_END_OF_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_END_OF_SCAN_LS = re.compile(rb"\xff[\x80-\xcf\xd8-\xfe]")

_SOC, _SOT, _SOD, _EOC, _TLM, _COM = 0xFF4F, 0xFF90, 0xFF93, 0xFFD9, 0xFF55, 0xFF64
_JP2_SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"

_RLE_HEADER_BYTES = 64


class CodeStreamError(ValueError):
    """A code stream that does not follow its standard; the text names the difference, and no content."""


def strip_jpeg(stream: bytes, *, is_color: bool, is_jpeg_ls: bool = False) -> bytes:
    """Return a JPEG or JPEG-LS code stream without comments, application data and bytes after its end marker.

    Args:
        is_color: keep the color transform of an Adobe marker, without which a decoder shows other colors.
        is_jpeg_ls: the stream is JPEG-LS (ITU-T T.87), not JPEG (ITU-T T.81).
    Raises:
        CodeStreamError: the stream has no start or end marker, or bytes between its segments.
    """
    if not stream.startswith(_SOI):
        raise CodeStreamError("a codestream without start marker")
    end_of_scan = _END_OF_SCAN_LS if is_jpeg_ls else _END_OF_SCAN
    stripped, place = bytearray(_SOI), 2
    while True:
        marker, place = _jpeg_marker(stream, place)
        if marker == _EOI[1]:
            return bytes(stripped + _EOI)
        segment = _segment(stream, place)
        place += len(segment)
        if marker not in _JPEG_WITHOUT_IMAGE_DATA:
            stripped += bytes((0xFF, marker)) + segment
        elif marker == _ADOBE and is_color and segment[2:7] == b"Adobe" and len(segment) >= 14:
            stripped += b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + segment[13:14]
        if marker == _SOS:
            end = end_of_scan.search(stream, place)
            if end is None:
                raise CodeStreamError("a codestream without end marker")
            stripped += stream[place : end.start()]
            place = end.start()


def strip_jpeg_2000(stream: bytes) -> bytes:
    """Return a JPEG 2000 or HTJ2K code stream without file format boxes, comments and bytes after its end.

    Raises:
        CodeStreamError: the stream does not follow ITU-T T.800 Annex A, or has comments in tile parts whose lengths the main
            header repeats.
    """
    stream = _code_stream_of_jp2(stream)
    if stream[:2] != _SOC.to_bytes(2, "big"):
        raise CodeStreamError("a codestream without start marker")
    header, place, markers = _jpeg_2000_header(stream, 2, end=_SOT)
    stripped = bytearray(stream[:2] + header)
    while _marker(stream, place) == _SOT:
        tile_part, place, num_removed = _tile_part(stream, place)
        if num_removed and _TLM in markers:
            raise CodeStreamError("comments in tile parts")
        stripped += tile_part
    return bytes(stripped + _EOC.to_bytes(2, "big"))


def strip_rle(stream: bytes, num_pixels: int) -> bytes:
    """Return an RLE frame (DICOM PS3.5, Annex G) without bytes that its segments do not need.

    Args:
        num_pixels: of the frame; a segment holds one byte of each.
    Raises:
        CodeStreamError: the header or a segment is cut off.
    """
    if len(stream) < _RLE_HEADER_BYTES:
        raise CodeStreamError("an RLE frame without header")
    num_segments, *offsets = struct.unpack("<16L", stream[:_RLE_HEADER_BYTES])
    if not 1 <= num_segments <= 15:
        raise CodeStreamError("an invalid RLE header")
    body, starts = bytearray(), []
    for offset in offsets[:num_segments]:
        starts.append(_RLE_HEADER_BYTES + len(body))
        segment = stream[offset : _rle_segment_end(stream, offset, num_pixels)]
        body += segment + bytes(len(segment) % 2)
    starts += [0] * (15 - num_segments)
    return struct.pack("<16L", num_segments, *starts) + body


def _jpeg_marker(stream: bytes, place: int) -> tuple[int, int]:
    """Return the marker at a place and where its segment begins; fill bytes before it are skipped."""
    start = place
    while stream[place : place + 1] == b"\xff":
        place += 1
    if place == start or place >= len(stream):
        raise CodeStreamError("a codestream without end marker")
    if stream[place] in _JPEG_WITHOUT_LENGTH:
        raise CodeStreamError("a misplaced marker in a codestream")
    return stream[place], place + 1


def _segment(stream: bytes, place: int) -> bytes:
    """Return the length field at a place and the parameters that it counts."""
    length = int.from_bytes(stream[place : place + 2], "big")
    segment = stream[place : place + length]
    if length < 2 or len(segment) < length:
        raise CodeStreamError("a truncated codestream")
    return segment


def _marker(stream: bytes, place: int) -> int:
    return int.from_bytes(stream[place : place + 2], "big")


def _jpeg_2000_header(stream: bytes, place: int, *, end: int) -> tuple[bytes, int, list[int]]:
    """Return the marker segments up to the marker `end` without comments, the place of `end`, and all markers."""
    stripped, markers = bytearray(), []
    while (marker := _marker(stream, place)) != end:
        if not 0xFF50 <= marker <= 0xFF7F:
            raise CodeStreamError("a misplaced marker in a codestream")
        segment = _segment(stream, place + 2)
        if marker != _COM:
            stripped += stream[place : place + 2] + segment
        place += 2 + len(segment)
        markers.append(marker)
    return bytes(stripped), place, markers


def _tile_part(stream: bytes, start: int) -> tuple[bytes, int, int]:
    """Return a tile part without comments, the place after it, and the number of bytes removed from it."""
    length = int.from_bytes(stream[start + 6 : start + 10], "big")
    header, place, _ = _jpeg_2000_header(stream, start + 12, end=_SOD)
    end = start + length if length else stream.find(_EOC.to_bytes(2, "big"), place)
    if not place <= end <= len(stream):
        raise CodeStreamError("a truncated codestream")
    removed = place - (start + 12) - len(header)
    new_length = (length - removed if length else 0).to_bytes(4, "big")
    tile_part = stream[start : start + 6] + new_length + stream[start + 10 : start + 12] + header + stream[place:end]
    return tile_part, end, removed


def _code_stream_of_jp2(stream: bytes) -> bytes:
    """Return the code stream inside a JP2 file (ITU-T T.800 Annex I), which DICOM forbids and some writers store."""
    if not stream.startswith(_JP2_SIGNATURE):
        return stream
    place = 0
    while place + 8 <= len(stream):
        length, kind = int.from_bytes(stream[place : place + 4], "big"), stream[place + 4 : place + 8]
        head = 8
        if length == 1:
            length, head = int.from_bytes(stream[place + 8 : place + 16], "big"), 16
        end = place + length if length else len(stream)
        if kind == b"jp2c":
            return stream[place + head : end]
        if end <= place:
            break
        place = end
    raise CodeStreamError("a JP2 file without codestream")


def _rle_segment_end(stream: bytes, place: int, num_bytes: int) -> int:
    """Return the place after the runs that hold this many bytes."""
    unpacked = 0
    while unpacked < num_bytes:
        if not _RLE_HEADER_BYTES <= place < len(stream):
            raise CodeStreamError("a truncated RLE segment")
        count = stream[place]
        if count < 128:
            unpacked, place = unpacked + count + 1, place + count + 2
        elif count > 128:
            unpacked, place = unpacked + 257 - count, place + 2
        else:
            place += 1
    if place > len(stream):
        raise CodeStreamError("a truncated RLE segment")
    return place
