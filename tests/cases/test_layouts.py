"""F3, F14, F17: which files of a folder are volumes, masks and copies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cases.chest import chest_hu, chest_RAS, ct_series, save_nifti, save_series
from medweave_core.contracts.cohort import CohortIndex
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import read_index

Seen = Callable[[object], None]
SHAPE = (48, 48, 12)


def check(folder: Path) -> tuple[int, Path, dict]:
    """Run `check` and return its exit code, the index and the results of its report."""
    index, report = folder.parent / "index.json", folder.parent / "report.json"
    code = main(["check", "--cohort", str(folder), "--output", str(index), "--run-report", str(report)])
    return code, index, json.loads(report.read_text())["results"] if code == 0 else {}


def pairs(index: CohortIndex) -> dict[str, str | None]:
    return {case.files[0]: case.ground_truth for case in index.cases}


@pytest.mark.case("same_name_masks", expected="each patient gets the mask of the own folder")
def test_masks_of_one_name_belong_to_the_patient_of_their_folder(tmp_path: Path, seen: Seen, capsys):
    for seed, name in enumerate(("p1", "p2", "p3")):
        hu, _, _ = chest_RAS(seed, SHAPE)
        mask = np.zeros(SHAPE, np.uint8)
        mask[14 + 3 * seed : 18 + 3 * seed, 22:26, 5:8] = 1
        save_nifti(tmp_path / "cohort" / name / "ct.nii.gz", hu)
        save_nifti(tmp_path / "cohort" / name / "labels" / "ct.nii.gz", mask)
    code, index, _ = check(tmp_path / "cohort")
    assert code == 0
    case_masks = pairs(read_index(index))
    seen(", ".join(sorted(str(mask) for mask in case_masks.values())))
    assert case_masks == {f"{name}/ct.nii.gz": f"{name}/labels/ct.nii.gz" for name in ("p1", "p2", "p3")}
    printed = capsys.readouterr().err
    assert all(f"file {number} with mask {number + 1}" in printed for number in (1, 3, 5))


@pytest.mark.case("nnunet_v2", expected="an nnU-Net v2 data set of one CT channel is read")
def test_an_nnunet_data_set_is_read(tmp_path: Path, seen: Seen):
    cohort = tmp_path / "cohort"
    for case in range(2):
        hu, _, nodule = chest_RAS(case, SHAPE)
        save_nifti(cohort / "imagesTr" / f"case_{case:03d}_0000.nii.gz", hu)
        save_nifti(cohort / "labelsTr" / f"case_{case:03d}.nii.gz", nodule.astype(np.uint8))
    dataset = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "lesion": 1}, "numTraining": 2}
    (cohort / "dataset.json").write_text(json.dumps(dataset | {"file_ending": ".nii.gz"}))
    code, _, results = check(cohort)
    seen(f"exit code {code}, {results.get('num_labelled')} volumes with a mask")
    assert (code, results["num_cases"], results["num_labelled"]) == (0, 2, 2)
    assert [(label["value"], label["name"]) for label in results["labels"]] == [(1, "lesion")]


@pytest.mark.case("nnunet_v2", expected="an nnU-Net v2 data set of several channels and regions is read")
def test_an_nnunet_data_set_of_several_channels_is_read(tmp_path: Path, seen: Seen):
    cohort = tmp_path / "cohort"
    for case in range(2):
        for channel in range(2):
            hu, _, nodule = chest_RAS(2 * case + channel, SHAPE)
            save_nifti(cohort / "imagesTr" / f"case_{case:03d}_{channel:04d}.nii.gz", hu)
        mask = nodule.astype(np.uint8)
        mask[20:22, 20:22, 5] = 2
        save_nifti(cohort / "labelsTr" / f"case_{case:03d}.nii.gz", mask)
    dataset = {"channel_names": {"0": "T2w", "1": "ADC"}, "labels": {"background": 0, "lesion": [1, 2], "core": 2}}
    (cohort / "dataset.json").write_text(
        json.dumps(dataset | {"file_ending": ".nii.gz", "regions_class_order": [1, 2]})
    )
    code, _, results = check(cohort)
    seen(f"exit code {code}, channels {results.get('channels')}, regions {results.get('regions')}")
    assert (code, results["num_cases"], results["channels"]) == (0, 2, ["T2w", "ADC"])
    assert results["regions"] == [{"name": "lesion", "values": [1, 2]}, {"name": "core", "values": [2]}]


@pytest.mark.case("nnunet_v2", expected="masks of the KiTS layout are masks, not CT volumes")
def test_masks_of_kits_are_no_volumes(tmp_path: Path, seen: Seen):
    for case in range(2):
        hu, _, nodule = chest_RAS(case, SHAPE)
        save_nifti(tmp_path / "kits" / f"case_{case}" / "imaging.nii.gz", hu)
        save_nifti(tmp_path / "kits" / f"case_{case}" / "segmentation.nii.gz", nodule.astype(np.uint8))
    code, _, results = check(tmp_path / "kits")
    seen(f"{results.get('num_cases')} volumes, {results.get('num_labelled')} with a mask")
    assert (code, results["num_cases"], results["num_labelled"]) == (0, 2, 2)


@pytest.mark.case("twice", expected="a copied folder is left aside, and a notice counts its files")
def test_a_copied_folder_is_left_aside(tmp_path: Path, seen: Seen):
    datasets = ct_series(chest_hu(8, 48))
    for name in ("a", "copy"):
        save_series(tmp_path / "cohort" / name, datasets)
    code, _, results = check(tmp_path / "cohort")
    (finding,) = [finding for finding in results.get("findings", []) if finding["code"] == "copies"]
    seen(f"exit code {code}: {finding['what']}")
    assert (code, results["num_cases"]) == (0, 1)
    assert finding["what"].startswith("8 DICOM files are copies")
