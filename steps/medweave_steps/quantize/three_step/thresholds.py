"""Step 2: the clipping threshold of each quantized activation, from its values on the calibration windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

ThresholdRule = Literal["max", "percentile", "minimum-mse", "kl"]
FloatArray = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating]

NUM_BINS = 2048
PERCENTILE = 99.99
# Thresholds that are tried: every 16th bin, from the first one with a bin for each level.
_STRIDE = 16


@dataclass(slots=True, kw_only=True)
class Activation:
    """The values of one activation on all windows.

    Attributes:
        lowest: smallest value.
        largest: largest absolute value; the histogram ends there.
        counts: int64 [NUM_BINS], how many absolute values above 0 lie in each bin.
        zeros: how many values are 0: they have no error in any quantization.
    """

    lowest: float = 0.0
    largest: float = 0.0
    counts: npt.NDArray[np.int64]
    zeros: int = 0

    def extend_range(self, values: Values) -> None:
        """Take the range of one window into account."""
        self.lowest = min(self.lowest, float(values.min()))
        self.largest = max(self.largest, float(values.max()), -float(values.min()))

    def count(self, values: Values) -> None:
        """Add the values of one window to the histogram; the range must be complete."""
        sizes = np.abs(values[values != 0]).ravel()
        self.zeros += values.size - sizes.size
        if sizes.size:
            bins = np.minimum((sizes * np.float32(NUM_BINS / self.largest)).astype(np.int32), NUM_BINS - 1)
            self.counts += np.bincount(bins, minlength=NUM_BINS)


def observe(
    names: Sequence[str],
    windows: Sequence[Values],
    compute: Callable[[Values], Iterable[Values]],
    *,
    rule: ThresholdRule,
    on_window: Callable[[], None] = lambda: None,
) -> dict[str, Activation]:
    """Compute all windows, once for the ranges and, unless the rule is `max`, again for the histograms.

    Args:
        names: of the activations.
        windows: inputs of the network.
        compute: returns the activations of a window, in the order of `names`.
        on_window: called after each window of the first pass.
    Returns:
        the observed values by name.
    """
    seen = {name: Activation(counts=np.zeros(NUM_BINS, dtype=np.int64)) for name in names}
    for window in windows:
        for name, values in zip(names, compute(window), strict=True):
            seen[name].extend_range(values)
        on_window()
    if rule != "max":
        for window in windows:
            for name, values in zip(names, compute(window), strict=True):
                seen[name].count(values)
    return seen


def choose_threshold(activation: Activation, *, rule: ThresholdRule, levels: int) -> float:
    """Return the absolute value at which an activation is clipped.

    Args:
        rule: `max`: the largest value. `percentile`: 99.99 % of the values are smaller. `minimum-mse`: the smallest mean squared
            error of the quantized values. `kl`: the smallest Kullback-Leibler divergence of their distribution.
        levels: steps between 0 and the threshold: 127 for signed, 255 for unsigned values.
    Returns:
        the threshold, > 0; 1 for an activation that is always 0.
    Source: The DeepHealth HPC Infrastructure, book chapter 10, step 2 of quantization; for `kl`, Migacz 2017, "8-bit inference with
        TensorRT".
    """
    if activation.largest == 0:
        return 1.0
    if rule == "max":
        return activation.largest
    width = activation.largest / NUM_BINS
    if rule == "percentile":
        reached = activation.zeros + np.cumsum(activation.counts)
        return float(np.searchsorted(reached, PERCENTILE / 100 * reached[-1]) + 1) * width
    error = _squared_error if rule == "minimum-mse" else _divergence
    # From the largest down: of equally good thresholds, the one that clips least.
    candidates = range(NUM_BINS, levels, -_STRIDE)
    errors = [error(activation.counts, bins, levels) for bins in candidates]
    return candidates[int(np.argmin(errors))] * width


def _squared_error(counts: npt.NDArray[np.int64], bins: int, levels: int) -> float:
    centers = np.arange(NUM_BINS) + 0.5
    step = bins / levels
    quantized = np.minimum(np.rint(centers / step), levels) * step
    return float(counts @ (centers - quantized) ** 2)


def _divergence(counts: npt.NDArray[np.int64], bins: int, levels: int) -> float:
    """Return KL(p || q): p is clipped to the bins, q has one value per level, spread over its bins that are not empty."""
    inside = counts[:bins].astype(np.float64)
    clipped = inside.copy()
    clipped[-1] += counts[bins:].sum()
    level_of = np.arange(bins) * levels // bins
    filled = inside > 0
    sums = np.bincount(level_of, weights=inside, minlength=levels)
    shares = np.bincount(level_of, weights=filled, minlength=levels)
    spread = np.where(filled, sums[level_of] / np.maximum(shares[level_of], 1), 0.0)
    if not spread.any():
        return np.inf
    p, q = clipped / clipped.sum(), spread / spread.sum()
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / np.maximum(q[used], 1e-9))))
