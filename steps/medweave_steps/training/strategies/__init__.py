"""Strategies: how one training is spread over processes. The model and the data do not know which one is used.

A strategy is a class derived from `Strategy`. Each module or package in here has one, `STRATEGY`, under its name with dashes
(`local_sgd` is `local-sgd`). Other packages register theirs as entry points of the group `medweave.strategies`:

    [project.entry-points."medweave.strategies"]
    my-strategy = "my_package.strategy:MyStrategy"

`medweave-step train --strategy my-strategy` then uses it, with the options of its `Options` class. A class is imported only when
its strategy is selected.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medweave_core.contracts.volume import Triple
from medweave_core.documents.closest_match import closest
from medweave_core.errors import StepError, UsageError
from medweave_steps.runtime import plugins
from medweave_steps.runtime.options import Variants
from medweave_steps.training.device import move_to_device
from medweave_steps.training.distributed.average import mean_state
from medweave_steps.training.distributed.group import Group

if TYPE_CHECKING:
    from medweave_steps.training.data.batch import Batch
    from medweave_steps.training.loop.stepper import Stepper

GROUP: plugins.Group = "medweave.strategies"
STRATEGIES = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """The facts of a training that a strategy needs.

    Attributes:
        steps: optimizer steps.
        epoch_steps: steps of an epoch.
        epochs: passes over whole cases; None where patches are drawn at random.
        ranks: processes.
        batch_size: patches of a step, over all ranks together.
        patch_shape: voxels of a patch along I, J, K.
        accumulate: parts that a rank cuts its patches of a step into.
        recomputes: activations are computed again in the backward pass.
        clips_gradients: the norm of the gradient is limited.
        num_cases: training cases; 0 before they are opened.
        num_channels: of a case; 0 before the cases are opened.
        num_validation_cases: 0 before they are opened.
    """

    steps: int
    epoch_steps: int
    epochs: int | None
    ranks: int
    batch_size: int
    patch_shape: Triple
    accumulate: int
    recomputes: bool = False
    clips_gradients: bool = False
    num_cases: int = 0
    num_channels: int = 0
    num_validation_cases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """The options of a strategy; a strategy with options has a subclass, with one `option` per field.

    Their names become options of `medweave-step train`, and keys of the run report. In checkpoints and model cards those are named
    that differ from their default. A training may be resumed under other values of them.
    """

    def check(self, training: TrainingFacts) -> None:
        """Check the options before any case is opened.

        Raises:
            UsageError: they do not fit the training.
        """

    def check_cases(self, training: TrainingFacts) -> None:
        """Check the options when the number of cases is known.

        Raises:
            UserInputError: they do not fit the cases.
        """

    def replicas(self, ranks: int) -> int:
        """Return the number of ranks, or groups of ranks, among which the patches of a step are divided."""
        return ranks

    @property
    def cache_mib(self) -> int | None:
        """Memory in MiB for cases that a rank reads again in each epoch, if the strategy decides it."""
        return None

    @property
    def lost_after_s(self) -> float | None:
        """Time without a heartbeat after which the training continues without a rank, s; None if the end of a rank ends all."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of a synchronization point, the same on every rank; after it all ranks have equal weights.

    Attributes:
        losses: mean losses of the ranks, one for each step since the synchronization point before.
        flags: mean over the ranks of the flags that each has passed to `take_step`.
        num_bytes: of gradients, weights and running statistics that the ranks have exchanged, summed over the ranks.
    """

    losses: list[float]
    flags: Sequence[float]
    num_bytes: int


class Strategy:
    """The contract between the training loop and a strategy; this base class has equal gradients on all ranks at every step.

    The loop calls `wrap` once, then `take_step` for every step. A step may end without a synchronization point, but the last step
    of an epoch and the last step of the training must not: the loop validates, writes checkpoints and obeys signals only at
    synchronization points.

    Attributes:
        Options: class of the strategy's own options.
        uses_ranks: it may be spread over several processes.
        is_alike: the optimizer is in the same state on all ranks at a synchronization point.
        options: the options in use, an `Options`.
        training: facts about the training.
        group: the ranks.
        device: torch.device that this process computes on.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    uses_ranks: ClassVar[bool] = True
    is_alike: ClassVar[bool] = True

    def __init__(self, *, options: Any, training: TrainingFacts, group: Group, device: Any) -> None:
        self.options, self.training, self.group, self.device = options, training, group, device
        self.gradient_bytes = 0

    @property
    def replica(self) -> int:
        """Place of this rank among those that share the patches of a step; ranks of one replica have the same patches."""
        return self.group.rank

    @property
    def num_replicas(self) -> int:
        """Number of those that share the patches of a step."""
        return self.group.world_size

    @property
    def rank(self) -> int:
        """Number of this rank when the training began."""
        return self.group.rank

    @property
    def trains(self) -> bool:
        """Whether this rank has patches of its own."""
        return True

    @property
    def serves(self) -> bool:
        """Whether the loop calls `serve` on this rank until `is_over`, instead of taking steps."""
        return False

    @property
    def is_over(self) -> bool:
        """Whether this rank has no step left, for another reason than the number of steps or early stopping."""
        return False

    @property
    def validation_share(self) -> tuple[int, int]:
        """Place of this rank among those that share the validation cases, and their number."""
        return self.group.rank, self.group.world_size

    def wrap(self, network: Any) -> Any:
        """Move the network to the device and return the module called in training, whose backward pass averages gradients."""
        return move_to_device(network, self.device)

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, flags: Sequence[float]) -> SyncResult | None:
        """Take this rank's part of a step.

        Args:
            batch: this rank's patches.
            step: steps done before.
            flags: finite numbers that this rank reports to the others at the next synchronization point.
        Returns:
            None if the step does not end at a synchronization point.
        Raises:
            InternalError: the loss is not a number; names the step and the cases.
        """
        from medweave_steps.training.loop.stepper import not_a_number

        *parts, last = batch.parts(self.training.accumulate)
        before = stepper.begin(parts, [self.share(part) for part in parts])
        loss, world_size = stepper.loss_of(last), self.group.world_size
        statistics = stepper.statistics(are_shared=world_size > 1)
        mean = self.group.mean(joined([before + stepper.backward(loss, self.share(last)), *flags], statistics))
        value = float(mean[0])
        if not math.isfinite(value):
            blames = self.group.gather(stepper.blame_of(batch))
            raise not_a_number(value, step=step, blames=blames, learning_rate=stepper.learning_rate)
        stepper.apply()
        stepper.set_statistics(mean[1 + len(flags) :])
        num_bytes = world_size * (self.gradient_bytes + statistics.nbytes) if world_size > 1 else 0
        return SyncResult(losses=[value], flags=mean[1 : 1 + len(flags)].tolist(), num_bytes=num_bytes)

    def share(self, batch: Batch) -> float:
        """Return the weight of a batch by its number of patches: the mean over the replicas is then that of the global batch."""
        return batch.num_counted * self.num_replicas / batch.num_together

    def serve(self, stepper: Stepper, *, timeout_s: float) -> tuple[list[float], int]:
        """Serve other ranks for a while; return the losses of an epoch if one is complete, and the bytes that were exchanged."""
        raise NotImplementedError

    def reported_figures(self) -> dict[str, float | None] | None:
        """Return new figures of validations on the ranks that this one serves; None if there are none."""
        return None

    def report(
        self, *, loss: float, figures: Mapping[str, float | None] | None, is_last: bool,
        content: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        """Take note of the end of an epoch.

        Args:
            loss: mean of the epoch.
            figures: of its validation, if there was one.
            is_last: this rank takes no further step.
            content: returns the content of a checkpoint of this rank alone.
        """

    def finish(self, best_weights: dict[str, Any], folder: Path | None) -> dict[str, Any] | None:
        """Meet the other ranks after the last step; return the best weights if this rank did not know them.

        Args:
            best_weights: of this rank's validations.
            folder: the training log, on the first rank.
        """
        return None

    def count_worse(self, counter: int, *, score: float, best_score: float, losses: Sequence[float]) -> int:
        """Return the number of validations that count against `--patience`, after another one.

        Args:
            counter: before.
            score, best_score: of this validation and of the best one before.
            losses: training loss of every epoch so far.
        """
        return 0 if score >= best_score else counter + 1

    def complete_weights(self, network: Any) -> None:
        """Give the network on every rank its newest weights and statistics, at a synchronization point; every rank calls it."""

    def notices(self) -> Sequence[str]:
        """Return notices for the user about how the training is spread, after `wrap`."""
        return ()

    def closing_notices(self) -> Sequence[str]:
        """Return notices for the user about what happened to the ranks, after the training."""
        return ()

    def card_facts(self) -> dict[str, Any]:
        """Return facts about the strategy for `training` in the model card, as JSON values."""
        return {}

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Return the content of a checkpoint besides the weights; if not `is_alike`, every rank calls it."""
        return stepper.state()

    def own_content(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a checkpoint for this rank, where ranks have contents of their own."""
        return content

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """Restore the state in a checkpoint, written by any strategy on any number of ranks.

        A rank without a state in it gets the mean of the ranks' states.
        """
        states = content.get("of_ranks", [content])
        has_own = not self.is_alike and len(states) == self.group.world_size
        stepper.restore(states[self.group.rank] if has_own else mean_state(states))


def strategy_names() -> tuple[str, ...]:
    """Return the names of all installed strategies, sorted."""
    return tuple(sorted({*STRATEGIES, *plugins.names_of(GROUP)}))


def strategy_class(name: str) -> type[Strategy]:
    """Return the strategy of this name.

    Raises:
        UsageError: it does not exist; the message names the closest match.
        BackendMissingError: another package defines it and cannot be imported.
    """
    if name in STRATEGIES:
        found: type[Strategy] = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").STRATEGY
        return found
    names = strategy_names()
    if name in names:
        found = plugins.load(GROUP, name, expected=f"a class derived from {__name__}.Strategy", is_valid=_is_strategy)
        return found
    raise UsageError(
        f"unknown strategy '{name}'.",
        seen=f"--strategy {name}",
        expected=f"one of {', '.join(names)}",
        do=closest(name, names) or "choose one of the listed strategies",
    )


def _is_strategy(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Strategy) and issubclass(value.Options, StrategyOptions)


def resumable_options(names: Iterable[str]) -> frozenset[str]:
    """Return the options that may change when a training is resumed: strategy, ranks, and the options of these strategies.

    Args:
        names: of strategies; one that is not installed any more is left out.
    """
    options = {"strategy", "ranks"}
    for name in {*STRATEGIES, *names}:
        try:
            options |= set(strategy_class(name).Options.__dataclass_fields__)
        except StepError:
            continue
    return frozenset(options)


OPTIONS = Variants(
    selector="strategy",
    built_in=lambda: {name: strategy_class(name).Options for name in STRATEGIES},
    options_of=lambda name: strategy_class(name).Options,
)


def joined(numbers: Sequence[float], statistics: Any) -> Any:
    """Return numbers and statistics as one float64 array, which `Group.mean` takes."""
    import numpy as np

    return np.concatenate([np.array(numbers, np.float64), statistics])
