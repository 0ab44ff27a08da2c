"""`medweave-step phantom t1`: groups in the proportions of the table, heads that depend on the group, and BIDS or DICOM."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.hashing import digests_below
from medweave_steps.phantom.config import PhantomConfig
from medweave_steps.phantom.t1 import HIPPOCAMPUS, SIZES, VENTRICLE, T1Phantom, T1Spec, generate_t1
from medweave_steps.phantom.t1_subjects import GROUPS, WHOLE_TABLE, subjects_of
from support.image_files import check


def write(folder: Path, *words: str) -> Path:
    report = folder.with_name(f"{folder.name}-report.json")
    options = ["--output", str(folder), "--run-report", str(report), "--num-threads", "1", "--grid", "demo"]
    assert main(["phantom", "t1", *options, *words]) == 0
    return folder


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("t1") / "heads", "--subjects", "4")


@pytest.fixture(scope="module")
def head() -> T1Phantom:
    return generate_t1(T1Spec(seed=5, group="AD"))


def test_the_whole_table_has_the_published_groups_and_sexes() -> None:
    subjects = subjects_of(WHOLE_TABLE, seed=1)
    assert Counter(one.group for one in subjects) == {"AD": 389, "pMCI": 172, "sMCI": 232, "NC": 400}
    sexes = Counter((one.group, one.sex) for one in subjects)
    assert [sexes[name, "M"] for name in GROUPS] == [202, 105, 155, 202]
    assert [sexes[name, "F"] for name in GROUPS] == [187, 67, 77, 198]
    tasks = [sum(one.group in pair for one in subjects) for pair in (("AD", "NC"), ("sMCI", "pMCI"))]
    assert tasks == [789, 404]


def test_age_and_mmse_have_the_published_means_and_deviations() -> None:
    subjects = subjects_of(WHOLE_TABLE, seed=1)
    for name, group in GROUPS.items():
        for values, (mean, deviation) in (
            ([one.age for one in subjects if one.group == name], group.age),
            ([one.mmse for one in subjects if one.group == name], group.mmse),
        ):
            assert abs(np.mean(values) - mean) < 3 * deviation / group.number**0.5
            assert np.std(values) == pytest.approx(deviation, rel=3 / (2 * group.number) ** 0.5)
    assert all(0 <= one.mmse <= 30 and 50 <= one.age <= 100 for one in subjects)


def test_fewer_subjects_are_the_first_ones_in_the_same_proportions() -> None:
    subjects = subjects_of(WHOLE_TABLE, seed=1)
    for number in (4, 24, 100):
        first = subjects_of(number, seed=1)
        assert first == subjects[:number]
        counts = Counter(one.group for one in first)
        assert all(abs(counts[name] - group.number * number / WHOLE_TABLE) < 1 for name, group in GROUPS.items())
    assert subjects_of(4, seed=2)[0].age != subjects[0].age


def test_a_seed_is_a_subject_and_another_spacing_shows_the_same_head(head: T1Phantom) -> None:
    again, other, coarse = (
        generate_t1(T1Spec(seed=seed, group="AD", spacing_mm=size)) for seed, size in ((5, 2.0), (6, 2.0), (5, 3.2))
    )
    for name in ("image_IJK", "brain_IJK", "label_IJK"):
        assert np.array_equal(getattr(again, name), getattr(head, name))
        assert not np.array_equal(getattr(other, name), getattr(head, name))
    assert coarse.label_IJK.shape == (60, 70, 60)
    assert coarse.volume_ml(VENTRICLE) == pytest.approx(head.volume_ml(VENTRICLE), rel=0.05)


def test_contrast_is_that_of_t1(head: T1Phantom) -> None:
    image, brain, label = head.image_IJK.astype(float), head.brain_IJK > 0, head.label_IJK
    white = np.percentile(image[brain], 75)
    fluid, gray = (np.median(image[label == value]) for value in (VENTRICLE, HIPPOCAMPUS))
    assert fluid < 0.4 * white < 0.55 * white < gray < 0.85 * white
    assert np.median(image[:4]) < 0.1 * white, "air"
    assert image[~brain].max() > white, "a head, not only a brain"
    assert not (label[~brain] > 0).any()
    brain_ml = np.count_nonzero(brain) * head.spacing_mm**3 / 1000
    assert 1100 < brain_ml < 1700


def test_axes_are_ras_and_both_sides_have_structures(head: T1Phantom) -> None:
    middle = (head.image_IJK.shape[0] - 1) / 2
    for value in (VENTRICLE, HIPPOCAMPUS):
        sides = np.argwhere(head.label_IJK == value)[:, 0] - middle
        assert abs((sides > 0).mean() - 0.5) < 0.1
    signal = head.image_IJK > np.percentile(head.image_IJK, 60)
    assert signal[:, -3:].sum() > signal[:, :3].sum() + 20, "the nose is in front"
    brain = np.argwhere(head.brain_IJK)[:, 2].mean()
    assert brain > np.argwhere(signal)[:, 2].mean(), "the brain is in the upper part of the head"


def test_ventricles_grow_and_hippocampi_shrink_with_the_group() -> None:
    means = []
    for group in ("NC", "sMCI", "pMCI", "AD"):
        heads = [generate_t1(T1Spec(seed=seed, group=group, spacing_mm=3.2)) for seed in range(12)]
        means.append([np.mean([one.volume_ml(value) for one in heads]) for value in (VENTRICLE, HIPPOCAMPUS)])
    assert (np.diff(means, axis=0) * [1, -1] > 0).all()
    assert set(SIZES) == set(GROUPS)


def test_the_folder_is_bids_with_masks_and_label_maps_as_derivatives(cohort: Path) -> None:
    rows = list(csv.DictReader((cohort / "participants.tsv").open(), delimiter="\t"))
    assert list(rows[0]) == ["participant_id", "group", "sex", "age", "mmse"]
    assert [row["participant_id"] for row in rows] == [f"sub-{number:04d}" for number in range(1, 5)]
    assert {row["group"] for row in rows} == set(GROUPS)
    assert json.loads((cohort / "dataset_description.json").read_text())["DatasetType"] == "raw"
    names = (
        "sub-0001/anat/sub-0001_T1w", "derivatives/brain/sub-0001/anat/sub-0001_desc-brain_mask",
        "derivatives/regions/sub-0001/anat/sub-0001_dseg",
    )  # fmt: skip
    image, brain, label = (nibabel.load(cohort / f"{name}.nii.gz") for name in names)
    assert image.shape == brain.shape == label.shape == (96, 112, 96)
    assert nibabel.aff2axcodes(image.affine) == ("R", "A", "S")
    for other in (brain, label):
        np.testing.assert_array_equal(other.affine, image.affine)
    np.testing.assert_allclose(image.header.get_zooms(), 2)
    assert np.unique(label.dataobj).tolist() == [0, VENTRICLE, HIPPOCAMPUS]
    assert np.unique(brain.dataobj).tolist() == [0, 1]
    card = json.loads((cohort / "cohort_card.json").read_text())
    assert (card["synthetic"], card["faces"]) == (True, "present")


def test_check_and_preprocess_read_the_cohort_with_its_groups_as_classes(cohort: Path, tmp_path: Path) -> None:
    code, results, index = check(cohort, "--targets", str(cohort / "participants.tsv"))
    assert code == 0
    assert index is not None
    assert (index.layout, index.channels, index.synthetic) == ("bids", ("T1w",), True)
    assert results["cases_by_class"] == dict.fromkeys(sorted(GROUPS), 1)
    assert [(label.value, label.name) for label in index.labels] == [(1, "ventricle"), (2, "hippocampus")]
    words = ["--cohort-index", str(cohort.parent / "heads-out/cohort_index.json"), "--spacing-mm", "2", "2", "2"]
    words += ["--output", str(tmp_path / "out"), "--run-report", str(tmp_path / "r.json"), "--num-threads", "1"]
    # With a single case of a class, the class would have no training case in a drawn split.
    assert main(["preprocess", "--cohort", str(cohort), *words, "--purpose", "inference"]) == 0
    cases = open_prepared(tmp_path / "out/inference_batches/batch-000").cases()
    assert [case.volume_CIJK().shape for case in cases] == [(1, 96, 112, 96)] * 4


def test_dicom_has_the_same_voxels_positions_and_label_maps(cohort: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "dicom", "--subjects", "2", "--format", "dicom", "--seed", "1")
    files = sorted((folder / "sub-0001").iterdir())
    slices = sorted((pydicom.dcmread(file) for file in files), key=lambda one: float(one.ImagePositionPatient[2]))
    image = nibabel.load(cohort / "sub-0001/anat/sub-0001_T1w.nii.gz")
    stored_IJK = np.stack([one.pixel_array for one in slices]).transpose(2, 1, 0)
    np.testing.assert_array_equal(stored_IJK[::-1, ::-1], np.asanyarray(image.dataobj))
    x, y, z = (float(value) for value in slices[0].ImagePositionPatient)
    world = image.affine @ [95, 111, 0, 1]  # LPS and RAS differ in the sign of the first two axes
    np.testing.assert_allclose([-x, -y, z], world[:3])
    assert (slices[0].Modality, slices[0].BodyPartExamined, slices[0].InversionTime) == ("MR", "HEAD", 900)
    rows = list(csv.DictReader((folder / "participants.tsv").open(), delimiter="\t"))
    assert rows[0]["participant_id"] == slices[0].PatientID
    code, _, index = check(folder, "--targets", str(folder / "participants.tsv"))
    assert code == 0
    assert index is not None
    assert sorted(case.classes or () for case in index.cases) == [("AD",), ("NC",)]
    assert [label.type.value for label in index.labels if label.type] == ["35764002", "5366008"]
    masks = {path.name.removesuffix(".nii.gz") for path in (folder / "derivatives/brain").iterdir()}
    assert masks == {case.case_id for case in index.cases}


def test_the_same_seed_writes_the_same_files(cohort: Path, tmp_path: Path) -> None:
    again = digests_below(write(tmp_path / "again", "--subjects", "1"))
    first = digests_below(cohort)
    assert {name: digest for name, digest in again.items() if "sub-" in name} == {
        name: digest for name, digest in first.items() if "sub-0001" in name
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "t1", "cases": 3}, "--cases"),
        ({"kind": "t1", "held_out_cases": 3}, "--held-out-cases"),
        ({"kind": "t1", "subjects": 0}, "--subjects"),
        ({"kind": "t1", "format": "msd"}, "--format"),
        ({"kind": "lung", "subjects": 3}, "--subjects"),
        ({"kind": "brain", "format": "bids"}, "--format"),
    ],
)
def test_options_of_other_kinds_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PhantomConfig(output=Path("x"), **options)
