"""Messages between a parameter server, rank 0, and its workers, ranks 1 and up."""

from __future__ import annotations

import abc
import queue
import threading
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from medweave_steps.training.distributed.aggregation import Vector

SERVER = 0
Kind = Literal["update", "state", "report", "answer", "content", "go", "finish"]
"""Worker to server: `update` (vector), `report` (blob), `content` (blob, of a checkpoint). Server to worker: `state` (vector),
`answer` to a report (flags), `go` after a checkpoint, `finish` (blob)."""
_KINDS: tuple[Kind, ...] = get_args(Kind)
_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """A message.

    Attributes:
        kind: see `Kind`.
        numbers: few figures, such as losses and flags.
        vector: weights or a gradient, with running statistics.
        blob: anything else.
    """

    kind: Kind
    numbers: tuple[float, ...] = ()
    vector: Vector | None = None
    blob: bytes = b""

    @property
    def num_bytes(self) -> int:
        """Bytes of weights, gradients and running statistics."""
        return 0 if self.vector is None else self.vector.nbytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A message that has reached the server, or the end of a connection.

    Attributes:
        worker: its rank.
        message: None if the connection to the worker was lost.
        error: why it was lost.
    """

    worker: int
    message: Message | None
    error: Exception | None = None


class Transport(abc.ABC):
    """The connections of one rank; a worker has one, to the server.

    Attributes:
        num_bytes: of vectors that this rank has sent and received.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.num_bytes = rank, world_size, 0
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._is_listening = False

    def send(self, peer: int, message: Message) -> None:
        """Send a message: a header, and then each part that is not empty.

        Raises:
            RuntimeError: the connection is lost.
        """
        vector = np.zeros(0, np.float32) if message.vector is None else np.ascontiguousarray(message.vector)
        parts = [np.array(message.numbers, np.float64), vector, np.frombuffer(message.blob, np.uint8)]
        dtype = _DTYPES.index(vector.dtype.name)
        header = np.array([_KINDS.index(message.kind), dtype, message.vector is not None, *map(len, parts)], np.int64)
        for part in (header, *(part for part in parts if len(part))):
            self._send(peer, part)
        self.num_bytes += message.num_bytes

    def receive(self, peer: int = SERVER) -> Message:
        """Return the next message of a peer; not on a server that calls `receive_any`.

        Raises:
            RuntimeError: the connection is lost.
        """
        message = self._receive_message(peer)
        self.num_bytes += message.num_bytes
        return message

    def receive_any(self, *, timeout_s: float) -> Arrival | None:
        """Return the next message of any worker, in order of arrival; None if there is none in time."""
        self.listen()
        try:
            arrival = self._arrivals.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.num_bytes += arrival.message.num_bytes if arrival.message else 0
        return arrival

    def listen(self) -> None:
        """Receive the messages of all workers from now on, in threads: a worker that sends one waits until it is received."""
        if self._is_listening:
            return
        self._is_listening = True
        for worker in range(1, self.world_size):
            threading.Thread(target=self._listen, args=(worker,), name=f"from-worker-{worker}", daemon=True).start()

    def _listen(self, worker: int) -> None:
        """Queue the messages of a worker until its last one, a content whose first number is not 0."""
        while True:
            try:
                message = self._receive_message(worker)
            except RuntimeError as error:
                self._arrivals.put(Arrival(worker=worker, message=None, error=error))
                return
            self._arrivals.put(Arrival(worker=worker, message=message))
            if message.kind == "content" and message.numbers[0]:
                return

    def _receive_message(self, peer: int) -> Message:
        kind, dtype, has_vector, *sizes = self._receive(peer, np.empty(6, np.int64)).tolist()
        dtypes = (np.float64, _DTYPES[dtype], np.uint8)
        parts = [np.empty(size, of) for size, of in zip(sizes, dtypes, strict=True)]
        numbers, vector, blob = (self._receive(peer, part) if len(part) else part for part in parts)
        return Message(
            kind=_KINDS[kind],
            numbers=tuple(numbers.tolist()),
            vector=vector if has_vector else None,
            blob=blob.tobytes(),
        )

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections after the last message."""

    @abc.abstractmethod
    def _send(self, peer: int, part: npt.NDArray[Any]) -> None:
        """Send an array, which is contiguous and not empty; RuntimeError: the connection is lost."""

    @abc.abstractmethod
    def _receive(self, peer: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Fill an array with the next one that the peer has sent, and return it; RuntimeError: the connection is lost."""


def connection_lost(library: str, peer: int, details: str) -> RuntimeError:
    """Return the error for a lost connection to a rank."""
    return RuntimeError(f"the {library} connection to rank {peer} is lost: {details[:200]}")
