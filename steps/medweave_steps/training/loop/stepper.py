"""One optimizer step: network, loss, optimizer and learning rate. A strategy decides when steps are taken."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.errors import InternalError
from medweave_steps.runtime.allocator import keep_freed_memory
from medweave_steps.runtime.imports import require
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.loop.deep_supervision import in_dtype, with_deep_supervision
from medweave_steps.training.loop.small_images import compute_small_images_in_float32
from medweave_steps.training.optimizers import build_optimizer, build_schedule, clip_gradients
from medweave_steps.training.recipe import Recipe

FloatVector = npt.NDArray[np.float64]


class Stepper:
    """The optimization steps of a network.

    Attributes:
        network: the module whose weights change.
        loss: of the task, from the network's output and the labels of a batch to a scalar tensor.
        wrapped: the module called in training: the network itself, or a strategy's wrapper around it.
        device: torch.device.
        uses_bfloat16: the forward pass is in mixed bfloat16; weights and loss stay as they are.
        dtype: of weights and loss, float32 unless the network is of another one.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        loss: Callable[[Any, Any], Any],
        learning_rate: float,
        num_steps: int,
        epoch_steps: int = 1,
        network: Any,
        wrapped: Any,
        device: Any,
        uses_bfloat16: bool,
    ) -> None:
        torch = require("torch", extra="train")
        keep_freed_memory()
        self.network, self.wrapped, self.device, self.uses_bfloat16 = network, wrapped, device, uses_bfloat16
        if uses_bfloat16 and device.type == "cpu":
            compute_small_images_in_float32(network)
        self.dtype = next(network.parameters()).dtype
        self._loss_buffer = torch.empty((), dtype=self.dtype, pin_memory=device.type == "cuda")
        self._statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self.loss = with_deep_supervision(loss)
        self.optimiser = build_optimizer(recipe, network.parameters(), learning_rate)
        self.schedule = build_schedule(
            recipe, self.optimiser, learning_rate=learning_rate, num_steps=num_steps, epoch_steps=epoch_steps
        )
        self._gradient_clip = recipe.gradient_clip

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        rate: float = self.optimiser.param_groups[0]["lr"]
        return rate

    def loss_of(self, batch: Batch) -> Any:
        """Return the loss of a batch, a scalar tensor that `backward` takes; running statistics of the network move."""
        return self._loss(self.wrapped, batch)

    def blame_of(self, batch: Batch) -> Blame:
        """Return the losses of a batch's patches, computed one by one after a loss that is not finite; local to this rank."""
        torch = require("torch", extra="train")
        losses = []
        with torch.no_grad():
            for part in [] if batch.is_padding else batch.parts(len(batch.case_ids)):
                try:
                    losses.append((part.case_ids[0], float(self._loss(self.network, part))))
                except ValueError:  # a normalisation that one patch is too small for
                    losses.append((part.case_ids[0], math.nan))
        pairs = zip(batch.case_ids, batch.image_BCIJK, strict=True)
        bad = frozenset(name for name, image in pairs if not np.isfinite(image).all())
        return Blame(losses=tuple(losses), bad_volumes=bad)

    def _loss(self, network: Any, batch: Batch) -> Any:
        torch = require("torch", extra="train")
        image_BCIJK, label_BCIJK = (self.on_device(array) for array in (batch.image_BCIJK, batch.label_BCIJK))
        if not self.network.training:  # it walks through all modules
            self.network.train()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
            logits_BCIJK = network(image_BCIJK)
        # The loss sums over a hundred thousand voxels: never in bfloat16.
        return self.loss(in_dtype(logits_BCIJK, self.dtype), label_BCIJK)

    def on_device(self, array: npt.NDArray[np.float32]) -> Any:
        """Return a tensor on the device; the copy out of pinned memory is asynchronous.

        The array must stay until a figure of that computation, such as the loss, has been read.
        """
        tensor = require("torch", extra="train").from_numpy(array)
        pinned = self.device.type == "cuda" and tensor.is_pinned()
        return tensor.to(self.device, self.dtype, non_blocking=pinned)

    def statistics(self, *, are_shared: bool) -> FloatVector:
        """Return the running statistics of all normalizations, one after the other; `set_statistics` takes them.

        Args:
            are_shared: there are several ranks; else an empty array is returned.
        """
        if not are_shared or not self._statistics:
            return np.zeros(0)
        # Put together where they are: one copy from a GPU is waited for, not one for each normalisation.
        together = require("torch", extra="train").cat([buffer.detach().reshape(-1) for buffer in self._statistics])
        found: FloatVector = together.cpu().numpy().astype(np.float64)
        return found

    def set_statistics(self, values: FloatVector) -> None:
        """Replace the running statistics, unless the array is empty."""
        if not len(values):
            return
        together = require("torch", extra="train").from_numpy(values.astype(np.float32)).to(self.device)
        parts = together.split([buffer.numel() for buffer in self._statistics])
        for buffer, part in zip(self._statistics, parts, strict=True):
            buffer.copy_(part.reshape(buffer.shape))

    def begin(self, parts: Sequence[Batch] = (), weights: Sequence[float] = ()) -> float:
        """Begin a step with the gradient of some batches, to which `backward` adds; return their loss.

        The gradient is not averaged over ranks before `backward` is called.

        Args:
            weights: factor of each batch's loss.
        """
        # Before the forward pass, which takes the memory of the gradients that are freed here.
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for part, weight in zip(parts, weights, strict=True):
            with getattr(self.wrapped, "no_sync", contextlib.nullcontext)():
                total += self.backward(self.loss_of(part), weight)
        return total

    def backward(self, loss: Any, weight: float = 1.0) -> float:
        """Add the gradient of a loss to that of the step; return the loss.

        On a GPU this returns when the forward pass is over: the longer backward pass continues while the ranks exchange their
        losses and the next step is prepared.

        Args:
            weight: factor of the loss; the returned value is multiplied by it, too.
        """
        loss = loss if weight == 1 else loss * weight
        value_of = self._value_of(loss.detach())
        loss.backward()
        return value_of()

    def _value_of(self, loss: Any) -> Callable[[], float]:
        """Return a function that returns the loss as a number; its copy starts before the backward pass, not after it."""
        if self.device.type != "cuda":
            return lambda: float(loss)
        buffer = self._loss_buffer
        buffer.copy_(loss, non_blocking=True)
        copied = require("torch", extra="train").cuda.current_stream(self.device).record_event()

        def value() -> float:
            copied.synchronize()
            return float(buffer)

        return value

    def apply(self, *, norm: float | None = None, advances: bool = True) -> None:
        """Update the weights by the gradient of the step, and the learning rate by one step.

        Args:
            norm: of the whole gradient, where this process has a part of it; by default it is computed.
            advances: the learning rate is updated, too.
        """
        clip_gradients(self.network.parameters(), self._gradient_clip, norm=norm)
        self.optimiser.step()
        if advances:
            self.schedule.step()

    def skip(self) -> None:
        """Go to the next step without updating the weights."""
        with warnings.catch_warnings():
            # torch takes a schedule that moves before the first update for a mistake.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            self.schedule.step()

    def predict(self, window_BCIJK: Any) -> Any:
        """Return Float32 logits of windows, in the arithmetic of the training; the network must be in evaluation mode."""
        torch = require("torch", extra="train")
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
            return self.network(window_BCIJK.to(self.dtype)).float()

    def state(self) -> dict[str, Any]:
        """Return the state of optimizer and schedule, without the weights."""
        return {"optimiser": self.optimiser.state_dict(), "schedule": self.schedule.state_dict()}

    def moments(self) -> dict[Any, Any]:
        """Return a copy of the optimizer's moments of each weight, without the learning rate."""
        copied: dict[Any, Any] = copy.deepcopy(self.optimiser.state_dict()["state"])
        return copied

    def set_moments(self, moments: Mapping[Any, Any]) -> None:
        """Load the result of `moments`; an empty mapping is the state before the first step."""
        groups = self.optimiser.state_dict()["param_groups"]
        self._set_optimiser({"state": copy.deepcopy(dict(moments)), "param_groups": groups})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state`."""
        self._set_optimiser(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])

    def _set_optimiser(self, state: Mapping[str, Any]) -> None:
        """Load the optimizer state; the fused kernel needs moments laid out like their weights, which an average does not keep."""
        torch = require("torch", extra="train")
        self.optimiser.load_state_dict(state)
        for weight, moments in self.optimiser.state.items():
            for name, moment in moments.items():
                if moment is not None and moment.shape == weight.shape and moment.stride() != weight.stride():
                    moments[name] = torch.empty_like(weight, dtype=moment.dtype).copy_(moment)


def uses_bfloat16(recipe: Recipe, device: Any, network: Any = None) -> bool:
    """Return True if this machine would compute in mixed bfloat16 under these options.

    Args:
        network: torch module that is trained. On a CPU, `auto` computes grouped convolutions in float32: a training step of
            MobileNet (16 images of 64 x 64 pixels) took 0.50 s of CPU time in float32 and 1.75 s in bfloat16 (PyTorch 2.15).
    """
    from medweave_steps.runtime.environment import computes_in_bfloat16

    if recipe.precision != "auto":
        return recipe.precision == "bfloat16"
    if device.type == "cuda":
        return bool(require("torch", extra="train").cuda.is_bf16_supported())
    return computes_in_bfloat16() and not _has_grouped_convolutions(network)


def _has_grouped_convolutions(network: Any) -> bool:
    modules = network.modules() if network is not None else ()
    return any(getattr(module, "kernel_size", None) and getattr(module, "groups", 1) > 1 for module in modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The contribution of one rank's batch to a loss that is not finite.

    Attributes:
        losses: case and loss of each patch alone.
        bad_volumes: cases whose patches have values that are not finite.
    """

    losses: tuple[tuple[str, float], ...]
    bad_volumes: frozenset[str]


def not_a_number(value: float, *, step: int, blames: Sequence[Blame], learning_rate: float) -> InternalError:
    """Return the error for a loss that is not finite; names the step, and the cases of the patches that make it so.

    Args:
        value: the loss.
        step: steps done before.
        blames: `Stepper.blame_of` every batch of the step.
    """
    losses = [pair for blame in blames for pair in blame.losses]
    worst = [pair for pair in losses if not math.isfinite(pair[1])]
    detail = f" ({len(worst)} of {len(losses)} patches)"
    if not worst and losses:
        worst = [max(losses, key=lambda pair: pair[1])]
        detail = f", which has the largest loss: {worst[0][1]:g} alone; the loss of each patch alone is finite"
    bad = sorted(frozenset().union(*(blame.bad_volumes for blame in blames)))
    blame = f"; the volume of {', '.join(bad)} contains NaN or infinite values" if bad else ""
    return InternalError(
        f"the loss is NaN or infinite at step {step + 1}.",
        seen=f"loss {value} on patches of {', '.join(sorted({name for name, _ in worst}))}{detail}{blame}",
        expected="a finite loss",
        do="run preprocess again on these cases"
        if bad
        else f"reduce --learning-rate (current value {learning_rate:.2e})",
    )
