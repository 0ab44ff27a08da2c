"""R peaks of an ECG, and samples of five consecutive heartbeats.

Source of the windows: García Henao et al. 2020, ICITCS, "DiagnoseNET": 260 samples centered on each R peak, five beats in a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_steps.io.signals.record import RATE_HZ, Signal
from medweave_steps.runtime.imports import require

WINDOW = 260
"""Samples around an R peak: 0.87 s at 300 Hz."""
BEATS = 5
SAMPLE = BEATS * WINDOW
_SEARCH_S, _SMOOTH_S = 0.1, 0.5
"""Distance within which a detected beat is moved to its R peak, and length of the moving average that is subtracted before."""


def find_r_peaks(signal_mV: Signal) -> npt.NDArray[np.int64]:
    """Return the samples of the R peaks, ascending, int64 [beats].

    wfdb's XQRS detects the beats; `correct_peaks` moves each to the largest deflection nearby, upwards or downwards in the whole
    recording.

    Args:
        signal_mV: one lead, 300 Hz.
    """
    processing = require("wfdb.processing", extra="signals")
    if len(signal_mV) < WINDOW or not np.ptp(signal_mV):
        return np.zeros(0, np.int64)
    detector = processing.XQRS(sig=signal_mV, fs=RATE_HZ)
    detector.detect(verbose=False)
    beats = np.asarray(detector.qrs_inds, np.int64)
    if not len(beats):
        return beats
    radius, smooth = round(_SEARCH_S * RATE_HZ), round(_SMOOTH_S * RATE_HZ)
    return np.unique(np.asarray(processing.correct_peaks(signal_mV, beats, radius, smooth), np.int64))


def group_beats(r_peaks: Sequence[int], num_samples: int) -> list[tuple[int, ...]]:
    """Return groups of five consecutive R peaks that do not overlap; beats without a whole window and the last few are left out.

    Args:
        num_samples: length of the recording.
    """
    half = WINDOW // 2
    whole = [int(peak) for peak in r_peaks if half <= peak <= num_samples - half]
    return [tuple(whole[start : start + BEATS]) for start in range(0, len(whole) - BEATS + 1, BEATS)]


def cut_beats(signal_mV: Signal, beats: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the windows around R peaks one after the other, float32 [260 beats], mV."""
    half = WINDOW // 2
    return np.concatenate([signal_mV[peak - half : peak + half] for peak in beats]).astype(np.float32)


def sample_digest(sample: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 of a sample's values."""
    return hashlib.sha256(np.ascontiguousarray(sample, "<f4").tobytes()).hexdigest()
