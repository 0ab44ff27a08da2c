"""The source headers of a prepared case, and why they cannot be referenced by DICOM results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.io.dicom.uids import ImageUids, reference_problem
from medweave_steps.io.dicom.values import has_other_cause

HEADERS_FILE = "source_headers.zip"


def headers_path(folder: Path, case_id: str, *, results: str) -> Path:
    """Return the path of the source headers of a prepared DICOM case.

    Args:
        results: the DICOM results that need them, for the error.
    Raises:
        UserInputError: they are missing.
    """
    path = folder / HEADERS_FILE
    if path.is_file():
        return path
    raise UserInputError(
        f"the source headers of {case_id} are missing.",
        seen=f"no {HEADERS_FILE} in the folder of its volume.npy",
        expected=f"{HEADERS_FILE}, which contains the source image references for the {results}",
        do="run preprocess again",
    )


def problem_of(headers: Sequence[Any]) -> str:
    """Return why DICOM results cannot reference these images; empty where they can."""
    return reference_problem([_uids_of(header) for header in headers])


def header_fault(error: Exception) -> str:
    """Return why a header prevents DICOM outputs; raise an error with another cause again.

    pydicom and highdicom raise many kinds for a header that they cannot use, and their texts quote values of it.
    """
    if has_other_cause(error):
        raise error
    return f"the header of the series cannot be copied to a DICOM object ({type(error).__name__})"


def _uids_of(header: Any) -> ImageUids:
    study, series, instance, frame = (
        str(header.get(keyword) or "").strip(" \0")
        for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID")
    )
    return ImageUids(study=study, series=series, instance=instance, frame_of_reference=frame)
