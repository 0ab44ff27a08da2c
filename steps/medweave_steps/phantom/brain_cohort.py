"""A folder of synthetic brains: as the Medical Segmentation Decathlon hands them over (Task01_BrainTumour), or as DICOM studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medweave_steps.phantom.brain import CONTRASTS, LABELS, BrainPhantom, BrainSpec, generate_brain
from medweave_steps.phantom.brain_dicom import CODED_LABELS, study_case_id, write_study
from medweave_steps.phantom.dicom_bytes import TransferSyntax
from medweave_steps.phantom.msd_writer import DataSet, save_nifti, write_dataset
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

MATRIX_SIZES = {"scanner": 240, "demo": 64}
DATA_SET = DataSet(
    name="BRATS",
    description="Brain tumours in four MR contrasts. Synthetic data: written by medweave-step phantom brain, not by a scanner",
    dimensions="4D",
    channels=CONTRASTS,
    labels=LABELS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainJob:
    """One patient to write into a data set's folder."""

    patient: Patient
    matrix_size: int
    folder: Path
    syntax: TransferSyntax | None = None
    """Encoding of DICOM pixels; None writes the files of Task01."""


def write_brains(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write every patient and the files that describe the cohort.

    Returns:
        the numbers of patients, of tumors with an enhancing part, and of voxels by label.
    """
    from medweave_steps.phantom.cohort import describe, patients_of

    is_dicom = config.format == "dicom"
    for module in ("scipy.ndimage", *(("pydicom", "highdicom") if is_dicom else ("nibabel",))):
        require(module, extra="phantom")
    syntax = config.transfer_syntax if is_dicom else None
    patients = patients_of(config, prefix="BRATS")
    progress = context.progress(unit="patient", total=len(patients))
    voxels, enhancing = dict.fromkeys(LABELS, 0), 0
    case_ids = {one: study_case_id(one) if is_dicom else one.name for one in patients}
    with atomic_directory(config.output) as folder:
        jobs = [
            BrainJob(patient=one, matrix_size=MATRIX_SIZES[config.grid], folder=folder, syntax=syntax)
            for one in patients
        ]
        for patient, counts in finished_cases(write_brain, jobs, num_processes=context.num_threads):
            voxels = {key: voxels[key] + number for key, number in zip(LABELS, counts, strict=True)}
            enhancing += counts[-1] > 0
            context.add_case(case_ids[patient], num_tumour_voxels=sum(counts[1:]), held_out=patient.held_out)
            progress.step(f"{patient.name}: {sum(counts[1:])} tumor voxels")
        if not is_dicom:
            write_dataset(folder, [patient.name for patient in patients], DATA_SET)
        held_out = [case_ids[one] for one in patients if one.held_out]
        describe(folder, config, held_out, CODED_LABELS if is_dicom else LABELS)
    return {"patients": len(patients), "enhancing": enhancing, "voxels_by_label": voxels, "synthetic": True}


def write_brain(job: BrainJob) -> tuple[Patient, list[int]]:
    """Write one patient; return the number of voxels of each label."""
    brain = generate_brain(BrainSpec(seed=job.patient.chest_seed, matrix_size=job.matrix_size))
    if job.syntax is None:
        _write_nifti(job, brain)
    else:
        write_study(job.folder, job.patient, brain, job.syntax)
    return job.patient, np.bincount(brain.label_IJK.ravel(), minlength=len(LABELS)).tolist()


def _write_nifti(job: BrainJob, brain: BrainPhantom) -> None:
    """Write `imagesTr/<name>.nii.gz` (int16, contrasts on the fourth axis) and `labelsTr/<name>.nii.gz` (uint8)."""
    size = brain.spacing_mm
    # As in the public files: the first voxel is at the patient's right front.
    affine = np.diag([-size, -size, size, 1.0])
    affine[1, 3] = size * (brain.label_IJK.shape[1] - 1)
    save_nifti(job.folder / "imagesTr" / f"{job.patient.name}.nii.gz", brain.image_CIJK.transpose(1, 2, 3, 0), affine)
    save_nifti(job.folder / "labelsTr" / f"{job.patient.name}.nii.gz", brain.label_IJK, affine)
