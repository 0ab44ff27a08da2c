"""Both ends of asynchronous training with a parameter server."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medweave_core.errors import TryAgainError, UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.aggregation import Vector, pulled
from medweave_steps.training.distributed.async_server import AsyncServer, Event, read_arrivals, write_arrivals
from medweave_steps.training.distributed.average import mean_state, packed, unpacked
from medweave_steps.training.distributed.transports.messages import SERVER, Arrival, Message, Transport
from medweave_steps.training.loop.flat import FlatNetwork

if TYPE_CHECKING:
    from medweave_steps.training.loop.stepper import Stepper

POLL_S = 1.0


class AsyncServerLoop:
    """The server: it handles the messages of the workers one after the other, live or in a recorded order.

    A checkpoint needs every worker between two epochs: the server then pauses each worker after its report until all have arrived.
    """

    def __init__(
        self, transport: Transport, flat: FlatNetwork, *, options: Any, rule: str, unresponsive: Collection[int]
    ) -> None:
        """Open the loop.

        Args:
            options: `ParameterServerOptions`.
            unresponsive: workers without a heartbeat; grows.
        """
        self._transport, self._flat, self._options, self._rule = transport, flat, options, rule
        self._unresponsive = unresponsive
        self._num_workers = transport.world_size - 1
        self._server = AsyncServer(num_workers=self._num_workers, quorum=options.quorum, combine=self._combine)
        self._stepper: Stepper | None = None
        self._first_statistics: Vector | None = None
        self._losses: list[float] = []
        self._figures: dict[int, dict[str, float | None]] = {}
        self._has_new_figures = self._is_pausing = False
        self._contents: dict[int, bytes] = {}
        self._dead: set[int] = set()
        self._waiting: set[int] = set()
        path = options.replay_arrivals
        self._script: list[Event] | None = read_arrivals(path, num_workers=self._num_workers) if path else None
        self._early: dict[int, deque[Message]] = defaultdict(deque)

    @property
    def is_over(self) -> bool:
        """Whether every worker has converged or is lost."""
        return self._server.is_over

    @property
    def lost(self) -> list[int]:
        """Workers that were lost."""
        return self._server.lost

    def serve(self, stepper: Stepper, *, timeout_s: float) -> list[float]:
        """Handle the next event; return the losses of an epoch if it is complete.

        Raises:
            TryAgainError: all workers are lost.
            UserInputError: the recorded order does not fit this training.
        """
        self._stepper = stepper
        if not self.is_over and len(self._losses) < self._num_workers:
            self._handle_next(timeout_s)
        if len(self._losses) < self._num_workers and not self.is_over:
            return []
        losses, self._losses = self._losses[: self._num_workers], self._losses[self._num_workers :]
        return losses

    def new_figures(self) -> dict[str, float | None] | None:
        """Return the mean of the workers' latest figures; None without new ones since the last call."""
        if not self._has_new_figures:
            return None
        self._has_new_figures = False
        of_workers = [self._figures[worker] for worker in sorted(self._figures)]
        return {name: _mean([figures.get(name) for figures in of_workers]) for name in of_workers[0]}

    # -- events ---------------------------------------------------------------------------------------------------

    def _handle_next(self, timeout_s: float) -> None:
        if self._script is not None:
            self._replay(self._script, timeout_s)
            return
        silent = sorted(set(self._unresponsive) & set(self._server.active))
        if silent:
            self._lose(silent[0])
            return
        arrival = self._transport.receive_any(timeout_s=timeout_s)
        if arrival is not None:
            self._handle(arrival)

    def _handle(self, arrival: Arrival) -> None:
        worker, message = arrival.worker, arrival.message
        if message is None:
            self._dead.add(worker)
            if worker in self._server.active:
                self._lose(worker)
        elif message.kind == "content":
            if message.blob:
                self._contents[worker] = message.blob
        elif worker in self._server.lost:
            self._dismiss(worker, message.kind)
        elif message.kind == "update":
            assert message.vector is not None
            self._waiting.add(worker)
            if worker == min(self._server.active):
                self._first_statistics = message.vector[self._flat.num_weights :].copy()
            self._answer(self._server.update(worker, message.vector))
        else:
            self._take_report(worker, json.loads(message.blob))

    def _take_report(self, worker: int, report: Mapping[str, Any]) -> None:
        has_converged = bool(report["is_last"])
        self._losses.append(report["loss"])
        if report["figures"] is not None:
            self._figures[worker], self._has_new_figures = report["figures"], True
        self._answer(self._server.report(worker, has_converged=has_converged))
        is_paused = self._is_pausing and not has_converged
        self._send(worker, Message(kind="answer", numbers=(float(is_paused), 0.0)))
        if is_paused:
            self._answer(self._server.pause(worker))

    def _lose(self, worker: int) -> None:
        if self._script is None:
            self._dead.add(worker)
        self._answer(self._server.lose(worker))
        if self.is_over and not self._server.converged:
            raise TryAgainError(
                "all workers of the parameter server were lost.",
                seen=f"workers {', '.join(map(str, self._server.lost))}, without a word or without a heartbeat",
                expected="at least one worker that finishes its training",
                do="check logs and memory of the workers' nodes, and run the step again",
            )

    def _dismiss(self, worker: int, kind: str) -> None:
        """Make a worker end that is lost, but still sends messages."""
        self._waiting.discard(worker)
        end = Message(kind="state", numbers=(1.0,)) if kind == "update" else Message(kind="answer", numbers=(0.0, 1.0))
        self._send(worker, end)

    def _answer(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._waiting.discard(worker)
            self._send(worker, Message(kind="state", vector=self._server.state))

    def _send(self, worker: int, message: Message) -> None:
        try:
            self._transport.send(worker, message)
        except RuntimeError:
            self._dead.add(worker)  # the end of its connection is an arrival, too

    def _combine(self, state: Vector | None, mean: Vector) -> Vector:
        """Return the new state; the network gets its weights."""
        number, assigned = self._flat.num_weights, self._options.weighting
        if self._rule == "async-weights":
            new = pulled(state, mean, weighting=assigned)
        else:
            assert self._stepper is not None
            self._flat.set_gradient(mean)
            self._stepper.apply(advances=False)
            updates = self._num_updates()
            before = updates - len(self._server.pending)
            for _ in range(updates // self._num_workers - before // self._num_workers):
                self._stepper.skip()  # the schedule is that of one worker's steps
            new = self._flat.weights()
            new[number:] = pulled(None if state is None else state[number:], mean[number:], weighting=assigned)
        if self._options.batch_norm_statistics == "local" and self._first_statistics is not None:
            new = np.concatenate([new[:number], self._first_statistics])
        self._flat.set_weights(new)
        self._flat.set_statistics(new)
        return new

    def _num_updates(self) -> int:
        return sum(kind == "update" for _, kind in self._server.events)

    # -- replay ---------------------------------------------------------------------------------------------------

    def _replay(self, script: list[Event], timeout_s: float) -> None:
        """Handle the next recorded event; messages that come before their turn wait."""
        position = len(self._server.events)
        if position >= len(script):
            raise _other_training("no event is recorded after the last one", position)
        worker, kind = script[position]
        if kind == "paused":
            self._answer(self._server.pause(worker))
        elif kind == "resumed":
            self._server.resume()
        elif kind == "lost":
            self._lose(worker)
            for message in [*self._early.pop(worker, ())]:
                self._dismiss(worker, message.kind)
            if worker in self._waiting:
                self._dismiss(worker, "update")
        elif self._early[worker]:
            message = self._early[worker].popleft()
            has_come = message.kind
            if has_come == "report" and json.loads(message.blob)["is_last"]:
                self._check_recorded(kind, "converged", worker, position)
            else:
                self._check_recorded(kind, has_come, worker, position)
            self._handle(Arrival(worker=worker, message=message))
        else:
            self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> None:
        arrival = self._transport.receive_any(timeout_s=timeout_s)
        if arrival is None:
            return
        if arrival.message is None:
            raise TryAgainError(
                f"worker {arrival.worker} was lost during a replay.",
                seen=str(arrival.error),
                expected="all workers running until the recorded order is repeated",
                do="check the logs of its node, and run the step again",
            )
        if arrival.message.kind == "content" or arrival.worker in self._server.lost:
            self._handle(arrival)
        else:
            self._early[arrival.worker].append(arrival.message)

    def _check_recorded(self, recorded: str, has_come: str, worker: int, position: int) -> None:
        if recorded != has_come:
            raise _other_training(f"worker {worker} sent '{has_come}' where '{recorded}' is recorded", position)

    # -- checkpoints and end --------------------------------------------------------------------------------------

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Return the content of a checkpoint besides the weights, with each worker's own content."""
        self._stepper = stepper
        if self._script is None:
            self._pause_all()
        torch, server = require("torch", extra="train"), self._server
        contents = {worker: unpacked(blob) for worker, blob in self._contents.items()}
        self._resume_all()
        events = {"events": server.events, "converged": server.converged, "lost": server.lost}
        reports = {
            "losses": self._losses, "figures": sorted(self._figures.items()), "has_new_figures": self._has_new_figures,
        }  # fmt: skip
        own = {
            "stepper": stepper.state(),
            "events": json.dumps(events | reports),
            "state": None if server.state is None else torch.from_numpy(server.state),
        }
        moments = [{name: content[name] for name in ("optimiser", "schedule")} for content in contents.values()]
        return {
            **stepper.state(),
            **({"of_ranks": moments} if moments and self._rule == "async-weights" else {}),
            "server": own,
            "workers": {str(worker): content for worker, content in contents.items()},
            "ended": [worker not in server.active for worker in range(1, self._num_workers + 1)],
        }

    def _pause_all(self) -> None:
        """Wait until every active worker has finished its epoch and sent its state; the updates of the others still count."""
        for worker in self._server.active:
            self._contents.pop(worker, None)
        self._is_pausing = True
        while self._missing_contents():
            self._handle_next(POLL_S)
        self._is_pausing = False

    def _missing_contents(self) -> set[int]:
        """Return the workers whose state has not come; that of a converged worker follows its last report."""
        workers = set(range(1, self._num_workers + 1)) - set(self._server.lost) - self._dead
        return workers - self._contents.keys()

    def _resume_all(self) -> None:
        paused = sorted(self._server.paused)
        if self._script is None and paused:
            self._server.resume()
            for worker in paused:
                self._send(worker, Message(kind="go"))

    def restore(self, stepper: Stepper, content: Mapping[str, Any], *, num_workers: int) -> None:
        """Restore the state in a checkpoint; that of the server only if it had as many workers."""
        if len(content.get("ended", ())) != num_workers:
            stepper.restore(mean_state(content.get("of_ranks", [content])))
            return
        own = content["server"]
        stepper.restore(own["stepper"])
        events = json.loads(own["events"])
        server = self._server
        server.events = [(worker, kind) for worker, kind in events["events"]]
        server.converged, server.lost = events["converged"], events["lost"]
        server.state = None if own["state"] is None else own["state"].numpy()
        self._losses, self._figures = events["losses"], dict(events["figures"])
        self._has_new_figures = events["has_new_figures"]
        self._contents = {int(worker): packed(of_worker) for worker, of_worker in content["workers"].items()}
        if server.state is not None:
            self._first_statistics = server.state[self._flat.num_weights :].copy()

    def finish(self, folder: Path | None) -> frozenset[int]:
        """Tell all workers that are alive who is not, and write the record of arrivals; return the ranks that are not."""
        self._transport.listen()  # no worker had a step left, where the training was resumed at its end
        dead = frozenset(self._dead | set(self._unresponsive))
        for worker in range(1, self._num_workers + 1):
            if worker not in dead:
                self._transport.send(worker, Message(kind="finish", blob=json.dumps(sorted(dead)).encode()))
        if folder is not None:
            facts = {"rule": self._rule, "quorum": self._options.quorum, "weighting": self._options.weighting}
            write_arrivals(folder, self._server.events, num_workers=self._num_workers, facts=facts)
        return dead

    def facts(self) -> dict[str, Any]:
        """Return facts for the model card."""
        server = self._server
        return {"converged": list(server.converged), "lost": list(server.lost), "updates": self._num_updates()}


class AsyncWorkerLoop:
    """A worker's end.

    Attributes:
        is_over: the server has dismissed the worker, or it had ended before the training was resumed.
    """

    def __init__(
        self, transport: Transport, flat: FlatNetwork, *, sends_gradients: bool, keeps_statistics: bool
    ) -> None:
        self.is_over = False
        self._transport, self._flat = transport, flat
        self._sends_gradients, self._keeps_statistics = sends_gradients, keeps_statistics
        self._last_content = b""

    def exchange(self, stepper: Stepper) -> None:
        """Send weights or the gradient of a step, and go on from the server's weights."""
        vector = self._flat.gradient() if self._sends_gradients else self._flat.weights()
        self._transport.send(SERVER, Message(kind="update", vector=vector))
        answer = self._transport.receive()
        if answer.vector is None:
            self.is_over = True
            return
        self._flat.set_weights(answer.vector)
        if not self._keeps_statistics:
            self._flat.set_statistics(answer.vector)
        if self._sends_gradients:
            stepper.skip()

    def report(
        self, *, loss: float, figures: Mapping[str, float | None] | None, is_last: bool,
        content: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Report an epoch, and wait for a checkpoint if the server pauses this worker."""
        if self.is_over:
            return
        blob = json.dumps({"loss": loss, "figures": figures, "is_last": is_last}).encode()
        self._transport.send(SERVER, Message(kind="report", blob=blob))
        is_paused, is_dismissed = self._transport.receive().numbers
        self.is_over = bool(is_dismissed)
        if is_paused:
            self._transport.send(SERVER, Message(kind="content", numbers=(0.0,), blob=packed(content())))
            self._transport.receive()
        elif is_last:
            self._last_content = packed(content())

    def finish(self) -> frozenset[int]:
        """Send the last message, and wait for the end of the other workers; return the ranks that are not alive."""
        self._transport.send(SERVER, Message(kind="content", numbers=(1.0,), blob=self._last_content))
        return frozenset(json.loads(self._transport.receive().blob))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _other_training(seen: str, position: int) -> UserInputError:
    return UserInputError(
        "the recorded arrivals do not fit this training.",
        seen=f"{seen}, after {position} events",
        expected="the options, cases and ranks of the training that wrote the record",
        do="use the same command line as that training, or omit --replay-arrivals",
    )
