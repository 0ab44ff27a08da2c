"""A folder of synthetic patients, written by several processes at once, complete or absent as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.labels import PRESETS
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.phantom import dicom_writer, msd_writer
from medweave_steps.phantom.chest import ChestSpec, Nodule, generate_chest
from medweave_steps.phantom.dicom_bytes import TransferSyntax
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

LABELS = PRESETS["lung-nodule"]
DATA_SET = msd_writer.DataSet(
    name="Lung",
    description="Lung nodules. Synthetic data: written by medweave-step phantom lung, not by a scanner",
    dimensions="3D",
    channels=("CT",),
    labels={"0": "background"} | {str(label.value): label.name for label in LABELS},
)
HELD_OUT_NODULES = (2, 6)
# Every third scanner stores padding outside its circle of reconstruction, as many real ones do.
PADDING_EVERY, PADDING_HU = 3, -2000
_GRIDS: Mapping[str, Mapping[str, Any]] = {
    "scanner": {},
    # Larger voxels collect more photons: less noise at the same dose.
    "demo": {
        "matrix_size": 256,
        "in_plane_spacing_mm": (1.4, 1.6),
        "slice_spacing_mm": (2.0, 2.5),
        "noise_hu": (10.0, 25.0),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    patient: Patient
    grid: str
    num_nodules: tuple[int, int]
    dicom: Path | None
    msd: Path | None
    transfer_syntax: TransferSyntax


def write_cohort(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write every patient and the files that describe the cohort.

    Returns:
        the numbers of patients, nodules, and nodules by type, place and size.
    """
    patients = patients_of(config)
    cohort_format = config.format or "dicom"
    _load_libraries(cohort_format)
    progress = context.progress(unit="patient", total=len(patients))
    listed: dict[Patient, tuple[Nodule, ...]] = {}
    with atomic_directory(config.output) as folder:
        dicom = {"dicom": folder, "both": folder / "dicom"}.get(cohort_format)
        msd = {"msd": folder, "both": folder / "Task06_Lung"}.get(cohort_format)
        jobs = [
            _Job(
                patient=one,
                grid=config.grid,
                num_nodules=HELD_OUT_NODULES if one.held_out else config.nodules,
                dicom=dicom,
                msd=msd,
                transfer_syntax=config.transfer_syntax,
            )
            for one in patients
        ]
        for patient, nodules in finished_cases(_write_patient, jobs, num_processes=context.num_threads):
            listed[patient] = nodules
            progress.step(f"{patient.name}: {len(nodules)} nodules")
        if dicom:
            held_out = [case_id_of_series(one.uid("series")) for one in patients if one.held_out]
            describe(dicom, config, held_out, LABELS)
        if msd:
            msd_writer.write_dataset(msd, [one.name for one in patients], DATA_SET)
            describe(msd, config, [one.name for one in patients if one.held_out], LABELS)
    for patient in patients:
        context.add_case(
            case_id_of_series(patient.uid("series")), num_nodules=len(listed[patient]), held_out=patient.held_out
        )
    return _counts([nodule for nodules in listed.values() for nodule in nodules], len(patients))


def patients_of(config: PhantomConfig, prefix: str = "lung") -> list[Patient]:
    """Return the development patients, then the held-out ones."""
    patients = [Patient(seed=config.seed, ordinal=i + 1, held_out=False, prefix=prefix) for i in range(config.cases)]
    return patients + [
        Patient(seed=config.held_out_seed, ordinal=i + 1, held_out=True) for i in range(config.held_out_cases)
    ]


def _load_libraries(cohort_format: str) -> None:
    """Import the libraries before processes are forked, so that the report has their versions for any number of processes."""
    modules = {"dicom": ("pydicom", "highdicom"), "msd": ("nibabel",), "both": ("pydicom", "highdicom", "nibabel")}
    for module in modules[cohort_format]:
        require(module, extra="phantom")


def _write_patient(job: _Job) -> tuple[Patient, tuple[Nodule, ...]]:
    padding = PADDING_HU if job.patient.ordinal % PADDING_EVERY == 0 else None
    spec = ChestSpec(
        seed=job.patient.chest_seed, num_nodules=job.num_nodules, padding_value=padding, **_GRIDS[job.grid]
    )
    chest = generate_chest(spec)
    if job.dicom:
        dicom_writer.write_patient(job.dicom, job.patient, chest, job.transfer_syntax)
    if job.msd:
        msd_writer.write_patient(job.msd, job.patient, chest)
    return job.patient, chest.nodules


def describe(
    folder: Path, config: PhantomConfig, held_out: list[str], labels: Any = None, *, classes: Sequence[ImageClass] = ()
) -> None:
    """Write the cohort card (synthetic: true) and the split of the held-out cases.

    Args:
        labels: with their DICOM codes, or an object of value to name; None for images with classes.
        classes: of images.
    """
    card = {
        "synthetic": True,
        "generator": f"medweave-step phantom {config.kind}",
        "seed": config.seed,
        "held_out_seed": config.held_out_seed if config.held_out_cases else None,
    }
    card |= {"classes": codec.to_json(tuple(classes))} if classes else {"labels": codec.to_json(labels)}
    if config.kind in ("brain", "skin"):
        card["faces"] = "absent"  # skull-stripped; lesions alone
    elif config.kind == "t1":
        card["faces"] = "present"  # a head with a nose, so that its removal can be tried
    (folder / "cohort_card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    splits = {"test": sorted(held_out)} if held_out else {}
    (folder / "splits.json").write_text(json.dumps(splits, indent=2) + "\n", encoding="utf-8")


def _counts(nodules: list[Nodule], num_patients: int) -> Mapping[str, Any]:
    def tally(values: list[str]) -> dict[str, int]:
        return {value: values.count(value) for value in sorted(set(values))}

    return {
        "patients": num_patients,
        "nodules": len(nodules),
        "nodules_from_6_mm": sum(nodule.diameter_mm >= 6 for nodule in nodules),
        "nodules_from_10_mm": sum(nodule.diameter_mm >= 10 for nodule in nodules),
        "by_attenuation": tally([nodule.attenuation for nodule in nodules]),
        "by_location": tally([nodule.location for nodule in nodules]),
        "synthetic": True,
    }
