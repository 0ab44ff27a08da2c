"""The training loop: steps, validations, checkpoints, early stopping; the best weights are kept."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_steps.contracts.errors import InternalError
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.signals import Deferred
from medweave_steps.train import checkpoint, validate
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.data import Batch, PatchSampler
from medweave_steps.train.history import History
from medweave_steps.train.loss import dice_cross_entropy
from medweave_steps.train.strategies import Strategy


@dataclass(slots=True)
class LoopState:
    """Where the training stands; all of it is in a checkpoint.

    Attributes:
        step: optimiser steps done.
        losses: loss of each step since the last training point.
        best_score, best_step, best_weights: of the best validation so far; `validate.score`.
        num_worse: validations since the best.
        stopped_early: patience has run out.
        train_seconds: time spent in steps, validation apart.
    """

    step: int = 0
    losses: list[float] = field(default_factory=list)
    best_score: float = -1.0
    best_step: int = 0
    best_weights: dict[str, Any] = field(default_factory=dict)
    num_worse: int = 0
    stopped_early: bool = False
    train_seconds: float = 0.0


class Trainer:
    """One training; `run` takes it from where it stands to its end."""

    def __init__(
        self,
        *,
        config: TrainConfig,
        network: Any,
        strategy: Strategy,
        sampler: PatchSampler,
        validator: validate.Validator,
        uses_bfloat16: bool,
        data_sha256: str,
        signals: Deferred,
    ) -> None:
        torch = require("torch", extra="train")
        self.config, self.network, self.strategy, self.sampler = config, network, strategy, sampler
        self.validator, self.uses_bfloat16, self.data_sha256 = validator, uses_bfloat16, data_sha256
        self.signals, self.state = signals, LoopState()
        self.wrapped = strategy.wrap(network)
        self.loss = dice_cross_entropy(dice_weight=config.dice_weight, cross_entropy_weight=config.cross_entropy_weight)
        if config.weight_decay:
            self.optimiser = torch.optim.AdamW(
                network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
            )
        else:
            self.optimiser = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
        # Smith and Topin 2019, Proc. SPIE 11006, "Super-convergence": one rise, one fall to almost zero.
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimiser, config.learning_rate, total_steps=config.steps, pct_start=config.warm_up
        )

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, history: History, make_progress: Callable[[int, int], Progress]) -> None:
        """Trains to the last step, or until patience runs out.

        Raises:
            InternalError: the loss is not a number; names the step and the cases of the batch.
            Terminated: INT or TERM arrived; a checkpoint was written if there is a folder for it.
        """
        config, state = self.config, self.state
        num_epochs = math.ceil(config.steps / config.epoch_steps)
        progress = make_progress(num_epochs, (state.step - len(state.losses)) // config.epoch_steps)
        while not state.stopped_early:
            self._obey_signals(history)
            if self._epoch_is_over():
                self._finish_epoch(history, progress)
            if state.stopped_early or state.step >= config.steps:
                break
            started = time.monotonic()
            state.losses.append(self._train_step())
            state.train_seconds += time.monotonic() - started
            if config.checkpoint_folder and state.step % config.checkpoint_interval == 0:
                self.save(config.checkpoint_folder, history)

    def _epoch_is_over(self) -> bool:
        state, config = self.state, self.config
        return bool(state.losses) and (state.step % config.epoch_steps == 0 or state.step == config.steps)

    def _finish_epoch(self, history: History, progress: Progress) -> None:
        # The validation comes first: a signal in the middle of it must find the state as it was before.
        state, config = self.state, self.config
        epoch = math.ceil(state.step / config.epoch_steps)
        figures = None
        if epoch % config.validation_interval == 0 or state.step == config.steps:
            figures = self._validate(history)
        loss = sum(state.losses) / len(state.losses)
        history.add(state.step, {"loss": round(loss, 6), "learning_rate": self.optimiser.param_groups[0]["lr"]})
        detail, numbers = f"loss {loss:.3f}", {"loss": round(loss, 4)}
        if figures is not None:
            history.add(state.step, figures)
            self._keep_best(validate.score(figures))
            detail += f", validation Dice {figures['dice'] or 0:.2f}, sensitivity {figures['sensitivity'] or 0:.2f}"
            numbers |= {"dice": figures["dice"] or 0.0, "sensitivity": figures["sensitivity"] or 0.0}
        state.losses = []
        progress.step(detail, **numbers)

    def _train_step(self) -> float:
        torch = require("torch", extra="train")
        strategy, state = self.strategy, self.state
        batch = self.sampler.batch(state.step, rank=strategy.rank, world_size=strategy.world_size)
        image_BCIJK = torch.from_numpy(batch.image_BCIJK).to(strategy.device)
        label_BCIJK = torch.from_numpy(batch.label_BCIJK).to(strategy.device)
        self.network.train()
        with torch.autocast(strategy.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
            logits_BCIJK = self.wrapped(image_BCIJK)
        # The loss sums over a hundred thousand voxels: in float32.
        loss = self.loss(logits_BCIJK.float(), label_BCIJK)
        value = strategy.average(float(loss.detach()))
        if not math.isfinite(value):
            raise _not_a_number(state.step, value, batch, self.optimiser.param_groups[0]["lr"])
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.schedule.step()
        state.step += 1
        return value

    def _obey_signals(self, history: History) -> None:
        folder = self.config.checkpoint_folder
        if folder and (self.signals.ending is not None or self.signals.wants_checkpoint):
            self.save(folder, history)
        self.signals.wants_checkpoint = False
        self.signals.raise_if_ending()

    # -- validation -----------------------------------------------------------------------------------------------

    def predict(self, window_BCIJK: Any) -> Any:
        """Float32 logits of windows, in the arithmetic of the training; looks at the signals between windows."""
        torch = require("torch", extra="train")
        self.signals.raise_if_ending()
        with torch.autocast(self.strategy.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
            return self.network(window_BCIJK).float()

    def _validate(self, history: History) -> dict[str, float | None]:
        self.network.eval()
        try:
            return self.validator.figures(self.predict, num_cases=self.config.validation_cases or None)
        except BaseException:
            if self.signals.ending is not None and self.config.checkpoint_folder:
                self.save(self.config.checkpoint_folder, history)
            raise

    def _keep_best(self, score: float) -> None:
        state = self.state
        if score >= state.best_score:
            state.best_score, state.best_step, state.num_worse = score, state.step, 0
            state.best_weights = copy.deepcopy(self.network.state_dict())
            return
        state.num_worse += 1
        state.stopped_early = 0 < self.config.patience <= state.num_worse

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What the trained weights depend on, besides the data and torch itself."""
        precision = "bfloat16" if self.uses_bfloat16 else "float32"
        return {**self.config.identity(), "precision": precision, "device": self.strategy.device.type}

    def save(self, folder: Path, history: History) -> None:
        """Writes a checkpoint, on the first rank only."""
        if self.strategy.rank != 0:
            return
        torch = require("torch", extra="train")
        state = {name: getattr(self.state, name) for name in LoopState.__slots__}
        content = {
            "identity": json.dumps(self.identity()),
            "data_sha256": self.data_sha256,
            "state": state,
            "points": history.points,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random_state": {"0": torch.get_rng_state()},
        }
        checkpoint.write_checkpoint(folder, content)

    def restore(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Takes over a checkpoint; returns the points of its curves.

        Raises:
            UserInputError: it belongs to another training.
        """
        torch = require("torch", extra="train")
        checkpoint.check_identity(content, identity=self.identity(), data_sha256=self.data_sha256)
        self.network.load_state_dict(content["network"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.schedule.load_state_dict(content["schedule"])
        torch.set_rng_state(content["random_state"]["0"])
        self.state = LoopState(**content["state"])
        points: list[dict[str, Any]] = content["points"]
        return points


def _not_a_number(step: int, value: float, batch: Batch, learning_rate: float) -> InternalError:
    import numpy as np

    bad = sorted(
        {name for name, image in zip(batch.case_ids, batch.image_BCIJK, strict=True) if not np.isfinite(image).all()}
    )
    blame = f"; the volume of {', '.join(bad)} holds values that are not finite" if bad else ""
    return InternalError(
        f"the loss is not a number at step {step + 1}.",
        seen=f"loss {value} on patches of {', '.join(sorted(set(batch.case_ids)))}{blame}",
        expected="a finite loss",
        do="run preprocess again on these cases" if bad else f"lower --learning-rate ({learning_rate:.2e} here)",
    )
