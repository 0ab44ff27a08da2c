"""The blocks of a stream: compressed where a sample becomes smaller, unchanged elsewhere. Pure, but for the system's libzstd.

Agents run this text by a python3 of their site (3.8 or later), without further packages: ctypes loads libzstd where the system
has it (dpkg, rpm and systemd use it), and zlib comes with Python.

Numbers of two bytes, as in CT, are split into two planes first: the upper bytes are nearly constant, the lower bytes are noise.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import struct
import threading
import weakref
import zlib
from typing import Any, Callable, Iterable, Iterator, Union  # noqa: UP035 (3.8)

BLOCK = 2**20
HEAD = struct.Struct(">BII")  # encoding, bytes that follow, bytes of the content
AHEAD = 4  # encoded blocks that wait for the link
RAW, ZSTD, ZLIB = (
    0,
    1,
    2,
)  # the codec is in the upper four bits of the encoding, the bytes of a number in the lower four
WIDTHS = (1, 2, 4)
PIECES, PIECE = 4, 2**14  # of a block: number and bytes of the pieces in a sample
SMALLEST = 2**12
PAYS = 0.9  # a block that stays larger than this share of its size is sent unchanged
TRUST = 16  # blocks that follow one sample
POLL_S = 1.0
FILL_S = 0.05  # longest wait for more data of a block
KEPT_BYTES = 2**25
FAST_LEVEL = -1  # of zstd
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
Bytes = Union[bytes, bytearray]  # noqa: UP007 (3.8)


class NotDecoded(ValueError):
    """The stream is not one of ours, or damaged; the message names no file."""


# ---- codecs


class Zlib:
    """zlib with run lengths and Huffman codes only: on planes, searching for longer matches costs much and finds little."""

    codec = ZLIB

    @staticmethod
    def encoded(data: bytearray) -> bytes:
        """Compress at the only level that is quick."""
        work = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
        return work.compress(data) + work.flush()

    @staticmethod
    def decoded(data: bytearray, size: int) -> bytearray:
        """Decompress; never more than one byte too many."""
        work = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = work.decompress(data, size + 1)
        except zlib.error:
            raise NotDecoded("a block is damaged") from None
        if len(content) != size or not work.eof or work.unused_data:
            raise NotDecoded("a block is damaged")
        return bytearray(content)


class Zstd:
    """The system's libzstd.

    Raises:
        OSError: the system has no libzstd.
    """

    codec = ZSTD

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL("libzstd.so.1")
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        try:
            for name, takes, gives in (
                ("isError", [size], ctypes.c_uint),
                ("compressBound", [size], size),
                ("createCCtx", [], pointer),
                ("createDCtx", [], pointer),
                ("freeCCtx", [pointer], size),
                ("freeDCtx", [pointer], size),
                ("compressCCtx", [pointer, pointer, size, pointer, size, ctypes.c_int], size),
                ("decompressDCtx", [pointer, pointer, size, pointer, size], size),
            ):
                function = getattr(library, "ZSTD_" + name)
                function.argtypes, function.restype = takes, gives
        except AttributeError:  # an older one
            raise OSError("another libzstd") from None
        self._packing, self._unpacking = library.ZSTD_createCCtx(), library.ZSTD_createDCtx()
        if not self._packing or not self._unpacking:
            raise OSError("no memory")
        weakref.finalize(self, library.ZSTD_freeCCtx, self._packing)
        weakref.finalize(self, library.ZSTD_freeDCtx, self._unpacking)
        self._room = bytearray(library.ZSTD_compressBound(BLOCK))

    def encoded(self, data: bytearray) -> bytes:
        """Compress at level -1, which leaves noise alone: level 1 makes it a tenth smaller and takes twice the time."""
        source, target = _address(data), _address(self._room)
        size = self._library.ZSTD_compressCCtx(self._packing, target, len(self._room), source, len(data), FAST_LEVEL)
        if self._library.ZSTD_isError(size):
            raise MemoryError
        return bytes(memoryview(self._room)[:size])

    def decoded(self, data: bytearray, size: int) -> bytearray:
        """Decompress into exactly `size` bytes, whatever the block says of its size."""
        content = bytearray(size)
        count = self._library.ZSTD_decompressDCtx(self._unpacking, _address(content), size, _address(data), len(data))
        if self._library.ZSTD_isError(count) or count != size:
            raise NotDecoded("a block is damaged")
        return content


def _address(data: bytearray) -> Any:
    return ctypes.byref(ctypes.c_char.from_buffer(data))


def codecs() -> dict[int, Any]:
    """Return the codecs of this machine, the best first."""
    available: dict[int, Any] = {}
    with contextlib.suppress(OSError):
        available[ZSTD] = Zstd()
    available[ZLIB] = Zlib()
    return available


# ---- planes


def to_planes(data: bytearray, width: int) -> bytearray:
    """Return the first bytes of all numbers, then the second bytes, and so on; an incomplete number stays at the end."""
    if width == 1:
        return data
    count = len(data) // width
    planes = bytearray(data)
    for n in range(width):  # slices of bytearrays are six times as fast as of memoryviews
        planes[n * count : (n + 1) * count] = data[n : count * width : width]
    return planes


def from_planes(data: bytearray, width: int) -> bytearray:
    """Return the numbers of some planes."""
    if width == 1:
        return data
    count = len(data) // width
    numbers = bytearray(data)
    for n in range(width):
        numbers[n : count * width : width] = data[n * count : (n + 1) * count]
    return numbers


# ---- samples


class Sampling:
    """Decides by a sample of one block in 16 whether blocks are compressed, and as planes of which width."""

    def __init__(self, codec: Any) -> None:
        self._codec, self._width = codec, 0
        self._blocks, self._skip = 0, 1  # blocks until the next sample; blocks to skip after a sample that did not pay

    def width(self, block: bytearray) -> int:
        """Return the bytes of a number for a block; 0: leave it unchanged."""
        if self._blocks:
            self._blocks -= 1
        else:
            self._take_sample(block)
        return self._width

    def _take_sample(self, block: bytearray) -> None:
        step = len(block) // PIECES // 16 * 16
        sample = block
        if step > PIECE:
            sample = bytearray().join(block[n * step : n * step + PIECE] for n in range(PIECES))
        size, width = min(
            (len(self._codec.encoded(to_planes(sample, bytes_each))), bytes_each) for bytes_each in WIDTHS
        )
        if size <= PAYS * len(sample):
            self._width, self._blocks, self._skip = width, TRUST, 1
        else:
            self.in_vain()

    def in_vain(self) -> None:
        """Send blocks unchanged for a while, each time for longer: the last one did not become smaller."""
        self._width, self._blocks = 0, self._skip - 1
        self._skip = min(2 * self._skip, TRUST)


# ---- both ends


class Encoder:
    """Encodes blocks.

    Args:
        known: codecs of the other end.
    """

    def __init__(self, known: Iterable[int]) -> None:
        self._codec = next((codec for number, codec in codecs().items() if number in known), None)
        self._sampling = Sampling(self._codec)

    def blocks(self, read_pieces: Iterable[bytearray]) -> Iterator[tuple[bytes, Bytes, int]]:
        """Yield head, body and size of the block of each piece (`BLOCK` bytes at most); a thread encodes ahead of the link."""
        return read_ahead(self.block_of(piece) for piece in read_pieces)

    def block_of(self, piece: bytearray) -> tuple[bytes, Bytes, int]:
        """Return head, body and size of one block."""
        body, how = self._body(piece)
        return HEAD.pack(how, len(body), len(piece)), body, len(piece)

    def _body(self, piece: bytearray) -> tuple[Bytes, int]:
        if self._codec is None or len(piece) < SMALLEST:
            return piece, RAW
        width = self._sampling.width(piece)
        if width:
            body: bytes = self._codec.encoded(to_planes(piece, width))
            if len(body) <= PAYS * len(piece):
                return body, self._codec.codec << 4 | width
            self._sampling.in_vain()
        return piece, RAW


class Decoder:
    """Decodes blocks.

    Attributes:
        known: the codecs of this machine.
    """

    def __init__(self) -> None:
        self._codecs = codecs()
        self.known = bytes(self._codecs)

    def head(self, data: Bytes) -> tuple[int, int, int]:
        """Return the encoding of a block, the bytes that follow, and the bytes of the content; no bytes at the end.

        Raises:
            NotDecoded: no encoder of ours writes such a head.
        """
        how, length, size = HEAD.unpack(data)
        if how == RAW:
            is_valid = length == size <= BLOCK
        else:
            is_valid = how >> 4 in self._codecs and how & 15 in WIDTHS and 0 < length < size <= BLOCK
        if not is_valid:
            raise NotDecoded("the stream is not in the expected encoding")
        return how, length, size

    def content(self, how: int, body: bytearray, size: int) -> bytearray:
        """Return the content of a block.

        Raises:
            NotDecoded: it is damaged, or has another number of bytes.
        """
        if how == RAW:
            return body
        return from_planes(self._codecs[how >> 4].decoded(body, size), how & 15)


def keep_memory() -> None:
    """Reuse the memory of blocks: the system clears newly mapped memory, which takes as long as decoding a block."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, KEPT_BYTES)


def read_pieces(source: int) -> Iterator[bytearray]:
    """Yield what a file descriptor has, in full blocks where data comes fast enough."""
    while piece := read_full(source, BLOCK):
        yield piece


def read_full(source: int, size: int, is_abandoned: Callable[[], bool] = lambda: False) -> bytearray:
    """Return the next bytes of a file descriptor, as many as come fast enough; none at its end.

    Args:
        is_abandoned: called from time to time; True ends the read, too.
    """
    piece, waiting = bytearray(size), select.poll()  # select.select supports no descriptors above 1023
    waiting.register(source, select.POLLIN)
    view, count = memoryview(piece), 0
    while count < size:
        if not waiting.poll(1000 * (FILL_S if count else POLL_S)):
            if count or is_abandoned():
                break
            continue
        got = os.readv(source, [view[count:]])
        if not got:
            break
        count += got
    view.release()
    del piece[count:]
    return piece


_END = object()


def read_ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items; a thread produces a few of them in advance."""
    made: queue.Queue[Any] = queue.Queue(AHEAD)
    is_closed = threading.Event()

    def put(item: Any) -> bool:
        while not is_closed.is_set():
            try:
                made.put(item, timeout=1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            if all(put((item, None)) for item in items):
                put((_END, None))
        except BaseException as error:
            put((_END, error))

    threading.Thread(target=make, daemon=True).start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        is_closed.set()
