"""The scaling of image values to the input of a network: one rule for training and inference, which must agree to the bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Range = tuple[float, float]


def scaled(volume: npt.NDArray[np.floating], window_hu: Range | None, scaled_range: Range = (0.0, 1.0)) -> FloatArray:
    """Return the network's input, float32: HU clipped to the window and scaled; without a window (MR, PET), the values as they are.

    Args:
        scaled_range: the values at both ends of the window.
    """
    if window_hu is None:
        return np.asarray(volume, dtype=np.float32)
    low, high = window_hu
    to_low, to_high = scaled_range
    out: FloatArray = np.clip(np.asarray(volume, dtype=np.float32), np.float32(low), np.float32(high))
    out -= np.float32(low)
    out *= np.float32((to_high - to_low) / (high - low))
    if to_low:
        out += np.float32(to_low)
    return out


def air_of(window_hu: Range | None, scaled_range: Range) -> float:
    """Return the input beyond a volume: air, the low end of the scaled range; without a window 0, the mean of MR."""
    return scaled_range[0] if window_hu else 0.0
