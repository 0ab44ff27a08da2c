"""Labels: declared once, merged only on request, and the one source of codes, titles and region of results."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CohortIndex, PreparedCohort
from medweave_core.contracts.labels import LUNG_NODULE, Label, LabelMerge, model_name
from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.cli import main
from medweave_steps.evaluate.delivered import read_mask
from medweave_steps.io.cohort.labels import merge_values, merged_labels, parse_labels, parse_merges, read_labels
from medweave_steps.io.cohort.source import MaskValues, read_ground_truth
from support.checked import check, errors_of, notices_of, only_error, read_truth
from support.dicom_builder import CtSeries, segmentation, write_datasets
from support.labels import RIGHT_KIDNEY_TUMOR, SPLEEN
from support.openvino_models import tiny_card

# --- contracts, presets and files


def test_titles_come_from_name_anatomy_and_side() -> None:
    assert (LUNG_NODULE.title, LUNG_NODULE.titles, model_name(LUNG_NODULE)) == (
        "lung nodule",
        "lung nodules",
        "lung-nodule",
    )
    assert (SPLEEN.title, SPLEEN.titles) == ("spleen", "spleen")
    assert RIGHT_KIDNEY_TUMOR.titles == "right kidney tumors"
    assert Label(value=1, name="whole tumor").titles == "whole tumor"


def test_a_list_with_codes_survives_and_the_older_form_is_read() -> None:
    document = codec.to_json([LUNG_NODULE])
    assert parse_labels(document, where="test") == (LUNG_NODULE,)
    assert parse_labels({"labels": document}, where="test") == (LUNG_NODULE,)
    older = {"0": "background", "10": "b", "2": "a"}
    assert parse_labels(older, where="test") == (Label(value=2, name="a"), Label(value=10, name="b"))


@pytest.mark.parametrize(
    "document",
    [
        "nodule", ["nodule"], {"one": "nodule"}, [{"value": 1}], [{"value": 256, "name": "a"}], [{"value": -1, "name": "a"}],
        [{"value": True, "name": "a"}], [{"value": 1, "name": "a"}, {"value": 1, "name": "b"}],
        [{"value": 1, "name": "a", "type": {"value": "", "scheme": "SCT", "meaning": "x"}}],
        [{"value": 1, "name": "a", "type": {"value": "1", "scheme": "S" * 17, "meaning": "x"}}],
        [{"value": 1, "name": "a", "type": {"value": "1", "scheme": "SCT", "meaning": "a\\b"}}],
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used(document: object) -> None:
    with pytest.raises(UserInputError):
        parse_labels(document, where="test")


def test_labels_from_a_preset_a_json_and_a_yaml_file(tmp_path: Path) -> None:
    assert read_labels(Path("lung-nodule")) == (LUNG_NODULE,)
    (tmp_path / "labels.json").write_text(json.dumps(codec.to_json([SPLEEN])))
    (tmp_path / "labels.yml").write_text(
        "- {value: 1, name: spleen, category: {value: '91723000', scheme: SCT, meaning: Anatomical Structure},\n"
        "   type: {value: '78961009', scheme: SCT, meaning: Spleen}, anatomy: {value: '78961009', scheme: SCT, meaning: Spleen}}\n"
    )
    assert read_labels(tmp_path / "labels.json") == read_labels(tmp_path / "labels.yml") == (SPLEEN,)
    with pytest.raises(UsageError, match="neither a preset nor a file"):
        read_labels(tmp_path / "absent.json")
    for name, text in (("bad.json", "{"), ("bad.yml", "[1"), ("bad.yaml", "a: b")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserInputError):
            read_labels(tmp_path / name)


def test_merges_are_explicit() -> None:
    merges = parse_merges(["2,1,3:whole tumor", "0, 7:background"])
    assert merges == (LabelMerge(values=(1, 2, 3), name="whole tumor"), LabelMerge(values=(0, 7), name="background"))
    mask = np.array([[0, 1, 2], [3, 4, 7]], np.uint8)
    np.testing.assert_array_equal(merge_values(mask, merges), [[0, 1, 1], [1, 4, 0]])
    own = [Label(value=value, name=str(value)) for value in (1, 2, 3, 4, 7)]
    assert merged_labels(own, merges) == (Label(value=1, name="whole tumor"), own[3])
    assert merged_labels([LUNG_NODULE], parse_merges(["1,2:nodule"])) == (LUNG_NODULE,), (
        "codes that are declared for the result"
    )


@pytest.mark.parametrize(
    "text", ["1:a", "1,1:a", "1,2", "1,2:", "1,256:a", "a,b:c", "1;2:a", "-1,2:a", "", "1,2:a" + "b" * 80]
)
def test_merges_that_cannot_be_used(text: str) -> None:
    with pytest.raises(UsageError, match="invalid value of --merge-labels"):
        parse_merges([text])


def test_a_value_belongs_to_one_merge() -> None:
    with pytest.raises(UsageError, match="--merge-labels"):
        parse_merges(["1,2:a", "2,3:b"])


# --- documents of older versions


def older_card(**changes: object) -> ModelCard:
    document = codec.to_json(tiny_card()) | {"labels": {"0": "background", "1": "nodule"}} | changes
    return codec.from_json(ModelCard, document, where="test")


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "Segmentation of nodule in chest CT"}, {"task": "lung nodule segmentation"}, {"task": "Lung_nodules in CT"},
    ],
)  # fmt: skip
def test_an_older_lung_card_gets_the_codes_of_the_preset(changes: dict[str, object]) -> None:
    assert older_card(**changes).labels == (LUNG_NODULE,)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "Decathlon spleen segmentation", "labels": {"0": "background", "1": "spleen"}},
        {"task": "Segmentation of nodule in thyroid CT"},
        {"task": "nodule segmentation"},
        {"task": "Segmentation of lesion in chest CT", "labels": {"0": "background", "1": "lesion"}},
        {"task": "Segmentation of nodule in MR (T1w)"},
    ],
)
def test_any_other_older_card_has_names_only(changes: dict[str, object]) -> None:
    (label,) = older_card(**changes).labels
    assert (label.has_codes, label.anatomy) == (False, None)


def test_older_indexes_and_cohort_files_are_read() -> None:
    index = {
        "layout": "msd",
        "synthetic": True,
        "labels": {"0": "background", "1": "a", "2": "b"},
        "cases": [],
        "findings": [],
    }
    labels = (Label(value=1, name="a"), Label(value=2, name="b"))
    assert codec.from_json(CohortIndex, index, where="test").labels == labels
    cohort = {
        "spacing_mm": [1, 1, 1], "window_hu": None, "crop": "none", "margin_mm": 0, "split_seed": 0, "synthetic": True,
        "labels": {"0": "background", "1": "a"}, "data_sha256": "0", "cases": [],
    }  # fmt: skip
    assert codec.from_json(PreparedCohort, cohort, where="test").labels == labels[:1]


# --- masks with several values


def save_nifti(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(array, np.eye(4))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def volumes(folder: Path, *masks: np.ndarray) -> Path:
    """Plain NIfTI volumes of noise, each with its mask."""
    for number, mask in enumerate(masks):
        hu = np.random.default_rng(number).integers(-900, 100, mask.shape).astype(np.int16)
        for name, array in ((f"p{number}/ct{number}.nii.gz", hu), (f"p{number}/labels/ct{number}.nii.gz", mask)):
            save_nifti(folder / name, array)
    return folder


def mask_of(*values: int) -> np.ndarray:
    mask = np.zeros((12, 10, 8), np.uint8)
    for place, value in enumerate(values):
        mask[3 * place : 3 * place + 2, 2:4, 2:4] = value
    return mask


def test_values_that_differ_between_cases_need_a_declaration_or_a_merge(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1), mask_of(255), mask_of(255))
    error = only_error(tmp_path)
    assert error.code == "undeclared-labels"
    assert error.seen == "value 1 in 1 mask, value 255 in 2 masks"
    assert "--labels FILE" in error.do
    assert "--merge-labels 1,255:NAME" in error.do
    checked = check(tmp_path, merge=("1,255:lesion",))
    assert checked.index.labels == (Label(value=1, name="lesion"),)
    assert not [finding for finding in checked.index.findings if finding.severity == "error"]
    truth = read_truth(tmp_path, checked.index.cases[0], merge=("1,255:lesion",))
    assert truth is not None
    assert np.unique(truth).tolist() == [0, 1]


def test_one_value_other_than_1_is_a_label_with_a_notice(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(255, 255))
    checked = check(tmp_path)
    assert checked.index.labels == (Label(value=255, name="lesion"),)
    assert checked.examined[0].num_lesions == 2
    assert "is 255, not 1" in notices_of(tmp_path)["label-value"].what


def test_touching_labels_count_apart_and_merged_ones_together(tmp_path: Path) -> None:
    mask = mask_of(1)
    mask[2:4, 2:4, 2:4] = 2
    volumes(tmp_path, mask)
    assert check(tmp_path).examined[0].num_lesions == 2
    assert check(tmp_path, merge=("1,2:lesion",)).examined[0].num_lesions == 1


def test_a_merge_with_0_leaves_a_label_out(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1, 2))
    checked = check(tmp_path, merge=("0,1:background",))
    assert checked.index.labels == (Label(value=2, name="lesion"),)
    assert checked.examined[0].labels_found == (2,)


def test_several_declared_labels_without_a_mask_are_no_error(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1))
    (tmp_path / "p0/labels/ct0.nii.gz").unlink()
    (tmp_path / "cohort_card.json").write_text('{"labels": {"1": "a", "2": "b"}}')
    assert errors_of(tmp_path) == []


def test_a_declared_label_that_no_mask_holds_is_a_notice(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1))
    (tmp_path / "cohort_card.json").write_text('{"labels": {"1": "lung", "2": "cancer"}}')
    assert errors_of(tmp_path) == []
    assert notices_of(tmp_path)["label-in-no-mask"].what == "no mask contains the label 2 (cancer)."


def test_one_of_several_values_without_a_declaration_is_an_error(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1, 2))
    (tmp_path / "cohort_card.json").write_text('{"labels": {"1": "lung"}}')
    assert only_error(tmp_path).code == "labels-outside-declared-set"


def test_voxels_without_annotation_are_no_label(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1, 2, 9))
    (tmp_path / "cohort_card.json").write_text('{"labels": {"1": "lung", "2": "cancer"}}')
    checked = check(tmp_path, ignore_value=9)
    assert [finding for finding in checked.index.findings if finding.severity == "error"] == []
    assert checked.index.ignore_value == 9
    assert (checked.examined[0].labels_found, checked.examined[0].num_lesions) == ((1, 2), 2)
    truth = read_ground_truth(tmp_path, checked.index.cases[0], MaskValues.of(checked.index))
    assert truth is not None
    assert np.unique(truth).tolist() == [0, 1, 2, 9]


def test_the_value_without_annotation_is_not_a_label_too(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1, 2))
    (tmp_path / "cohort_card.json").write_text('{"labels": {"1": "lung", "2": "cancer"}}')
    with pytest.raises(UsageError, match="--ignore-label") as raised:
        check(tmp_path, ignore_value=2)
    assert "the value of a label" in raised.value.seen


def test_the_summary_and_the_index_name_labels_and_merges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = volumes(tmp_path / "cohort", mask_of(1, 2))
    words = [
        "check",
        "--cohort",
        str(folder),
        "--output",
        str(tmp_path / "i.json"),
        "--run-report",
        str(tmp_path / "r.json"),
    ]
    assert main([*words, "--labels", "lung-nodule", "--merge-labels", "1,2:nodule", "--num-threads", "1"]) == 0
    printed = capsys.readouterr().err
    assert "check: label 1 (nodule): Nodule, Lung" in printed
    assert "check: values 1, 2 as nodule" in printed
    index = json.loads((tmp_path / "i.json").read_text())
    assert index["labels"] == codec.to_json([LUNG_NODULE])
    assert index["merges"] == [{"values": [1, 2], "name": "nodule"}]
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert (results["labels"], results["merges"]) == (index["labels"], index["merges"])
    assert str(tmp_path) not in (tmp_path / "r.json").read_text()


def test_preprocess_reads_an_older_index_with_several_labels(tmp_path: Path) -> None:
    folder = volumes(tmp_path / "cohort", mask_of(1))
    words = ["--cohort", str(folder), "--run-report", str(tmp_path / "r.json"), "--num-threads", "1"]
    assert main(["check", *words, "--output", str(tmp_path / "i.json")]) == 0
    index = json.loads((tmp_path / "i.json").read_text()) | {"labels": {"0": "background", "1": "lung", "2": "cancer"}}
    (tmp_path / "i.json").write_text(json.dumps(index))
    index = codec.from_json(CohortIndex, json.loads((tmp_path / "i.json").read_text()), where="test")
    assert [label.text for label in MaskValues.of(index).labels] == ["1 (lung)", "2 (cancer)"]


def test_a_mask_with_another_value_than_the_index_says_is_refused(tmp_path: Path) -> None:
    volumes(tmp_path, mask_of(1))
    (case,) = check(tmp_path).index.cases
    save_nifti(tmp_path / "p0/labels/ct0.nii.gz", mask_of(1, 2))
    with pytest.raises(UserInputError, match="the cohort has changed since"):
        read_truth(tmp_path, case)


# --- segments that overlap, label maps


def overlapping(folder: Path, *, kind: str = "BINARY") -> tuple[CtSeries, np.ndarray]:
    series = CtSeries()
    masks = np.zeros((*series.shape, 2), np.uint8)
    masks[1:3, 3:8, 3:8, 0] = masks[2:5, 5:20, 5:20, 1] = 1
    series.write(folder / "ct")
    write_datasets([segmentation(series.datasets(), masks, labels=("nodule", "lung"), kind=kind)], folder / "seg")
    return series, masks


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL"])
def test_segments_that_overlap_are_refused_by_number_and_label(tmp_path: Path, kind: str) -> None:
    _, masks = overlapping(tmp_path, kind=kind)
    error = next(finding for finding in errors_of(tmp_path) if finding.code == "overlapping-segments")
    assert error.seen == f"segments 1 (nodule) and 2 (lung) in {int(masks.all(axis=-1).sum())} voxels"
    assert "--merge-labels 1,2:NAME" in error.do


def test_overlapping_segments_can_be_merged_or_left_out(tmp_path: Path) -> None:
    _, masks = overlapping(tmp_path)
    for merge, expected in ((("1,2:both",), masks.any(axis=-1)), (("0,2:background",), masks[..., 0])):
        (case,) = check(tmp_path, merge=merge).index.cases
        np.testing.assert_array_equal(read_truth(tmp_path, case, merge=merge), expected)


def test_a_label_map_gives_no_false_notice(tmp_path: Path) -> None:
    series = CtSeries()
    mask = np.zeros(series.shape, np.uint8)
    mask[2, 3:6, 3:6] = 1
    seg = segmentation(series.datasets(), mask, kind="LABELMAP")
    background = seg.SegmentSequence[0]
    if int(background.SegmentNumber) != 0:  # this version of highdicom describes no background
        background = pydicom.Dataset()
        background.SegmentNumber, background.SegmentLabel = 0, "Background"
        seg.SegmentSequence.insert(0, background)
    background.SegmentLabel = "Nothing"
    series.write(tmp_path / "ct")
    write_datasets([seg], tmp_path / "seg")
    checked = check(tmp_path)
    assert checked.index.labels == (Label(value=1, name="nodule"),)
    assert [finding.code for finding in checked.index.findings] == []


# --- evaluate


def test_a_delivered_mask_with_several_labels_is_not_compared(tmp_path: Path) -> None:
    volumes(tmp_path / "cohort", mask_of(1))
    (case,) = check(tmp_path / "cohort").index.cases
    label, place = Label(value=2, name="tumor"), tmp_path / "lesion_mask.nii.gz"
    for mask in (mask_of(1), mask_of(2)):
        save_nifti(place, mask)
        predicted, _ = read_mask(tmp_path / "cohort", tmp_path, case, label)
        np.testing.assert_array_equal(predicted, mask > 0)
    for values in ((1, 2), (3,), (2, 3)):
        save_nifti(place, mask_of(*values))
        with pytest.raises(UserInputError, match="contains labels that differ from the ground truth"):
            read_mask(tmp_path / "cohort", tmp_path, case, label)
