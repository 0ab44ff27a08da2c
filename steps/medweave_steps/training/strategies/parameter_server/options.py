"""Options of `--strategy parameter-server`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_steps.runtime.options import check_option, option
from medweave_steps.training.distributed.async_server import read_arrivals
from medweave_steps.training.distributed.transports import TransportName, check_installed
from medweave_steps.training.strategies import StrategyOptions, TrainingFacts

RULES: Mapping[str, tuple[str, ...]] = {
    "sync": ("sync-gradient", "sync-weights"), "async": ("async-weights", "async-gradient"),
}  # fmt: skip
"""Rules of each coordination; the first one is its default."""
_ONLY_ASYNC = "no value with --coordination sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerOptions(StrategyOptions):
    """Options of `--strategy parameter-server`."""

    coordination: Literal["sync", "async"] = option(
        "of parameter-server: sync, every worker waits for the slowest one; async, no worker waits for another, and each one "
        "stops when it has converged",
        default="sync",
    )
    rule: Literal["sync-gradient", "sync-weights", "async-weights", "async-gradient"] | None = option(
        "of parameter-server, what a worker sends: gradients at every step, or weights at the end of every epoch (default: "
        "sync-gradient, or async-weights with --coordination async)",
        default=None,
    )
    quorum: int = option(
        "with --coordination async: number of updates that the server averages before it changes its weights", default=1
    )
    weighting: float = option(
        "with async-weights: weight w of the server's own weights S when the mean m of updates arrives, S = (w S + m) / (w + 1)",
        default=1.0,
    )
    worker_timeout: float = option(
        "with --coordination async: seconds without a heartbeat after which a worker counts as lost; training continues without it",
        default=40.0,
        metavar="S",
    )
    batch_norm_statistics: Literal["averaged", "local"] = option(
        "of parameter-server: averaged, the running means and variances of batch norm are averaged like the weights; local, each "
        "worker keeps its own, and those of the first worker are validated and delivered",
        default="averaged",
    )
    transport: TransportName = option(
        "of parameter-server: how server and workers exchange messages; gloo needs nothing besides torch, grpc encrypts them and "
        "needs the extra grpc, mpi needs the extra mpi and Open MPI 4",
        default="gloo",
    )
    replay_arrivals: Path | None = option(
        "with --coordination async: arrivals.json of the log of an earlier training, whose order of arrivals is repeated; the same "
        "options and data then give the same weights, bit for bit",
        default=None,
    )

    @property
    def aggregation(self) -> str:
        """Name of the aggregation rule."""
        return self.rule or RULES[self.coordination][0]

    @property
    def lost_after_s(self) -> float | None:
        """Time without a heartbeat after which a worker counts as lost, s; None if its loss ends the training."""
        return self.worker_timeout if self.coordination == "async" else None

    def replicas(self, ranks: int) -> int:
        """Return the number of workers: rank 0 is the server."""
        return max(1, ranks - 1)

    def check(self, training: TrainingFacts) -> None:
        """Check the options before any case is opened.

        Raises:
            UsageError: they do not fit each other or the number of ranks.
            UserInputError: the record of arrivals cannot be used.
            BackendMissingError: the transport is not installed.
        """
        workers, is_async = training.ranks - 1, self.coordination == "async"
        check_option(workers >= 1, "ranks", training.ranks, "at least 2: rank 0 is the server, the others are workers")
        rules = RULES[self.coordination]
        fits = self.rule is None or self.rule in rules
        check_option(fits, "rule", self.rule, f"{' or '.join(rules)}, with --coordination {self.coordination}")
        expected = f"1 to {workers}, the number of workers" if is_async else f"1: {_ONLY_ASYNC}"
        check_option(1 <= self.quorum <= (workers if is_async else 1), "quorum", self.quorum, expected)
        uses_weighting = self.aggregation == "async-weights"
        fits = (0 <= self.weighting < math.inf) if uses_weighting else self.weighting == 1
        check_option(fits, "weighting", self.weighting, "0 or more, with the rule async-weights only")
        check_option(5 <= self.worker_timeout < math.inf, "worker_timeout", self.worker_timeout, "at least 5 s")
        check_installed(self.transport)
        if self.replay_arrivals is not None:
            check_option(is_async, "replay_arrivals", self.replay_arrivals.name, _ONLY_ASYNC)
            read_arrivals(self.replay_arrivals, num_workers=workers)
