"""The asynchronous parameter server as a state machine, and the record of arrivals from which a training can be replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from medweave_core.errors import UserInputError
from medweave_steps.runtime.write import write_text
from medweave_steps.training.distributed.aggregation import Vector, mean_gradient

ARRIVALS_FILE = "arrivals.json"
VERSION = 1
Kind = Literal["update", "report", "converged", "lost", "paused", "resumed"]
Event = tuple[int, Kind]
"""Worker, from 1, and event; `resumed` is an event of the server, 0."""


@dataclass(slots=True, kw_only=True)
class AsyncServer:
    """The server's state; each method handles one event and returns the workers to send the state to, in order of arrival.

    Attributes:
        num_workers: workers are numbered from 1.
        quorum: updates that are averaged before they change the state; fewer, where fewer workers can still send one.
        combine: from the state and the mean of updates to the new state.
        state: flat vector; None before the first update.
        events: all events so far, in order.
        converged: workers that have finished, in order.
        lost: workers that were lost before they had finished; no event of theirs follows.
        paused: workers that wait until a checkpoint is written.
        pending: updates that wait for the quorum.
    """

    num_workers: int
    quorum: int
    combine: Callable[[Vector | None, Vector], Vector]
    state: Vector | None = None
    events: list[Event] = field(default_factory=list)
    converged: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)
    pending: list[tuple[int, Vector]] = field(default_factory=list)

    @property
    def active(self) -> list[int]:
        """Workers that have neither converged nor are lost."""
        ended = {*self.converged, *self.lost}
        return [worker for worker in range(1, self.num_workers + 1) if worker not in ended]

    @property
    def is_over(self) -> bool:
        """Whether every worker has converged or is lost."""
        return not self.active

    def update(self, worker: int, vector: Vector) -> list[int]:
        """Take the update of a worker, which waits for the state."""
        self.events.append((worker, "update"))
        self.pending.append((worker, vector))
        return self._combine_if_due()

    def report(self, worker: int, *, has_converged: bool) -> list[int]:
        """Take the report of a worker about an epoch."""
        self.events.append((worker, "converged" if has_converged else "report"))
        if has_converged:
            self.converged.append(worker)
        return self._combine_if_due()

    def lose(self, worker: int) -> list[int]:
        """Treat a worker as converged that will send nothing any more; an update of it that arrived before still counts."""
        self.events.append((worker, "lost"))
        self.lost.append(worker)
        self.paused.discard(worker)
        return self._combine_if_due()

    def pause(self, worker: int) -> list[int]:
        """Pause a worker after its report until `resume`."""
        self.events.append((worker, "paused"))
        self.paused.add(worker)
        return self._combine_if_due()

    def resume(self) -> None:
        """Resume all workers that are paused."""
        self.events.append((0, "resumed"))
        self.paused.clear()

    def _combine_if_due(self) -> list[int]:
        needed = min(self.quorum, max(1, len(set(self.active) - self.paused)))
        if not self.pending or len(self.pending) < needed:
            return []
        workers = [worker for worker, _ in self.pending]
        self.state = self.combine(self.state, mean_gradient([vector for _, vector in self.pending]))
        self.pending.clear()
        return [worker for worker in workers if worker not in self.lost]


def write_arrivals(folder: Path, events: list[Event], *, num_workers: int, facts: dict[str, Any]) -> None:
    """Write arrivals.json: the order in which the server has taken the workers' messages.

    Args:
        facts: options of the training, for the reader.
    """
    content = {"version": VERSION, "workers": num_workers, **facts, "events": events}
    write_text(folder / ARRIVALS_FILE, json.dumps(content) + "\n")


def read_arrivals(path: Path, *, num_workers: int) -> list[Event]:
    """Return the events of a record.

    Raises:
        UserInputError: it cannot be read, or is that of a training with another number of workers.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        events: list[Event] = [(int(worker), kind) for worker, kind in content["events"]]
        workers = int(content["workers"])
        fits = content["version"] == VERSION and all(
            kind in get_args(Kind) and 0 <= worker <= workers for worker, kind in events
        )
        seen = "" if fits else "an event or a version that is not known"
    except (OSError, ValueError, TypeError, KeyError) as error:
        seen = f"{type(error).__name__} while reading it"
    if seen:
        raise UserInputError(
            f"the record of arrivals '{path.name}' cannot be read.",
            seen=seen,
            expected=f"an {ARRIVALS_FILE} from the training log of --strategy parameter-server --coordination async",
            do="use the file of such a training, or omit --replay-arrivals",
        )
    if workers != num_workers:
        raise UserInputError(
            f"the record of arrivals '{path.name}' belongs to another number of workers.",
            seen=f"{workers} worker{'' if workers == 1 else 's'}",
            expected=f"{num_workers}, which is --ranks minus the server",
            do=f"use --ranks {workers + 1}, or omit --replay-arrivals",
        )
    return events
