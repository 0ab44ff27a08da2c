"""Small training sets with three labels: shells around each other in two contrasts, as `preprocess` would write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.labels import Label, Region
from support.training_set import volume_info

SHAPE = (24, 20, 16)
IGNORE = 255
LABELS = (Label(value=1, name="edema"), Label(value=2, name="tumor core"), Label(value=4, name="enhancing"))
REGIONS = (
    Region(name="whole tumor", values=(1, 2, 4)),
    Region(name="core", values=(2, 4)),
    Region(name="enhancing tumor", values=(4,)),
)
REGION_WORDS = ("--regions", "whole tumor:1,2,4", "core:2,4", "enhancing tumor:4")
SHELLS = ((1, 6.0), (2, 4.5), (4, 2.5))  # value and radius in voxels
CENTRES = ((8, 9, 8), (15, 10, 8), (12, 12, 7), (10, 8, 9))


def shells(rng: np.random.Generator, centre: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return two contrasts (standard deviations) and the labels of three shells; each shell has its own pair of contrasts."""
    volume = rng.normal(0, 0.2, (2, *SHAPE)).astype(np.float32)
    label = np.zeros(SHAPE, np.uint8)
    distance = np.linalg.norm(np.stack(np.indices(SHAPE), axis=-1) - np.array(centre), axis=-1)
    for value, radius in SHELLS:
        label[distance <= radius] = value
    for value, contrasts in ((1, (2, 0)), (2, (2, 2)), (4, (0, 2))):
        volume[:, label == value] += np.array(contrasts, np.float32)[:, None]
    return volume, label


def label_set(
    folder: Path,
    splits: Sequence[str] = ("train", "train", "validation"),
    *,
    values: Sequence[int] = (0, 1, 2, 4),
    labels: Sequence[Label] = LABELS,
    regions: Sequence[Region] = (),
    ignored_planes: int = 0,
    counted: bool = True,
) -> Path:
    """Write a folder of prepared MR cases `case-0`, `case-1`, …; return it.

    Args:
        splits: the split of each case.
        values: label values in the masks of training cases; the others become background.
        ignored_planes: first planes along I without annotation.
        counted: whether `cohort.json` has the voxels of each label.
    """
    cases = []
    for place, split in enumerate(splits):
        name = f"case-{place}"
        volume, label = shells(np.random.default_rng(place), CENTRES[place % len(CENTRES)])
        if split == "train":
            label[~np.isin(label, values)] = 0
        label[:ignored_planes] = IGNORE
        own = folder / "cases" / name
        own.mkdir(parents=True)
        np.save(own / "volume.npy", volume)
        np.save(own / "label.npy", label)
        (own / "volume_info.json").write_text(codec.dumps(volume_info(own.name, label.shape)), encoding="utf-8")
        voxels = {str(one.value): int((label == one.value).sum()) for one in labels}
        case = PreparedCase(
            case_id=name, patient_key=name, split=split, has_label=True, num_lesions=len(SHELLS),
            num_label_voxels=sum(voxels.values()), voxels_by_label=voxels if counted else {},
        )  # fmt: skip
        cases.append(case)
    cohort = PreparedCohort(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=None, crop="none", margin_mm=0.0, split_seed=0, synthetic=True,
        labels=tuple(labels), data_sha256="cd" * 32, cases=tuple(cases), channels=("FLAIR", "T1w"), regions=tuple(regions),
        ignore_value=IGNORE if ignored_planes else None,
    )  # fmt: skip
    (folder / "cohort.json").write_text(codec.dumps(cohort), encoding="utf-8")
    return folder


def card_of(folder: Path) -> dict[str, object]:
    """Return the model card of a folder as JSON."""
    card: dict[str, object] = json.loads((folder / "model_card.json").read_text(encoding="utf-8"))
    return card
