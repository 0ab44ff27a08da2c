"""Messages over gRPC: a bidirectional stream between server and worker, over TLS with certificates of this training only.

Each rank makes a key and a self-signed certificate. Keys stay in the memory of their process; certificates are exchanged through
the group. The server accepts the certificates of its workers, a worker that of its server, and no other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from medweave_core.certificates import make_certificate
from medweave_core.errors import TryAgainError
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.transports.messages import SERVER, Transport, connection_lost

FRAME_BYTES = 2 << 20
"""gRPC refuses messages of more than 4 MiB by default."""
ARRIVAL_S = 60.0
"""Time for all workers to connect after the server listens; gRPC itself gives up after 20 s."""
CLOSE_S = 5.0
_SERVICE, _METHOD = "medweave.ParameterServer", "Exchange"


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and its self-signed certificate, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_identity(rank: int) -> Identity:
    """Return a new key with a self-signed certificate for `rank-N`."""
    return Identity(*make_certificate(_name(rank)))


def _name(rank: int | str) -> str:
    return f"rank-{rank}"


def open_transport(group: RankGroup) -> Transport:
    """Connect the workers of a group to its server, rank 0; every rank must call it.

    Raises:
        TryAgainError: the server cannot be reached, or refuses this worker, or a worker has not connected.
    """
    identity = make_identity(group.rank)
    certificates: list[bytes] = group.gather(identity.certificate)
    if group.rank == SERVER:
        server = GrpcServer(identity, certificates[1:], host=group.host)
        group.gather(server.port)
        server.wait_for_workers()
        return server
    port: int = group.gather(None)[SERVER]
    return GrpcWorker(
        identity, certificates[SERVER], rank=group.rank, world_size=group.world_size, address=(group.host, port)
    )


@dataclass(slots=True)
class _Stream:
    """A stream: frames that arrive, and a queue of frames to send, which None ends."""

    arriving: Iterator[bytes]
    leaving: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    is_open: bool = True

    def end(self) -> None:
        """Send no more frames."""
        self.is_open = False
        self.leaving.put(None)


class _StreamTransport(Transport):
    """Arrays as frames of streams."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._streams: dict[int, _Stream] = {}

    def _send(self, peer: int, part: npt.NDArray[Any]) -> None:
        stream, content = self._streams[peer], part.data.cast("B")
        if not stream.is_open:
            raise connection_lost("gRPC", peer, "closed by the peer")
        for begin in range(0, len(content), FRAME_BYTES):
            stream.leaving.put(bytes(content[begin : begin + FRAME_BYTES]))

    def _receive(self, peer: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        stream, content, begin = self._streams[peer], part.data.cast("B"), 0
        while begin < len(content):
            try:
                frame = next(stream.arriving)
            except Exception as error:  # in the server, gRPC raises bare Exceptions
                raise connection_lost("gRPC", peer, _details(error)) from error
            content[begin : begin + len(frame)] = frame
            begin += len(frame)
        return part


class GrpcServer(_StreamTransport):
    """The server's end.

    Attributes:
        port: it listens here.
    """

    def __init__(self, identity: Identity, workers: Sequence[bytes], *, host: str) -> None:
        """Listen to workers.

        Args:
            workers: their certificates, PEM.
            host: name by which the workers reach this machine.
        """
        super().__init__(rank=SERVER, world_size=len(workers) + 1)
        self._has_new = threading.Condition()
        grpc = require("grpc", extra="grpc")
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], root_certificates=b"".join(workers), require_client_auth=True
        )
        handlers = {_METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix="to-worker")
        self._server = grpc.server(
            self._threads,
            handlers=[grpc.method_handlers_generic_handler(_SERVICE, handlers)],
            options=[("grpc.so_reuseport", 0)],
        )
        # Not the address of the name: on its own machine it may be that of the loopback interface, such as 127.0.1.1.
        address = "127.0.0.1" if host == "127.0.0.1" else "[::]"
        self.port: int = self._server.add_secure_port(f"{address}:0", credentials)
        self._server.start()

    def _serve(self, arriving: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve the stream of a worker, in a thread of gRPC."""
        worker = int(context.auth_context()["x509_common_name"][0].decode().removeprefix(_name("")))
        stream = _Stream(arriving)
        if not context.add_callback(stream.end):
            return  # it has closed already
        context.send_initial_metadata(())
        with self._has_new:
            self._streams[worker] = stream
            self._has_new.notify_all()
        yield from iter(stream.leaving.get, None)

    def wait_for_workers(self) -> None:
        """Wait until all workers have connected.

        Raises:
            TryAgainError: one has not, in time.
        """
        workers = range(1, self.world_size)
        with self._has_new:
            if self._has_new.wait_for(lambda: len(self._streams) == len(workers), timeout=ARRIVAL_S):
                return
        missing = ", ".join(str(worker) for worker in workers if worker not in self._streams)
        raise TryAgainError(
            f"not all workers have connected to the parameter server at port {self.port}.",
            seen=f"no connection of worker {missing} within {ARRIVAL_S:.0f} s",
            expected="a gRPC connection of each worker",
            do="check the logs of these workers, and that their nodes reach this port of the node of rank 0",
        )

    def close(self) -> None:
        """End all streams after their last frame; wait some seconds for workers that do not read it."""
        for stream in self._streams.values():
            stream.end()
        self._server.stop(CLOSE_S).wait()
        self._threads.shutdown(wait=False)


class GrpcWorker(_StreamTransport):
    """A worker's end."""

    def __init__(
        self, identity: Identity, server: bytes, *, rank: int, world_size: int, address: tuple[str, int]
    ) -> None:
        """Connect to the server.

        Args:
            server: its certificate, PEM.
        Raises:
            TryAgainError: no server answers at the address, or it has another certificate, or it refuses this worker's.
        """
        super().__init__(rank=rank, world_size=world_size)
        grpc = require("grpc", extra="grpc")
        host, port = address
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        credentials = grpc.ssl_channel_credentials(server, identity.key, identity.certificate)
        # Not through the proxy of the machine, which is for the internet.
        options = [("grpc.ssl_target_name_override", _name(SERVER)), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.secure_channel(target, credentials, options)
        leaving: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._channel.stream_stream(f"/{_SERVICE}/{_METHOD}")(iter(leaving.get, None))
        self._streams[SERVER] = _Stream(call, leaving)
        call.initial_metadata()  # comes when the server has accepted the stream, or when the connection has failed
        if not call.is_active():
            self.close()
            raise _no_connection(target, str(call.details()))
        call.add_callback(self._streams[SERVER].end)

    def close(self) -> None:
        """Close the connection."""
        self._streams[SERVER].end()
        self._channel.close()


def _no_connection(target: str, details: str) -> TryAgainError:
    """Return the error of a worker that could not connect, from gRPC's details."""
    reason = details.rpartition("last error: ")[2]
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return TryAgainError(
            f"the certificate of the parameter server at {target} does not match.",
            seen="another certificate than the one that rank 0 has made for this training",
            expected="the server of this training at this address",
            do="check that no other program listens there, and run the step again",
        )
    if "Socket closed" in reason:
        return TryAgainError(
            f"the parameter server at {target} refused the certificate of this worker.",
            seen="the server closed the connection in the TLS handshake",
            expected="a server that knows the certificate that this worker has made for this training",
            do="check that server and worker belong to the same training, and run the step again",
        )
    return TryAgainError(
        f"no connection to the parameter server at {target}.",
        seen=reason[:300],
        expected="a gRPC server within 20 s",
        do="check that rank 0 still runs, and that its node is reachable under this name and port",
    )


def _details(error: Exception) -> str:
    return str(error.details()) if hasattr(error, "details") else str(error) or "closed by the peer"
