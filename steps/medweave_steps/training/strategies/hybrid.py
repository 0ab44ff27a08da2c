"""Pipeline stages times data-parallel replicas: each rank trains one stage of the network; copies of a stage average gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medweave_core.contracts.placement import Placement
from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option, option
from medweave_steps.training.device import move_to_device
from medweave_steps.training.distributed.average import mean_state, packed, unpacked
from medweave_steps.training.distributed.subgroups import average_in_place, open_subgroup
from medweave_steps.training.loop.pipeline import Pipeline
from medweave_steps.training.placement.cut import cut, cut_example
from medweave_steps.training.placement.loads import Modules, measure_loads
from medweave_steps.training.placement.problem import groups_of
from medweave_steps.training.placement.stages import place_stages
from medweave_steps.training.strategies import StrategyOptions, SyncResult, TrainingFacts, joined
from medweave_steps.training.strategies.ddp import DdpStrategy

if TYPE_CHECKING:
    from medweave_steps.training.data.batch import Batch
    from medweave_steps.training.loop.stepper import Stepper

_ONLY = "with --strategy hybrid only"
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridOptions(StrategyOptions):
    """Options of `--strategy hybrid`."""

    stages: int | None = option(
        "pipeline stages of hybrid: the network is cut into as many consecutive parts of similar load, one for each rank of a "
        "replica; --ranks must be a multiple (default: the fewest that fit into the memory of the devices)",
        default=None,
        expected=f"a divisor of --ranks, {_ONLY}",
    )
    micro_batches: int | None = option(
        "largest number of micro-batches of hybrid, into which the patches of a replica are cut, all of one size; more of them "
        "keep the stages busier (default: twice the stages)",
        default=None,
        expected=f"at least 1, {_ONLY}",
    )
    pipelined: bool = option(
        "delayed training with hybrid: a stage updates its weights after each micro-batch, while others pass through the stages; a "
        "step then has as many updates as micro-batches, and the stages before the last one compute with older weights",
        default=False,
        expected=f"no value; {_ONLY}",
    )
    stage_memory_mib: float | None = option(
        "memory of the device of each stage of hybrid, MiB (default: that of the smallest GPU; no limit on CPUs)",
        default=None,
        expected=f"more than 0, {_ONLY}",
    )

    def replicas(self, ranks: int) -> int:
        """Return the number of replicas, the fewest possible where the number of stages is chosen later."""
        return max(1, ranks // self.stages) if self.stages else 1

    def check(self, training: TrainingFacts) -> None:
        """Check the options before any case is opened.

        Raises:
            UsageError: a number is too small, the stages do not divide the ranks, or gradients are accumulated in another way.
        """
        stages, ranks = self.stages, training.ranks
        fits = stages is None or (stages >= 1 and ranks % stages == 0)
        check_option(fits, "stages", stages, f"a divisor of --ranks, {ranks}: ranks are stages times replicas")
        check_option(
            self.micro_batches is None or self.micro_batches >= 1, "micro_batches", self.micro_batches, "at least 1"
        )
        memory = self.stage_memory_mib
        check_option(memory is None or 0 < memory < math.inf, "stage_memory_mib", memory, "more than 0")
        expected = "1 with --strategy hybrid, which accumulates the gradients of --micro-batches"
        check_option(training.accumulate == 1, "accumulate", training.accumulate, expected)
        if self.pipelined:
            self._check_pipelined(training)

    def _check_pipelined(self, training: TrainingFacts) -> None:
        fits = self.stages == training.ranks >= 2
        shown = "no value" if self.stages is None else self.stages
        check_option(fits, "stages", shown, f"--ranks, {training.ranks}, at least 2: --pipelined has one replica")
        expected = "0 with --pipelined: a stage updates its weights before the norm over all stages is known"
        check_option(not training.clips_gradients, "gradient_clip", "more than 0", expected)
        expected = "no value with --pipelined, which keeps the weights of a micro-batch for its backward pass only"
        check_option(not training.recomputes, "recompute", "yes", expected)


class HybridStrategy(DdpStrategy):
    """A strategy of S stages times R replicas: rank r is stage r mod S of replica r // S.

    A replica trains on its share of the patches. The ranks of a replica get the same patches and compute one stage each, in
    micro-batches; the gradient is that of one device. The R copies of a stage average their gradients, in order of rank. With one
    stage this is `ddp`.

    Every rank has the whole network, whose other stages have the weights of the last validation or checkpoint, and no gradients
    and moments. There the weights of all stages are put together, so that any rank can validate or deliver the network, and a
    checkpoint has the form of every other strategy.

    Source: Akintoye et al. 2021, "A Hybrid Parallelization Approach for Distributed and Scalable Deep Learning".
    """

    Options = HybridOptions
    is_alike = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.num_stages = 1
        self._pipeline: Pipeline | None = None
        self._placement: Placement | None = None
        self._free: Placement | None = None

    @property
    def stage(self) -> int:
        """Place of this rank's stage, from 0."""
        return self.group.rank % self.num_stages

    @property
    def replica(self) -> int:
        """Place of this rank's replica, from 0."""
        return self.group.rank // self.num_stages

    @property
    def num_replicas(self) -> int:
        """Number of copies of each stage."""
        return self.group.world_size // self.num_stages

    # -- placement ------------------------------------------------------------------------------------------------

    def wrap(self, network: Any) -> Any:
        """Choose the stages, move the network to the device, with the weights of rank 0, and return it.

        Raises:
            UserInputError: the network cannot be cut, has fewer partitions than stages, or does not fit.
        """
        numbers, memory_mib = self._possible_stages(), self._memory_mib()
        if numbers[0] == 1 and memory_mib is None:
            return self._wrap_as_ddp(network)
        example = cut_example(network, self.training.num_channels, self.training.patch_shape)
        partitions: Modules | None = None if self.group.rank else cut(network, example)
        placements = self.group.gather(
            self._placements(partitions, example, numbers, memory_mib) if partitions else None
        )
        self._placement, self._free = placements[0]
        self.num_stages = len(self._placement.devices)
        if self.num_stages == 1:
            return self._wrap_as_ddp(network)
        partitions = partitions or cut(network, example)
        network.load_state_dict(self.group.gather(network.state_dict() if self.group.rank == 0 else None)[0])
        moved = move_to_device(network, self.device)
        self._open(moved, partitions)
        return moved

    def _wrap_as_ddp(self, network: Any) -> Any:
        """Return the network as `ddp` wraps it; micro-batches are then parts of a rank's patches."""
        self.training = dataclasses.replace(self.training, accumulate=self.options.micro_batches or 1)
        return super().wrap(network)

    def _possible_stages(self) -> list[int]:
        """Return the numbers of stages to try, ascending: each replica needs a patch in each step, and a case in each epoch."""
        training, ranks = self.training, self.group.world_size
        if self.options.stages is not None:
            return [self.options.stages]
        most = min(training.batch_size, training.num_cases if training.epochs else training.batch_size)
        return [stages for stages in range(1, ranks + 1) if ranks % stages == 0 and ranks // stages <= most]

    def _memory_mib(self) -> float | None:
        """Return the memory of each device, that of the smallest one; None for no limit."""
        own: float | None = self.options.stage_memory_mib
        if own is None and self.device.type == "cuda":
            own = require("torch", extra="train").cuda.mem_get_info(self.device)[1] / _MIB
        return min((memory for memory in self.group.gather(own) if memory is not None), default=None)

    def _placements(
        self, partitions: Modules, example: Any, numbers: Sequence[int], memory_mib: float | None
    ) -> tuple[Placement, Placement]:
        """Return the placement in use, and the paper's, which may put any partitions on a device; the same if none is found."""
        modules = [module for _, module in partitions]
        for module in modules:
            module.eval()
        loads = measure_loads(partitions, example)
        for module in modules:
            module.train()

        def placed(numbers: Sequence[int], **mode: Any) -> Placement:
            return place_stages(
                loads, numbers, patches=self._patches_of_replica, memory_mib=memory_mib, unit="GMAC", **mode
            )

        contiguous = placed(numbers)
        try:
            return contiguous, placed([len(contiguous.devices)], mode="free")
        except UserInputError:  # GABRA starts from random placements, of which few fit into little memory
            return contiguous, contiguous

    def _patches_of_replica(self, stages: int) -> int:
        return -(-self.training.batch_size * stages // self.group.world_size)

    def _open(self, network: Any, partitions: Modules) -> None:
        """Divide the ranks into replicas and copies, and note what this rank trains."""
        assert self._placement is not None
        modules = [module for _, module in partitions]
        self._stages = [
            [modules[part] for part in group] for group in groups_of(self._placement.assignment, self.num_stages)
        ]
        check_trained(self._stages)
        ranks = list(range(self.group.world_size))
        replicas = [ranks[first : first + self.num_stages] for first in ranks[:: self.num_stages]]
        self._replica_group = open_subgroup(replicas, rank=self.group.rank)
        self._copies_group = open_subgroup(
            [ranks[stage :: self.num_stages] for stage in range(self.num_stages)], rank=self.group.rank
        )
        own = self._stages[self.stage]
        self._weights = [weight for module in own for weight in module.parameters()]
        self._own = {id(tensor) for module in own for tensor in (*module.parameters(), *module.buffers())}
        trained = [weight for weight in network.parameters() if weight.requires_grad]
        self.gradient_bytes = sum(weight.numel() * weight.element_size() for weight in trained)

    # -- steps ----------------------------------------------------------------------------------------------------

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, flags: Sequence[float]) -> SyncResult | None:
        """Take this stage's part of a step; the loss is that of the last stages."""
        if self.num_stages == 1:
            return super().take_step(stepper, batch, step=step, flags=flags)
        import numpy as np

        from medweave_steps.training.loop.stepper import Blame, not_a_number

        stepper.begin()
        loss = self._opened(stepper).run(batch, self.share(batch))
        statistics = np.where(self._owns_statistics(stepper), stepper.statistics(are_shared=True), 0.0)
        # The mean over all ranks, times the stages, is that over the replicas of what one stage contributes.
        mean = self.group.mean(joined([loss * self.num_stages, *flags], statistics * self.num_stages))
        value = float(mean[0])
        if not math.isfinite(value):
            self.complete_weights(stepper.network)
            none = Blame(losses=(), bad_volumes=frozenset())
            blames = self.group.gather(none if self.stage else stepper.blame_of(batch))
            raise not_a_number(value, step=step, blames=blames, learning_rate=stepper.learning_rate)
        if self.options.pipelined:
            stepper.skip()  # the weights are updated already
        else:
            gradients = [weight.grad for weight in self._weights if weight.grad is not None]
            average_in_place(gradients, self._copies_group, number=self.num_replicas)
            stepper.apply(norm=self._norm(gradients) if self.training.clips_gradients else None)
        stepper.set_statistics(mean[1 + len(flags) :])
        averaged_bytes = self.gradient_bytes + statistics.nbytes
        num_bytes = self.num_replicas * averaged_bytes if self.num_replicas > 1 else 0
        return SyncResult(losses=[value], flags=mean[1 : 1 + len(flags)].tolist(), num_bytes=num_bytes)

    def _opened(self, stepper: Stepper) -> Pipeline:
        if self._pipeline is None:
            micro_batches = self.options.micro_batches or 2 * self.num_stages
            self._pipeline = Pipeline(
                stepper, self._stages, stage=self.stage, group=self._replica_group, micro_batches=micro_batches,
                is_delayed=self.options.pipelined,
            )  # fmt: skip
        return self._pipeline

    def _owns_statistics(self, stepper: Stepper) -> Any:
        """Return for each number of `Stepper.statistics` whether it is of this rank's stage."""
        import numpy as np

        buffers = [buffer for buffer in stepper.network.buffers() if buffer.is_floating_point()]
        return np.repeat(
            [id(buffer) in self._own for buffer in buffers], [buffer.numel() for buffer in buffers]
        ).astype(bool)

    def _norm(self, gradients: Sequence[Any]) -> float:
        """Return the norm of the gradients of all stages."""
        own = float(require("torch", extra="train").nn.utils.get_total_norm(gradients))
        return math.hypot(*self.group.gather(own)[: self.num_stages])

    # -- weights and checkpoints ----------------------------------------------------------------------------------

    def complete_weights(self, network: Any) -> None:
        """Give the network on every rank the weights and running statistics of all stages."""
        if self.num_stages == 1:
            return
        state = network.state_dict(keep_vars=True)
        own = {name: tensor.detach() for name, tensor in state.items() if id(tensor) in self._own}
        parts = self.group.gather(packed(own if self.replica == 0 else {}))
        network.load_state_dict({name: tensor for part in parts for name, tensor in unpacked(part).items()})

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Return the state of the optimizer of all stages, in the form of one process; every rank calls it."""
        own = stepper.state()
        if self.num_stages == 1:
            return own
        parts = self.group.gather(packed(own["optimiser"]["state"] if self.replica == 0 else {}))
        moments = {place: moment for part in parts for place, moment in unpacked(part).items()}
        return {**own, "optimiser": {**own["optimiser"], "state": dict(sorted(moments.items()))}}

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """Restore the state in a checkpoint, written by any strategy; of the moments, those of this stage."""
        state = mean_state(content.get("of_ranks", [content]))
        if self.num_stages > 1:
            weights = list(stepper.network.parameters())
            moments = state["optimiser"]["state"]
            own = {place: moment for place, moment in moments.items() if id(weights[place]) in self._own}
            state = {**state, "optimiser": {**state["optimiser"], "state": own}}
        stepper.restore(state)

    # -- report ---------------------------------------------------------------------------------------------------

    def card_facts(self) -> dict[str, Any]:
        """Return stages and replicas; of several stages, also their partitions and the bytes that they exchange."""
        facts: dict[str, Any] = {"stages": self.num_stages, "replicas": self.num_replicas}
        if self._placement is None or self.num_stages == 1:
            return facts
        sent = self._pipeline.bytes_per_patch if self._pipeline else 0
        return {**facts, "partitions": self._partition_names(self._placement), "activation_bytes_per_patch": sent}

    def notices(self) -> list[str]:
        """Return the layout, and the loads of the stages if the network is cut."""
        layout = f"hybrid: {_counted(self.num_stages, 'stage')} x {_counted(self.num_replicas, 'replica')}"
        if self._placement is None or self._free is None or self.num_stages == 1:
            return [f"{layout}."]
        names = self._partition_names(self._placement)
        stages = (
            f"stage {stage}: {own[0]}{f' to {own[-1]}' if len(own) > 1 else ''} ({load:.4g} GMAC)"
            for stage, (own, load) in enumerate(zip(names, self._placement.device_loads, strict=True))
        )
        free = "; ".join(" + ".join(own) for own in self._partition_names(self._free))
        return [
            f"{layout}; {'; '.join(stages)}; no placement is below {self._placement.bound:.4g} GMAC.",
            f"not run, because its stages are not contiguous: GABRA's free placement, {self._free.makespan:.4g} GMAC ({free}).",
        ][: 1 if self._free.makespan >= self._placement.makespan else 2]

    def _partition_names(self, placement: Placement) -> list[list[str]]:
        groups = groups_of(placement.assignment, len(placement.devices))
        return [[placement.partitions[part].name for part in group] for group in groups]


STRATEGY = HybridStrategy


def check_trained(stages: Sequence[Sequence[Any]]) -> None:
    """Check that each stage has a parameter to train: no gradient passes backward through the others.

    Args:
        stages: modules of each stage.
    Raises:
        UserInputError: names the stage.
    """
    for stage, modules in enumerate(stages):
        if not any(weight.requires_grad for module in modules for weight in module.parameters()):
            raise UserInputError(
                f"stage {stage} has no parameter to train.",
                seen="all of its parameters are frozen (--freeze)",
                expected="at least one trained parameter in each stage",
                do="reduce --stages, or freeze fewer parameters",
            )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
