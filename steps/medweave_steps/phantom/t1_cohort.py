"""A folder of synthetic T1-weighted heads with the groups of an Alzheimer's study: BIDS, or DICOM."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medweave_steps.io.cohort.bids_tables import LABEL_TABLE
from medweave_steps.phantom.dicom_bytes import TransferSyntax
from medweave_steps.phantom.msd_writer import save_nifti
from medweave_steps.phantom.t1 import LABELS, T1Phantom, T1Spec, generate_t1
from medweave_steps.phantom.t1_dicom import CODED_LABELS, head_case_id, write_series
from medweave_steps.phantom.t1_subjects import GROUPS, Subject, subjects_of
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

SPACING_MM = {"scanner": 1.6, "demo": 2.0}
BRAIN_FOLDER, REGION_FOLDER = "derivatives/brain", "derivatives/regions"
_DESCRIPTION = "Synthetic data: written by medweave-step phantom t1, not by a scanner"
_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "group": {
        "Description": "group of the subject",
        "Levels": {
            "AD": "Alzheimer's disease", "pMCI": "progressive mild cognitive impairment",
            "sMCI": "stable mild cognitive impairment", "NC": "normal control",
        },
    },
    "sex": {"Description": "sex", "Levels": {"M": "male", "F": "female"}},
    "age": {"Description": "age", "Units": "year"},
    "mmse": {"Description": "Mini-Mental State Examination, 0 to 30 points"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadJob:
    """One subject to write into the cohort's folder."""

    subject: Subject
    spacing_mm: float
    folder: Path
    syntax: TransferSyntax | None = None
    """Encoding of DICOM pixels; None writes BIDS."""


def write_heads(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write every subject and the files that describe the cohort.

    Returns:
        the numbers of subjects, in all and by group.
    """
    from medweave_steps.phantom.cohort import describe

    is_dicom = config.format == "dicom"
    for module in ("scipy.ndimage", "nibabel", *(("pydicom", "highdicom") if is_dicom else ())):
        require(module, extra="phantom")
    syntax = config.transfer_syntax if is_dicom else None
    subjects = subjects_of(config.subjects, seed=config.seed)
    progress = context.progress(unit="subject", total=len(subjects))
    with atomic_directory(config.output) as folder:
        jobs = [
            HeadJob(subject=one, spacing_mm=SPACING_MM[config.grid], folder=folder, syntax=syntax) for one in subjects
        ]
        for subject, volumes_ml in finished_cases(write_head, jobs, num_processes=context.num_threads):
            case_id = head_case_id(subject) if is_dicom else subject.label
            context.add_case(case_id, group=subject.group, **volumes_ml)
            progress.step(f"{subject.label}: {subject.group}")
        _write_participants(folder, subjects, is_dicom=is_dicom)
        if not is_dicom:
            _describe_bids(folder)
        describe(folder, config, [], CODED_LABELS)
    counts = Counter(subject.group for subject in subjects)
    by_group = {name: counts[name] for name in GROUPS}
    return {"subjects": len(subjects), "subjects_by_group": by_group, "synthetic": True}


def write_head(job: HeadJob) -> tuple[Subject, dict[str, float]]:
    """Write one subject; return the volume of each structure, mL."""
    subject = job.subject
    spec = T1Spec(seed=subject.patient.chest_seed, group=subject.group, spacing_mm=job.spacing_mm)
    head = generate_t1(spec)
    if job.syntax is None:
        below = f"{subject.label}/anat/{subject.label}"
        _save(job.folder / f"{below}_T1w.nii.gz", head.image_IJK, head)
        _save(job.folder / BRAIN_FOLDER / f"{below}_desc-brain_mask.nii.gz", head.brain_IJK, head)
        _save(job.folder / REGION_FOLDER / f"{below}_dseg.nii.gz", head.label_IJK, head)
    else:
        write_series(job.folder, subject, head, job.syntax)
        _save(job.folder / BRAIN_FOLDER / f"{head_case_id(subject)}.nii.gz", head.brain_IJK, head)
    return subject, {f"{name}_ml": round(head.volume_ml(value), 2) for value, name in LABELS.items()}


def _save(path: Path, array_IJK: npt.NDArray[Any], head: T1Phantom) -> None:
    """Write NIfTI with RAS axes and the origin in the middle of the volume."""
    affine = np.diag([head.spacing_mm] * 3 + [1.0])
    affine[:3, 3] = [-(side - 1) / 2 * head.spacing_mm for side in array_IJK.shape]
    save_nifti(path, array_IJK, affine)


def _write_participants(folder: Path, subjects: Sequence[Subject], *, is_dicom: bool) -> None:
    """Write participants.tsv; the participants of DICOM have the PatientID of their headers."""
    with (folder / "participants.tsv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE)
        writer.writerow(["participant_id", *_COLUMNS])
        for one in subjects:
            name = one.patient.patient_id if is_dicom else one.label
            writer.writerow([name, one.group, one.sex, one.age, one.mmse])
    _write_json(folder / "participants.json", _COLUMNS)


def _describe_bids(folder: Path) -> None:
    """Write the descriptions of the data set and its derivatives, the table of labels, and the files that are not of BIDS."""
    about: dict[str, Any] = {"Name": _DESCRIPTION, "BIDSVersion": "1.9.0", "License": "Apache-2.0"}
    _write_json(folder / "dataset_description.json", {**about, "DatasetType": "raw"})
    for derivative in (BRAIN_FOLDER, REGION_FOLDER):
        generated = {"DatasetType": "derivative", "GeneratedBy": [{"Name": "medweave-step phantom t1"}]}
        _write_json(folder / derivative / "dataset_description.json", {**about, **generated})
    rows = "".join(f"{value}\t{name}\n" for value, name in LABELS.items())
    (folder / REGION_FOLDER / LABEL_TABLE).write_text(f"index\tname\n0\tbackground\n{rows}", encoding="utf-8")
    (folder / ".bidsignore").write_text("cohort_card.json\nsplits.json\n", encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
