"""JPEG and PNG files without anything but pixels."""

from __future__ import annotations

import io
import re
import struct
import zlib

import numpy as np

from medweave_steps.deidentify.code_streams import CodeStreamError, strip_jpeg
from medweave_steps.io.image.picture import Picture
from medweave_steps.io.image.raster import PNG_SIGNATURE, SIXTEEN_BITS
from medweave_steps.runtime.imports import require

_PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS")  # besides IDAT and IEND: what a decoder needs
_BLOCK_BYTES = 1 << 20

# JFIF says that three channels are YCbCr; its density, thumbnail and extensions are not written.
_JFIF = re.compile(rb"\xff\xe0..JFIF\0", re.DOTALL)
_PLAIN_JFIF = b"\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
_START_OF_SCAN = b"\xff\xda"


def is_png(content: bytes) -> bool:
    """Return whether a file is a PNG image."""
    return content.startswith(PNG_SIGNATURE)


def strip_file(content: bytes) -> bytes:
    """Return a JPEG or PNG file without metadata and bytes after its end; the compressed pixels stay byte for byte.

    Of JPEG, all APP and COM segments are removed (EXIF, XMP, IPTC, ICC profiles, thumbnails, further images). Of PNG, the chunks
    IHDR, PLTE, tRNS, IDAT and IEND are kept.

    Raises:
        CodeStreamError: the file does not follow its standard.
    """
    if is_png(content):
        return _strip_png(content)
    stripped = strip_jpeg(content, is_color=True)
    has_jfif = _JFIF.search(content[: content.find(_START_OF_SCAN)]) is not None
    return stripped[:2] + (_PLAIN_JFIF if has_jfif else b"") + stripped[2:]


def png_of(picture: Picture) -> bytes:
    """Return a PNG file with the pixels of a decoded photograph, without loss."""
    image = require("PIL.Image", extra="deidentify")
    dtype, highest = (np.uint16, 65535) if SIXTEEN_BITS in picture.notes else (np.uint8, 255)
    stored = np.rint(picture.pixels_CRI * np.float32(highest)).astype(dtype)
    stored = stored[0] if len(stored) == 1 else np.ascontiguousarray(stored.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.fromarray(stored).save(buffer, format="PNG")
    return buffer.getvalue()


def _strip_png(content: bytes) -> bytes:
    chunks, data, place = [], bytearray(), len(PNG_SIGNATURE)
    while True:
        length, kind = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        body, place = content[place + 8 : place + 8 + length], place + 12 + length
        if place > len(content):
            raise CodeStreamError("a truncated PNG file")
        if kind == b"IEND":
            break
        if kind == b"IDAT":
            data += body
        elif kind in _PNG_KEPT:
            chunks.append(_chunk(kind, body))
    return b"".join((PNG_SIGNATURE, *chunks, _chunk(b"IDAT", _without_rest(bytes(data))), _chunk(b"IEND", b"")))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def _without_rest(stream: bytes) -> bytes:
    """Return a zlib stream without the bytes after its end."""
    inflate = zlib.decompressobj()
    try:
        inflate.decompress(stream, _BLOCK_BYTES)
        while not inflate.eof and inflate.unconsumed_tail:
            inflate.decompress(inflate.unconsumed_tail, _BLOCK_BYTES)
    except zlib.error as error:
        raise CodeStreamError("damaged pixel data in a PNG file") from error
    if not inflate.eof:
        raise CodeStreamError("a truncated PNG file")
    return stream[: len(stream) - len(inflate.unused_data)]
