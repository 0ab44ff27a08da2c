"""Strategies: how one training is spread over processes. The model and the data do not know which one runs it.

Each module of this package is a strategy under its own name (`local_sgd` is `local-sgd`) and holds one class, `STRATEGY`, which is
imported only when asked for: a new strategy is a new file. It wraps the network from outside, takes the steps, and says after each
whether the ranks hold the same weights. The sampler deals every rank its share of one global batch, whatever their number.
"""

from __future__ import annotations

import difflib
import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from medweave_core.errors import UsageError
from medweave_steps.training.distributed.average import mean_state
from medweave_steps.training.distributed.group import Group
from medweave_steps.training.loop.convolutions import on_device

if TYPE_CHECKING:
    from medweave_steps.train.config import TrainConfig
    from medweave_steps.training.data.patches import Batch
    from medweave_steps.training.loop.stepper import Stepper

STRATEGIES = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks know after a step that leaves them with the same weights.

    Attributes:
        losses: of the global batch, one for each step since the meeting before.
        news: mean over the ranks of what each had to tell.
        num_bytes: of the gradients, weights and running statistics that the ranks have given to be averaged, over all ranks.
    """

    losses: list[float]
    news: Sequence[float]
    num_bytes: int


class Strategy:
    """What the training loop asks of a strategy, as one answers it whose ranks have the same gradients at every step.

    Attributes:
        uses_ranks: it may be spread over several processes.
        is_alike: after a meeting the optimiser is in the same state on all ranks.
        group: the ranks.
        device: torch.device that this process computes on.
        config: options of the training.
    """

    uses_ranks: ClassVar[bool] = True
    is_alike: ClassVar[bool] = True

    def __init__(self, *, config: TrainConfig, group: Group, device: Any) -> None:
        self.config, self.group, self.device = config, group, device
        self.gradient_bytes = 0

    def wrap(self, network: Any) -> Any:
        """Puts the network on the device; returns what to call in training, whose backward pass averages gradients."""
        return on_device(network, self.device)

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, news: Sequence[float]) -> Meeting | None:
        """Takes this rank's part of a step.

        Args:
            batch: this rank's patches.
            step: steps done before.
            news: what this rank has to tell the others when they meet; finite numbers.
        Returns:
            None if the ranks hold different weights now.
        Raises:
            InternalError: the loss is not a number; names the step and the cases.
        """
        from medweave_steps.training.loop.stepper import not_a_number

        *parts, last = batch.parts(self.config.accumulate)
        before = stepper.begin(parts, [self.share(part) for part in parts])
        loss, world_size = stepper.loss_of(last), self.group.world_size
        statistics = stepper.statistics(are_shared=world_size > 1)
        mean = self.group.mean(_joined([before + stepper.backward(loss, self.share(last)), *news], statistics))
        value = float(mean[0])
        if not math.isfinite(value):
            blames = self.group.gather(stepper.blame_of(batch))
            raise not_a_number(value, step=step, blames=blames, learning_rate=stepper.learning_rate)
        stepper.apply()
        stepper.set_statistics(mean[1 + len(news) :])
        num_bytes = world_size * (self.gradient_bytes + statistics.nbytes) if world_size > 1 else 0
        return Meeting(losses=[value], news=mean[1 : 1 + len(news)].tolist(), num_bytes=num_bytes)

    def share(self, batch: Batch) -> float:
        """By its number of patches, so that the mean over the ranks is the mean over the global batch."""
        return batch.num_counted * self.group.world_size / batch.num_together

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """What a checkpoint keeps besides the weights. Every rank calls it if the strategy is not alike on all of them."""
        return stepper.state()

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """Takes over what `state` gave, of whatever strategy on however many ranks: a rank without a state of its own the mean."""
        states = content.get("of_ranks", [content])
        has_own = not self.is_alike and len(states) == self.group.world_size
        stepper.restore(states[self.group.rank] if has_own else mean_state(states))


def strategy_class(name: str) -> type[Strategy]:
    """The strategy of this name.

    Raises:
        UsageError: there is none; names the closest one.
    """
    if name not in STRATEGIES:
        close = difflib.get_close_matches(name, STRATEGIES, n=1)
        raise UsageError(
            f"there is no strategy '{name}'.",
            seen=f"--strategy {name}",
            expected=f"one of {', '.join(STRATEGIES)}",
            do=f"write --strategy {close[0]} (closest name)" if close else "choose one of these",
        )
    found: type[Strategy] = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").STRATEGY
    return found


def _joined(numbers: Sequence[float], statistics: Any) -> Any:
    import numpy as np

    return np.concatenate([np.array(numbers, np.float64), statistics])
