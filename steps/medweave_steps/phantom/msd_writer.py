"""Synthetic patients as a Medical Segmentation Decathlon folder: Task06_Lung's layout, NIfTI and dataset.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.phantom.chest import ChestPhantom
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require


def write_patient(folder: Path, patient: Patient, chest: ChestPhantom) -> None:
    """Writes `imagesTr/<name>.nii.gz` (int16, HU) and `labelsTr/<name>.nii.gz` (uint8) on the grid of the DICOM series."""
    dx, dy, dz = chest.spacing_mm
    x, y, z = chest.origin_mm
    # NIfTI's world is RAS, DICOM's is LPS: the first two axes change sign.
    affine = np.array([[-dx, 0, 0, -x], [0, -dy, 0, -y], [0, 0, dz, z], [0, 0, 0, 1]], dtype=np.float64)
    hu_KJI = np.maximum(chest.hu_KJI, -1024)
    _save(folder / "imagesTr" / f"{patient.name}.nii.gz", hu_KJI.transpose(2, 1, 0), affine)
    _save(folder / "labelsTr" / f"{patient.name}.nii.gz", chest.label_KJI.transpose(2, 1, 0), affine)


def write_dataset(folder: Path, patients: Sequence[Patient], labels: Mapping[str, str]) -> None:
    """Writes `dataset.json` with the keys of the public Task06."""
    pairs = [{"image": f"./imagesTr/{p.name}.nii.gz", "label": f"./labelsTr/{p.name}.nii.gz"} for p in patients]
    dataset = {
        "name": "Lung",
        "description": "Lung nodules. Synthetic data: written by medweave-step phantom lung, not by a scanner",
        "reference": "medweave",
        "licence": "Apache-2.0",
        "release": "1.0",
        "tensorImageSize": "3D",
        "modality": {"0": "CT"},
        "labels": dict(labels),
        "numTraining": len(pairs),
        "numTest": 0,
        "training": pairs,
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(dataset, indent=2) + "\n", encoding="utf-8")


def _save(path: Path, array: npt.NDArray[Any], affine: npt.NDArray[np.float64]) -> None:
    nibabel = require("nibabel", extra="phantom")
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(array, affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    nibabel.openers.Opener.default_compresslevel = 1
    nibabel.save(image, path)
