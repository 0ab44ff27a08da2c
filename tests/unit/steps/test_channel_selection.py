"""`check --channels` of NIfTI cohorts: which channels are read, in which order and under which names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.errors import UsageError
from support.checked import check, errors_of, only_error
from support.nifti_files import mask, save, volume, write_bids, write_brats, write_nnunet

FLAIR_FIRST = ({"name": "FLAIR"}, {"name": "T1w"})
ANAT = "sub-{0}/ses-1/anat/sub-{0}_ses-1_{1}.nii.gz"


def selected(folder: Path, *names: str) -> CaseEntry:
    """Return the first case with these channels; the cohort has no error."""
    index = check(folder, channels=[{"name": name} for name in names]).index
    assert [finding for finding in index.findings if finding.severity == "error"] == []
    assert index.channels == names
    return index.cases[0]


def test_channels_of_an_nnunet_data_set_are_selected_and_ordered(tmp_path):
    folder = write_nnunet(tmp_path, channel_names={"0": "T1w", "1": "FLAIR", "2": "T2w"})
    assert selected(folder, "T2w", "T1w").files == ("imagesTr/b_0_0002.nii.gz", "imagesTr/b_0_0000.nii.gz")


def test_a_mask_on_the_grid_of_another_channel_is_read_once_that_channel_is_first(tmp_path):
    write_bids(tmp_path, ("01", "02"))
    fine = np.diag([1.0, 1.0, 1.0, 1.0])
    for subject in ("01", "02"):
        save(tmp_path / ANAT.format(subject, "T1w"), np.kron(volume(int(subject)), np.ones((2, 2, 2), np.int16)), fine)
    error = errors_of(tmp_path)[0]
    assert error.code == "mask-on-another-grid"
    assert "the grid of the channel FLAIR" in error.what
    assert error.do == "list FLAIR first in the rules of --channels"
    case = selected(tmp_path, "FLAIR", "T1w")
    assert [file.rpartition("_")[2] for file in case.files] == ["FLAIR.nii.gz", "T1w.nii.gz"]
    assert case.grid.shape == (8, 9, 10)


def test_a_channel_of_few_cases_is_read_if_it_is_named_and_its_absence_is_an_error(tmp_path):
    write_bids(tmp_path, ("01", "02", "03"))
    save(tmp_path / ANAT.format("02", "T2w"), volume(70))
    checked = check(tmp_path, channels=[{"name": "T2w"}])
    assert [case.files for case in checked.index.cases] == [(ANAT.format("02", "T2w"),)]
    errors = [finding.code for finding in checked.index.findings if finding.severity == "error"]
    assert errors == ["missing-channel", "missing-channel"]


def test_contrasts_get_the_names_of_the_rules(tmp_path):
    write_brats(tmp_path, 2)
    case = selected(tmp_path, "t1ce", "Flair")
    assert [Path(file).name for file in case.files] == ["BraTS_000_t1ce.nii.gz", "BraTS_000_flair.nii.gz"]
    assert case.ground_truth is not None


def test_t1_and_t2_are_contrasts_if_the_rules_say_so(tmp_path):
    for case in "ab":
        for word in ("t1", "t2"):
            save(tmp_path / f"{case}_{word}.nii.gz", volume(ord(case) + ord(word[1])))
    assert len(selected(tmp_path, "T2", "T1").files) == 2


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (({"name": "T2w"},), "a channel that the cohort does not have"),
        (({"name": "T1w", "contrast": True},), "for DICOM series only"),
    ],
)
def test_rules_that_do_not_fit_a_nifti_cohort_are_refused(tmp_path, channels, message):
    write_bids(tmp_path / "bids")
    write_nnunet(tmp_path / "nnunet")
    for name in ("bids", "nnunet"):
        with pytest.raises(UsageError, match=message):
            check(tmp_path / name, channels=channels)


def test_channels_of_one_file_cannot_be_selected(tmp_path):
    folder = write_nnunet(tmp_path, channel_names={"0": "T1w"})
    with pytest.raises(UsageError, match="does not have"):
        check(folder, channels=FLAIR_FIRST)
    save(tmp_path / "plain" / "a.nii.gz", volume())
    save(tmp_path / "plain" / "labels" / "a.nii.gz", mask())
    (tmp_path / "plain" / "dataset.json").write_text(
        '{"modality": {"0": "FLAIR", "1": "T1w"}, "labels": {"1": "x"}, '
        '"training": [{"image": "a.nii.gz", "label": "labels/a.nii.gz"}]}'
    )
    assert only_error(tmp_path / "plain").code == "wrong-channels"
    with pytest.raises(UsageError, match="one file holds all channels"):
        check(tmp_path / "plain", channels=({"name": "T1w"},))
