"""The blocks of a stream: as they are, or smaller where that pays. Pure, but for the system's libzstd.

The far end runs this text by its own python3, of 3.8 or later: see `for_far_end`. Nothing is installed for it: libzstd comes by
ctypes where the system has it (dpkg, rpm and systemd are built on it), and zlib with Python.

Numbers of two bytes, as CT has them, become two planes first: the upper bytes are nearly all the same, the lower ones noise.
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
HEAD = struct.Struct(">BII")  # how it is encoded, bytes that follow, bytes that they stand for
AHEAD = 4  # blocks that wait for the link
RAW, ZSTD, ZLIB = 0, 1, 2  # a block tells its codec in the upper four bits, and the bytes of a number in the lower ones
WIDTHS = (1, 2, 4)
PIECES, PIECE = 4, 2**14  # of a block, to see whether it pays
SMALLEST = 2**12
PAYS = 0.9  # of its size; more is sent as it is
TRUST = 16  # blocks that are encoded as the last that was looked at; or, in the end, left alone
ASK_S = 1.0
FILL_S = 0.05  # what a command writes in this time goes in one block
HELD = 2**25
FAST_LEVEL = -1  # of zstd
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
Bytes = Union[bytes, bytearray]  # noqa: UP007 (3.8)


class NotDecoded(ValueError):
    """A block is none that was asked for; the words name no file."""


# ---- codecs


class Zlib:
    """Runs and Huffman's code only: after the planes, what else it looks for costs much and finds little."""

    codec = ZLIB

    @staticmethod
    def encoded(data: bytearray) -> bytes:
        """Compress at the only level that is quick."""
        work = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_RLE)
        return work.compress(data) + work.flush()

    @staticmethod
    def decoded(data: bytearray, size: int) -> bytearray:
        """Never more than one byte too many."""
        work = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = work.decompress(data, size + 1)
        except zlib.error:
            raise NotDecoded("a block is damaged") from None
        if len(found) != size or not work.eof or work.unused_data:
            raise NotDecoded("a block is damaged")
        return bytearray(found)


class Zstd:
    """The system's libzstd.

    Raises:
        OSError: there is none.
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
        """Nothing is written behind its room, whatever the block says of its size."""
        found = bytearray(size)
        count = self._library.ZSTD_decompressDCtx(self._unpacking, _address(found), size, _address(data), len(data))
        if self._library.ZSTD_isError(count) or count != size:
            raise NotDecoded("a block is damaged")
        return found


def _address(data: bytearray) -> Any:
    return ctypes.byref(ctypes.c_char.from_buffer(data))


def codecs() -> dict[int, Any]:
    """Those of this machine, the best first."""
    found: dict[int, Any] = {}
    with contextlib.suppress(OSError):
        found[ZSTD] = Zstd()
    found[ZLIB] = Zlib()
    return found


# ---- planes


def planes(data: bytearray, width: int) -> bytearray:
    """First bytes of all numbers, then second ones; what is left of a number stays at the end."""
    if width == 1:
        return data
    count = len(data) // width
    found = bytearray(data)
    for n in range(width):  # between bytearrays this is six times as quick as by views
        found[n * count : (n + 1) * count] = data[n : count * width : width]
    return found


def numbers(data: bytearray, width: int) -> bytearray:
    """What `planes` were made of."""
    if width == 1:
        return data
    count = len(data) // width
    found = bytearray(data)
    for n in range(width):
        found[n : count * width : width] = data[n * count : (n + 1) * count]
    return found


# ---- what pays


class Sampling:
    """Whether a block would become smaller, and by which planes, seen from pieces of some blocks."""

    def __init__(self, codec: Any) -> None:
        self._codec, self._width = codec, 0
        self._blocks, self._rest = 0, 1

    def width(self, block: bytearray) -> int:
        """Bytes of a number; 0: it stays as it is."""
        if self._blocks:
            self._blocks -= 1
        else:
            self._look(block)
        return self._width

    def _look(self, block: bytearray) -> None:
        step = len(block) // PIECES // 16 * 16
        some = block
        if step > PIECE:
            some = bytearray().join(block[n * step : n * step + PIECE] for n in range(PIECES))
        size, width = min((len(self._codec.encoded(planes(some, each))), each) for each in WIDTHS)
        if size <= PAYS * len(some):
            self._width, self._blocks, self._rest = width, TRUST, 1
        else:
            self.in_vain()

    def in_vain(self) -> None:
        """It did not become smaller; some are left alone, and each time more."""
        self._width, self._blocks = 0, self._rest - 1
        self._rest = min(2 * self._rest, TRUST)


# ---- both sides of the wire


class Encoder:
    """Makes blocks for the wire.

    Args:
        known: codecs of the other end.
    """

    def __init__(self, known: Iterable[int]) -> None:
        self._codec = next((codec for each, codec in codecs().items() if each in known), None)
        self._sampling = Sampling(self._codec)

    def blocks(self, pieces: Iterable[bytearray]) -> Iterator[tuple[bytes, Bytes, int]]:
        """Yield head, body and size of the block of each piece (`BLOCK` bytes at most); a thread encodes ahead of the link."""
        return read_ahead(self.block_of(piece) for piece in pieces)

    def block_of(self, piece: bytearray) -> tuple[bytes, Bytes, int]:
        """Return head, body and size of one block."""
        body, how = self._body(piece)
        return HEAD.pack(how, len(body), len(piece)), body, len(piece)

    def _body(self, piece: bytearray) -> tuple[Bytes, int]:
        if self._codec is None or len(piece) < SMALLEST:
            return piece, RAW
        width = self._sampling.width(piece)
        if width:
            body: bytes = self._codec.encoded(planes(piece, width))
            if len(body) <= PAYS * len(piece):
                return body, self._codec.codec << 4 | width
            self._sampling.in_vain()
        return piece, RAW


class Decoder:
    """Reads such blocks.

    Attributes:
        known: its codecs.
    """

    def __init__(self) -> None:
        self._codecs = codecs()
        self.known = bytes(self._codecs)

    def head(self, data: Bytes) -> tuple[int, int, int]:
        """How a block is encoded, bytes that follow, bytes that they stand for; none of them for the end.

        Raises:
            NotDecoded: no sender of ours says so.
        """
        how, length, size = HEAD.unpack(data)
        if how == RAW:
            right = length == size <= BLOCK
        else:
            right = how >> 4 in self._codecs and how & 15 in WIDTHS and 0 < length < size <= BLOCK
        if not right:
            raise NotDecoded("the stream is none")
        return how, length, size

    def content(self, how: int, body: bytearray, size: int) -> bytearray:
        """What a block stands for.

        Raises:
            NotDecoded: it is damaged, or holds something else than so many bytes.
        """
        if how == RAW:
            return body
        return numbers(self._codecs[how >> 4].decoded(body, size), how & 15)


def hold_memory() -> None:
    """What a block has taken is for the next one: else the system clears it each time, for as long as it takes to decode it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        for each in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(each, HELD)


def pieces(source: int) -> Iterator[bytearray]:
    """What comes, in full blocks where it comes quickly."""
    while piece := filled(source, BLOCK):
        yield piece


def filled(source: int, size: int, left: Callable[[], bool] = lambda: False) -> bytearray:
    """The next of it, as many bytes as come quickly; none at its end.

    Args:
        left: asked from time to time whether nobody waits for it any more: then it has ended, too.
    """
    piece, waiting = bytearray(size), select.poll()  # select itself knows no numbers above 1023
    waiting.register(source, select.POLLIN)
    view, count = memoryview(piece), 0
    while count < size:
        if not waiting.poll(1000 * (FILL_S if count else ASK_S)):
            if count or left():
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
    """The same, made in a thread before they are asked for: a few, and no more until they are taken."""
    made: queue.Queue[Any] = queue.Queue(AHEAD)
    left = threading.Event()

    def put(item: Any) -> bool:
        while not left.is_set():
            try:
                made.put(item, timeout=1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            if all(put((each, None)) for each in items):
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
        left.set()
