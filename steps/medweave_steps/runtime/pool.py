"""Units of work (cases) in parallel processes, which end with this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TypeVar

from medweave_core import errors
from medweave_core.errors import InternalError, StepError, TryAgainError
from medweave_steps.runtime import child

J = TypeVar("J")
R = TypeVar("R")


def finished_cases(work: Callable[[J], R], jobs: Sequence[J], *, num_processes: int) -> Iterator[R]:
    """Run the jobs and yield their results as they are finished.

    With one process (or one job) the work is done in this process. The first error ends everything; no process outlives the
    iterator.

    Args:
        work: a function of a module, so that other processes can import it; may raise StepError or OSError.
        jobs: its arguments, one each.
        num_processes: at most.
    Raises:
        TryAgainError: a process was killed, most likely for memory.
    """
    num_processes = min(num_processes, len(jobs))
    if num_processes < 2:
        for job in jobs:
            yield work(job)
        return
    before = set(multiprocessing.active_children())
    # Forked: NumPy and SciPy are there already, and this process has no threads that hold locks.
    executor = ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("fork"),
        initializer=child.prepare,
        initargs=(os.getpid(),),
    )
    started: set[BaseProcess] = set()
    try:
        # The handlers of this process must not run in the new ones: nothing is delivered until they have their own.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            waiting = {executor.submit(_attempt, work, job) for job in jobs}
        finally:
            started = set(multiprocessing.active_children()) - before
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield _result(future)
        executor.shutdown(wait=True)
    finally:
        for process in started:
            process.kill()
        executor.shutdown(wait=True, cancel_futures=True)


def _attempt(work: Callable[[J], R], job: J) -> R | StepError:
    try:
        return work(job)
    except StepError as error:
        return _portable(error)


def _portable(error: StepError) -> StepError:
    """Return the error as one of the contracts' classes, which can be pickled."""
    kinds = (errors.UsageError, errors.UserInputError, errors.BackendMissingError, errors.StorageError, TryAgainError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), InternalError)
    return kind(error.what, error.seen, error.expected, error.do)


def _result(future: Future[R | StepError]) -> R:
    try:
        result = future.result()
    except BrokenProcessPool as error:
        raise TryAgainError(
            "a worker process ended before it finished.",
            seen="the process was killed; the usual cause is insufficient memory",
            expected="every worker process to finish",
            do="increase the memory of the step (ramMin in the workflow) or reduce --num-threads, and run the step again",
        ) from error
    if isinstance(result, StepError):
        raise result
    return result
