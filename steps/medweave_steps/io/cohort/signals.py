"""Folders of ECG recordings: WFDB records (.hea with .mat or .dat), each with samples of five heartbeats as its cases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry
from medweave_steps.io.cohort.discovery import case_id_of_path
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.signals.beats import cut_beats, sample_digest
from medweave_steps.io.signals.record import Signal, read_header, read_signal

HEADER, DATA = ".hea", (".mat", ".dat")
_SAMPLE = "-w"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFile:
    """One WFDB record of a cohort, before it is read.

    Attributes:
        name: of the recording; its cases have its id and a number.
        file: path of the header in the cohort.
    """

    name: SeriesName
    file: str

    @property
    def record(self) -> str:
        """Return the name of the record, as REFERENCE.csv has it."""
        return PurePosixPath(self.file).stem


def is_header(name: str) -> bool:
    """Return whether a file is named as the header of a WFDB record."""
    return name.endswith(HEADER)


def find_records(names: Sequence[str], *, has_public_names: bool) -> tuple[RecordFile, ...]:
    """Return the records of a cohort in the order of their paths.

    Args:
        names: files of the cohort, sorted.
        has_public_names: name recordings after their records; else names may identify patients, and recordings are named after a
            digest.
    """
    files = [name for name in names if is_header(name)]
    counts = Counter(PurePosixPath(file).stem for file in files)
    ids = []
    for file in files:
        stem = PurePosixPath(file).stem
        is_usable = counts[stem] == 1 and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem)
        ids.append(stem if has_public_names and is_usable else case_id_of_path(file))
    return tuple(
        RecordFile(name=SeriesName(case_id=case_id, ordinal=ordinal, noun="recording"), file=file)
        for ordinal, (case_id, file) in enumerate(zip(ids, files, strict=True), start=1)
    )


def sample_id(recording: str, number: int) -> str:
    """Return the case id of a sample of a recording, such as `A00001-w03`.

    Args:
        number: of the sample, from 0.
    """
    return f"{recording}{_SAMPLE}{number:02d}"


def recording_of(case_id: str) -> str:
    """Return the recording of a sample."""
    return case_id.rpartition(_SAMPLE)[0]


def find_data_without_header(names: Sequence[str]) -> list[str]:
    """Return the data files of a cohort next to which there is no header of the same name."""
    headers = {name.removesuffix(HEADER) for name in names if is_header(name)}
    return [name for name in names if name.endswith(DATA) and name.rpartition(".")[0] not in headers]


@dataclass(slots=True)
class Recording:
    """The samples of one recording, whose signal is read once, for the first of them."""

    signal: Signal | None = None

    def open_sample(self, cohort: Path, entry: CaseEntry) -> npt.NDArray[np.float32]:
        """Return the sample of a case, after comparing it with what `check` saw.

        Args:
            entry: a sample of this recording.
        Returns:
            float32 [1300], mV at 300 Hz.
        Raises:
            FindingError: it is another signal, or cannot be read; names the case.
        """
        name = SeriesName(case_id=entry.case_id, ordinal=entry.series_ordinal, noun="recording")
        if self.signal is None:
            header = read_header(cohort / entry.files[0], name)
            self.signal = read_signal(header, entry.channels[0], name)
        sample = cut_beats(self.signal, entry.beats)
        if sample_digest(sample) != entry.content_sha256:
            raise name.changed("different samples under the same file name")
        return sample
