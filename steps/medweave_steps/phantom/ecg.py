"""Synthetic single-lead ECG of four rhythms: each beat is a sum of Gaussian waves, as in ECGSYN.

Source: McSharry et al. 2003, IEEE Trans Biomed Eng 50(3):289, "A dynamical model for generating synthetic
electrocardiogram signals".
The waves and rhythms are caricatures; no figure of a patient is reproduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.errors import UsageError

Signal = npt.NDArray[np.float64]
RATE_HZ = 300
RECORDINGS: Mapping[str, int] = {"N": 5050, "A": 738, "O": 2456, "~": 284}
"""Recordings of each rhythm: normal, atrial fibrillation, other and noisy; García Henao et al. 2020, "DiagnoseNET", table 2."""
SECONDS = (9.0, 61.0)
"""Shortest and longest recording of the public data set."""

# Time from the R peak (s), amplitude (mV) and standard deviation (s) of each wave.
_P = (-0.17, 0.14, 0.022)
_QRS = ((-0.028, -0.12, 0.009), (0.0, 1.0, 0.011), (0.03, -0.22, 0.010))
_T = (0.24, 0.28, 0.045)
_ECTOPIC = ((-0.05, -0.3, 0.022), (0.0, 1.4, 0.022), (0.055, -0.4, 0.025), (0.27, -0.4, 0.06))
_CHANGING = ((_P, (0.6, 1.4)), (_T, (0.4, 1.6)))
"""Waves whose amplitude differs between recordings, and the range of its factor."""
_NOISE_MV = {"~": (0.15, 0.35)}
_QUIET_MV = (0.01, 0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class EcgSpec:
    """One recording.

    Attributes:
        rhythm: of `RECORDINGS`.
        seconds: duration.
    """

    rhythm: str
    seed: int
    seconds: float

    def __post_init__(self) -> None:
        if self.rhythm not in RECORDINGS or not SECONDS[0] <= self.seconds <= SECONDS[1]:
            raise UsageError(
                "invalid specification of an ECG.",
                seen=f"rhythm {self.rhythm}, {self.seconds:g} s",
                expected=f"a rhythm of {', '.join(RECORDINGS)}, and {SECONDS[0]:g} to {SECONDS[1]:g} s",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecg:
    """A generated recording.

    Attributes:
        signal_mV: float64 [samples], `RATE_HZ`.
        r_peaks: samples of the R peaks, int64 [beats].
    """

    signal_mV: Signal
    r_peaks: npt.NDArray[np.int64]


def generate_ecg(spec: EcgSpec) -> Ecg:
    """Return the recording of a specification."""
    rng = np.random.default_rng(spec.seed)
    count = round(spec.seconds * RATE_HZ)
    time_s = np.arange(count) / RATE_HZ
    beats_s, is_ectopic = _beats(spec, rng)
    # Amplitudes differ between people and electrodes more than between rhythms.
    gain, stretch = 2 ** rng.uniform(-1, 1), rng.uniform(0.9, 1.1)
    p_wave, t_wave = ((delay, rng.uniform(*factors) * height, width) for (delay, height, width), factors in _CHANGING)
    normal = (*_QRS, t_wave) if spec.rhythm == "A" else (p_wave, *_QRS, t_wave)
    signal = np.zeros(count)
    for beat_s, ectopic in zip(beats_s, is_ectopic, strict=True):
        for delay, amplitude, width in _ECTOPIC if ectopic else normal:
            # Beyond 5 standard deviations a wave is below a microvolt.
            near = slice(*np.searchsorted(time_s, beat_s + stretch * delay + np.array([-5, 5]) * width))
            distance = (time_s[near] - beat_s - stretch * delay) / width
            signal[near] += amplitude * np.exp(-(distance**2) / 2)
    if spec.rhythm == "A":
        signal += _fibrillation(time_s, rng)
    signal = gain * (signal + _disturbance(spec.rhythm, time_s, rng))
    places = np.rint(beats_s * RATE_HZ).astype(np.int64)
    return Ecg(signal_mV=signal, r_peaks=places[(places >= 0) & (places < count)])


def _beats(spec: EcgSpec, rng: np.random.Generator) -> tuple[Signal, npt.NDArray[np.bool_]]:
    """Return the times of the R peaks in seconds, and which beats are ectopic: every third to fifth of another rhythm."""
    mean_s = rng.uniform(0.65, 1.05)
    number = int(spec.seconds / 0.35) + 4
    breathing = 0.03 * np.sin(2 * np.pi * rng.uniform(0.2, 0.3) * mean_s * np.arange(number) + rng.uniform(0, 6))
    intervals = mean_s * (1 + breathing + rng.normal(0, 0.01, number))
    if spec.rhythm == "A":
        intervals = mean_s * np.clip(rng.lognormal(-0.03, 0.24, number), 0.5, 1.8)
    ectopic = np.zeros(number, np.bool_)
    if spec.rhythm == "O":
        every = int(rng.integers(3, 6))
        ectopic[int(rng.integers(every)) :: every] = True
        early = mean_s * rng.uniform(0.3, 0.4)
        intervals[:-1][ectopic[1:]] -= early  # the ectopic beat comes early, and a pause follows it
        intervals[ectopic] += early
    beats_s = rng.uniform(0.1, 0.9) + np.concatenate([[0.0], np.cumsum(np.maximum(intervals, 0.35))[:-1]])
    inside = beats_s < spec.seconds
    return beats_s[inside], ectopic[inside]


def _fibrillation(time_s: Signal, rng: np.random.Generator) -> Signal:
    """Return the fibrillatory waves that replace P waves: 4 to 9 Hz, of changing height."""
    rate, drift = rng.uniform(4.5, 8.5), rng.uniform(0.2, 0.6)
    phase = 2 * np.pi * rate * time_s + 1.5 * np.sin(2 * np.pi * drift * time_s)
    return np.asarray(rng.uniform(0.05, 0.1) * (1 + 0.3 * np.sin(2 * np.pi * drift * 1.7 * time_s)) * np.sin(phase))


def _disturbance(rhythm: str, time_s: Signal, rng: np.random.Generator) -> Signal:
    """Return baseline wander and noise; in a noisy recording it covers the beats."""
    level = rng.uniform(*_NOISE_MV.get(rhythm, _QUIET_MV))
    wander = (6 if rhythm in _NOISE_MV else 1) * rng.uniform(0.02, 0.1)
    baseline = wander * np.sin(2 * np.pi * rng.uniform(0.1, 0.4) * time_s + rng.uniform(0, 2 * np.pi))
    white = rng.normal(0, 1, len(time_s) + 4)
    return np.asarray(baseline + level * np.convolve(white, np.full(5, 5**-0.5), mode="valid"))
