"""Samples of an ECG, five heartbeats each, from their recording to the folders of prepared cases: volumes with J = K = 1."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.volume import Grid, VolumeInfo, unit_of
from medweave_steps.io.cohort.signals import Recording
from medweave_steps.io.geometry import affine_rows
from medweave_steps.io.signals.beats import SAMPLE
from medweave_steps.preprocess.case import CaseDone, CaseFailed, CaseJob, attempt_case, check_files, save_array


def attempt_recording(jobs: Sequence[CaseJob]) -> list[CaseDone | CaseFailed]:
    """Prepare the samples of one recording, which is read once, as `attempt_case`."""
    prepare = functools.partial(prepare_signal, recording=Recording())
    return [attempt_case(job, prepare=prepare) for job in jobs]


def prepare_signal(job: CaseJob, *, recording: Recording) -> CaseDone:
    """Cut and write one sample of a recording; its values stay in mV.

    Raises:
        UserInputError: the recording is not the one that `check` saw, or cannot be read; the case is named.
        OSError: the output cannot be written.
    """
    started = time.monotonic()
    entry = job.entry
    check_files(job.cohort, entry)
    sample_I = recording.open_sample(job.cohort, entry)
    save_array(job.folder / "volume.npy", sample_I[None, :, None, None])
    info = VolumeInfo(
        case_id=entry.case_id,
        source_format=entry.source_format,
        source_grid=entry.grid,
        source_sha256=entry.content_sha256,
        source_axis=(0, 1, 2),
        source_flipped=(False, False, False),
        grid=Grid(shape=(SAMPLE, 1, 1), affine=affine_rows(np.eye(4))),
        crop_start=(0, 0, 0),
        window_hu=None,
        unit=unit_of(entry.channels),
        channels=entry.channels,
    )
    (job.folder / "volume_info.json").write_text(codec.dumps(info), encoding="utf-8")
    return CaseDone(
        case_id=entry.case_id,
        has_label=False,
        num_lesions=0,
        num_label_voxels=0,
        voxels_by_label={},
        figures={"seconds": round(time.monotonic() - started, 3), "shape": [SAMPLE, 1, 1], "num_lesions": 0},
        notices=(),
    )
