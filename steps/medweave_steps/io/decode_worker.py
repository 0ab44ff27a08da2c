"""Decompresses planes, in this process or as a program of its own (`python decode_worker.py`).

JPEG 2000 and RLE decoders hold Python's global lock, so threads do not help. As a program this file imports nothing of
medweave: it starts in a fresh interpreter whatever threads the parent runs, reads requests on its standard input, and ends
when that closes, which is also what happens when the parent is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Bytes of a file, from (offset, length) pairs put together.

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
                    raise EOFError("the file ends inside its pixel data")
                part += more
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def decode(frame: bytes, syntax: str, options: Mapping[str, Any]) -> Any:
    """One compressed frame as an array of stored values [row, column].

    Args:
        frame: the code stream.
        syntax: UID of its transfer syntax.
        options: pydicom's names for the pixel description (rows, columns, bits_stored …).
    """
    from pydicom.encaps import encapsulate
    from pydicom.pixels import get_decoder

    decoder = get_decoder(syntax)
    array, _ = decoder.as_array(encapsulate([frame], has_bot=False), index=0, raw=True, **options)
    return array


def main() -> None:
    """Answers requests (path, ranges, syntax, options) with (dtype, shape, bytes), or with (error's type, text)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides: its end closes our input
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            path, ranges, syntax, options = pickle.load(requests)
        except EOFError:
            return
        try:
            array = decode(read_ranges(path, ranges), syntax, options)
            answer: tuple[Any, ...] = (array.dtype.str, array.shape, array.tobytes())
        except Exception as error:
            answer = (type(error).__name__, str(error))
        try:
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)


if __name__ == "__main__":
    main()
