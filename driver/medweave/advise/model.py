"""How long a work takes on n GPUs, from a few measurements: an expectation, and bounds that do not rest on it. Pure.

Expectation: what is known to divide is divided, the rest stays. Where only whole times are known, T(n) = a · share(n) + b by least
squares of relative errors (Amdahl 1967, AFIPS, "Validity of the single processor approach"). share(n) is 1/n where every
training is spread over all GPUs; where each trial has a GPU of its own, it is the part of the work that the busiest GPU has.

Bounds: more GPUs never bring more than their number, and never cost time. So the work takes at least what it would if nothing more
were lost from the best row on, and at most what the last measured number of GPUs took: something that all share, and no row shows,
may be used up there. Where rows tell the parts of a step, only the reading of data is held back so; computing is divided.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

METHOD = (
    "Estimates: what divides is divided by the GPUs, what does not is kept; of whole times, a / n + b through the calibrated rows "
    "(for search the busiest GPU's part of the trials in place of 1 / n). Intervals: never quicker than with no more lost from "
    "the best calibrated row on, never slower than the last calibrated row on as many or fewer GPUs, since something that all GPUs "
    "share may be used up there. Where rows tell the parts of a step, that holds for waiting for data alone; waiting for others "
    "grows at most with each further GPU. No other row and no constant enters them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measurement as time of the whole work.

    Attributes:
        gpus: GPUs.
        divided_s: computing, or all of it where the parts are not known, s.
        communication_s: waiting for other ranks, s.
        data_s: waiting for data, s.
    """

    gpus: int
    divided_s: float
    communication_s: float = 0.0
    data_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Time by the clock, s."""
        return self.divided_s + self.communication_s + self.data_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Time of the whole work, s: expected, least, most."""

    elapsed_s: float
    low_s: float
    high_s: float
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What the rows of one strategy say about other numbers of GPUs.

    Attributes:
        rows: at least one.
        share: part of the work that the busiest of n GPUs has, as expected; 1 for one GPU.
        least_share: the same at the best; trials of unequal length may leave less idle than equal ones.
        has_parts: the rows tell the parts of a step.
        fewer_steps: a training on n GPUs has 1/n of the steps, for each GPU keeps its number of samples.
    """

    rows: Sequence[Timed]
    share: Callable[[int], float]
    least_share: Callable[[int], float]
    has_parts: bool
    fewer_steps: bool = False

    def at(self, gpus: int) -> Estimate:
        """The estimate for a number of GPUs; where rows have it, their mean and their range."""
        times = [row.elapsed_s for row in self.rows if row.gpus == gpus]
        if times:
            return Estimate(
                elapsed_s=sum(times) / len(times), low_s=min(times), high_s=max(times), is_measured=True
            )  # fmt: skip
        return self._by_parts(gpus) if self.has_parts else self._by_whole(gpus)

    def _by_whole(self, gpus: int) -> Estimate:
        divided, kept = fitted([(self.share(row.gpus), row.elapsed_s) for row in self.rows])
        expected = divided * self.share(gpus) + kept
        low, high = self._bounds([(row.gpus, row.elapsed_s) for row in self.rows], gpus)
        return Estimate(elapsed_s=min(max(expected, low), high), low_s=low, high_s=high)

    def _by_parts(self, gpus: int) -> Estimate:
        share = self.share(gpus)
        compute = sum(row.divided_s / self.share(row.gpus) for row in self.rows) / len(self.rows) * share
        last = max((row for row in self.rows if row.gpus <= gpus), key=lambda row: row.gpus, default=self.rows[0])
        data = last.data_s / self.share(last.gpus) * share
        data_low, data_high = self._bounds([(row.gpus, row.data_s) for row in self.rows], gpus)
        together = [row for row in self.rows if row.gpus > 1]
        waits = (0.0, 0.0, 0.0)
        if together and gpus > 1:
            nearest = max(together, key=lambda row: (row.gpus <= gpus, row.gpus if row.gpus <= gpus else -row.gpus))
            number = nearest.gpus / gpus if self.fewer_steps else 1.0  # of meetings, by that of the row
            ring = (1 - 1 / gpus) / (1 - 1 / nearest.gpus)
            each = nearest.communication_s * number
            line = (gpus - 1) / (nearest.gpus - 1)
            waits = (each * ring, each * min(1.0, line), each * max(ring, line))
        return Estimate(
            elapsed_s=compute + waits[0] + min(max(data, data_low), data_high),
            low_s=compute * self.least_share(gpus) / share + waits[1] + data_low,
            high_s=compute + waits[2] + data_high,
        )

    def _bounds(self, times: Sequence[tuple[int, float]], gpus: int) -> tuple[float, float]:
        """Least and most time, by the rows on fewer and on more GPUs."""
        least = self.least_share
        linear = min(seconds / least(number) for number, seconds in times) * least(gpus)
        fewer = [number for number, _ in times if number <= gpus]
        beyond = [seconds for number, seconds in times if number >= gpus]
        if not fewer:  # fewer GPUs lose less, so they take at most what losing nothing would make of it
            return min(max(beyond), linear), max(max(beyond), linear)
        high = max(seconds for number, seconds in times if number == max(fewer))
        low = max([linear, *([max(beyond)] if beyond else [])])
        return min(low, high), high


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """a and b of seconds = a · share + b, both 0 or more, with the least squares of relative errors.

    Args:
        points: share and seconds of each row.
    """
    weights = [1 / seconds for _, seconds in points]
    saa = sum((w * share) ** 2 for w, (share, _) in zip(weights, points, strict=True))
    sab = sum(w * w * share for w, (share, _) in zip(weights, points, strict=True))
    sbb = sum(w * w for w in weights)
    sa = sum(w * share for w, (share, _) in zip(weights, points, strict=True))
    sb = sum(weights)
    determinant = saa * sbb - sab * sab
    if determinant > 1e-12 * saa * sbb:
        a, b = (sa * sbb - sb * sab) / determinant, (saa * sb - sab * sa) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if a < 0:
            return 0.0, sb / sbb
    return sa / saa, 0.0


def divided(gpus: int) -> float:
    """Each training is spread over all GPUs."""
    return 1 / gpus


def at_best(num_trials: int, trial_s: Sequence[float]) -> Callable[[int], float]:
    """The least part that the busiest GPU can have: that of the known durations, else an equal one, and no less than a trial."""
    return side_by_side(num_trials, trial_s) if trial_s else lambda gpus: 1 / min(gpus, num_trials)


def side_by_side(num_trials: int, trial_s: Sequence[float]) -> Callable[[int], float]:
    """The busiest GPU's part where each free GPU takes the next trial: by their durations, or for trials of equal length.

    Args:
        trial_s: durations in their order, or nothing.
    """
    durations = list(trial_s) or [1.0] * num_trials
    return lambda gpus: makespan(durations, gpus) / math.fsum(durations)


def makespan(durations: Sequence[float], slots: int) -> float:
    """When the last of some trials ends, if each slot that is free takes the next one; in the unit of the durations."""
    free_at = [0.0] * min(slots, len(durations))
    for seconds in durations:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)
