"""The loop of pruning: train, shrink, and at each plateau of the validation loss remove what the tolerance allows."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.networks.channels import apply_channels, channels_of
from medweave_steps.prune import structured, unstructured
from medweave_steps.prune.config import PruneConfig
from medweave_steps.prune.sensitivity import Sensitivities, generic, lobster, prunable_weights, serene
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.progress import Progress
from medweave_steps.runtime.signals import Deferred
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.data.batches import Batches
from medweave_steps.training.loop import checkpoint
from medweave_steps.training.loop.history import History
from medweave_steps.training.loop.stepper import Stepper, not_a_number

SENSITIVITY_STEPS = 10
"""Steps between two computations of the sensitivities of outputs, which cost one backward pass for each output."""
REMOVAL_BATCHES = 8
"""Batches whose sensitivities decide which channels are removed, and that set the norms' statistics after it."""
FINAL_SHARE = 0.25
"""Part of the epochs that is left for the training after the last removal."""


@dataclass(slots=True)
class PruneState:
    """The state of a pruning; all of it is in a checkpoint.

    Attributes:
        epoch, step: done.
        first_loss: validation loss of the trained model.
        best_loss, best_weights: of the lowest validation loss since the last removal.
        num_worse: epochs since then.
        stepper_start: step at which the optimizer was made; a removal of channels needs a new optimizer.
        channels, masks: what the removals left, of layers that differ from the trained model, and of weights.
        rounds: one record for each removal.
        accepted: the smallest network so far within the tolerance: its `channels`, `weights`, `loss`, `epoch` and `round`.
        is_final: nothing more is removed; the network is trained with a falling learning rate until the budget ends.
    """

    epoch: int = 0
    step: int = 0
    first_loss: float = math.inf
    best_loss: float = math.inf
    best_weights: dict[str, Any] = field(default_factory=dict)
    num_worse: int = 0
    stepper_start: int = 0
    channels: dict[str, list[int]] = field(default_factory=dict)
    masks: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    accepted: dict[str, Any] = field(default_factory=dict)
    is_final: bool = False

    @property
    def has_nothing_removed(self) -> bool:
        """Whether no removal is within the tolerance: the trained model is the result."""
        return self.is_final and not self.rounds


class Pruning:
    """One pruning; `run` continues it from its state to the end.

    Args:
        trained: the trained network, in evaluation mode, on the device; it is not changed.
        input_shape: C and the sides of an input of the model card.
        loss: of the task.
        validation: batches whose mean loss is the validation loss.
        identity: what the pruned weights depend on.

    Attributes:
        permanent: layer to the reason why its channels cannot be removed; empty for methods that remove none.
    """

    def __init__(
        self,
        *,
        config: PruneConfig,
        trained: Any,
        input_shape: Sequence[int],
        loss: Callable[[Any, Any], Any],
        validation: Sequence[Batch],
        device: Any,
        uses_bfloat16: bool,
        identity: Mapping[str, Any],
        data_sha256: str,
    ) -> None:
        self.config, self.trained, self.input_shape, self.loss = config, trained, tuple(input_shape), loss
        self.validation, self.device, self.uses_bfloat16 = validation, device, uses_bfloat16
        self.identity, self.data_sha256 = identity, data_sha256
        self.state = PruneState()
        self._sensitivities: Sensitivities = {}
        self._use(copy.deepcopy(trained))

    def run(
        self, batches: Batches, history: History, progress: Callable[[int, int], Progress], signals: Deferred
    ) -> None:
        """Prune until the budget ends or nothing more can be removed.

        Raises:
            UserInputError: the validation loss of the trained model is not a number.
            InternalError: the loss is not a number; names the step and the cases of the batch.
            Terminated: INT or TERM arrived; the checkpoint of the last epoch stays.
        """
        config, state = self.config, self.state
        if not math.isfinite(state.first_loss):
            state.first_loss = self.validation_loss(self.trained)
            if not math.isfinite(state.first_loss):
                raise _no_loss(state.first_loss)
            self._best(state.first_loss)
            self._remove(batches)  # a trained model is at a plateau
        line = progress(config.budget_epochs, state.epoch)
        last_removal = max(config.plateau_epochs, int((1 - FINAL_SHARE) * config.budget_epochs))
        while state.epoch < config.budget_epochs and not state.has_nothing_removed:
            loss = self._train(batches, signals)
            state.epoch += 1
            validation_loss = self.validation_loss(self.network)
            self._best(validation_loss)
            at_plateau = state.num_worse >= config.plateau_epochs
            if not state.is_final and (at_plateau or state.epoch >= last_removal):
                removes = at_plateau and state.epoch <= last_removal and self._remove(batches)
                if not removes:
                    self._begin_final_training()
            history.add(state.step, {"loss": round(loss, 6), "learning_rate": self.stepper.learning_rate})
            history.add(state.step, {"validation_loss": round(validation_loss, 6)})
            size = sum(weight.numel() for weight in self.network.parameters())
            text = f"validation loss {validation_loss:.4f}, {size} parameters, {len(state.rounds)} removals"
            line.step(text, loss=round(loss, 4), validation_loss=round(validation_loss, 4))
            if config.checkpoint_folder:
                self.save(config.checkpoint_folder, history)

    def best(self) -> Any | None:
        """Return the smallest network within the tolerance, in evaluation mode; None if no removal was within it."""
        accepted = self.state.accepted
        if not accepted:
            return None
        network = apply_channels(copy.deepcopy(self.trained), accepted["channels"])
        network.load_state_dict(accepted["weights"])
        return network.eval()

    def validation_loss(self, network: Any) -> float:
        """Return the mean loss of a network over the validation batches."""
        torch = require("torch", extra="train")
        network.eval()
        losses = []
        with torch.inference_mode():
            for batch in self.validation:
                image, label = self._tensor(batch.image_BCIJK), self._tensor(batch.label_BCIJK)
                with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
                    logits = network(image)
                losses.append(float(self.loss(logits.float(), label)))
        return sum(losses) / len(losses)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _train(self, batches: Batches, signals: Deferred) -> float:
        """Train for one epoch and return the mean loss."""
        losses = []
        for place in range(self.config.epoch_steps):
            signals.raise_if_ending()
            batch = batches.batch(self.state.step)
            value = self.stepper.begin([batch], [1.0])
            if not math.isfinite(value):
                blames = [self.stepper.blame_of(batch)]
                raise not_a_number(value, step=self.state.step, blames=blames, learning_rate=self.stepper.learning_rate)
            self.stepper.apply()
            if not self.state.is_final:
                self._shrink(batch, refresh=place % SENSITIVITY_STEPS == 0)
            unstructured.apply_masks(self.network, self.state.masks)
            self.state.step += 1
            losses.append(value)
        return sum(losses) / len(losses)

    def _shrink(self, batch: Batch, *, refresh: bool) -> None:
        method, rate = self.config.method, self.config.shrink
        if method == "lobster":
            unstructured.shrink_weights(self.network, lobster(self.network), rate)
        elif refresh:
            self._sensitivities = self._sensitivities_of(self._tensor(batch.image_BCIJK), self._layers)
        if method == "serene":
            structured.shrink_rows(self.network, self._sensitivities, rate)
        elif method == "generic":
            unstructured.shrink_weights(self.network, self._sensitivities, rate)

    def _sensitivities_of(self, image: Any, layers: Sequence[str]) -> Sensitivities:
        self.network.eval()
        if self.config.is_structured:
            return serene(self.network, image, layers)
        return generic(self.network, image)

    def _summed_sensitivities(self, images: Sequence[Any], layers: Sequence[str]) -> Sensitivities:
        total: Sensitivities = {}
        for image in images:
            for name, own in self._sensitivities_of(image, layers).items():
                total[name] = total[name] + own if name in total else own
        return total

    # -- removals -------------------------------------------------------------------------------------------------

    def _best(self, loss: float) -> None:
        state, limit = self.state, (1 + self.config.tolerance) * self.state.first_loss
        if loss < state.best_loss:
            state.best_loss, state.num_worse = loss, 0
            state.best_weights = copy.deepcopy(self.network.state_dict())
        else:
            state.num_worse += 1
        is_smaller = len(state.rounds) > state.accepted.get("round", 0)
        is_better = loss < state.accepted.get("loss", -math.inf)
        if state.rounds and loss <= limit and (is_smaller or is_better):
            state.accepted = {
                "channels": dict(state.channels), "weights": copy.deepcopy(self.network.state_dict()), "loss": loss,
                "epoch": state.epoch, "round": len(state.rounds),
            }  # fmt: skip

    def _remove(self, batches: Batches) -> bool:
        """Remove what the tolerance allows from the best weights; return False where it allows nothing."""
        state, config = self.state, self.config
        tolerance = config.tolerance if config.removal_tolerance is None else config.removal_tolerance
        before, limit = state.best_loss, (1 + tolerance) * state.best_loss
        self.network.load_state_dict(state.best_weights)
        self.network.eval()
        if before > (1 + config.tolerance) * state.first_loss:  # the training did not repair the last removal
            return False

        def is_within(network: Any) -> bool:
            return self.validation_loss(network) <= limit

        smaller = None
        if config.is_structured:
            ahead = [batches.batch(state.step + place) for place in range(REMOVAL_BATCHES)]
            images = [self._tensor(batch.image_BCIJK) for batch in ahead]

            def is_within_recalibrated(network: Any) -> bool:
                structured.recalibrate(network, images)
                return is_within(network)

            smaller = structured.without_channels(
                self.network, self.input_shape, is_within=is_within_recalibrated,
                sensitivities=lambda layers: self._summed_sensitivities(images, layers),
            )  # fmt: skip
        elif (masks := unstructured.masks_within(self.network, is_within=is_within)) is not None:
            smaller, state.masks = self.network, masks
            unstructured.apply_masks(smaller, masks)
        if smaller is None:
            return False
        state.channels = channels_of(smaller, self.trained)
        state.stepper_start, state.num_worse, state.best_loss = state.step, 0, math.inf
        self._use(smaller)
        after = self.validation_loss(smaller)
        state.rounds.append({"epoch": state.epoch, "loss_before": round(before, 6), "loss_after": round(after, 6)})
        self._best(after)
        return True

    def _begin_final_training(self) -> None:
        """Continue from the best weights since the last removal."""
        state = self.state
        self.network.load_state_dict(state.best_weights)
        state.is_final, state.stepper_start = True, state.step
        self._use(self.network)

    def _use(self, network: Any) -> None:
        """Train this network from here on."""
        config, start = self.config, self.state.stepper_start
        recipe = dataclasses.replace(config, schedule="cosine") if self.state.is_final else config
        self.network = network
        self._layers: list[str] = []
        self.permanent: Mapping[str, str] = {}
        if config.is_structured:
            self._layers, self.permanent = structured.prunable_layers(network, self.input_shape)
        self.stepper = Stepper(
            recipe=recipe, loss=self.loss, learning_rate=config.learning_rate,
            num_steps=max(1, config.budget_epochs * config.epoch_steps - start), epoch_steps=config.epoch_steps,
            network=network, wrapped=network, device=self.device, uses_bfloat16=self.uses_bfloat16,
        )  # fmt: skip

    def has_layers(self) -> bool:
        """Return whether there is anything to prune."""
        return bool(self._layers if self.config.is_structured else prunable_weights(self.network))

    def _tensor(self, array: Any) -> Any:
        return require("torch", extra="train").from_numpy(array).to(self.device, self.stepper.dtype)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, folder: Path, history: History) -> None:
        """Write a checkpoint."""
        content = {
            "identity": json.dumps(self.identity),
            "data_sha256": self.data_sha256,
            "state": {name: getattr(self.state, name) for name in PruneState.__slots__},
            "points": history.points,
            "network": self.network.state_dict(),
            **self.stepper.state(),
            "random_state": {"0": checkpoint.random_state(self.device)},
        }
        checkpoint.write_checkpoint(folder, content)

    def restore(self, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Restore the state from a checkpoint and return the points of its curves.

        Raises:
            UserInputError: the checkpoint belongs to another pruning or training, such as one by another method.
        """
        checkpoint.check_identity(content, identity=self.identity, data_sha256=self.data_sha256)
        self.state = PruneState(**content["state"])
        self.state.masks = {name: mask.to(self.device) for name, mask in self.state.masks.items()}
        self._use(apply_channels(copy.deepcopy(self.trained), self.state.channels))
        self.network.load_state_dict(content["network"])
        self.stepper.restore(content)
        checkpoint.restore_random_state(content, rank=0, device=self.device)
        points: list[dict[str, Any]] = content["points"]
        return points


def _no_loss(value: float) -> UserInputError:
    return UserInputError(
        "the validation loss of the trained model is NaN or infinite.",
        seen=f"loss {value} on the validation cases",
        expected="a finite loss",
        do="use a model that was trained on such cases; if the loss is infinite only in bfloat16, use --precision float32",
    )
