"""Masks of plain NIfTI folders belong to volumes of the same folder; ambiguous names are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medweave_steps.cli import main
from medweave_steps.io.nifti.pairing import pair_masks
from support.checked import check, errors_of
from support.nifti_files import mask, save, volume


def pairs_of(*names: str) -> dict[str, str | None]:
    return dict(pair_masks([f"{name}.nii.gz" for name in sorted(names)]).pairs())


def short(pairs: dict[str, str | None]) -> dict[str, str | None]:
    return {image.removesuffix(".nii.gz"): mask and mask.removesuffix(".nii.gz") for image, mask in pairs.items()}


@pytest.mark.parametrize(
    "expected",
    [
        {"p1/ct": "p1/labels/ct", "p2/ct": "p2/labels/ct", "p3/ct": None},
        {"images/a": "labels/a", "images/b": None},
        {"imagesTr/a": "labelsTr/a", "imagesTs/a": None},
        {"imagesTr/a": "labelsTr/a", "imagesTs/a": "labelsTs/a"},
        {"images/p1/ct": "labels/p1/ct", "images/p2/ct": "labels/p2/ct"},
        {"p1/ct": "labels/p1/ct", "p2/ct": "labels/p2/ct"},
        {"scans/site/a": "labels/a"},
        {"volumes/a": "masks/a"},
        {"a": "Labels/a", "b": "Labels/b"},
        {"ct": "ct_seg", "ct2": "ct2-mask"},
        {"p1/ct": "p1/ct_seg", "p2/ct": None},
        {"case_0/imaging": "case_0/segmentation", "case_1/imaging": "case_1/segmentation"},
        {"volume-0": "segmentation-0", "volume-10": "segmentation-10"},
        {"img/img0001": "label/label0001"},
        {"p1/ct": "p1/masks/mask", "p2/scan": "p2/masks/mask"},
        {"s1/p1/ct": "s1/p1/labels/ct", "s2/p1/ct": "s2/p1/labels/ct"},
        {"ct": "labels/ct", "p1/ct": "p1/labels/ct"},
        {"p1/ct": "p1/labels/ct", "p1/later/ct": None},
        {"Lung-Segmentation/images/a": "Lung-Segmentation/labels/a"},
        {"segmentation/images/a": "segmentation/labels/a"},
        {"p1/images/ct": "p1/labels/ct", "p10/images/ct": "p10/labels/ct"},
    ],
    ids=lambda expected: "+".join(expected),
)
def test_a_mask_belongs_to_the_volume_of_its_folder(expected):
    names = [*expected, *(mask for mask in expected.values() if mask)]
    assert short(pairs_of(*names)) == expected


@pytest.mark.parametrize(
    "names",
    [
        ("p1/ct", "p2/ct", "labels/ct"),
        ("ct", "labels/ct", "labels_reader2/ct"),
        ("ct", "ct_seg", "labels/ct"),
        ("ct", "ct_seg", "ct_mask"),
        ("case_0/imaging", "case_0/ct", "case_0/segmentation"),
        ("a/p1/ct", "b/p1/ct", "labels/p1/ct"),
    ],
    ids="+".join,
)
def test_two_that_fit_are_ambiguous(names):
    pairing = pair_masks([f"{name}.nii.gz" for name in names])
    numbers = {name: number for number, name in enumerate(sorted((*pairing.masks, *pairing.volumes)), start=1)}
    assert pairing.pairs() == []
    assert set(pairing.refusals(lambda image: _Name(), numbers)) == set(pairing.masks)


class _Name:
    def refuse(self, *words, **texts):
        from medweave_steps.io.findings import refuse

        return refuse(*words, **texts)


def test_two_files_of_one_name_are_ambiguous():
    pairing = pair_masks(["ct.nii", "ct.nii.gz", "labels/ct.nii.gz"])
    assert pairing.pairs() == []


def test_masks_without_a_volume_are_counted():
    pairing = pair_masks(["a.nii.gz", "labels/b.nii.gz", "x_seg.nii.gz"])
    assert pairing.orphans() == ["labels/b.nii.gz", "x_seg.nii.gz"]
    assert pairing.pairs() == [("a.nii.gz", None)]


def ambiguous_cohort(folder: Path) -> Path:
    for number, name in enumerate(("p1", "p2", "p3")):
        save(folder / name / "Doe.nii.gz", volume(number))
    save(folder / "labels" / "Doe.nii.gz", mask())
    save(folder / "sure" / "ct.nii.gz", volume(9))
    save(folder / "sure" / "labels" / "ct.nii.gz", mask())
    return folder


def test_check_refuses_an_ambiguous_mask_by_number(tmp_path):
    errors = errors_of(ambiguous_cohort(tmp_path / "cohort"))
    assert [error.code for error in errors] == ["ambiguous-mask"] * 3
    assert "mask 1 fits volume 2, 3, 4; this is volume 2" in errors[0].seen
    assert "Doe" not in "".join(str(error) for error in errors)


def test_check_leaves_ambiguous_cases_out_when_asked(tmp_path):
    (case,) = check(ambiguous_cohort(tmp_path / "cohort"), skip=True).index.cases
    assert case.ground_truth == "sure/labels/ct.nii.gz"


def test_deidentify_refuses_an_ambiguous_mask(tmp_path, capsys):
    cohort = ambiguous_cohort(tmp_path / "cohort")
    words = ["deidentify", "--cohort", str(cohort), "--output", str(tmp_path / "out")]
    code = main([*words, "--home", str(tmp_path / "home"), "--run-report", str(tmp_path / "r.json")])
    printed = capsys.readouterr().err
    assert code == 65, printed
    assert "the mask of the volume is ambiguous" in printed
    assert "Doe" not in printed


def test_check_prints_pairs_by_number(tmp_path, capsys):
    cohort = tmp_path / "cohort"
    for number in range(12):
        save(cohort / f"p{number:02d}" / "ct.nii.gz", volume(number))
        save(cohort / f"p{number:02d}" / "labels" / "ct.nii.gz", mask())
    words = [
        "check",
        "--cohort",
        str(cohort),
        "--output",
        str(tmp_path / "i.json"),
        "--run-report",
        str(tmp_path / "r.json"),
    ]
    assert main(words) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("check: volume and mask pairs")]
    assert line.count("with mask") == 10
    assert line.endswith(", and 2 more in the run report")
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert sorted((case["volume_file"], case["mask_file"]) for case in cases) == [(n, n + 1) for n in range(1, 24, 2)]


def test_a_mask_under_another_name_is_no_volume(tmp_path):
    """Its name says nothing, its values do."""
    save(tmp_path / "cohort" / "p1" / "ct.nii.gz", volume())
    save(tmp_path / "cohort" / "p1" / "tumor.nii.gz", mask())
    (error,) = errors_of(tmp_path / "cohort")
    assert error.code == "mask-as-volume"
    assert "2 different integers from 0 to 1" in error.seen
