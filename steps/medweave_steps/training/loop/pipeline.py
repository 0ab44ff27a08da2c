"""Pipeline parallelism: this rank computes one stage of the network, with the neighboring stages on other ranks.

The schedules are those of torch.distributed.pipelining: one forward, one backward (1F1B) where there are at least as many
micro-batches as stages, and fill and drain (GPipe) where there are fewer. Gradients are summed over the micro-batches of a step.

A delayed pipeline updates the weights of a stage after each micro-batch. A micro-batch passes backward through the weights with
which it passed forward, as in PipeDream. It ends empty after each step, so that a training may resume there.

Source: Huang et al. 2019, NeurIPS, "GPipe"; Narayanan et al. 2019, SOSP, "PipeDream" (1F1B); Akintoye et al. 2021, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.training.loop.deep_supervision import in_dtype
from medweave_steps.training.placement.cut import composed

if TYPE_CHECKING:
    from medweave_steps.training.data.batch import Batch
    from medweave_steps.training.loop.stepper import Stepper

Tensors = tuple[Any, ...]


class Pipeline:
    """The stage of this rank, and its schedules.

    Attributes:
        stage: place of this rank's stage, from 0.
        num_stages: of the network.
        bytes_per_patch: of the activations between all stages and of their gradients, for one patch; 0 before the first step.

    Args:
        stages: the partitions of each stage, in order.
        group: torch process group of the ranks of this replica, in order of their stages.
        micro_batches: largest number of micro-batches of a step.
        is_delayed: the weights are updated after each micro-batch, by its gradient alone; otherwise `run` adds gradients.
    """

    def __init__(
        self, stepper: Stepper, stages: Sequence[Sequence[Any]], *, stage: int, group: Any, micro_batches: int,
        is_delayed: bool = False,
    ) -> None:  # fmt: skip
        self.stage, self.num_stages = stage, len(stages)
        self._stepper, self._stages, self._group, self._micro_batches = stepper, stages, group, micro_batches
        self._is_delayed = is_delayed
        self._module = _stage_module(
            stages[stage], self._autocast, is_last=stage == len(stages) - 1, keeps_weights=is_delayed
        )
        self.bytes_per_patch = 0
        self._schedules: dict[int, Any] = {}
        self._weight = 1.0

    def run(self, batch: Batch, weight: float) -> float:
        """Add the gradient of a batch to that of the step; return its loss on the last stage, 0 on the others.

        Every rank of the replica must call it with the same batch.

        Args:
            weight: factor of the mean loss.
        """
        stepper = self._stepper
        if not stepper.network.training:
            stepper.network.train()
        patches = len(batch.case_ids)
        number = num_micro_batches(patches, self._micro_batches)
        image_BCIJK, label_BCIJK = stepper.on_device(batch.image_BCIJK), stepper.on_device(batch.label_BCIJK)
        if patches not in self._schedules:
            self._schedules[patches] = self._schedule(image_BCIJK[: patches // number], number)
        self._weight = weight if self._is_delayed else weight / number
        losses: list[Any] = []
        inputs = (image_BCIJK,) if self.stage == 0 else ()
        outputs = {"target": label_BCIJK, "losses": losses} if self.stage == self.num_stages - 1 else {}
        try:
            self._schedules[patches].step(*inputs, **outputs)
        except RuntimeError as error:
            # torch wraps the errors of a stage in one with all shapes; the cause may be that memory is exhausted.
            if isinstance(error.__cause__, Exception):
                raise error.__cause__ from None
            raise
        total = sum(float(loss.detach()) for loss in losses)
        return total / number if self._is_delayed else total

    def _schedule(self, image_BCIJK: Any, number: int) -> Any:
        """Return the schedule for micro-batches of this shape; they are static, so a batch of another size has its own."""
        pipelining = require("torch.distributed.pipelining", extra="train")
        boundaries = self._boundaries(image_BCIJK)
        sizes = [tensor.numel() * tensor.element_size() for tensors in boundaries[1:-1] for tensor in tensors]
        self.bytes_per_patch = 2 * sum(sizes) // len(image_BCIJK)
        before, after = boundaries[self.stage : self.stage + 2]
        stage = (self._delayed_stage() if self._is_delayed else pipelining.PipelineStage)(
            self._module, self.stage, self.num_stages, self._stepper.device, input_args=before, output_args=after,
            group=self._group,
        )  # fmt: skip
        kind = pipelining.Schedule1F1B if number >= self.num_stages else pipelining.ScheduleGPipe
        return kind(stage, number, loss_fn=self._loss, scale_grads=False)

    def _delayed_stage(self) -> Any:
        """Return the class of a stage that updates its weights after each backward pass."""
        base: Any = require("torch.distributed.pipelining", extra="train").PipelineStage
        stepper, module = self._stepper, self._module

        class DelayedStage(base):  # type: ignore[misc]
            def backward_one_chunk(self, *arguments: Any, **options: Any) -> None:
                super().backward_one_chunk(*arguments, **options)
                for weight, copy in module.take_oldest():
                    weight.grad = copy.grad
                stepper.optimiser.step()

        return DelayedStage

    def _loss(self, logits_BCIJK: Any, label_BCIJK: Any) -> Any:
        stepper = self._stepper
        return stepper.loss(in_dtype(logits_BCIJK, stepper.dtype), label_BCIJK) * self._weight

    def _autocast(self) -> Any:
        torch = require("torch", extra="train")
        return torch.autocast(self._stepper.device.type, dtype=torch.bfloat16, enabled=self._stepper.uses_bfloat16)

    def _boundaries(self, image_BCIJK: Any) -> list[Tensors]:
        """Return the input of each stage and the output of the last one, without values.

        The whole network computes an empty image, in training mode because its outputs may differ there; its running statistics and
        torch's random numbers stay as they are.

        Raises:
            UserInputError: a normalization of the network needs more values than a micro-batch has.
        """
        torch = require("torch", extra="train")
        device, network = self._stepper.device, self._stepper.network
        buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
        value: Any = (torch.zeros_like(image_BCIJK),)
        boundaries = [value]
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []), self._autocast():
            try:
                for modules in self._stages:
                    value = composed(modules, value)
                    boundaries.append(tuple(value) if isinstance(value, (tuple, list)) else (value,))
            except ValueError as error:  # a normalization over one value
                raise _too_small(image_BCIJK, error) from error
            for buffer, before in buffers:
                buffer.copy_(before)
        return [tuple(_without_values(tensor) for tensor in tensors) for tensors in boundaries]


def num_micro_batches(patches: int, most: int) -> int:
    """Return the largest number up to `most` that divides the patches: all micro-batches of a step have the same shape."""
    return max(number for number in range(1, min(patches, most) + 1) if patches % number == 0)


def _too_small(image_BCIJK: Any, error: ValueError) -> UserInputError:
    patches, _, *sides = image_BCIJK.shape
    return UserInputError(
        "a micro-batch is too small for the network.",
        seen=f"{patches} patch{'' if patches == 1 else 'es'} of {' x '.join(map(str, sides))} voxels: {error}",
        expected="more than one value of each channel in each batch normalization",
        do="reduce --micro-batches, or increase --patch-shape or --batch-size",
    )


def _without_values(tensor: Any) -> Any:
    """Return a tensor without memory, of the same shape and type, laid out as it is sent."""
    torch = require("torch", extra="train")
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").requires_grad_(tensor.is_floating_point())


def _stage_module(modules: Sequence[Any], autocast: Any, *, is_last: bool, keeps_weights: bool) -> Any:
    """Return the module of a stage; it is defined here because importing this module must not import torch.

    Args:
        keeps_weights: each forward pass computes with a copy of the weights, which `take_oldest` returns.
    """
    torch = require("torch", extra="train")
    module: Any = torch.nn.Module

    class Chain(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.partitions = torch.nn.ModuleList(modules)

        def forward(self, *tensors: Any) -> Any:
            return composed(self.partitions, tensors)

    class Stage(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.chain = Chain()
            self.copies: list[dict[str, Any]] = []

        def forward(self, *tensors: Any) -> Any:
            with autocast():
                value = self.compute(tensors)
            if is_last:
                return value
            # Tensors are sent in torch's default layout; on a GPU, convolutions have another one.
            return tuple(part.contiguous() for part in (value if isinstance(value, tuple) else (value,)))

        def compute(self, tensors: Tensors) -> Any:
            if not keeps_weights:
                return self.chain(*tensors)
            weights = self.chain.named_parameters()
            self.copies.append(
                {name: weight.detach().clone().requires_grad_(weight.requires_grad) for name, weight in weights}
            )
            return torch.func.functional_call(self.chain, self.copies[-1], tensors)

        def take_oldest(self) -> list[tuple[Any, Any]]:
            """Return pairs of each weight and the copy of the oldest forward pass, which is dropped."""
            copies = self.copies.pop(0)
            return [(weight, copies[name]) for name, weight in self.chain.named_parameters()]

    return Stage()
