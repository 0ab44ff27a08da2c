"""Messages between a parameter server, rank 0, and its workers, ranks 1 and up."""

from __future__ import annotations

import abc
import queue
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.aggregation import Vector

SERVER = 0
Kind = Literal["update", "state", "report", "answer", "content", "go", "finish"]
"""Worker to server: `update` (vector), `report` (blob), `content` (blob, of a checkpoint). Server to worker: `state` (vector),
`answer` to a report (flags), `go` after a checkpoint, `finish` (blob)."""
_KINDS: tuple[Kind, ...] = get_args(Kind)


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
        """Send a message.

        Raises:
            RuntimeError: the connection is lost.
        """
        self._send(peer, message)
        self.num_bytes += message.num_bytes

    def receive(self, peer: int = SERVER) -> Message:
        """Return the next message of a peer; not on a server that calls `receive_any`.

        Raises:
            RuntimeError: the connection is lost.
        """
        message = self._receive(peer)
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
                message = self._receive(worker)
            except RuntimeError as error:
                self._arrivals.put(Arrival(worker=worker, message=None, error=error))
                return
            self._arrivals.put(Arrival(worker=worker, message=message))
            if message.kind == "content" and message.numbers[0]:
                return

    @abc.abstractmethod
    def _send(self, peer: int, message: Message) -> None: ...

    @abc.abstractmethod
    def _receive(self, peer: int) -> Message: ...


class GlooTransport(Transport):
    """Point-to-point messages of torch.distributed: a header, and then each part that is not empty."""

    _DTYPES: ClassVar[tuple[str, ...]] = ("float32", "float64")

    def __init__(self, process_group: Any, *, rank: int, world_size: int) -> None:
        """Use a torch process group of backend gloo, in which the server is rank 0."""
        super().__init__(rank=rank, world_size=world_size)
        self._group, self._torch = process_group, require("torch", extra="train")

    def _send(self, peer: int, message: Message) -> None:
        vector = np.zeros(0, np.float32) if message.vector is None else np.ascontiguousarray(message.vector)
        parts = [np.array(message.numbers, np.float64), vector, np.frombuffer(message.blob, np.uint8)]
        dtype = self._DTYPES.index(vector.dtype.name)
        header = np.array([_KINDS.index(message.kind), dtype, message.vector is not None, *map(len, parts)], np.int64)
        for part in (header, *(part for part in parts if len(part))):
            # frombuffer gives memory that must not be written to, which torch warns about
            self._group.send([self._torch.from_numpy(part if part.flags.writeable else part.copy())], peer, 0).wait()

    def _receive(self, peer: int) -> Message:
        kind, dtype, has_vector, *sizes = self._part(peer, 6, np.dtype(np.int64)).tolist()
        dtypes = (np.dtype(np.float64), np.dtype(self._DTYPES[dtype]), np.dtype(np.uint8))
        numbers, vector, blob = (self._part(peer, size, of) for size, of in zip(sizes, dtypes, strict=True))
        return Message(
            kind=_KINDS[kind],
            numbers=tuple(numbers.tolist()),
            vector=vector if has_vector else None,
            blob=blob.tobytes(),
        )

    def _part(self, peer: int, size: int, dtype: np.dtype[Any]) -> Vector:
        part = np.empty(size, dtype)
        if size:
            self._group.recv([self._torch.from_numpy(part)], peer, 0).wait()
        return part
