"""NIfTI cohorts of several files per case through check and preprocess, as real folders and files."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np

from medweave_core.contracts.labels import Region
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from support.nifti_files import save

SIZE = 16
SPACING = ("2", "2", "2")


def scan(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 900, (SIZE,) * 3).astype(np.int16)


def truth(*values: int) -> np.ndarray:
    """Return a mask with a plane of voxels for each value."""
    mask = np.zeros((SIZE,) * 3, np.uint8)
    for place, value in enumerate(values):
        mask[4:8, 4:8, 3 + 2 * place : 5 + 2 * place] = value
    return mask


def prepared(folder: Path) -> None:
    """Run check and preprocess on `folder/cohort`."""
    more = ("--num-threads", "1", "--run-report")
    cohort, index = ("--cohort", str(folder / "cohort")), str(folder / "index.json")
    assert main(["check", *cohort, "--output", index, *more, str(folder / "check.json")]) == 0
    words = [
        "preprocess",
        *cohort,
        "--cohort-index",
        index,
        "--output",
        str(folder / "prepared"),
        "--spacing-mm",
        *SPACING,
    ]
    assert main([*words, *more, str(folder / "preprocess.json")]) == 0


def test_an_nnunet_data_set_of_two_channels_three_labels_and_ignore(tmp_path, capsys):
    folder = tmp_path / "cohort"
    for case in range(4):
        for channel in range(2):
            save(folder / "imagesTr" / f"c_{case}_{channel:04d}.nii.gz", scan(10 * case + channel))
        save(folder / "labelsTr" / f"c_{case}.nii.gz", truth(1, 2, 3, 4))
    # The second channel of one case has thicker slices.
    thick = np.diag([2.0, 2.0, 4.0, 1.0])
    save(folder / "imagesTr" / "c_2_0001.nii.gz", scan(21)[:, :, ::2], thick)
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4}
    names = {"channel_names": {"0": "T2w", "1": "ADC"}, "labels": labels, "file_ending": ".nii.gz", "numTraining": 4}
    (folder / "dataset.json").write_text(json.dumps(names | {"regions_class_order": [1, 2, 3]}))
    (folder / "splits.json").write_text(json.dumps({"train": ["c_0", "c_2"], "validation": ["c_1"], "test": ["c_3"]}))
    prepared(tmp_path)
    part = open_prepared(tmp_path / "prepared" / "training_set")
    assert part.cohort.channels == ("T2w", "ADC")
    assert [label.value for label in part.cohort.labels] == [1, 2, 3]
    assert part.cohort.regions[0] == Region(name="whole", values=(1, 2, 3))
    assert part.cohort.ignore_value == 4
    cases = {case.case.case_id: case for case in part.cases()}
    assert sorted(np.unique(cases["c_0"].label_IJK())) == [0, 1, 2, 3, 4]
    for channel in range(2):
        source = np.asarray(nibabel.load(folder / "imagesTr" / f"c_0_{channel:04d}.nii.gz").dataobj, dtype=np.float64)
        seen = cases["c_0"].volume_CIJK()[channel]
        np.testing.assert_allclose(seen, (source - source.mean()) / source.std(), atol=1e-4)
    printed = capsys.readouterr().err
    notice = "channel ADC of 1 case: resampled linearly to the grid of the first channel (T2w)."
    assert printed.count(notice) == 2, "check and preprocess report it"
    report = json.loads((tmp_path / "preprocess.json").read_text())
    resampled = {case["case_id"]: case.get("resampled_channels") for case in report["cases"]}
    assert resampled == {"c_0": None, "c_1": None, "c_2": ["ADC"], "c_3": None}


def test_a_bids_folder_of_two_channels(tmp_path):
    folder = tmp_path / "cohort"
    for number in range(1, 5):
        name, below = f"sub-{number:02d}_ses-1", f"sub-{number:02d}/ses-1/anat"
        for place, suffix in enumerate(("T1w", "FLAIR")):
            save(folder / below / f"{name}_{suffix}.nii.gz", scan(10 * number + place))
        save(folder / "derivatives" / "manual" / below / f"{name}_dseg.nii.gz", truth(1, 2))
    (folder / "derivatives" / "manual" / "dseg.tsv").write_text("index\tname\n1\tlesion\n2\tedema\n")
    rows = "".join(f"sub-{number:02d}\t50\n" for number in range(1, 5))
    (folder / "participants.tsv").write_text(f"participant_id\tage\n{rows}")
    prepared(tmp_path)
    part = open_prepared(tmp_path / "prepared" / "training_set")
    assert part.cohort.channels == ("T1w", "FLAIR")
    assert [(label.value, label.name) for label in part.cohort.labels] == [(1, "lesion"), (2, "edema")]
    case = part.cases()[0]
    assert case.volume_CIJK().shape == (2, SIZE, SIZE, SIZE)
    assert sorted(np.unique(case.label_IJK())) == [0, 1, 2]
    assert not list((tmp_path / "prepared").rglob("*sub-*"))
