"""Transports of a parameter server: same weights and bytes, and connections that cannot be made or break."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import BackendMissingError, TryAgainError
from medweave_steps.training.distributed.transports import grpc, mpi
from medweave_steps.training.distributed.transports.grpc import (
    FRAME_BYTES,
    GrpcServer,
    GrpcWorker,
    make_identity,
    open_transport,
)
from medweave_steps.training.distributed.transports.messages import SERVER, Message
from support.engine import wait_until
from support.processes import alive
from support.server_work import ASYNC_ORDER, needs_open_mpi, scripted, train_in_threads, weights_of
from support.strategy_work import all_trained, by_ranks, case_of, largest_difference, options
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


@pytest.mark.parametrize(("transport", "library"), [("grpc", "grpc"), ("grpc", "cryptography"), ("mpi", "mpi4py")])
def test_a_transport_that_is_not_installed_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, transport: str, library: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BackendMissingError, match=f"the library '{library}' cannot be imported") as caught:
        options(data, **FEW, transport=transport)
    assert caught.value.do == f"pip install 'medweave[{transport}]'"


def test_mpi_is_refused_without_the_programs_of_open_mpi(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data))
    with pytest.raises(BackendMissingError) as caught:
        options(data, **FEW, transport="mpi")
    assert caught.value.seen == "no program 'ompi-server' on the PATH"
    assert "apt-get install openmpi-bin" in caught.value.do


def ended(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python that imports the transport, in a process of its own: Open MPI starts once in a process."""
    words = [sys.executable, "-c", f"from medweave_steps.training.distributed.transports import mpi\n{program}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | variables)


def test_a_library_that_is_not_open_mpi_is_refused(tmp_path: Path) -> None:
    lacks = ended("mpi._library()", MPI4PY_LIBMPI=str(tmp_path / "libmpi.so"))
    assert "Open MPI 4 cannot be used on this machine." in lacks.stderr
    assert "seen:     cannot load MPI library" in lacks.stderr
    other = "import sys, types\nsys.modules['mpi4py.MPI'] = types.SimpleNamespace(Get_library_version=lambda: 'MPICH 4.2')\n"
    assert "seen:     MPICH 4.2" in ended(f"{other}mpi._library()").stderr


@pytest.mark.parametrize("reason", ["", "MPI_ERR_PORT: invalid port"])
def test_a_connection_over_mpi_that_is_not_made_is_reported(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def connect() -> None:
        if reason:
            raise RuntimeError(reason)
        time.sleep(1)

    monkeypatch.setattr(mpi, "ARRIVAL_S", 0.05)
    with pytest.raises(TryAgainError, match="worker 2 and the parameter server have no connection over MPI") as caught:
        mpi._connect(connect, 2)
    assert caught.value.seen == (reason or "none within 0 s")


@needs_open_mpi
def test_the_name_server_ends_with_the_process_that_started_it() -> None:
    program = "import os, pathlib\nprint(mpi._name_server(), mpi._name_server())\n"
    program += "print(pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text())\nos._exit(0)"
    first, again, process = ended(program).stdout.split()
    assert first == again
    assert "tcp://" in first
    wait_until(lambda: not alive(int(process)))
    assert not alive(int(process))


@needs_open_mpi
@pytest.mark.slow
def test_mpi_gives_the_weights_and_bytes_of_gloo(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrivals.json").write_text(json.dumps(scripted(ASYNC_ORDER)))
    changes: dict[str, dict[str, Any]] = {
        "sync-gradient": FEW,
        "sync-weights": FEW | {"rule": "sync-weights"},
        "async": FEW
        | {"coordination": "async", "steps": 20, "epoch_steps": 10, "replay_arrivals": tmp_path / "arrivals.json"},
    }
    # In a job step of Slurm, Open MPI takes every process for one that srun has started for it.
    for name, value in {"JOBID": "1", "STEPID": "0", "NODELIST": "n1", "PROCID": "0", "NTASKS": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    cases = {name: case_of(data, "instance", **values, transport="mpi") for name, values in changes.items()}
    by_mpi = by_ranks(all_trained, cases, ranks=3)
    for name, values in changes.items():
        server, *_ = train_in_threads(case_of(data, "instance", **values))
        assert largest_difference(by_mpi[name], weights_of(server)) == 0, name
        assert by_mpi[name]["bytes"] == server.state.synchronised_bytes > 0, name
