"""The sanity check of maps: with random weights, the same network must give another map.

A map that stays the same shows edges of the image, and nothing that the network has learned.
Source: Adebayo et al. 2018, NeurIPS, "Sanity checks for saliency maps", model parameter randomization test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.explanations import SanityCheck
from medweave_steps.explain.network import EXTRA
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]

THRESHOLD = 0.5
"""The check passes if the median absolute rank correlation of the cases is below."""
_DECIMALS = 4


def rank_correlation(one: FloatArray, other: FloatArray) -> float | None:
    """Return Spearman's rank correlation of two maps, from -1 to 1; None if one of them is constant.

    Args:
        one, other: float32 of one shape.
    """
    stats = require("scipy.stats", extra=EXTRA)
    if one.min() == one.max() or other.min() == other.max():
        return None
    return round(float(stats.spearmanr(one, other, axis=None).statistic), _DECIMALS)


def judge(correlations: Sequence[float | None], *, seed: int) -> SanityCheck:
    """Return the verdict over the checked cases.

    Args:
        correlations: of each checked case, as `rank_correlation` returns it.
        seed: of the random weights.
    """
    compared = [abs(value) for value in correlations if value is not None]
    median = round(float(np.median(compared)), _DECIMALS) if compared else None
    return SanityCheck(
        seed=seed,
        num_cases=len(correlations),
        num_compared=len(compared),
        median_absolute_correlation=median,
        threshold=THRESHOLD,
        passed=None if median is None else median < THRESHOLD,
    )
