"""nnU-Net data sets: channels, labels, regions, voxels without annotation, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label, Region
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.nnunet import parse_nnunet_labels
from support.checked import cases_of, check, notices_of, only_error
from support.nifti_files import mask, save, volume, write_nnunet

REGIONS = {"background": 0, "whole tumor": [1, 2, 3], "tumor core": [2, 3], "enhancing": [3]}


def refusal_of(folder: Path) -> Finding:
    with pytest.raises(UserInputError) as caught:
        check(folder)
    return caught.value.finding  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
def test_channels_labels_and_test_cases_are_read(tmp_path, suffix):
    folder = write_nnunet(tmp_path, suffix=suffix)
    index = check(folder).index
    assert {case.case_id: case.ground_truth for case in index.cases} == {
        "b_0": f"labelsTr/b_0{suffix}",
        "b_1": f"labelsTr/b_1{suffix}",
        "t_0": None,
    }
    assert index.cases[0].files == (f"imagesTr/b_0_0000{suffix}", f"imagesTr/b_0_0001{suffix}")
    assert (index.layout, index.channels) == ("msd", ("T1w", "FLAIR"))
    assert index.labels == (Label(value=1, name="edema"), Label(value=2, name="core"))
    assert (index.regions, index.ignore_value) == ((), None)
    assert "no-mask" in notices_of(folder)


def test_regions_name_the_labels_and_are_kept(tmp_path):
    truth = mask(1)
    truth[5, 5, 5:7] = (2, 3)
    folder = write_nnunet(tmp_path, labels=REGIONS, regions_class_order=[1, 2, 3])
    save(folder / "labelsTr" / "b_0.nii.gz", truth)
    index = check(folder).index
    assert index.regions == (
        Region(name="whole tumor", values=(1, 2, 3)),
        Region(name="tumor core", values=(2, 3)),
        Region(name="enhancing", values=(3,)),
    )
    assert [(label.value, label.name) for label in index.labels] == [
        (1, "whole tumor without tumor core"),
        (2, "tumor core without enhancing"),
        (3, "enhancing"),
    ]
    assert not any(label.has_codes for label in index.labels)


def test_regions_are_dropped_with_a_notice_where_labels_are_merged(tmp_path):
    folder = write_nnunet(tmp_path, labels=REGIONS)
    index = check(folder, merge=("1,2,3:tumor",)).index
    assert (index.regions, [label.name for label in index.labels]) == ((), ["tumor"])
    assert "regions-dropped" in {finding.code for finding in index.findings}


@pytest.mark.parametrize(
    ("labels", "order", "seen"),
    [
        ({"background": 0, "a": [1, 2], "b": [2, 3]}, None, "overlap in part"),
        ({"background": 0, "a": [1, 2], "b": [3]}, None, "exactly one label"),
        (REGIONS, [1, 3, 2], "regions_class_order [1, 3, 2]"),
        (REGIONS, [1, 2], "regions_class_order [1, 2]"),
        ({"background": 0, "core": [2], "whole": [1, 2]}, [2, 1], "listed before the larger region"),
    ],
)
def test_regions_that_cannot_be_predicted_together_are_refused(tmp_path, labels, order, seen):
    finding = refusal_of(write_nnunet(tmp_path, labels=labels, regions_class_order=order))
    assert finding.code == "bad-regions"
    assert seen in finding.seen
    assert "dataset.json" in finding.do


def test_the_ignore_label_is_no_label(tmp_path):
    folder = write_nnunet(tmp_path, labels={"background": 0, "edema": 1, "core": 2, "ignore": 3})
    truth = mask(1)
    truth[0, 0] = 3
    save(folder / "labelsTr" / "b_1.nii.gz", truth)
    checked = check(folder)
    assert checked.index.ignore_value == 3
    assert [label.value for label in checked.index.labels] == [1, 2]
    assert {one.name.case_id: one.num_label_voxels for one in checked.examined}["b_1"] == int((mask() == 1).sum())


@pytest.mark.parametrize(
    ("labels", "seen"),
    [
        ({"background": 0, "edema": 1, "core": 3, "ignore": 2}, "ignore 2, highest label 3"),
        ({"background": 0, "edema": 1, "ignore": [2, 3]}, "ignore 2, 3"),
        ({"background": 0, "edema": 256}, "values 256"),
        ({"background": 0}, "no foreground label"),
        ({"background": 0, "edema": 1, "core": 1}, "2 names for 1 values"),
        ({"background": 0, "a": [0, 1], "b": 2}, "values 0, 1, 2"),
    ],
)
def test_values_that_no_mask_can_have_are_refused(tmp_path, labels, seen):
    finding = refusal_of(write_nnunet(tmp_path, labels=labels))
    assert finding.code == "bad-json"
    assert seen in finding.seen


@pytest.mark.parametrize(("value", "seen"), [(300, "value 300"), (1.5, "value 1.5"), (7, "label 7")])
def test_a_mask_with_other_values_is_an_error(tmp_path, value, seen):
    folder = write_nnunet(tmp_path)
    save(folder / "labelsTr" / "b_1.nii.gz", mask().astype(np.float32) * np.float32(value))
    error = only_error(folder)
    assert (error.code, error.case_id) == ("labels-outside-declared-set", "b_1")
    assert seen in error.seen


def test_a_missing_channel_names_the_case_and_the_channel(tmp_path):
    folder = write_nnunet(tmp_path)
    (folder / "imagesTr" / "b_1_0001.nii.gz").unlink()
    error = only_error(folder)
    assert (error.code, error.case_id) == ("missing-channel", "b_1")
    assert "no file of channel FLAIR" in error.what
    assert error.seen == "files of T1w"
    assert [case.case_id for case in check(folder, skip=True).index.cases] == ["b_0", "t_0"]


def test_a_case_without_any_channel_is_a_missing_volume(tmp_path):
    folder = write_nnunet(tmp_path)
    for channel in range(2):
        (folder / "imagesTr" / f"b_1_{channel:04d}.nii.gz").unlink()
    assert only_error(folder).code == "missing-volume"


def test_a_channel_that_is_not_declared_is_refused(tmp_path):
    folder = write_nnunet(tmp_path)
    save(folder / "imagesTr" / "b_1_0002.nii.gz", volume())
    finding = refusal_of(folder)
    assert finding.code == "foreign-layout"
    assert "a third channel (_0002)" in finding.seen


def test_a_file_without_channel_number_is_refused(tmp_path):
    folder = write_nnunet(tmp_path)
    save(folder / "imagesTr" / "b_9.nii.gz", volume())
    assert "without a channel number" in refusal_of(folder).seen


def test_two_files_of_one_case_and_channel_are_refused(tmp_path):
    folder = write_nnunet(tmp_path)
    save(folder / "imagesTr" / "copy" / "b_1_0000.nii.gz", volume())
    assert "two files in imagesTr of one case and channel (_0000)" in refusal_of(folder).seen


def test_nifti_files_that_are_not_read_are_counted(tmp_path):
    folder = write_nnunet(tmp_path)
    save(folder / "imagesTr" / "b_2_0000.nii", volume())
    save(folder / "predictions" / "b_0.nii.gz", mask())
    assert "2 NIfTI files ignored" in notices_of(folder)["other-files"].what


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("CT", "PET"), "CT together with other channels"),
        (("ct", "T1w"), "CT together with other channels"),
        (("T1w", "PET"), "neither CT nor MR"),
        (("zscore", "zscore"), "the same name"),
    ],
)
def test_channels_that_are_not_supported_are_refused(tmp_path, names, what):
    finding = refusal_of(write_nnunet(tmp_path, channel_names=dict(enumerate(names))))
    assert finding.code == "wrong-modality"
    assert what in finding.what


def test_normalization_names_and_unknown_names_are_read_with_a_notice(tmp_path):
    folder = write_nnunet(tmp_path, channel_names={"0": "noNorm", "1": "b1400"})
    notices = notices_of(folder)
    assert notices["channel-normalization"].seen == "noNorm"
    assert notices["channel-names"].seen == "b1400"
    assert cases_of(folder)[0].channels == ("noNorm", "b1400")


def test_contrasts_of_prostate_mr_need_no_notice(tmp_path):
    notices = notices_of(write_nnunet(tmp_path, channel_names={"0": "T2w", "1": "ADC", "2": "DWI", "3": "hbv"}))
    assert not {"channel-names", "channel-normalization"} & notices.keys()


def test_splits_and_test_masks_of_nnunet_are_not_used(tmp_path):
    folder = write_nnunet(tmp_path)
    (folder / "splits_final.json").write_text("[]")
    save(folder / "labelsTs" / "t_0.nii.gz", mask())
    notices = notices_of(folder)
    assert "splits_final.json" in notices["splits-of-nnunet"].what
    assert "1 file in labelsTs" in notices["test-masks"].what


def test_the_rule_and_the_files_of_each_channel_are_printed(tmp_path, capsys):
    from medweave_steps.cli import main

    folder, out = write_nnunet(tmp_path / "cohort"), tmp_path / "out"
    words = ["check", "--cohort", str(folder), "--output", str(out / "i.json"), "--run-report", str(out / "r.json")]
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "check: channels T1w, FLAIR" in printed
    assert "check: rule: the files imagesTr/CASE_0000, CASE_0001, ... are the channels of a case" in printed
    assert "b_0: files 1, 2 with mask 7, b_1: files 3, 4 with mask 8" in printed


def test_several_channels_of_nnunet_1_are_read(tmp_path):
    folder = write_nnunet(tmp_path, test=False)
    listed = [{"image": f"./imagesTr/b_{n}.nii.gz", "label": f"./labelsTr/b_{n}.nii.gz"} for n in (0, 1)]
    text = {"modality": {"0": "T1w", "1": "FLAIR"}, "labels": {"0": "background", "1": "edema", "2": "core"}}
    (folder / "dataset.json").write_text(json.dumps(text | {"training": listed, "test": []}))
    case = cases_of(folder)[1]
    assert (case.case_id, case.files) == ("b_1", ("imagesTr/b_1_0000.nii.gz", "imagesTr/b_1_0001.nii.gz"))
    (folder / "imagesTr" / "b_1_0000.nii.gz").unlink()
    assert only_error(folder).code == "missing-channel"


def test_a_label_of_one_value_in_a_list_is_a_label_and_no_region():
    labels = parse_nnunet_labels({"background": 0, "a": [2], "b": 1})
    assert labels.regions == ()
    assert [(label.value, label.name) for label in labels.labels] == [(1, "b"), (2, "a")]
