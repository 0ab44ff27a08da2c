"""The table of ranks, time and speed-up: what this run measured, what a model says beyond it, and what DistMIS printed.

Source: Berral et al. 2022 (DistMIS), table I: a grid of 32 trials, mean of three runs, hours:minutes:seconds there, seconds here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_steps.contracts.progress import duration
from medweave_steps.contracts.report import RunReport
from medweave_steps.report.words import plural

NUM_TRIALS = 32
DATA_PARALLEL_S = {1: 159_482, 2: 83_368, 4: 54_575, 8: 27_672, 12: 21_599, 16: 16_010, 32: 12_104}
EXPERIMENT_PARALLEL_S = {1: 159_619, 2: 80_679, 4: 41_540, 8: 25_397, 12: 20_122, 16: 15_114, 32: 10_506}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds, and the speed-up against one rank; efficiency is speed-up per rank."""

    seconds: float
    speed_up: float
    ranks: int

    @property
    def efficiency(self) -> float:
        """1 where twice the ranks take half the time."""
        return self.speed_up / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of ranks, or of trials at the same time.

    Attributes:
        measured: one training of this run; None where none had so many ranks.
        data_parallel, experiment_parallel: modelled, the grid of 32.
        paper_data_parallel, paper_experiment_parallel: printed; None where the paper has no such row.
    """

    ranks: int
    measured: Speed | None
    data_parallel: Speed | None
    experiment_parallel: Speed | None
    paper_data_parallel: Speed | None
    paper_experiment_parallel: Speed | None


def measured_trainings(reports: Sequence[RunReport]) -> dict[int, Mapping[str, Any]]:
    """What run reports of `train` say of their training, by ranks; of equal numbers the last."""
    trainings = [
        report.results["training"] for report in reports if report.verb == "train" and "training" in report.results
    ]
    return {int(known.get("world_size", 1)): known for known in trainings if "step_seconds" in known}


def rows(seconds: Mapping[int, float]) -> list[Row]:
    """The table.

    Args:
        seconds: measured, by ranks.
    Returns:
        nothing where one number of ranks was measured at most: there is nothing to compare.
    """
    if len(seconds) < 2:
        return []
    modelled = modelled_training(seconds)
    return [_row(ranks, seconds, modelled) for ranks in sorted({*seconds, *DATA_PARALLEL_S})]


def modelled_training(seconds: Mapping[int, float]) -> Mapping[int, float]:
    """Seconds of one training by any number of ranks: its work shared, and a ring's exchange of gradients on top.

    T(n) = T(1) / n + s 2 (n - 1) / n; s is the least squares fit to what was measured, 0 at least. Empty without a measured T(1).
    What it does not know: a second node's network, and files that all ranks read.
    """
    if 1 not in seconds:
        return {}
    shares = {ranks: 2 * (ranks - 1) / ranks for ranks in seconds if ranks > 1}
    fitted = sum(share * (seconds[ranks] - seconds[1] / ranks) for ranks, share in shares.items())
    exchange = max(fitted / sum(share**2 for share in shares.values()), 0.0)
    return {n: seconds[1] / n + exchange * 2 * (n - 1) / n for n in {*seconds, *DATA_PARALLEL_S}}


def _row(ranks: int, seconds: Mapping[int, float], modelled: Mapping[int, float]) -> Row:
    one = seconds.get(1)
    waves = math.ceil(NUM_TRIALS / ranks)
    return Row(
        ranks=ranks,
        measured=_speed(seconds, ranks, one),
        data_parallel=_speed({n: NUM_TRIALS * each for n, each in modelled.items()}, ranks, NUM_TRIALS * (one or 0)),
        experiment_parallel=_speed({ranks: waves * one} if one else {}, ranks, NUM_TRIALS * (one or 0)),
        paper_data_parallel=_speed(DATA_PARALLEL_S, ranks, DATA_PARALLEL_S[1]),
        paper_experiment_parallel=_speed(EXPERIMENT_PARALLEL_S, ranks, EXPERIMENT_PARALLEL_S[1]),
    )


def _speed(seconds: Mapping[int, float], ranks: int, one: float | None) -> Speed | None:
    if ranks not in seconds:
        return None
    speed_up = one / seconds[ranks] if one else math.nan
    return Speed(seconds=seconds[ranks], speed_up=speed_up, ranks=ranks)


def cells(row: Row) -> list[str]:
    """The row's texts: ranks, then for each pair of columns the time and the speed-up with its efficiency."""
    texts = [str(row.ranks)]
    for speed in (
        row.measured, row.data_parallel, row.experiment_parallel, row.paper_data_parallel, row.paper_experiment_parallel,
    ):  # fmt: skip
        texts += ["–", "–"] if speed is None else [duration(speed.seconds), _shown(speed)]
    return texts


def _shown(speed: Speed) -> str:
    return "–" if math.isnan(speed.speed_up) else f"{speed.speed_up:.2f} ({speed.efficiency:.2f})"


def where(trainings: Mapping[int, Mapping[str, Any]]) -> str:
    """On what the measured times are of, in words."""
    told = []
    for ranks, known in sorted(trainings.items()):
        steps = plural(int(known.get("steps_done", 0)), "step")
        told.append(f"{plural(ranks, 'rank')}: {steps} of {known.get('batch_size')} volumes or patches")
    cpus = sorted({str(known.get("host_cpu", "an unknown processor")) for known in trainings.values()})
    return f"{'; '.join(told)}. On {', '.join(cpus)}."
