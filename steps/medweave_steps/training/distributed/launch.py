"""Start the ranks of a training on this node with torch's launcher, and report why they ended if they failed.

Nodes are started by a connector, each with the same command line (`runtime.environment.node_group`); this module does not
connect to other machines. The launcher runs in a thread, because in the main thread it would take over the handling of signals.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import TryAgainError, UsageError
from medweave_steps.runtime import environment, partials
from medweave_steps.runtime.environment import NodeGroup
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.signals import Deferred, deferred
from medweave_steps.training.distributed import failures, ranks, separate_ranks
from medweave_steps.training.distributed.failures import Failure, first_line
from medweave_steps.training.distributed.watch import ARRIVAL_S, BEAT_S, open_store

GRACE_S = 10.0
"""Time for the ranks to agree, write a checkpoint and exit after INT or TERM."""
EXIT_GRACE_S = 5.0
"""Time for the other ranks of a node to exit after one of them has failed."""
LINGER_S = 4.0
"""Time that node 0 keeps the store open after a failure, so that the other nodes can read the cause."""


MORE_PORTS = 3
"""Retries with other ports: another process may take a free port before it is used."""


def ranks_here(num_ranks: int, node_group: NodeGroup, *, option: str) -> int:
    """Return the number of ranks that run on this node.

    Args:
        option: name of the option that says how many there are in all, for the error.
    Raises:
        UsageError: they cannot be spread evenly over the nodes.
    """
    if num_ranks % node_group.num_nodes:
        raise UsageError(
            f"--{option} is not divisible by the number of nodes.",
            seen=f"{num_ranks} for {node_group.num_nodes} nodes",
            expected=f"a multiple of {node_group.num_nodes}, for an equal number per node",
            do=f"choose another --{option}, or bind the step to another number of nodes",
        )
    return num_ranks // node_group.num_nodes


def run_ranks(
    work: Callable[[Any, Any], Any],
    job: Any,
    *,
    num_here: int,
    num_threads: int,
    device: Literal["auto", "cpu", "cuda"],
    node_group: NodeGroup,
    lost_after_s: float | None = None,
) -> Any:
    """Run a function in `num_here` processes on each node of the node group, joined to one group.

    Args:
        work: a function of a module, of the job and its `RankGroup`; it must end on all ranks, or on none.
        job: first argument of `work`; pickled for the processes of this node.
        num_threads: compute threads of each rank.
        lost_after_s: the training continues without a rank, but the first, that dies or sends no heartbeat for so long, s; None if
            the end of one rank ends all.
    Returns:
        what rank 0's work returned; None on every node but the first.
    Raises:
        StepError: the failure of the rank that failed first, on whatever node.
        Terminated: INT or TERM arrived.
    """
    environment.hush_torch()
    launcher = require("torch.distributed.launcher.api", extra="train")
    _hush_launcher()
    environment.limit_threads(num_threads)  # the new processes inherit it
    with tempfile.TemporaryDirectory(prefix="medweave-ranks-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        partials.register(folder)
        task = ranks.RankTask(
            work=work, job=job, device=device, num_threads=num_threads, folder=folder, parent=os.getpid(),
            lost_after_s=lost_after_s,
        )  # fmt: skip
        for is_last in (*[False] * MORE_PORTS, True):
            address = node_group.rendezvous or ("127.0.0.1", _free_port())
            if lost_after_s is None:
                config = _config(address, node_group, num_here=num_here, folder=folder)
                start = partial(launcher.elastic_launch(config, ranks.main), task)
            else:  # torch's launcher ends all ranks when one of them dies
                start = partial(separate_ranks.run, task, address, node_group, num_here=num_here)
            listen_to = address if node_group.node_rank > 0 else None
            attempt = _Attempt(start, listen_to=listen_to, ends_together=lost_after_s is None)
            attempt.attend()
            if is_last or node_group.rendezvous or not _is_taken(attempt.error):
                break
        partials.forget(folder)
        if attempt.error is not None:
            raise _reason(attempt.error, attempt.lost, folder, address, node_group)
    return attempt.results.get(0)


def _config(address: tuple[str, int], node_group: NodeGroup, *, num_here: int, folder: Path) -> Any:
    """Return the launch configuration of torch elastic: the ranks of all nodes meet at an address (rendezvous)."""
    launcher = require("torch.distributed.launcher.api", extra="train")
    logs = require("torch.distributed.elastic.multiprocessing", extra="train")
    return launcher.LaunchConfig(
        min_nodes=node_group.num_nodes,
        max_nodes=node_group.num_nodes,
        nproc_per_node=num_here,
        run_id="medweave",
        rdzv_backend="static",
        rdzv_endpoint=f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}",
        rdzv_configs={"rank": node_group.node_rank, "timeout": int(ARRIVAL_S)},
        local_addr=None if node_group.rendezvous else address[0],
        max_restarts=0,
        monitor_interval=0.2,
        start_method="spawn",
        logs_specs=logs.DefaultLogsSpecs(log_dir=str(folder / "torch")),
    )


class _Attempt:
    """The launcher in a thread; the main thread forwards signals and kills ranks that do not exit.

    Attributes:
        results: what each rank of this node returned.
        error: the error of the launcher, if it failed.
        lost: a failure on another node; ranks that are frozen would not heed it.
    """

    def __init__(
        self, launch: Callable[[], dict[int, Any]], *, listen_to: tuple[str, int] | None, ends_together: bool = True
    ) -> None:
        self.results: dict[int, Any] = {}
        self.error: Exception | None = None
        self.lost: Failure | None = None
        self._launch, self._listen_to, self._ends_together = launch, listen_to, ends_together
        self._ended = threading.Event()
        self._ranks: set[BaseProcess] = set()
        self._thread = threading.Thread(target=self._run, name="ranks-launcher", daemon=True)

    def _run(self) -> None:
        try:
            self.results = self._launch()
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def _listen(self, address: tuple[str, int]) -> None:
        store = None
        while self.lost is None and not self._ended.wait(BEAT_S):
            if not self._ranks:
                continue  # the nodes have not met yet
            try:
                store = store or open_store(address)
                self.lost = failures.read(store)
            except RuntimeError as error:
                self.lost = failures.lost_contact(f"node {environment.host_name()}", first_line(error))

    def attend(self) -> None:
        """Wait for the launcher's end.

        Raises:
            Terminated: INT or TERM arrived; the ranks have ended.
        """
        deadline: float | None = None
        before = set(active_children())
        # The watchdog must leave the ranks their time.
        with deferred(grace_s=GRACE_S + 2) as flags:
            self._thread.start()
            if self._listen_to is not None:
                threading.Thread(target=self._listen, args=(self._listen_to,), name="ranks-news", daemon=True).start()
            try:
                while self._thread.is_alive():
                    self._thread.join(0.1)
                    self._ranks |= set(active_children()) - before
                    deadline = self._hand_on(flags, deadline)
                    if deadline is not None and time.monotonic() > deadline:
                        self._signal(signal.SIGKILL)
                        if flags.ending is not None:
                            break
            finally:
                self._signal(signal.SIGKILL)

    def _hand_on(self, flags: Deferred, deadline: float | None) -> float | None:
        if flags.wants_checkpoint:
            flags.wants_checkpoint = False
            self._signal(signal.SIGUSR1)
        if deadline is None and flags.ending is not None:
            self._signal(signal.SIGTERM)
            return time.monotonic() + GRACE_S
        has_failed = self._ends_together and any(rank.exitcode for rank in self._ranks)
        if deadline is None and (self.lost is not None or has_failed):
            return time.monotonic() + EXIT_GRACE_S
        return deadline

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if rank.exitcode is None and rank.pid is not None:
                try:
                    os.kill(rank.pid, number)
                except ProcessLookupError:
                    continue


def _reason(
    error: Exception, lost: Failure | None, folder: Path, address: tuple[str, int], node_group: NodeGroup
) -> BaseException:
    """Return the error for the user, from the failures that ranks wrote, else from the exit of their processes."""
    left = {path: failures.loads(path.read_text()) for path in folder.glob("rank-*.json")}
    causes = sorted((path.stat().st_mtime, path) for path, failure in left.items() if failure.is_cause)
    silent = {
        rank: process
        for rank, process in getattr(error, "failures", {}).items()
        if ranks.failure_file(folder, rank) not in left
    }
    if causes:
        failure = left[causes[0][1]]
    elif lost is not None:
        failure = lost
    elif silent:
        rank, process = min(silent.items(), key=lambda item: item[1].timestamp)
        failure = failures.died(f"rank {rank} on {environment.host_name()}", process.exitcode)
    elif left:
        failure = next(iter(left.values()))
    else:
        return _did_not_meet(error, address, node_group)
    if node_group.num_nodes > 1:
        _tell_others(failure, address)
        if node_group.node_rank == 0:
            time.sleep(LINGER_S)
    return failure.error()


def _tell_others(failure: Failure, address: tuple[str, int]) -> None:
    try:
        failures.publish(open_store(address), failure)
    except RuntimeError:
        return  # the store has gone, and with it the others


def _is_taken(error: Exception | None) -> bool:
    """Return whether another process took the port after it was found free, before any rank started."""
    return error is not None and "EADDRINUSE" in str(error)


def _did_not_meet(error: Exception, address: tuple[str, int], node_group: NodeGroup) -> BaseException:
    return TryAgainError(
        "the nodes of the training could not connect.",
        seen=first_line(error),
        expected=f"{node_group.num_nodes} nodes at {address[0]}:{address[1]} within {ARRIVAL_S:.0f} s",
        do="check that every node was started, and that node 0 is reachable under this name and port",
    )


def _hush_launcher() -> None:
    """Silence torch's loggers, each of which has its own level: the user gets one message, from medweave."""
    families = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
    for name in (*families, *logging.root.manager.loggerDict):
        if name.startswith(families):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
