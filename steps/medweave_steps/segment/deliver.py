"""Writes the results of one case into its folder."""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps import __version__
from medweave_steps.contracts.model import ModelCard
from medweave_steps.contracts.segmentations import SegmentedCase
from medweave_steps.contracts.volume import VolumeInfo
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.segment.dicom_common import Source, read_source
from medweave_steps.segment.dicom_seg import build_segmentation
from medweave_steps.segment.dicom_sr import build_report
from medweave_steps.segment.lesions import Lesion, measure_lesions, write_table
from medweave_steps.segment.nifti_out import write_mask

NIFTI_MASK, DICOM_MASK = "lesion_mask.nii.gz", "lesion_mask.dcm"
TABLE, STRUCTURED_REPORT = "lesions.csv", "lesions_sr.dcm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What was written for one case."""

    record: SegmentedCase
    lesions: tuple[Lesion, ...]
    has_dicom: bool


def deliver_case(
    folder: Path,
    mask: npt.NDArray[np.uint8],
    info: VolumeInfo,
    volume_IJK_hu: npt.NDArray[np.float32],
    headers: Sequence[Any],
    card: ModelCard,
    *,
    model_sha256: str,
) -> Delivery:
    """Writes NIfTI, table and, for DICOM sources, segmentation and structured report.

    Args:
        folder: of the case; made here, inside a folder that appears only when it is complete.
        mask: uint8, 0 or 1, on the source grid, in source order.
        info: geometry of the case.
        volume_IJK_hu: the prepared volume.
        headers: datasets of the source images without pixel data; empty for NIfTI sources.
        card, model_sha256: the model and the digest of its card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = read_source(headers, info) if info.source_format == "dicom" else None
    # The NIfTI is mostly compression, which leaves the interpreter free for the rest.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        nifti = pool.submit(write_mask, folder / NIFTI_MASK, mask, info)
        instance_numbers = source.instance_numbers(mask.shape[0]) if source else ()
        lesions = measure_lesions(mask, info, volume_IJK_hu, instance_numbers)
        write_table(folder / TABLE, lesions)
        if source:
            _write_dicom(folder, mask, source, lesions, card, model_sha256)
        nifti.result()
    record = SegmentedCase(
        case_id=info.case_id,
        source_format=info.source_format,
        files={path.name: sha256_of_file(path) for path in sorted(folder.iterdir())},
        num_lesions=len(lesions),
        lesion_volume_mm3=round(sum(lesion.volume_mm3 for lesion in lesions), 2),
    )
    return Delivery(record=record, lesions=tuple(lesions), has_dicom=source is not None)


def _write_dicom(
    folder: Path,
    mask: npt.NDArray[np.uint8],
    source: Source,
    lesions: Sequence[Lesion],
    card: ModelCard,
    model_sha256: str,
) -> None:
    # Another mask is another object, so its digest is part of the name (DICOM PS3.5, chapter 9: one UID, one content).
    digest = hashlib.sha256(np.flatnonzero(mask.view(np.bool_)).tobytes()).hexdigest()
    identity = (source.series_uid, model_sha256, digest, __version__)
    segmentation = build_segmentation(mask, source, card, identity=identity)
    for name, dataset in (
        (DICOM_MASK, segmentation),
        (STRUCTURED_REPORT, build_report(lesions, segmentation, source, card, identity=identity)),
    ):
        dataset.save_as(folder / name, enforce_file_format=True)
