"""F5: `deidentify` keeps the modality and the contrasts of a data set."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cases.chest import save_nifti
from support.checked import cases_of
from support.identified import deidentify


def mr_data_set(folder: Path, channels: Sequence[str]) -> Path:
    """Write an MSD data set of three MR volumes with these contrasts and return its folder."""
    rng = np.random.default_rng(0)
    shape = (40, 40, 24) if len(channels) == 1 else (40, 40, 24, len(channels))
    mask = np.zeros((40, 40, 24), np.uint8)
    mask[10:16, 10:16, 10:14] = 1
    training = []
    for number in range(3):
        image, label = f"imagesTr/b_{number}.nii.gz", f"labelsTr/b_{number}.nii.gz"
        save_nifti(folder / image, rng.integers(0, 900, shape).astype(np.int16))
        save_nifti(folder / label, mask)
        training.append({"image": f"./{image}", "label": f"./{label}"})
    description = {
        "modality": {str(number): name for number, name in enumerate(channels)},
        "labels": {"0": "background", "1": "tumour"}, "training": training, "test": [],
    }  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


@pytest.mark.case("mr_becomes_ct", expected="modality, contrasts and labels stay, for one contrast and for four")
@pytest.mark.parametrize("channels", [("T1w",), ("FLAIR", "T1w", "t1gd", "T2w")])
def test_modality_and_contrasts_stay(tmp_path: Path, channels: tuple[str, ...], seen: Callable[[object], None]) -> None:
    exit_code = deidentify(mr_data_set(tmp_path / "cohort", channels))
    seen(f"exit code {exit_code}")
    assert exit_code == 0
    description = json.loads((tmp_path / "out" / "dataset.json").read_text())
    seen(f"modality {description['modality']}")
    assert tuple(description["modality"].values()) == channels
    assert description["labels"] == {"0": "background", "1": "tumour"}
    assert {case.channels for case in cases_of(tmp_path / "out")} == {channels}
