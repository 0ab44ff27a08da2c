"""Start the ranks of this node as processes that do not end together: the training continues without a worker that dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from medweave_steps.runtime import environment
from medweave_steps.runtime.environment import NodeGroup, RankPlace
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed import failures, ranks
from medweave_steps.training.distributed.ranks import RankTask
from medweave_steps.training.distributed.watch import ARRIVAL_S, open_store

EXIT_GRACE_S = 5.0
"""Time for the workers of node 0 to exit after the server."""
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class _Exit:
    """The end of a process, with the attributes that torch's launcher reports."""

    exitcode: int | None
    timestamp: float


class RanksFailedError(Exception):
    """The first rank, or a rank that reported its failure, has failed.

    Attributes:
        failures: exit of the first rank by its number, if it runs on this node.
    """

    def __init__(self, message: str, failed: dict[int, _Exit]) -> None:
        super().__init__(message)
        self.failures = failed


def run(task: RankTask, address: tuple[str, int], node_group: NodeGroup, *, num_here: int) -> dict[int, Any]:
    """Run a rank's task in `num_here` processes and return what the first of them returned, by its place on the node.

    Args:
        address: of the store, which this process keeps on node 0.
    Raises:
        RanksFailedError: the first rank failed, or a rank of this node reported the failure that ended the training.
        RuntimeError: the store cannot be opened.
    """
    store = _open_store(address, is_first=node_group.node_rank == 0)
    context = multiprocessing.get_context("spawn")
    first, world_size = node_group.node_rank * num_here, node_group.num_nodes * num_here
    processes: list[BaseProcess] = []
    receiver, sender = context.Pipe(duplex=False)
    for local_rank in range(num_here):
        place = RankPlace(rank=first + local_rank, local_rank=local_rank, world_size=world_size, store=address)
        processes.append(context.Process(target=_run_rank, args=(place, task, None if local_rank else sender)))
        processes[-1].start()
    sender.close()
    try:
        results = _wait(processes, receiver, has_server=node_group.node_rank == 0)
    finally:
        del store
    _check(processes, task, has_server=node_group.node_rank == 0)
    return results


def _run_rank(place: RankPlace, task: RankTask, sender: Connection | None) -> None:
    environment.set_rank_place(place)
    result = ranks.main(task)
    if sender is not None:
        sender.send(result)


def _open_store(address: tuple[str, int], *, is_first: bool) -> Any:
    """Return the store of all ranks: node 0 keeps it, the others wait for it."""
    if is_first:
        store = require("torch.distributed", extra="train").TCPStore
        return store(address[0], address[1], is_master=True, wait_for_workers=False)
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        try:
            return open_store(address)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _wait(processes: list[BaseProcess], receiver: Connection, *, has_server: bool) -> dict[int, Any]:
    """Wait for the processes; kill those that are still there some time after the server."""
    results: dict[int, Any] = {}
    deadline: float | None = None
    runs = True
    while runs:
        time.sleep(POLL_S)
        runs = any(process.exitcode is None for process in processes)
        if 0 not in results and receiver.poll():
            with contextlib.suppress(EOFError):
                results[0] = receiver.recv()
        if has_server and deadline is None and processes[0].exitcode is not None:
            deadline = time.monotonic() + EXIT_GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.kill()
    return results


def _check(processes: list[BaseProcess], task: RankTask, *, has_server: bool) -> None:
    if has_server:
        if processes[0].exitcode:
            raise RanksFailedError("rank 0 failed", {0: _Exit(processes[0].exitcode, time.time())})
        return
    left = [failures.loads(path.read_text()) for path in task.folder.glob("rank-*.json")]
    if any(failure.is_cause for failure in left):
        raise RanksFailedError("a rank of this node failed", {})
