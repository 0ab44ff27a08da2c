"""The program of one rank, in a process that `launch` has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import StepError
from medweave_steps.runtime import child, environment, write
from medweave_steps.runtime.imports import require
from medweave_steps.training.device import choose_device
from medweave_steps.training.distributed import failures
from medweave_steps.training.distributed.failures import Failure
from medweave_steps.training.distributed.group import RankGroup
from medweave_steps.training.distributed.watch import Watch

CAUSE_WAIT_S = 8.0
"""A rank that lost the others waits so long for the word of the one that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """The task of a rank's process.

    Attributes:
        work: a function of a module, of `job` and the group; what rank 0's returns is handed back.
        job: its first argument; both travel by pickle.
        device: device of the ranks, as the option names it.
        num_threads: compute threads of this rank.
        folder: where a rank that fails leaves its `Failure`.
        parent: process id of the launcher.
        lost_after_s: a rank but the first may die; it is lost when it sends no heartbeat for so long. None if its end ends all.
    """

    work: Callable[[Any, RankGroup], Any]
    job: Any
    device: Literal["auto", "cpu", "cuda"]
    num_threads: int
    folder: Path
    parent: int
    lost_after_s: float | None = None


def failure_file(folder: Path, rank: int) -> Path:
    """Return the path of the file that a rank writes its failure to."""
    return folder / f"rank-{rank}.json"


def main(task: RankTask) -> Any:
    """Run a rank in the process that torch's launcher started; return rank 0's result, None on all others."""
    child.prepare(task.parent)
    signal.signal(
        signal.SIGUSR1, signal.SIG_IGN
    )  # until the training loop handles it: there is nothing to write before
    place = environment.rank_place()
    leave = _Leave(place, task.folder)
    try:
        watch = Watch(place, who=leave.who, on_failure=leave.by, lost_after_s=task.lost_after_s)
        leave.watch = watch
        require("torch", extra="train").set_num_threads(task.num_threads)
        device = choose_device(task.device, local_rank=place.local_rank)
        group = RankGroup(place, uses_gpu=device.type == "cuda", unresponsive=watch.lost)
        result = task.work(task.job, group)
        group.close()
        watch.finish()
    except BaseException as error:
        leave.after(error)
    return result if place.rank == 0 else None


class _Leave:
    """The exit of this process with an error that the launcher, the other ranks and the user understand."""

    def __init__(self, place: environment.RankPlace, folder: Path) -> None:
        self.watch: Watch | None = None
        self.who = f"rank {place.rank} on {environment.host_name()}"
        self._file = failure_file(folder, place.rank)

    def after(self, error: BaseException) -> None:
        """End the process after an exception, with the failure of the rank that caused it if that can be read."""
        if self._is_loss(error):
            failure = self._cause_from_others() or failures.lost_contact(self.who, failures.first_line(error))
        else:
            failure = failures.failure_of(error, who=self.who)
            if environment.wants_traceback() and not isinstance(error, StepError):
                traceback.print_exception(error, file=sys.stderr)
        self.by(failure)

    def by(self, failure: Failure) -> None:
        """End it at once: other threads may wait in a collective that never returns."""
        write.write_text(self._file, failure.dumps())
        if self.watch is not None and failure.is_cause:
            with contextlib.suppress(RuntimeError):  # no other rank is left
                failures.publish(self.watch.store, failure)
        sys.stderr.flush()
        os._exit(1)

    def _is_loss(self, error: BaseException) -> bool:
        """Return whether an error is a lost connection: Gloo and NCCL raise RuntimeError, with their name in it."""
        if not isinstance(error, RuntimeError) or isinstance(error, StepError):
            return False
        return any(word in str(error).lower() for word in ("gloo", "nccl", "connection", "peer", "socket"))

    def _cause_from_others(self) -> Failure | None:
        deadline = time.monotonic() + CAUSE_WAIT_S
        while self.watch is not None and time.monotonic() < deadline:
            try:
                failure = failures.read(self.watch.store)
            except RuntimeError:
                return None
            if failure is not None:
                return failure
            time.sleep(0.2)
        return None
