"""Small cohorts of simple chests as real files: NIfTI in MSD layout, and DICOM with DICOM SEG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import nibabel
import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CohortIndex
from support.checked import check
from support.dicom_builder import AXIAL, CtSeries, segmentation, write_datasets

SHAPE = (80, 64, 50)  # R, A, S
SPACING = (5.0, 5.0, 5.0)
AIR, LUNG, TISSUE = -1000, -850, 40


def simple_chest(seed: int, *, shape=SHAPE, spacing=SPACING, noise_hu: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    """Return a trunk with two lungs and two nodules, in the order R, A, S.

    Returns:
        int16 HU and uint8 label, both [R, A, S].
    """
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*[(np.arange(n) - (n - 1) / 2) * s for n, s in zip(shape, spacing, strict=True)], indexing="ij")

    def ellipsoid(centre, radii):
        return sum(((a - c) / r) ** 2 for a, c, r in zip(axes, centre, radii, strict=True)) <= 1

    volume = np.full(shape, AIR, dtype=np.float64)
    volume[ellipsoid((0, 0, 0), (170, 120, 10_000))] = TISSUE
    label = np.zeros(shape, dtype=np.uint8)
    for side in (-1, 1):
        volume[ellipsoid((side * 75, 0, 0), (55, 80, 95))] = LUNG
    for side in (-1, 1):
        nodule = ellipsoid(np.asarray([side * 75, 0, 0]) + rng.uniform(-30, 30, 3), (rng.uniform(8, 14),) * 3)
        volume[nodule] = TISSUE
        label[nodule] = 1
    volume += rng.normal(0, noise_hu, shape)
    return np.clip(np.round(volume), -1024, 3000).astype(np.int16), label


def write_msd(
    folder: Path, number: int, *, spacing=SPACING, shape=SHAPE, splits: Mapping[str, Sequence[str]] | None = None
) -> CohortIndex:
    """Write a folder in MSD layout, and its `cohort_index.json` next to it; `splits` becomes splits.json."""
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    training = []
    for case in range(number):
        volume, label = simple_chest(case, shape=shape, spacing=spacing)
        # As MSD stores it: the first axis runs to the left, the second to the back.
        affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
        affine[:3, 3] = (100.0 + case, 80.0, -200.0)
        for array, place in ((volume, "imagesTr"), (label, "labelsTr")):
            image = nibabel.Nifti1Image(np.ascontiguousarray(array[::-1, ::-1]), affine)
            image.header.set_xyzt_units("mm")
            image.to_filename(folder / place / f"lung_{case:03d}.nii.gz")
        training.append({"image": f"./imagesTr/lung_{case:03d}.nii.gz", "label": f"./labelsTr/lung_{case:03d}.nii.gz"})
    description = {
        "name": "Lung",
        "description": "synthetic",
        "modality": {"0": "CT"},
        "labels": {"0": "background", "1": "nodule"},
        "numTraining": number,
        "numTest": 0,
        "training": training,
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(description), encoding="utf-8")
    if splits is not None:
        (folder / "splits.json").write_text(json.dumps(splits), encoding="utf-8")
    return write_index(folder)


def write_dicom(
    folder: Path, number: int, *, orientation=AXIAL, syntax: str = "explicit", coarse: bool = False
) -> CohortIndex:
    """Write DICOM series of the same chests with DICOM SEG; one series per patient.

    Args:
        coarse: with voxels of 10 mm: half as many slices, an eighth of the voxels.
    """
    factor = 2 if coarse else 1
    grid, spacing = tuple(n // factor for n in SHAPE), tuple(s * factor for s in SPACING)
    shape = grid[::-1]
    for case in range(number):
        volume, label = simple_chest(case, shape=grid, spacing=spacing)
        # Axial: slices to the head, rows to the back, columns to the left.
        stored = volume[::-1, ::-1].transpose(2, 1, 0).astype(np.int32) + 1024
        mask = label[::-1, ::-1].transpose(2, 1, 0)
        series = CtSeries(
            key=f"s{case}", patient=f"p{case}", shape=shape, spacing_mm=spacing, orientation=orientation, stored=stored
        )
        datasets = series.datasets()
        names = [f"{(7 * i) % shape[0]:03d}.dcm" for i in range(shape[0])]
        write_datasets(datasets, folder / f"series-{case:04d}", syntax=syntax, names=names)
        write_datasets([segmentation(datasets, mask)], folder / "ground-truth", names=[f"series-{case:04d}.dcm"])
    return write_index(folder)


def write_index(folder: Path) -> CohortIndex:
    """Write the index that `check` makes next to the folder (see `index_of`)."""
    index = check(folder).index
    save_index(folder, index)
    return index


def save_index(folder: Path, index: CohortIndex) -> None:
    """Write an index where `index_of` looks for it."""
    index_of(folder).write_text(codec.dumps(index), encoding="utf-8")


def index_of(folder: Path) -> Path:
    """Return the path of a cohort's index in tests."""
    return folder.with_name(f"{folder.name}_index.json")
