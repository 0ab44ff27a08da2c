"""Local SGD: every rank takes steps of its own on its share of the patches; the weights are averaged every so many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medweave_steps.train.strategies import Meeting, Strategy
from medweave_steps.training.average import averaged, packed, unpacked

if TYPE_CHECKING:
    from medweave_steps.training.data import Batch
    from medweave_steps.training.stepper import Stepper


class LocalSgdStrategy(Strategy):
    """Weights and running statistics are averaged every `--sync-interval` steps and at the end of every epoch, weighted by samples.

    So an epoch, a validation and a checkpoint are what they are under every strategy. Each rank keeps its own optimiser. The sum is
    taken in the order of the ranks by each of them: the bits of `train-distributed` with the same patches.

    Source: Stich 2019, ICLR, "Local SGD Converges Fast and Communicates Little", algorithm 1.
    """

    is_alike = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._losses: list[float] = []
        self._num_patches = 0

    def wrap(self, network: Any) -> Any:
        """Moves the network to the device, with the weights of rank 0."""
        if self.group.world_size > 1:
            network.load_state_dict(self.group.gather(network.state_dict() if self.group.rank == 0 else None)[0])
        return network.to(self.device)

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, news: Sequence[float]) -> Meeting | None:
        """As every strategy; a loss that is not a number is told by the rank that has it, and ends the others."""
        from medweave_steps.training.stepper import blame_of, not_a_number

        if batch.is_padding:
            stepper.skip()
            self._losses.append(0.0)
            return self._meet(stepper, news) if self._is_due(step + 1) else None
        *parts, last = batch.parts(self.config.accumulate)
        num_patches = len(batch.case_ids)
        before = stepper.accumulate(parts, [len(part.case_ids) / num_patches for part in parts])
        loss = stepper.loss_of(last) * (len(last.case_ids) / num_patches)
        value = before + float(loss.detach())
        if not math.isfinite(value):
            raise not_a_number(value, step=step, blames=[blame_of(batch)], learning_rate=stepper.learning_rate)
        stepper.apply(loss, accumulated=bool(parts))
        self._losses.append(value * self.share(batch))
        self._num_patches += num_patches
        return self._meet(stepper, news) if self._is_due(step + 1) else None

    def _is_due(self, step: int) -> bool:
        config = self.config
        intervals = (config.sync_interval or config.epoch_steps, config.epoch_steps, config.steps)
        return self.group.world_size == 1 or any(step % interval == 0 for interval in intervals)

    def _meet(self, stepper: Stepper, news: Sequence[float]) -> Meeting:
        own = {name: tensor.cpu() for name, tensor in stepper.network.state_dict().items()}
        losses, num_patches, num_bytes = self._losses, self._num_patches, 0
        self._losses, self._num_patches = [], 0
        if self.group.world_size > 1:
            states, numbers, heard = zip(*self.group.gather((own, num_patches, (losses, news))), strict=True)
            stepper.network.load_state_dict(averaged(states, numbers))
            losses, news = (_means([of_rank[place] for of_rank in heard]) for place in (0, 1))
            num_bytes = self.group.world_size * sum(tensor.numel() * tensor.element_size() for tensor in own.values())
        return Meeting(losses=losses, news=news, num_bytes=num_bytes)

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Of every rank, in their order; all must call it."""
        return {"of_ranks": [unpacked(state) for state in self.group.gather(packed(stepper.state()))]}


STRATEGY = LocalSgdStrategy


def _means(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(of_ranks) for values in zip(*of_ranks, strict=True)]
