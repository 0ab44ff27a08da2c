"""Small training sets made straight from arrays: balls of soft tissue in aerated lung, as `preprocess` would write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.labels import PRESETS
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.io.geometry import affine_rows

SHAPE = (24, 20, 16)
SPACING_MM = (2.0, 2.0, 2.0)
WINDOW_HU = (-1000.0, 400.0)
BALLS = (((8, 8, 8), 3.0), ((17, 12, 8), 2.0))  # centre and radius in voxels

# Options with which a training takes about a second.
TINY = (
    "--steps", "6", "--batch-size", "2", "--patch-shape", "8", "8", "8", "--channels", "4", "8", "--strides", "2",
    "--epoch-steps", "2", "--validation-interval", "1", "--window-shape", "24", "20", "16", "--precision", "float32",
)  # fmt: skip


def ball_case(rng: np.random.Generator, balls=BALLS, shape=SHAPE) -> tuple[np.ndarray, np.ndarray]:
    """Return a volume in HU (noisy lung with balls of 40 HU) and its label."""
    volume = rng.normal(-850, 20, shape).astype(np.float32)
    label = np.zeros(shape, np.uint8)
    points = np.stack(np.indices(shape), axis=-1)
    for centre, radius in balls:
        inside = np.linalg.norm(points - np.array(centre), axis=-1) <= radius
        volume[inside], label[inside] = 40, 1
    return volume, label


def training_set(
    folder: Path,
    splits: Sequence[str] = ("train", "train", "validation"),
    *,
    unlabelled: Sequence[int] = (),
    **changes: Any,
) -> Path:
    """Write a folder of prepared cases `case-0`, `case-1`, …; return it.

    Args:
        splits: the split of each case.
        unlabelled: places of the cases without a label.
        changes: other values for every case's `balls`.
    """
    cases = []
    for place, split in enumerate(splits):
        name = f"case-{place}"
        volume, label = ball_case(np.random.default_rng(place), **changes)
        own = folder / "cases" / name
        own.mkdir(parents=True)
        np.save(own / "volume.npy", volume)
        np.save(own / "lung.npy", np.ones(volume.shape, np.bool_))
        if place not in unlabelled:
            np.save(own / "label.npy", label)
        (own / "volume_info.json").write_text(codec.dumps(volume_info(name, volume.shape)), encoding="utf-8")
        cases.append(
            PreparedCase(
                case_id=name,
                patient_key=name,
                split=split,
                has_label=place not in unlabelled,
                num_lesions=len(changes.get("balls", BALLS)),
                num_label_voxels=int(label.sum()),
            )
        )
    cohort = PreparedCohort(
        spacing_mm=SPACING_MM, window_hu=WINDOW_HU, crop="lungs", margin_mm=10.0, split_seed=0, synthetic=True,
        labels=PRESETS["lung-nodule"], data_sha256="ab" * 32, cases=tuple(cases),
    )  # fmt: skip
    (folder / "cohort.json").write_text(codec.dumps(cohort), encoding="utf-8")
    return folder


def volume_info(case_id: str, shape: tuple[int, int, int]) -> VolumeInfo:
    """Return the geometry of a case that was not resampled."""
    grid = Grid(shape=shape, affine=affine_rows(np.diag([*SPACING_MM, 1.0])))
    return VolumeInfo(
        case_id=case_id, source_format="nifti", source_grid=grid, source_sha256="0" * 64, source_axis=(0, 1, 2),
        source_flipped=(False, False, False), grid=grid, crop_start=(0, 0, 0), window_hu=WINDOW_HU,
    )  # fmt: skip
