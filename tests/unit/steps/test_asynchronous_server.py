"""The asynchronous server loop with workers that are lists of messages: lost workers, and records that do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from medweave_core.errors import TryAgainError, UserInputError
from medweave_steps.training.distributed.async_server import write_arrivals
from medweave_steps.training.distributed.transports.messages import Arrival, Message
from medweave_steps.training.loop.asynchronous import AsyncServerLoop

FINISHED = json.dumps({"loss": 0.5, "figures": None, "is_last": True}).encode()


class Recorded:
    """A transport whose workers have sent everything already; it keeps what the server sends."""

    world_size = 3

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._arrivals, self.sent = list(arrivals), list[tuple[int, Message]]()

    def receive_any(self, *, timeout_s: float) -> Arrival | None:
        return self._arrivals.pop(0) if self._arrivals else None

    def send(self, worker: int, message: Message) -> None:
        self.sent.append((worker, message))

    def listen(self) -> None:
        """Do nothing: there is nothing to receive."""


class Weights:
    """A network of two weights, without running statistics."""

    num_weights = 2

    def set_weights(self, vector: Any) -> None:
        self.vector = vector

    def set_statistics(self, vector: Any) -> None:
        """Do nothing."""


def update(worker: int, *weights: float) -> Arrival:
    return Arrival(worker=worker, message=Message(kind="update", vector=np.array(weights, np.float32)))


def end(worker: int) -> Arrival:
    return Arrival(worker=worker, message=Message(kind="report", blob=FINISHED))


def server_of(
    *arrivals: Arrival, unresponsive: Sequence[int] = (), quorum: int = 1, replay: Path | None = None
) -> tuple[AsyncServerLoop, Recorded]:
    options = SimpleNamespace(quorum=quorum, weighting=1.0, batch_norm_statistics="averaged", replay_arrivals=replay)
    transport, flat = Recorded(arrivals), Weights()
    loop = AsyncServerLoop(transport, flat, options=options, rule="async-weights", unresponsive=set(unresponsive))  # type: ignore[arg-type]
    return loop, transport


def serve(loop: AsyncServerLoop, events: int = 9) -> list[float]:
    """Handle events until the training is over; return the losses of its epochs."""
    losses: list[float] = []
    for _ in range(events):
        losses += loop.serve(None, timeout_s=0)  # type: ignore[arg-type]
        if loop.is_over:
            break
    return losses


def test_training_continues_without_an_unresponsive_worker(tmp_path: Path) -> None:
    loop, transport = server_of(update(2, 8, 8), update(1, 2, 4), end(1), unresponsive=[2], quorum=2)
    serve(loop)
    assert (loop.is_over, loop.facts()) == (True, {"converged": [1], "lost": [2], "updates": 1})
    states = [(worker, message.vector) for worker, message in transport.sent if message.vector is not None]
    assert [(worker, vector.tolist()) for worker, vector in states] == [(1, [2, 4])], (
        "a quorum of the workers that are left"
    )
    late = [message.numbers for worker, message in transport.sent if worker == 2]
    assert late == [(1.0,)], "a late update of the lost worker is answered by its end"
    assert loop.finish(tmp_path) == frozenset({2})
    assert [worker for worker, message in transport.sent if message.kind == "finish"] == [1]
    events = json.loads((tmp_path / "arrivals.json").read_text())["events"]
    assert events == [[2, "lost"], [1, "update"], [1, "converged"]]


def test_training_without_any_worker_left_is_an_error() -> None:
    gone = Arrival(worker=1, message=None, error=RuntimeError("closed"))
    loop, _ = server_of(update(1, 2, 4), gone, unresponsive=[2])
    with pytest.raises(TryAgainError, match="all workers of the parameter server were lost") as caught:
        serve(loop)
    assert caught.value.seen == "workers 2, 1, without a word or without a heartbeat"


def recorded(folder: Path, *events: Any) -> Path:
    write_arrivals(folder, list(events), num_workers=2, facts={})
    return folder / "arrivals.json"


def test_a_worker_that_is_lost_during_a_replay_is_an_error(tmp_path: Path) -> None:
    gone = Arrival(worker=2, message=None, error=RuntimeError("connection closed"))
    loop, _ = server_of(update(1, 2, 4), gone, replay=recorded(tmp_path, (1, "update"), (2, "update")))
    with pytest.raises(TryAgainError, match="worker 2 was lost during a replay") as caught:
        serve(loop)
    assert caught.value.seen == "connection closed"


def test_a_training_that_is_longer_than_its_record_is_refused(tmp_path: Path) -> None:
    loop, _ = server_of(update(1, 2, 4), replay=recorded(tmp_path, (1, "update")))
    with pytest.raises(UserInputError, match="do not fit this training") as caught:
        serve(loop)
    assert caught.value.seen == "no event is recorded after the last one, after 1 events"
