"""Heartbeats between ranks: a rank ends soon after another one is lost, even while it waits in a collective.

A process that died closes its connections, which the others notice at once. A node that froze or lost its network closes
nothing; collectives would wait for it for hours.
"""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from medweave_steps.runtime.environment import RankPlace
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed import failures
from medweave_steps.training.distributed.failures import Failure, first_line

BEAT_S = 2.0
SILENCE_S = 40.0
"""A rank that has not shown a sign of life for so long is lost."""
ARRIVAL_S = 300.0
"""So long the ranks wait for the last one to begin; starting Python and torch from a slow file system takes minutes."""
STORE_TIMEOUT = datetime.timedelta(seconds=20)

_FINISHED = "finished"


def open_store(address: tuple[str, int]) -> Any:
    """Return a connection to the store that node 0's launcher keeps.

    Raises:
        RuntimeError: it cannot be reached.
    """
    distributed = require("torch.distributed", extra="train")
    try:
        socket.create_connection(address, timeout=5).close()  # TCPStore would try again and again
    except OSError as error:
        raise RuntimeError(f"{address[0]}:{address[1]}: {error.strerror or error}") from error
    return distributed.TCPStore(address[0], address[1], is_master=False, timeout=STORE_TIMEOUT)


class Watch:
    """A thread that sends this rank's heartbeat and watches those of the other ranks.

    Attributes:
        store: the thread's own connection.
        lost: unresponsive ranks, where these may be lost.
    """

    def __init__(
        self,
        place: RankPlace,
        *,
        who: str,
        on_failure: Callable[[Failure], None],
        lost_after_s: float | None = None,
    ) -> None:
        """Start the thread.

        Args:
            who: this rank, for messages.
            on_failure: called in the thread when a rank has failed or is unresponsive.
            lost_after_s: the training continues without a rank that sends no heartbeat for so long, except rank 0; None if it ends.
        """
        self.store = open_store(place.store)
        self.lost: set[int] = set()
        self._lost_after_s = lost_after_s
        self._place, self._who, self._on_failure = place, who, on_failure
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranks-watch", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End the heartbeat and mark this rank as finished: it is not lost from now on, and no longer watches the others."""
        self._finished.set()
        self._thread.join()
        self.store.set(_beat(self._place.rank), _FINISHED)

    def _run(self) -> None:
        others = [rank for rank in range(self._place.world_size) if rank != self._place.rank]
        if self._lost_after_s is not None and self._place.rank:
            others = [0]  # which finds out about the others
        beats = {rank: ("", time.monotonic() + ARRIVAL_S - self._limit_of(rank)) for rank in others}
        number = 0
        # The first beat at once: who freezes in its first seconds has come, and is not waited for as one that starts slowly.
        while not self._finished.wait(BEAT_S if number else 0):
            number += 1
            try:
                self.store.set(_beat(self._place.rank), str(number))
                failure = failures.read(self.store) or self._silent(beats)
            except RuntimeError as error:  # whatever torch makes of a store that has gone
                failure = failures.lost_contact(self._who, f"the node of rank 0 is unreachable ({first_line(error)})")
            if failure is not None and not self._finished.is_set():
                self._on_failure(failure)
                return

    def _silent(self, beats: dict[int, tuple[str, float]]) -> Failure | None:
        now = time.monotonic()
        for rank, (last, since) in beats.items():
            key = _beat(rank)
            seen = self.store.get(key).decode() if self.store.check([key]) else ""
            if seen != last:
                beats[rank] = (seen, now)
            elif seen != _FINISHED and now - since > self._limit_of(rank):
                if self._lost_after_s is not None and rank:
                    self.lost.add(rank)
                    continue
                seconds = SILENCE_S if last else ARRIVAL_S
                return failures.silent(self._who, rank, seconds)
        return None

    def _limit_of(self, rank: int) -> float:
        return SILENCE_S if self._lost_after_s is None or rank == 0 else self._lost_after_s


def _beat(rank: int) -> str:
    return f"medweave/beat/{rank}"
