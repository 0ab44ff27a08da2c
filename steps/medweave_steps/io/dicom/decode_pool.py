"""Compressed planes decoded by several processes, handed out in order, few ahead of the reader."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, cast

from medweave_core.errors import TryAgainError
from medweave_steps.io.dicom import decode_worker

Request = tuple[str, Sequence[tuple[int, int]], str, Mapping[str, Any]]

LOOK_AHEAD = 3  # queued planes per process, so that no process waits for the reader; 512 x 512 x 2 bytes each
WORTH_A_PROCESS = 8  # planes per process below which starting it (a third of a second) costs more than it saves


class DecodeError(Exception):
    """A code stream that cannot be decoded. The text comes from the decoder and may not be shown unchecked."""


def decode_in_order(requests: Sequence[Request], *, num_workers: int) -> Generator[decode_worker.Decoded, None, None]:
    """Decode planes in parallel and yield them in the order of the requests.

    Args:
        requests: path, byte ranges, transfer syntax and pixel description of each plane.
        num_workers: processes to use at most; with 1, or for few planes, the work is done in this process.
    Raises:
        DecodeError: a plane cannot be decoded.
        EOFError: a file is shorter than its ranges.
        TryAgainError: a decoding process was killed.
    """
    num_processes = min(num_workers, len(requests) // WORTH_A_PROCESS)
    if num_processes < 2:
        for path, ranges, syntax, options in requests:
            frame = decode_worker.read_ranges(path, ranges)
            try:
                yield decode_worker.decode(frame, syntax, options)
            except Exception as error:
                raise DecodeError(str(error)) from error
        return
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker()) for _ in range(num_processes)]
        ahead = LOOK_AHEAD * num_processes
        for i, request in enumerate(requests[:ahead]):
            _ask(workers[i % num_processes], request)
        for i in range(len(requests)):
            decoded = _answer(workers[i % num_processes])
            if i + ahead < len(requests):
                _ask(workers[(i + ahead) % num_processes], requests[i + ahead])
            yield decoded


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    # Another process group: Ctrl-C reaches the parent only, which then closes the pipes.
    process = subprocess.Popen(
        [sys.executable, "-P", decode_worker.__file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def _ask(worker: subprocess.Popen[bytes], request: Request) -> None:
    assert worker.stdin is not None
    try:
        pickle.dump(request, worker.stdin, protocol=5)
        worker.stdin.flush()
    except BrokenPipeError as error:
        raise _worker_lost() from error


def _answer(worker: subprocess.Popen[bytes]) -> decode_worker.Decoded:
    assert worker.stdout is not None
    try:
        answer = pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError) as error:
        raise _worker_lost() from error
    if len(answer) == 2:
        kind, text = answer
        raise EOFError(text) if kind == "EOFError" else DecodeError(text)
    return cast(decode_worker.Decoded, answer)


def _worker_lost() -> TryAgainError:
    return TryAgainError(
        "an image decoding process ended before it finished.",
        seen="its pipe closed",
        expected="a decoding process that runs until the step ends",
        do="run the step again; if the error persists, increase its memory (ramMin in the workflow)",
    )
