"""The training loop: steps, validations, checkpoints, early stopping, and the best weights."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from medweave_core.errors import InternalError
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.signals import Deferred
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.data.batch import Batch, Sampler
from medweave_steps.training.data.batches import Batches, no_batch
from medweave_steps.training.loop import checkpoint, memory
from medweave_steps.training.loop.energy import RanksEnergy, wh_of
from medweave_steps.training.loop.history import History
from medweave_steps.training.loop.recompute import recompute_activations
from medweave_steps.training.loop.stepper import Stepper
from medweave_steps.training.loop.validator import Figures, Validator, interleaved
from medweave_steps.training.strategies import Strategy, resumable_options

SERVE_S = 0.5
"""A rank that serves others looks for signals at least so often."""


@dataclass(slots=True)
class LoopState:
    """The state of a training; all of it is in a checkpoint.

    Attributes:
        step: optimizer steps done.
        losses: loss of each step since the last training point.
        best_score, best_step, best_weights: of the best validation so far; `Validator.score`.
        best_seconds: time in steps and validations until then, s; None if the training began before it was counted.
        num_worse: validations since the best.
        stopped_early: patience has run out.
        train_seconds: time spent in steps, validation apart.
        validation_seconds: time spent in validations; None if the training began before it was counted.
        data_wait_seconds: of train_seconds, in which this rank waited for its patches.
        synchronised_bytes: bytes that all ranks have exchanged for averages.
        epoch_joules: that were counted in the epoch so far; None where a part of it was not.
        each_wh: of each epoch before, Wh; None likewise.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    best_score: float = -1.0
    best_step: int = 0
    best_seconds: float | None = None
    best_weights: dict[str, Any] = field(default_factory=dict)
    num_worse: int = 0
    stopped_early: bool = False
    train_seconds: float = 0.0
    validation_seconds: float | None = 0.0
    data_wait_seconds: float = 0.0
    synchronised_bytes: int = 0
    epoch_joules: float | None = 0.0
    each_wh: list[float | None] = field(default_factory=list)


class Trainer:
    """One training; `run` continues it from its state to the end.

    Attributes:
        network_identity: digests of the files that the network depends on, besides the options.
        network_facts: facts about the initial weights, for the model card.
    """

    def __init__(
        self,
        *,
        config: TrainConfig,
        network: Any,
        task: TrainingTask,
        strategy: Strategy,
        sampler: Sampler,
        validator: Validator,
        uses_bfloat16: bool,
        data_sha256: str,
        signals: Deferred,
        energy: RanksEnergy,
        num_threads: int = 1,
        network_identity: Mapping[str, str] = MappingProxyType({}),
        network_facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.config, self.network, self.task, self.strategy, self.sampler = config, network, task, strategy, sampler
        self.validator, self.data_sha256, self.signals, self.state = validator, data_sha256, signals, LoopState()
        # What every rank knows to have arrived at some rank: all obey it at the same step. A worker obeys its server.
        is_alone = strategy.group.world_size == 1 and strategy.group.rank == 0
        self.agreed = signals if is_alone else Deferred()
        self.num_threads, self.energy = num_threads, energy
        self.network_identity, self.network_facts = network_identity, network_facts
        self._last_tallies: list[list[Any]] | None = None
        self._saved_at = 0
        self._saves_alone = strategy.is_alike or strategy.group.world_size == 1
        if config.recompute:
            recompute_activations(network)
        with memory.wrap_oom(lambda: memory.exhausted_at_start(num_weights=self._num_weights(), **self._had())):
            self.stepper = Stepper(
                recipe=config,
                loss=task.open_loss(config),
                learning_rate=config.learning_rate,
                num_steps=config.steps,
                epoch_steps=config.epoch_steps,
                network=network,
                wrapped=strategy.wrap(network),
                device=strategy.device,
                uses_bfloat16=uses_bfloat16,
            )

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, history: History, make_progress: Callable[[int, int], Progress]) -> None:
        """Train to the last step, or until patience runs out.

        Raises:
            InternalError: the loss is not a number; names the step and the cases of the batch.
            Terminated: INT or TERM arrived; a checkpoint was written if there is a folder for it.
        """
        config, state, strategy = self.config, self.state, self.strategy
        progress = make_progress(math.ceil(config.steps / config.epoch_steps), self._num_epochs())
        for epoch, wh in enumerate(state.each_wh):
            history.add_event((epoch + 1) * config.epoch_steps, "energy_wh", wh)
        self.energy.begin()
        if strategy.serves:
            self._serve(history, progress)
        else:
            batches = Batches(
                self.sampler,
                rank=strategy.replica,
                world_size=strategy.num_replicas,
                num_workers=config.data_processes(strategy.device, num_threads=self.num_threads),
                device=strategy.device,
            )
            with contextlib.closing(batches):
                self._go_on(history, progress, batches)
        best_weights = strategy.finish(state.best_weights, history.folder)
        if best_weights is not None:
            state.best_weights, self._last_tallies = best_weights, None

    def _serve(self, history: History, progress: Progress) -> None:
        """Serve the ranks that take steps, until they are done; an epoch is one report of each."""
        config, state, strategy = self.config, self.state, self.strategy
        while True:
            self._obey_signals(history)
            started = time.monotonic()
            losses, num_bytes = strategy.serve(self.stepper, timeout_s=SERVE_S)
            state.train_seconds += time.monotonic() - started
            state.synchronised_bytes += num_bytes
            if losses:
                state.step, state.losses = min(state.step + config.epoch_steps, config.steps), losses
                self._finish_epoch(history, progress)
                self._save_if_due(history)
            elif strategy.is_over:
                return

    def _go_on(self, history: History, progress: Progress, batches: Batches) -> None:
        config, state = self.config, self.state
        while not state.stopped_early:
            self._obey_signals(history)
            if self._epoch_is_over():
                self._finish_epoch(history, progress)
            if state.stopped_early or state.step >= config.steps or self.strategy.is_over:
                break
            started, waited_before = time.monotonic(), batches.waited_s
            is_synchronized = self._train_step(batches.batch(state.step) if self.strategy.trains else no_batch())
            state.train_seconds += time.monotonic() - started
            state.data_wait_seconds += batches.waited_s - waited_before
            if is_synchronized:
                self._save_if_due(history)

    def _epoch_is_over(self) -> bool:
        state, config = self.state, self.config
        return bool(state.losses) and (state.step % config.epoch_steps == 0 or state.step == config.steps)

    def _num_epochs(self) -> int:
        """Return the number of finished epochs; the losses of an epoch are dropped when it is finished."""
        state, epoch_steps = self.state, self.config.epoch_steps
        return state.step // epoch_steps - (bool(state.losses) and state.step % epoch_steps == 0)

    def _count_energy(self) -> None:
        """Add the energy since the last call to that of the epoch; every rank must call this."""
        joules, before = self.energy.joules(), self.state.epoch_joules
        self.state.epoch_joules = None if joules is None or before is None else before + joules

    def _finish_epoch(self, history: History, progress: Progress) -> None:
        # The validation comes first: a signal in the middle of it must find the state as it was before.
        state, config = self.state, self.config
        epoch = math.ceil(state.step / config.epoch_steps)
        figures = None
        if self.strategy.serves:
            figures = self.strategy.reported_figures()
        elif epoch % config.validation_interval == 0 or state.step == config.steps:
            self._count_energy()
            started = time.monotonic()
            figures = self._validate(history)
            if state.validation_seconds is not None:
                state.validation_seconds += time.monotonic() - started
        self._count_energy()
        state.each_wh.append(wh_of(state.epoch_joules))
        state.epoch_joules = 0.0
        history.add_event(state.step, "energy_wh", state.each_wh[-1])
        loss = sum(state.losses) / len(state.losses)
        history.add(state.step, {"loss": round(loss, 6), "learning_rate": self.stepper.learning_rate})
        detail, numbers = f"loss {loss:.3f}", {"loss": round(loss, 4)}
        if figures is not None:
            history.add(state.step, figures)
            losses = [point["loss"] for point in history.points if "loss" in point]
            self._keep_best(self.validator.score(figures), losses)
            text, of_validation = self.validator.progress(figures)
            detail, numbers = f"{detail}, {text}", numbers | of_validation
        state.losses = []
        progress.step(detail, **numbers)
        self.strategy.report(
            loss=loss, figures=figures, is_last=state.stopped_early or state.step >= config.steps,
            content=lambda: self._content(history, self.stepper.state(), self._random_states()),
        )  # fmt: skip

    def _train_step(self, batch: Batch) -> bool:
        """Take a step and return whether it ends at a synchronization point; the ranks agree on received signals there."""
        group, state, received = self.strategy.group, self.state, self.signals
        flags = (float(received.ending is not None), float(received.wants_checkpoint))
        with memory.wrap_oom(lambda: self._exhausted(batch)):
            result = self.strategy.take_step(self.stepper, batch, step=state.step, flags=flags)
        state.step += 1
        if result is None:
            self._check_epoch_goes_on()
            return False
        state.losses += result.losses
        state.synchronised_bytes += result.num_bytes
        if group.world_size > 1 and result.flags[0] > 0:
            self.agreed.ending = received.ending or signal.SIGTERM
        if group.world_size > 1 and result.flags[1] > 0:
            self.agreed.wants_checkpoint, received.wants_checkpoint = True, False
        return True

    def _check_epoch_goes_on(self) -> None:
        state, config = self.state, self.config
        if state.step % config.epoch_steps == 0 or state.step == config.steps:
            raise InternalError(
                f"the strategy '{config.strategy}' did not synchronize the ranks at the end of an epoch.",
                seen=f"no synchronization point after step {state.step}",
                expected=f"one after every {config.epoch_steps} steps and after the last step, {config.steps}",
                do="report this to the authors of the strategy, or choose another --strategy",
            )

    def _exhausted(self, batch: Batch) -> Exception:
        return memory.exhausted(
            patches=len(batch.case_ids),
            parts=self.config.accumulate,
            recomputes=self.config.recompute,
            uses_bfloat16=self.stepper.uses_bfloat16,
            num_weights=self._num_weights(),
            **self._had(),
        )

    def _num_weights(self) -> int:
        return sum(weight.numel() for weight in self.network.parameters())

    def _had(self) -> dict[str, Any]:
        device = self.strategy.device
        return {"peak_bytes": memory.peak_bytes(device), "on_a_gpu": device.type == "cuda"}

    def _save_if_due(self, history: History) -> None:
        folder, interval = self.config.checkpoint_folder, self.config.checkpoint_interval
        if folder and self.state.step // interval > self._saved_at // interval:
            self._count_energy()
            self.save(folder, history)

    def _obey_signals(self, history: History) -> None:
        folder, agreed = self.config.checkpoint_folder, self.agreed
        if folder and (agreed.ending is not None or agreed.wants_checkpoint):
            self._count_energy()
            self.save(folder, history)
            self.strategy.group.gather(None)  # a rank that ends ends the first one too, which is still writing
        agreed.wants_checkpoint = False
        agreed.raise_if_ending()

    # -- validation -----------------------------------------------------------------------------------------------

    def predict(self, window_BCIJK: Any) -> Any:
        """Return Float32 logits of windows, in the arithmetic of the training; looks at the signals between windows."""
        self.signals.raise_if_ending()
        return self.stepper.predict(window_BCIJK)

    def tallies(self, choices: Sequence[Any], *, num_cases: int | None = None) -> list[list[Any]]:
        """Return per validation case, the tallies of each choice, by the network as it is; the ranks share the cases."""
        self.strategy.complete_weights(self.network)
        self.network.eval()
        group = self.strategy.group
        window, in_bfloat16 = self.config.window_shape, self.stepper.uses_bfloat16
        with memory.wrap_oom(
            lambda: memory.exhausted_in_validation(window_shape=window, uses_bfloat16=in_bfloat16, **self._had())
        ):
            rank, world_size = self.strategy.validation_share
            share = self.validator.tallies(self.predict, choices, num_cases=num_cases, rank=rank, world_size=world_size)
        return interleaved(group.gather(share))

    def best_tallies(self) -> list[list[Any]]:
        """Return per validation case, the tallies of all choices under the best weights, which the network holds from here on."""
        self.network.load_state_dict(self.state.best_weights)
        if self._last_tallies is not None and self.state.best_step == self.state.step:
            return self._last_tallies
        return self.tallies(self.validator.choices)

    def _validate(self, history: History) -> Figures:
        plain = self.validator.plain
        folder = self.config.checkpoint_folder
        random_states = self._random_states() if folder and self._saves_alone else []
        # The last weights are mostly the best ones: all choices are counted in one pass over the cases.
        is_last = self.state.step == self.config.steps and not self.config.validation_cases
        choices = self.validator.choices if is_last else [plain]
        try:
            per_case = self.tallies(choices, num_cases=self.config.validation_cases or None)
        except BaseException:
            # Without the others, who may be in the middle of it.
            if self.signals.ending is not None and folder and self._saves_alone:
                self.save(folder, history, random_states=random_states)
            raise
        self._last_tallies = per_case if is_last else None
        return self.validator.figures([case[choices.index(plain)] for case in per_case])

    def _keep_best(self, score: float, losses: Sequence[float]) -> None:
        state = self.state
        state.num_worse = self.strategy.count_worse(
            state.num_worse, score=score, best_score=state.best_score, losses=losses
        )
        if score >= state.best_score:
            state.best_score, state.best_step = score, state.step
            in_validations = state.validation_seconds
            state.best_seconds = None if in_validations is None else state.train_seconds + in_validations
            state.best_weights = copy.deepcopy(self.network.state_dict())
            self._check_weights(state.best_weights)
            return
        state.stopped_early = 0 < self.config.patience <= state.num_worse

    def _check_weights(self, weights: Mapping[str, Any]) -> None:
        """Raise InternalError if weights are not finite: no loss has been computed with those of the last step."""
        torch = require("torch", extra="train")
        bad = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
        if bad:
            raise InternalError(
                f"the weights are NaN or infinite after step {self.state.step}.",
                seen=f"{len(bad)} of {len(weights)} tensors, the first is {bad[0]}",
                expected="finite weights",
                do=f"reduce --learning-rate (current value {self.stepper.learning_rate:.2e})",
            )

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """Return every option and setting that the trained weights depend on, besides the data and torch itself."""
        precision = "bfloat16" if self.stepper.uses_bfloat16 else "float32"
        device = self.strategy.device.type
        of_options = {**self.config.identity(), **self.network_identity}
        return {**of_options, **self.task.identity(), "precision": precision, "device": device}

    def _random_states(self) -> list[dict[str, Any]]:
        """Return the random states of all ranks in order; every rank must call it."""
        return self.strategy.group.gather(checkpoint.random_state(self.strategy.device))

    def save(self, folder: Path, history: History, *, random_states: Sequence[dict[str, Any]] = ()) -> None:
        """Write a checkpoint, on the first rank only: weights and statistics are the same on all when they are together.

        Every rank must call it, unless `_saves_alone` and what `_random_states` gave is given. Nothing in the loop draws from
        torch's random numbers, but a network may.
        """
        self._saved_at = self.state.step
        random_states = random_states or self._random_states()
        of_strategy = self.strategy.state(self.stepper)
        self.strategy.complete_weights(self.network)
        if self.strategy.group.rank == 0:
            checkpoint.write_checkpoint(folder, self._content(history, of_strategy, random_states))

    def _content(
        self, history: History, of_strategy: Mapping[str, Any], random_states: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the content of a checkpoint of this rank and those whose random states are passed, which follow it."""
        return {
            "identity": json.dumps(self.identity()),
            "data_sha256": self.data_sha256,
            "state": {name: getattr(self.state, name) for name in LoopState.__slots__},
            "points": history.points,
            "network": self.network.state_dict(),
            **of_strategy,
            "random_state": {
                str(rank): of_rank for rank, of_rank in enumerate(random_states, start=self.strategy.group.rank)
            },
        }

    def restore(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Restore the state from a checkpoint and return the points of its curves.

        Raises:
            UserInputError: it belongs to another training.
        """
        content = self.strategy.own_content(content)
        checkpoint.check_identity(
            content,
            identity=self.identity(),
            data_sha256=self.data_sha256,
            may_differ=resumable_options([self.config.strategy, checkpoint.strategy_of(content)]),
        )
        self.network.load_state_dict(content["network"])
        self.strategy.restore(self.stepper, content)
        checkpoint.restore_random_state(content, rank=self.strategy.group.rank, device=self.strategy.device)
        # Older checkpoints have neither the time of validations nor the energy of epochs.
        self.state = LoopState(**{"validation_seconds": None, **content["state"]})
        self.state.each_wh[:0] = [None] * (self._num_epochs() - len(self.state.each_wh))
        self._saved_at = self.state.step
        points: list[dict[str, Any]] = content["points"]
        return points
