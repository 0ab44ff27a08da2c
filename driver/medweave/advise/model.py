"""A model of the time of a workload on n GPUs, from a few measurements: an expected time, and bounds that do not depend on it.

Expectation: the divisible part is divided, the rest stays. For whole times, T(n) = a · share(n) + b by least squares of
relative errors (Amdahl 1967, AFIPS, "Validity of the single processor approach"). share(n) is 1/n if every training is
distributed over all GPUs; if each trial has one GPU, it is the busiest GPU's part of the workload.

Bounds: more GPUs never speed up by more than their number, and never slow down. So the workload takes at least the time with no
further loss after the best row, and at most the time of the last measured number of GPUs: a resource that all GPUs share, and
that no row shows, may be exhausted there. If rows have the parts of a step, only reading of data is limited so; computing is
divided.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

METHOD = (
    "Estimate: the parallel part of the time is divided by the number of GPUs; the rest is constant. For total "
    "times, the fit is a / n + b through the calibrated rows (for search, 1 / n is replaced by the share of "
    "trials of the busiest GPU). Interval: the lower bound assumes no further loss after the best calibrated "
    "row. The upper bound is the time of the last calibrated row on as many or fewer GPUs, because a shared "
    "resource may saturate there. For rows with the parts of a step, that upper bound applies only to the data "
    "wait; communication grows at most with each further GPU. No other rows or constants are used."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measurement as time of the whole workload.

    Attributes:
        gpus: number of GPUs.
        divided_s: computing, or the whole time if the parts are unknown, s.
        communication_s: waiting for other ranks, s.
        data_s: waiting for data, s.
    """

    gpus: int
    divided_s: float
    communication_s: float = 0.0
    data_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Return the wall time, s."""
        return self.divided_s + self.communication_s + self.data_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Time of the whole workload, s: expected value and bounds."""

    elapsed_s: float
    low_s: float
    high_s: float
    is_measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The scaling law of one strategy.

    Attributes:
        rows: measurements, at least one.
        share: expected part of the workload of the busiest of n GPUs; 1 for one GPU.
        least_share: lower bound of that part; trials of unequal length may leave less idle time than equal ones.
        has_parts: whether the rows have the parts of a step.
        fewer_steps: a training on n GPUs has 1/n of the steps, since each GPU keeps its number of samples.
    """

    rows: Sequence[Timed]
    share: Callable[[int], float]
    least_share: Callable[[int], float]
    has_parts: bool
    fewer_steps: bool = False

    def at(self, gpus: int) -> Estimate:
        """Return the estimate for a number of GPUs; the mean and range of rows with that number."""
        times = [row.elapsed_s for row in self.rows if row.gpus == gpus]
        if times:
            return Estimate(
                elapsed_s=sum(times) / len(times), low_s=min(times), high_s=max(times), is_measured=True
            )  # fmt: skip
        return self._by_parts(gpus) if self.has_parts else self._by_whole(gpus)

    def _by_whole(self, gpus: int) -> Estimate:
        divided, fixed = fitted([(self.share(row.gpus), row.elapsed_s) for row in self.rows])
        expected = divided * self.share(gpus) + fixed
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
            number = nearest.gpus / gpus if self.fewer_steps else 1.0  # number of synchronizations relative to the row
            ring = (1 - 1 / gpus) / (1 - 1 / nearest.gpus)
            wait = nearest.communication_s * number
            line = (gpus - 1) / (nearest.gpus - 1)
            waits = (wait * ring, wait * min(1.0, line), wait * max(ring, line))
        return Estimate(
            elapsed_s=compute + waits[0] + min(max(data, data_low), data_high),
            low_s=compute * self.least_share(gpus) / share + waits[1] + data_low,
            high_s=compute + waits[2] + data_high,
        )

    def _bounds(self, times: Sequence[tuple[int, float]], gpus: int) -> tuple[float, float]:
        """Return lower and upper bound of a time by the rows on fewer and on more GPUs."""
        least = self.least_share
        linear = min(seconds / least(number) for number, seconds in times) * least(gpus)
        fewer = [number for number, _ in times if number <= gpus]
        beyond = [seconds for number, seconds in times if number >= gpus]
        if not fewer:  # fewer GPUs lose less, so linear scaling is an upper bound
            return min(max(beyond), linear), max(max(beyond), linear)
        high = max(seconds for number, seconds in times if number == max(fewer))
        low = max([linear, *([max(beyond)] if beyond else [])])
        return min(low, high), high


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b of seconds = a · share + b, both 0 or more, by least squares of relative errors.

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
    """Return the share if each training is distributed over all GPUs."""
    return 1 / gpus


def at_best(num_trials: int, trial_s: Sequence[float]) -> Callable[[int], float]:
    """Return the lower bound of the busiest GPU's share: by known durations, else an equal part, at least one trial."""
    return side_by_side(num_trials, trial_s) if trial_s else lambda gpus: 1 / min(gpus, num_trials)


def side_by_side(num_trials: int, trial_s: Sequence[float]) -> Callable[[int], float]:
    """Return the busiest GPU's share if each free GPU starts the next trial, by known durations or for equal trials.

    Args:
        trial_s: durations in their order, or empty.
    """
    durations = list(trial_s) or [1.0] * num_trials
    return lambda gpus: makespan(durations, gpus) / math.fsum(durations)


def makespan(durations: Sequence[float], slots: int) -> float:
    """Return the end of the last trial if each free slot starts the next one, in the unit of the durations."""
    free_at = [0.0] * min(slots, len(durations))
    for seconds in durations:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)
