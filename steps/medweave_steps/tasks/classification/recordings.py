"""The class of a whole ECG recording from the probabilities of its samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Probabilities = Mapping[str, float]


def mean_probabilities(samples: Sequence[Probabilities], names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the mean of the calibrated probabilities of a recording's samples; it has the class with the largest mean.

    Args:
        samples: probabilities by class, one or more.
        names: of the classes; of equal means the first has the recording.
    Returns:
        float64 [classes].
    """
    means: npt.NDArray[np.float64] = np.mean([[one[name] for name in names] for one in samples], axis=0)
    return means
