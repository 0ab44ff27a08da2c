"""Synthetic patients as a Medical Segmentation Decathlon folder: NIfTI files and dataset.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_steps.phantom.chest import ChestPhantom
from medweave_steps.phantom.patient import Patient
from medweave_steps.runtime.imports import require


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """The content of a `dataset.json`.

    Attributes:
        dimensions: `3D`, or `4D` for volumes of several channels.
        channels: names of the contrasts.
        labels: label value to name.
    """

    name: str
    description: str
    dimensions: str
    channels: Sequence[str]
    labels: Mapping[str, str]


def write_patient(folder: Path, patient: Patient, chest: ChestPhantom) -> None:
    """Write `imagesTr/<name>.nii.gz` (int16, HU) and `labelsTr/<name>.nii.gz` (uint8) on the grid of the DICOM series."""
    dx, dy, dz = chest.spacing_mm
    x, y, z = chest.origin_mm
    # NIfTI's world is RAS, DICOM's is LPS: the first two axes change sign.
    affine = np.array([[-dx, 0, 0, -x], [0, -dy, 0, -y], [0, 0, dz, z], [0, 0, 0, 1]], dtype=np.float64)
    hu_KJI = np.maximum(chest.hu_KJI, -1024)
    save_nifti(folder / "imagesTr" / f"{patient.name}.nii.gz", hu_KJI.transpose(2, 1, 0), affine)
    save_nifti(folder / "labelsTr" / f"{patient.name}.nii.gz", chest.label_KJI.transpose(2, 1, 0), affine)


def write_dataset(folder: Path, names: Sequence[str], about: DataSet) -> None:
    """Write `dataset.json` with the keys of the public data sets."""
    pairs = [{"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"} for name in names]
    dataset = {
        "name": about.name,
        "description": about.description,
        "reference": "medweave",
        "licence": "Apache-2.0",
        "release": "1.0",
        "tensorImageSize": about.dimensions,
        "modality": {str(number): name for number, name in enumerate(about.channels)},
        "labels": dict(about.labels),
        "numTraining": len(pairs),
        "numTest": 0,
        "training": pairs,
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(dataset, indent=2) + "\n", encoding="utf-8")


def save_nifti(path: Path, array: npt.NDArray[Any], affine: npt.NDArray[np.float64]) -> None:
    """Write an array as NIfTI, in mm."""
    nibabel = require("nibabel", extra="phantom")
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(array, affine)
    image.header.set_xyzt_units("mm", "sec")
    image.set_qform(affine, code=1)
    image.set_sform(affine, code=1)
    nibabel.openers.Opener.default_compresslevel = 1
    nibabel.save(image, path)
