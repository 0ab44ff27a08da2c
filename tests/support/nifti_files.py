"""Small NIfTI volumes and masks, for tests of folders of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])


def save(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    """Write a NIfTI file, of 2 mm voxels by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(values, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def volume(seed: int = 0) -> np.ndarray:
    """Return int16 noise that can be HU."""
    return np.random.default_rng(seed).integers(-1000, 100, (8, 9, 10)).astype(np.int16)


def mask(value: int = 1) -> np.ndarray:
    """Return a uint8 mask of one box."""
    values = np.zeros((8, 9, 10), np.uint8)
    values[2:4, 3:5, 4:6] = value
    return values


def write_brats(folder: Path, number: int, contrasts: tuple[str, ...] = ("flair", "t1", "t1ce", "t2")) -> None:
    """Write cases in the layout of BraTS: a folder each, a file per contrast and a mask of the value 1."""
    for case in range(number):
        name = f"BraTS_{case:03d}"
        for place, contrast in enumerate(contrasts):
            save(folder / name / f"{name}_{contrast}.nii.gz", volume(10 * case + place))
        save(folder / name / f"{name}_seg.nii.gz", mask())


def write_bids(folder: Path, subjects: tuple[str, ...] = ("01",), sessions: tuple[str, ...] = ("1",)) -> None:
    """Write a BIDS-like folder: T1w and FLAIR of each session, a label map in derivatives with its table, participants.tsv."""
    for number, subject in enumerate(subjects):
        for place, session in enumerate(sessions):
            name, below = f"sub-{subject}_ses-{session}", f"sub-{subject}/ses-{session}/anat"
            save(folder / below / f"{name}_T1w.nii.gz", volume(100 * number + 10 * place))
            save(folder / below / f"{name}_FLAIR.nii.gz", volume(100 * number + 10 * place + 1))
            save(folder / "derivatives" / "manual" / below / f"{name}_dseg.nii.gz", mask())
    (folder / "derivatives" / "manual" / "dseg.tsv").write_text("index\tname\n0\tbackground\n1\tlesion core\n")
    rows = "".join(f"sub-{subject}\t077Y\tF\n" for subject in subjects)
    (folder / "participants.tsv").write_text(f"participant_id\tage\tsex\n{rows}")
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')


def write_nnunet(folder: Path, *, cases: int = 2, suffix: str = ".nii.gz", test: bool = True, **changes: Any) -> Path:
    """Write an nnU-Net v2 data set, of two channels by default, with a label map of two values; `changes` are for dataset.json."""
    data: dict[str, Any] = {
        "channel_names": {"0": "T1w", "1": "FLAIR"},
        "labels": {"background": 0, "edema": 1, "core": 2},
        "numTraining": cases,
        "file_ending": suffix,
    }
    data |= changes
    for case in range(cases):
        for channel in range(len(data["channel_names"])):
            save(folder / "imagesTr" / f"b_{case}_{channel:04d}{suffix}", volume(10 * case + channel))
        truth = mask(1)
        truth[5, 5, 5] = 2
        save(folder / "labelsTr" / f"b_{case}{suffix}", truth)
    for channel in range(len(data["channel_names"]) if test else 0):
        save(folder / "imagesTs" / f"t_0_{channel:04d}{suffix}", volume(90 + channel))
    (folder / "dataset.json").write_text(json.dumps(data))
    return folder
