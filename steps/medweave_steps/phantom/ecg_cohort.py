"""A folder of synthetic ECG recordings in the format of the PhysioNet/CinC Challenge 2017: WFDB records and REFERENCE.csv."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from medweave_steps.io.cohort.reference import REFERENCE_FILE, RHYTHMS, write_reference
from medweave_steps.io.signals.writer import write_record
from medweave_steps.phantom.ecg import RATE_HZ, RECORDINGS, SECONDS, EcgSpec, generate_ecg
from medweave_steps.phantom.patient import Patient, names_in_turn
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

RECORD_FOLDER = "training2017"
GAIN = 1000.0
"""Digital units per mV, as in the public data set."""
_USUAL_SECONDS = 30.0


def write_recordings(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the records of all recordings, in the proportions of the published table, and their rhythms.

    Returns:
        the numbers of recordings, in all and by rhythm.
    """
    from medweave_steps.phantom.cohort import describe

    require("scipy.io", extra="phantom")
    rhythms = names_in_turn(RECORDINGS, config.recordings)
    progress = context.progress(unit="recording", total=len(rhythms), is_quick=True)
    labels = {}
    with atomic_directory(config.output) as folder:
        (folder / RECORD_FOLDER).mkdir()
        for ordinal, rhythm in enumerate(rhythms, start=1):
            name = f"A{ordinal:05d}"
            rng = np.random.default_rng(Patient(seed=config.seed, ordinal=ordinal, held_out=False).chest_seed)
            seconds = float(rng.triangular(SECONDS[0], _USUAL_SECONDS, SECONDS[1]))
            ecg = generate_ecg(EcgSpec(rhythm=rhythm, seed=int(rng.integers(2**62)), seconds=round(seconds, 1)))
            digital = np.clip(np.rint(ecg.signal_mV * GAIN), -(2**15) + 1, 2**15 - 1).astype(np.int16)
            write_record(folder / RECORD_FOLDER, name, digital, rate_hz=RATE_HZ, gain=GAIN, baseline=0, lead="ECG")
            labels[name] = rhythm
            context.add_case(name, class_name=rhythm, seconds=len(digital) / RATE_HZ)
            progress.step(f"{name}: {rhythm}, {len(digital) / RATE_HZ:.1f} s")
        write_reference(folder / RECORD_FOLDER / REFERENCE_FILE, labels)
        describe(folder, config, [], classes=RHYTHMS)
    counts = Counter(rhythms)
    by_class = {name: counts[name] for name in RECORDINGS}
    return {"recordings": len(rhythms), "recordings_by_class": by_class, "synthetic": True}
