"""Messages over Open MPI, by mpi4py: every rank is an MPI job of one process, and the server accepts one worker after the other.

The ranks are started by medweave's launcher, not by mpirun, so node groups, retries and errors are those of every other training.
`ompi-server`, a program of Open MPI 4, introduces them to each other; rank 0 starts it. Waiting is polling with pauses, because
MPI's own calls wait by spinning on the processor. MPI does not report the death of a peer: the heartbeats of the ranks do.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.errors import BackendMissingError, TryAgainError
from medweave_steps.runtime import environment
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.transports.messages import SERVER, Transport, connection_lost

ARRIVAL_S = 60.0
"""Time for each worker to connect."""
CLOSE_S = 5.0
PAUSE_S = 0.0005
NAME_SERVER = "ompi-server"
_BYTE = np.zeros(1, np.uint8)
_START = (
    "import os, sys\n"
    "from medweave_steps.runtime import child\n"
    "child.prepare(int(sys.argv[1]))\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
"""Python program that becomes another one, which ends when this process does."""


def check_programs() -> None:
    """Check that Open MPI's name server is on the PATH.

    Raises:
        BackendMissingError: it is not.
    """
    if shutil.which(NAME_SERVER) is None:
        raise _no_open_mpi(f"no program '{NAME_SERVER}' on the PATH")


def open_transport(group: RankGroup) -> Transport:
    """Connect the workers of a group to its server, rank 0; every rank must call it.

    Raises:
        BackendMissingError: Open MPI cannot be loaded.
        TryAgainError: a connection was not made in time.
    """
    environment.join_open_mpi(group.gather(_name_server() if group.rank == SERVER else "")[SERVER])
    mpi = _library()
    connections: dict[int, Any] = {}
    for worker in range(1, group.world_size):  # one at a time: Open MPI loses connections that are made at once
        port = group.gather(mpi.Open_port() if group.rank == SERVER else "")[SERVER]
        if group.rank == SERVER:
            connections[worker] = _connect(partial(mpi.COMM_SELF.Accept, port), worker)
        elif group.rank == worker:
            connections[SERVER] = _connect(partial(mpi.COMM_SELF.Connect, port), worker)
    return MpiTransport(connections, rank=group.rank, world_size=group.world_size)


class MpiTransport(Transport):
    """Arrays as MPI messages, on one intercommunicator for each peer."""

    def __init__(self, connections: dict[int, Any], *, rank: int, world_size: int) -> None:
        """Use connections to peers, by rank."""
        super().__init__(rank=rank, world_size=world_size)
        self._connections = connections
        self._leaving: list[tuple[Any, npt.NDArray[Any]]] = []

    def _send(self, peer: int, part: npt.NDArray[Any]) -> None:
        try:
            self._leaving = [(request, array) for request, array in self._leaving if not request.Test()]
            request = self._connections[peer].Isend(part, 0)
            # A server that listens does not wait, because the worker may be dead; its listeners move the message on.
            while not self._is_listening and not request.Test():
                time.sleep(PAUSE_S)
            self._leaving.append((request, part))
        except RuntimeError as error:
            raise connection_lost("MPI", peer, str(error)) from error

    def _receive(self, peer: int, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            _receive(self._connections[peer], part)
        except RuntimeError as error:
            raise connection_lost("MPI", peer, str(error)) from error
        return part

    def close(self) -> None:
        """Exchange a last byte with each peer: a process that exits loses messages that are on their way."""
        waiting, deadline = list(self._connections.values()), time.monotonic() + CLOSE_S
        with contextlib.suppress(RuntimeError):  # a peer is lost
            for connection in waiting:
                connection.Isend(_BYTE, 0)
            while waiting and time.monotonic() < deadline:
                waiting = [connection for connection in waiting if not connection.Iprobe(0)]
                time.sleep(PAUSE_S)


def _receive(connection: Any, part: npt.NDArray[Any], *, deadline: float = math.inf) -> bool:
    """Receive an array; return whether it has come in time."""
    while not connection.Iprobe(0):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    connection.Recv(part, 0)
    return True


def _connect(connect: Callable[[], Any], worker: int) -> Any:
    """Return the connection of server and worker, from a call that has no time limit of its own."""
    connections: list[Any] = []
    errors: list[str] = []

    def run() -> None:
        try:
            connections.append(connect())
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run, name="mpi-connect", daemon=True)
    thread.start()
    thread.join(ARRIVAL_S)
    if connections:
        connections[0].Isend(_BYTE, 0)
        if _receive(connections[0], _BYTE.copy(), deadline=time.monotonic() + ARRIVAL_S):
            return connections[0]
    raise TryAgainError(
        f"worker {worker} and the parameter server have no connection over MPI.",
        seen=errors[0] if errors else f"none within {ARRIVAL_S:.0f} s",
        expected="two processes of Open MPI 4.1 that reach each other",
        do="check that the nodes reach each other on all ports and have the same Open MPI, or use --transport grpc",
    )


@functools.cache
def _name_server() -> str:
    """Start Open MPI's name server, which ends with this process; return its address.

    Raises:
        TryAgainError: it did not start.
    """
    deadline = time.monotonic() + ARRIVAL_S
    with tempfile.TemporaryDirectory(prefix="medweave-mpi-") as folder:
        file = Path(folder) / "uri"
        words = [sys.executable, "-c", _START, str(os.getpid()), NAME_SERVER, "--no-daemonize", "-r", str(file)]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and time.monotonic() < deadline:
            if file.exists() and (text := file.read_text()).endswith("\n"):
                return text.strip()
            time.sleep(0.02)
    raise TryAgainError(
        f"Open MPI's name server '{NAME_SERVER}' did not start.",
        seen=f"exit code {process.poll()}" if process.poll() else f"no address within {ARRIVAL_S:.0f} s",
        expected="its address in a file",
        do=f"run `{NAME_SERVER} --no-daemonize -r -` on the node of rank 0, and read what it prints",
    )


def _library() -> Any:
    """Return mpi4py.MPI, initialized.

    Raises:
        BackendMissingError: there is no Open MPI 4 that it can load.
    """
    require("mpi4py", extra="mpi").rc.finalize = False  # it would wait for workers that have died
    try:
        mpi = require("mpi4py.MPI", extra="mpi")
        version = mpi.Get_library_version()
    except RuntimeError as error:
        version = str(error)
    if version.startswith("Open MPI v4"):
        return mpi
    raise _no_open_mpi(" ".join(version.split())[:200])


def _no_open_mpi(seen: str) -> BackendMissingError:
    return BackendMissingError(
        "Open MPI 4 cannot be used on this machine.",
        seen=seen,
        expected=f"Open MPI 4.1 with its program '{NAME_SERVER}', which Open MPI 5 and MPICH do not have",
        do="apt-get install openmpi-bin (Debian 12, Ubuntu 22.04 or 24.04), or use --transport grpc",
    )
