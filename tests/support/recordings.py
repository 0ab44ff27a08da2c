"""Small WFDB records of synthetic ECG, in the layout of the PhysioNet/CinC Challenge 2017."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from medweave_steps.io.cohort.reference import REFERENCE_FILE, write_reference
from medweave_steps.io.signals.writer import write_record
from medweave_steps.phantom.ecg import RATE_HZ, Ecg, EcgSpec, generate_ecg

GAIN = 1000.0


def recording(rhythm: str = "N", seed: int = 1, seconds: float = 9.0) -> Ecg:
    """Return a synthetic recording."""
    return generate_ecg(EcgSpec(rhythm=rhythm, seed=seed, seconds=seconds))


def save_recording(
    folder: Path, name: str, signal_mV: np.ndarray, *, rate_hz: float = RATE_HZ, lead: str = "ECG"
) -> np.ndarray:
    """Write a record of 16 bits with 1000 units per mV; return the digital values."""
    folder.mkdir(parents=True, exist_ok=True)
    digital = np.rint(signal_mV * GAIN).astype(np.int16)
    write_record(folder, name, digital, rate_hz=rate_hz, gain=GAIN, baseline=0, lead=lead)
    return digital


def ecg_cohort(folder: Path, labels: Mapping[str, str], *, seconds: float = 9.0) -> Path:
    """Write a recording of the rhythm of each label, and REFERENCE.csv."""
    for seed, (name, rhythm) in enumerate(labels.items(), start=1):
        save_recording(folder, name, recording(rhythm, seed, seconds).signal_mV)
    write_reference(folder / REFERENCE_FILE, labels)
    return folder
