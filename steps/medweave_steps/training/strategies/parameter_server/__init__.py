"""Parameter server: rank 0 keeps the weights, ranks 1 and up train; synchronous or asynchronous."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.training.device import move_to_device
from medweave_steps.training.distributed.aggregation import (
    Vector,
    count_overfitting,
    mean_gradient,
    weighted_mean,
)
from medweave_steps.training.distributed.average import mean_state, packed, unpacked
from medweave_steps.training.distributed.group import Alone, RankGroup
from medweave_steps.training.distributed.transports import open_transport
from medweave_steps.training.distributed.transports.messages import SERVER, Message
from medweave_steps.training.loop.asynchronous import AsyncServerLoop, AsyncWorkerLoop
from medweave_steps.training.loop.flat import FlatNetwork
from medweave_steps.training.strategies import Strategy, SyncResult
from medweave_steps.training.strategies.parameter_server.options import ParameterServerOptions

if TYPE_CHECKING:
    from medweave_steps.training.data.batch import Batch
    from medweave_steps.training.loop.stepper import Stepper


class ParameterServerStrategy(Strategy):
    """A strategy in which rank 0 holds the weights and the workers, ranks 1 and up, train on their shares of the patches.

    Synchronous training is that of `ddp` (`sync-gradient`) or `local-sgd` (`sync-weights`, averaged at the end of every epoch);
    all ranks validate. The server does not train.

    In asynchronous training each worker runs through all epochs at its own speed, validates on its own share of the validation
    cases, and stops by itself. The server counts an epoch when it has as many reports as workers, and keeps the weights with the
    best mean of the workers' latest figures. It ends when every worker has converged or is lost.

    Source: García Henao et al. 2020, ICITCS, "DiagnoseNET".
    """

    Options = ParameterServerOptions
    is_alike = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = cast(RankGroup, self.group)  # there are two ranks or more
        self._rank, self.num_workers = self.group.rank, self.group.world_size - 1
        self._is_async = self.options.coordination == "async"
        self._sends_gradients = self.options.aggregation.endswith("gradient")
        self._keeps_statistics = self.options.batch_norm_statistics == "local"
        self._losses: list[float] = []
        self._num_patches = 0
        self._own_statistics: Vector | None = None
        self._shared_statistics: Vector | None = None
        self._server: AsyncServerLoop | None = None
        self._worker: AsyncWorkerLoop | None = None
        if self._is_async:
            self.group = Independent(self._rank)

    # -- the ranks ------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Number of this rank when the training began."""
        return self._rank

    @property
    def trains(self) -> bool:
        """Whether this rank is a worker."""
        return self._rank != SERVER

    @property
    def serves(self) -> bool:
        """Whether this rank takes messages of workers in their order of arrival, instead of steps."""
        return self._is_async and not self.trains

    @property
    def is_over(self) -> bool:
        """Whether this rank has no step left, for another reason than the number of steps."""
        loop = self._server or self._worker
        return loop is not None and loop.is_over

    @property
    def replica(self) -> int:
        """Place of this worker among the workers; the server has none and gets 0."""
        return max(0, self._rank - 1)

    @property
    def num_replicas(self) -> int:
        """Number of workers."""
        return self.num_workers

    @property
    def validation_share(self) -> tuple[int, int]:
        """Which of how many shares of the validation cases this rank has."""
        if isinstance(self.group, Independent):
            return self.replica, self.num_workers
        return self.group.rank, self.group.world_size

    def wrap(self, network: Any) -> Any:
        """Move the network to the device, with the weights of the server, and open the connections.

        Raises:
            UserInputError: an asynchronous worker would have no validation case.
        """
        if self._is_async:
            _check_validation(self.training.num_validation_cases, self.num_workers)
        network.load_state_dict(self._all.gather(network.state_dict() if self._rank == SERVER else None)[SERVER])
        moved = move_to_device(network, self.device)
        self._flat = FlatNetwork(moved)
        self._transport = open_transport(self.options.transport, self._all)
        if self.serves:
            self._server = AsyncServerLoop(
                self._transport, self._flat, options=self.options, rule=self.options.aggregation,
                unresponsive=self._all.unresponsive,
            )  # fmt: skip
        elif self._is_async:
            self._worker = AsyncWorkerLoop(
                self._transport, self._flat, sends_gradients=self._sends_gradients,
                keeps_statistics=self._keeps_statistics,
            )  # fmt: skip
        return moved

    # -- steps ----------------------------------------------------------------------------------------------------

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, flags: Sequence[float]) -> SyncResult | None:
        """Take this rank's part of a step; the server only waits for the workers."""
        self._restore_own_statistics()
        is_due = self._sends_gradients or any(
            (step + 1) % interval == 0 for interval in (self.training.epoch_steps, self.training.steps)
        )
        before = self._transport.num_bytes
        if self.trains:
            self._losses.append(self._compute(stepper, batch, step))
            self._num_patches += batch.num_counted
        elif not self._sends_gradients:
            stepper.skip()
        if not is_due:
            return None
        if self._worker is not None:
            if not (self._sends_gradients and batch.is_padding):
                self._worker.exchange(stepper)
            losses, self._losses = self._losses, []
            return SyncResult(losses=losses, flags=flags, num_bytes=self._transport.num_bytes - before)
        return self._synchronize(stepper, batch, step, flags)

    def _compute(self, stepper: Stepper, batch: Batch, step: int) -> float:
        """Compute the gradient, and with weights also take the step; return this worker's part of the loss."""
        from medweave_steps.training.loop.stepper import not_a_number

        is_global = self._sends_gradients and not self._is_async
        if batch.is_padding and not is_global:
            if not self._sends_gradients:
                stepper.skip()
            return 0.0
        number = len(batch.case_ids)
        *parts, last = batch.parts(self.training.accumulate)
        weights = [self.share(part) if is_global else len(part.case_ids) / number for part in (*parts, last)]
        value = stepper.begin(parts, weights[:-1])
        value += stepper.backward(stepper.loss_of(last), weights[-1])
        if is_global:  # the server checks the sum
            return value
        if not math.isfinite(value):
            blames = [stepper.blame_of(batch)]
            raise not_a_number(value, step=step, blames=blames, learning_rate=stepper.learning_rate)
        if not self._sends_gradients:
            stepper.apply()
        return value if self._is_async else value * self.share(batch)

    # -- synchronous exchange -------------------------------------------------------------------------------------

    def _synchronize(self, stepper: Stepper, batch: Batch, step: int, flags: Sequence[float]) -> SyncResult:
        from medweave_steps.training.loop.stepper import not_a_number

        if self.trains:
            vector = self._flat.gradient() if self._sends_gradients else self._flat.weights()
            numbers = (float(self._num_patches), *flags, *self._losses)
            self._transport.send(SERVER, Message(kind="update", numbers=numbers, vector=vector))
            result = self._transport.receive()
        else:
            result = self._average(flags)
            for worker in range(1, self.num_workers + 1):
                self._transport.send(worker, result)
        self._losses, self._num_patches = [], 0
        assert result.vector is not None
        losses = list(result.numbers[len(flags) :])
        if self._sends_gradients and not math.isfinite(losses[0]):
            blames = self._all.gather(stepper.blame_of(batch))
            raise not_a_number(losses[0], step=step, blames=blames, learning_rate=stepper.learning_rate)
        self._apply(stepper, result.vector)
        num_bytes = 2 * self.num_workers * result.vector.nbytes
        return SyncResult(losses=losses, flags=result.numbers[: len(flags)], num_bytes=num_bytes)

    def _average(self, flags: Sequence[float]) -> Message:
        """Receive the messages of all workers, in order of rank, and return the answer to all."""
        messages = [self._transport.receive(worker) for worker in range(1, self.num_workers + 1)]
        vectors = [message.vector for message in messages if message.vector is not None]
        samples = [message.numbers[0] for message in messages]
        flags_of = [list(flags), *(message.numbers[1 : 1 + len(flags)] for message in messages)]
        losses_of = [message.numbers[1 + len(flags) :] for message in messages]
        mean = mean_gradient(vectors) if self._sends_gradients else weighted_mean(vectors, samples)
        if self._keeps_statistics:
            mean[self._flat.num_weights :] = vectors[0][self._flat.num_weights :]
        numbers = (*_means(flags_of), *_means(losses_of))
        return Message(kind="state", numbers=tuple(numbers), vector=mean)

    def _apply(self, stepper: Stepper, vector: Vector) -> None:
        if self._sends_gradients:
            self._flat.set_gradient(vector)
            stepper.apply()
        else:
            self._flat.set_weights(vector)
        if self._keeps_statistics and self.trains:
            self._shared_statistics = vector
        else:
            self._flat.set_statistics(vector)

    def complete_weights(self, network: Any) -> None:
        """Give a worker that keeps its own running statistics those of the first worker, until the next step."""
        if self._shared_statistics is not None and self._own_statistics is None:
            self._own_statistics = self._flat.statistics()
            self._flat.set_statistics(self._shared_statistics)

    def _restore_own_statistics(self) -> None:
        if self._own_statistics is not None:
            self._flat.set_statistics(self._own_statistics)
            self._own_statistics = None

    # -- asynchronous server and workers --------------------------------------------------------------------------

    def serve(self, stepper: Stepper, *, timeout_s: float) -> tuple[list[float], int]:
        """Handle the next message of a worker, if one comes in time.

        Returns:
            the workers' losses of an epoch of the server that is complete, else an empty list, and the bytes that were exchanged.
        Raises:
            TryAgainError: all workers are lost.
        """
        assert self._server is not None
        before = self._transport.num_bytes
        losses = self._server.serve(stepper, timeout_s=timeout_s)
        if losses and not self._sends_gradients:  # the learning rate of the curves is that of the workers
            for _ in range(min(self.training.epoch_steps, self.training.steps - stepper.schedule.last_epoch)):
                stepper.skip()
        return losses, self._transport.num_bytes - before

    def reported_figures(self) -> dict[str, float | None] | None:
        """Return the mean of the workers' latest figures; None if there are no new ones."""
        assert self._server is not None
        return self._server.new_figures()

    def report(
        self, *, loss: float, figures: Mapping[str, float | None] | None, is_last: bool,
        content: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Send the report about an epoch to an asynchronous server."""
        if self._worker is not None:
            self._worker.report(loss=loss, figures=figures, is_last=is_last, content=content)

    def finish(self, best_weights: dict[str, Any], folder: Path | None) -> dict[str, Any] | None:
        """Close the connections; after asynchronous training, meet the other ranks and return the best weights of the server.

        Args:
            folder: for the record of arrivals.
        """
        lost: frozenset[int] = frozenset()
        if self._server is not None:
            lost = self._server.finish(folder)
        elif self._worker is not None:
            lost = self._worker.finish()
        self._transport.close()
        if not self._is_async:
            return None
        if lost:
            self._all.leave_out(lost)
        self.group = self._all
        best: dict[str, Any] = self._all.gather(best_weights if self._server else None)[0]
        return best

    def count_worse(
        self, counter: int, *, score: float, best_score: float, losses: Sequence[float]
    ) -> int:  # fmt: skip
        """Return the early-stopping counter: it grows while only the training loss improves. An asynchronous server never stops."""
        if self.serves:
            return 0
        *before, loss = losses
        best_loss = min(before, default=math.inf)
        return count_overfitting(counter, score=score, best_score=best_score, loss=loss, best_loss=best_loss)

    # -- checkpoints and report -----------------------------------------------------------------------------------

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Return the states of the workers in order; an asynchronous server waits until each one has finished its epoch."""
        if self._server is not None:
            return self._server.state(stepper)
        own: dict[str, Any] = stepper.state()
        if self._is_async:
            return own
        statistics = self._flat.statistics() if self._own_statistics is None else self._own_statistics
        torch = require("torch", extra="train")
        parts = self._all.gather(packed({**own, "statistics": torch.from_numpy(statistics)}))
        return {"of_ranks": [unpacked(part) for part in parts[1:]]}

    def own_content(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a checkpoint for this rank: an asynchronous worker has its own."""
        if self._worker is None or len(content.get("ended", [])) != self.num_workers:
            return content
        self._worker.is_over = bool(content["ended"][self.replica])
        own: dict[str, Any] = content["workers"].get(str(self._rank), content)
        return own

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """Restore the state in a checkpoint, written by any strategy on any number of ranks."""
        if self._server is not None:
            self._server.restore(stepper, content, num_workers=self.num_workers)
            return
        states = content.get("of_ranks", [content])
        has_own = len(states) == self.num_workers and "of_ranks" in content
        own = states[self.replica] if has_own else mean_state(states)
        stepper.restore(own)
        if has_own and self._keeps_statistics and self.trains and "statistics" in own:
            self._flat.set_statistics(own["statistics"].numpy())

    def notices(self) -> Sequence[str]:
        """Return the layout."""
        plural = "" if self.num_workers == 1 else "s"
        return [f"parameter-server: rank 0 serves {self.num_workers} worker{plural}, {self.options.aggregation}."]

    def closing_notices(self) -> Sequence[str]:
        """Return a notice for each worker that was lost."""
        lost = self._server.lost if self._server else ()
        return [f"worker {worker} was lost; the training continued without it." for worker in lost]

    def card_facts(self) -> dict[str, Any]:
        """Return coordination, rule and workers; of asynchronous training, also who converged and who was lost."""
        facts: dict[str, Any] = {
            "coordination": self.options.coordination, "rule": self.options.aggregation, "workers": self.num_workers,
            "batch_norm_statistics": self.options.batch_norm_statistics, "transport": self.options.transport,
        }  # fmt: skip
        return facts | (self._server.facts() if self._server else {})


STRATEGY = ParameterServerStrategy


class Independent(Alone):
    """The group of a rank of asynchronous training, which waits for no other, under its own number."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


def _check_validation(num_cases: int, num_workers: int) -> None:
    if num_cases < num_workers:
        raise UserInputError(
            "there are fewer validation cases than workers.",
            seen=f"{num_cases} validation case{'' if num_cases == 1 else 's'}, {num_workers} workers",
            expected="a validation case for each worker: with --coordination async, each one validates on its own share",
            do="reduce --ranks, use --coordination sync, or preprocess more validation cases",
        )


def _means(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(of_ranks) for values in zip(*of_ranks, strict=True)]
