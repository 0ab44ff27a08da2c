"""Transports of a parameter server: same weights and bytes, and connections that cannot be made or break."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import BackendMissingError, TryAgainError
from medweave_steps.training.distributed.transports import grpc
from medweave_steps.training.distributed.transports.grpc import (
    FRAME_BYTES,
    GrpcServer,
    GrpcWorker,
    make_identity,
    open_transport,
)
from medweave_steps.training.distributed.transports.messages import SERVER, Message
from support.server_work import ASYNC_ORDER, scripted, train_in_threads, weights_of
from support.strategy_work import case_of, largest_difference, options
from support.training_set import training_set

HEADER_BYTES = 48
FEW: dict[str, Any] = {"strategy": "parameter-server", "ranks": 3, "steps": 8, "epoch_steps": 4}
WORKER = make_identity(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_set(tmp_path_factory.mktemp("data"), ("train", "train", "validation", "validation"))


@pytest.mark.parametrize("rule", ["sync-gradient", "sync-weights"])
def test_grpc_gives_the_weights_and_bytes_of_gloo(data: Path, rule: str) -> None:
    gloo, grpc = (
        train_in_threads(case_of(data, "instance", **FEW, rule=rule, transport=name)) for name in ("gloo", "grpc")
    )
    for one, other in zip(gloo, grpc, strict=True):
        assert largest_difference(weights_of(one), weights_of(other)) == 0
        assert one.strategy._transport.num_bytes == other.strategy._transport.num_bytes  # type: ignore[attr-defined]
    assert grpc[0].points == gloo[0].points
    assert grpc[0].strategy.card_facts()["transport"] == "grpc"


def test_grpc_repeats_an_order_of_arrivals_bit_for_bit(data: Path, tmp_path: Path) -> None:
    (tmp_path / "arrivals.json").write_text(json.dumps(scripted(ASYNC_ORDER)))
    changes = {"coordination": "async", "steps": 20, "epoch_steps": 10, "replay_arrivals": tmp_path / "arrivals.json"}
    gloo, grpc = (
        train_in_threads(case_of(data, "instance", **FEW | changes, transport=name)) for name in ("gloo", "grpc")
    )
    assert largest_difference(weights_of(gloo[0]), weights_of(grpc[0])) == 0
    assert grpc[0].points == gloo[0].points


@pytest.fixture
def server() -> Iterator[GrpcServer]:
    identity = make_identity(SERVER)
    with closing(GrpcServer(identity, [WORKER.certificate], host="node-0")) as server:
        server.certificate = identity.certificate  # type: ignore[attr-defined]
        yield server


def connect(server: Any, *, identity: Any = WORKER, certificate: bytes | None = None, port: int = 0) -> GrpcWorker:
    address = ("127.0.0.1", port or server.port)
    return GrpcWorker(identity, certificate or server.certificate, rank=1, world_size=2, address=address)


def test_a_message_is_the_bytes_of_its_vector_and_a_header(server: GrpcServer) -> None:
    vector = np.random.default_rng(0).standard_normal(3_000_001).astype(np.float32)
    message = Message(kind="update", numbers=(1.5, 2.0), vector=vector, blob=b"epoch")
    with closing(connect(server)) as worker:
        server.wait_for_workers()
        frames, leaving = [], worker._streams[SERVER].leaving
        worker._streams[SERVER].leaving = Recorder(frames, leaving)  # type: ignore[assignment]
        worker.send(SERVER, message)
        received = server.receive(1)
        server.send(1, received)
        again = worker.receive()
    assert sum(frames) == HEADER_BYTES + 2 * 8 + vector.nbytes + 5
    assert max(frames) == FRAME_BYTES < vector.nbytes, "gRPC refuses messages of 4 MiB"
    assert server.num_bytes == worker.num_bytes == 2 * vector.nbytes == 2 * 4 * 3_000_001
    for copy in (received, again):
        assert (copy.kind, copy.numbers, copy.blob) == ("update", (1.5, 2.0), b"epoch")
        np.testing.assert_array_equal(copy.vector, vector)


class Recorder:
    """A queue that records the sizes of its frames."""

    def __init__(self, sizes: list[int], leaving: Any) -> None:
        self._sizes, self._leaving = sizes, leaving

    def put(self, frame: bytes | None) -> None:
        self._sizes.extend([] if frame is None else [len(frame)])
        self._leaving.put(frame)


def test_a_lost_connection_is_an_arrival_and_an_error(server: GrpcServer) -> None:
    worker = connect(server)
    server.wait_for_workers()
    worker.close()
    arrival = server.receive_any(timeout_s=20)
    assert arrival is not None
    assert (arrival.worker, arrival.message) == (1, None)
    assert "the gRPC connection to rank 1 is lost" in str(arrival.error)
    with pytest.raises(RuntimeError, match="connection to rank 1 is lost"):
        server.send(1, Message(kind="go"))
    with pytest.raises(RuntimeError, match="connection to rank 0 is lost"):
        worker.receive()


def test_a_worker_of_another_training_is_refused(server: GrpcServer) -> None:
    with pytest.raises(TryAgainError, match=rf"127.0.0.1:{server.port} refused the certificate of this worker"):
        connect(server, identity=make_identity(1))
    with pytest.raises(TryAgainError, match=rf"server at 127.0.0.1:{server.port} does not match"):
        connect(server, certificate=make_identity(SERVER).certificate)
    assert not server._streams


def test_a_host_that_refuses_is_named_with_its_port(server: GrpcServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port = closed.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(TryAgainError, match=f"no connection to the parameter server at 127.0.0.1:{port}") as caught:
            connect(server, port=port)
    assert "Connection refused" in caught.value.seen
    assert time.monotonic() - began < 20


def test_workers_that_do_not_connect_are_named(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc, "ARRIVAL_S", 0.05)
    with pytest.raises(TryAgainError) as caught:
        server.wait_for_workers()
    assert caught.value.seen == "no connection of worker 1 within 0 s"


class Overheard:
    """A group of two ranks, the other of which is gone; it records what this one sends."""

    rank, world_size, host = 0, 2, "127.0.0.1"

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def gather(self, item: Any) -> list[Any]:
        self.sent.append(item)
        return [item, WORKER.certificate]


def test_keys_stay_in_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc, "ARRIVAL_S", 0.05)
    group: Any = Overheard()
    with pytest.raises(TryAgainError):
        open_transport(group)
    certificate, port = group.sent
    assert certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    assert certificate.count(b"BEGIN") == 1
    assert isinstance(port, int)
    assert "PRIVATE KEY" not in repr(WORKER)
    assert b"PRIVATE KEY" in WORKER.key


@pytest.mark.parametrize("library", ["grpc", "cryptography"])
def test_a_transport_that_is_not_installed_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BackendMissingError, match=f"the library '{library}' cannot be imported") as caught:
        options(data, **FEW, transport="grpc")
    assert caught.value.do == "pip install 'medweave[grpc]'"
