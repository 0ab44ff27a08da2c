"""`deidentify` on NIfTI cohorts of several files per case: nnU-Net, BIDS and one file per MR contrast."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from support.checked import check
from support.identified import deidentify, results, tree, way_back
from support.nifti_files import AFFINE, mask, save, volume, write_bids, write_brats, write_nnunet

NAME, SUBJECTS, SESSIONS = "Quillfeather", ("Quillfeather", "774411"), ("20190304", "Rosamund")
SECRETS = (NAME, "774411", "20190304", "Rosamund", "077Y", "St Elsewhere", "Grimshaw")
REGIONS = {"background": 0, "whole tumor": [1, 2], "core": [2], "ignore": 3}


def name_people(folder: Path, old: str, new: str = NAME) -> Path:
    """Put a name into every file name, and words into every NIfTI header."""
    for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
        if path.name.endswith((".nii", ".nii.gz")):
            image = nibabel.load(path)
            image.header["descrip"] = b"by Grimshaw"
            image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"St Elsewhere"))
            values = nibabel.Nifti1Image(np.array(image.dataobj), image.affine, image.header)
            values.to_filename(path)
        path.rename(path.with_name(path.name.replace(old, new)))
    return folder


def nnunet(folder: Path, **changes: Any) -> Path:
    """Write an nnU-Net v2 data set of two channels, regions and an ignore label."""
    changes = {"labels": REGIONS, "regions_class_order": [1, 2], "description": f"by {NAME}", **changes}
    return name_people(write_nnunet(folder, **changes), "b_")


def nnunet_of_one_channel(folder: Path) -> Path:
    return nnunet(folder, channel_names={"0": "CT"}, labels={"background": 0, "edema": 1, "core": 2}, suffix=".nii")


def nnunet_1(folder: Path) -> Path:
    """Write an nnU-Net v1 data set of two channels, whose list names no channel."""
    nnunet(folder)
    pairs = [(f"./imagesTr/{NAME}{n}.nii.gz", f"./labelsTr/{NAME}{n}.nii.gz") for n in (0, 1)]
    labels = {"0": "background", "1": "edema", "2": "core"}
    listed = [{"image": image, "label": label} for image, label in pairs]
    test = ["./imagesTs/t_0.nii.gz"]
    text = {"modality": {"0": "T1w", "1": "FLAIR"}, "labels": labels, "training": listed, "test": test}
    (folder / "dataset.json").write_text(json.dumps(text))
    return folder


def bids(folder: Path) -> Path:
    """Write two subjects of two sessions, with three channels; one is T1w with gadolinium."""
    write_bids(folder, SUBJECTS, SESSIONS)
    for number, (subject, session) in enumerate((a, b) for a in SUBJECTS for b in SESSIONS):
        title, below = f"sub-{subject}_ses-{session}", folder / f"sub-{subject}" / f"ses-{session}" / "anat"
        save(below / f"{title}_acq-{NAME}_ce-gadolinium_T1w.nii.gz", volume(1000 + number))
        (below / f"{title}_T1w.json").write_text('{"InstitutionName": "St Elsewhere"}')
    (folder / "sub-774411" / "sub-774411_scans.tsv").write_text("filename\tacq_time\nx\t20190304\n")
    return folder


def bids_of_one_session(folder: Path) -> Path:
    """Write subjects without sessions, with binary masks that name their label; one subject has no mask."""
    for number, subject in enumerate(("Quillfeather", "774411", "3")):
        save(folder / f"sub-{subject}/anat/sub-{subject}_T2w.nii.gz", volume(number))
        if number:
            name = f"sub-{subject}/anat/sub-{subject}_label-stroke_mask.nii.gz"
            save(folder / "derivatives" / "Grimshaw" / name, mask())
    return folder


def contrasts(folder: Path) -> Path:
    write_brats(folder, 3)
    return name_people(folder, "BraTS_")


COHORTS = [nnunet, nnunet_of_one_channel, nnunet_1, bids, bids_of_one_session, contrasts]


def by_content(index: CohortIndex) -> dict[str, CaseEntry]:
    return {case.content_sha256: case for case in index.cases}


def patients(index: CohortIndex) -> set[frozenset[str]]:
    """Return the cases of each patient."""
    keys = {case.patient_key for case in index.cases}
    return {frozenset(case.content_sha256 for case in index.cases if case.patient_key == key) for key in keys}


def truths(folder: Path, index: CohortIndex) -> dict[str, bytes | None]:
    """Return the voxels of the mask of each case."""
    paths = {case.content_sha256: case.ground_truth for case in index.cases}
    return {key: path and np.asarray(nibabel.load(folder / path).dataobj).tobytes() for key, path in paths.items()}


@pytest.mark.parametrize("write", COHORTS)
@pytest.mark.parametrize("more", [(), ("--faces", "absent")])
def test_check_finds_the_same_cases_in_the_output(tmp_path: Path, write: Callable[[Path], Path], more: Any) -> None:
    folder, out = write(tmp_path / "cohort"), tmp_path / "out"
    before = check(folder).index
    chosen = before.cases[0]
    (folder / "splits.json").write_text(json.dumps({"test": [chosen.case_id]}))
    assert deidentify(folder, *more) == 0
    after = check(out).index
    assert [finding for finding in after.findings if finding.severity == "error"] == []
    for field in ("layout", "channels", "labels", "regions", "ignore_value"):
        assert getattr(after, field) == getattr(before, field), field
    assert truths(out, after) == truths(folder, before)
    assert patients(after) == patients(before)
    for content, case in by_content(before).items():
        other = by_content(after)[content]
        assert (other.grid, other.channels, len(other.files)) == (case.grid, case.channels, len(case.files))
        assert other.fixed_split == ("test" if content == chosen.content_sha256 else None)
    assert results(folder)["num_cases"] == len(before.cases)
    assert results(folder)["num_patients"] == len({case.patient_key for case in before.cases})
    used = {file for case in before.cases for file in (*case.files, case.ground_truth) if file}
    assert set(way_back(folder)["files"]) == used
    assert set(way_back(folder)["files"].values()) == {name for name in tree(out) if ".nii" in name}


@pytest.mark.parametrize("write", COHORTS)
def test_no_name_of_the_source_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path]
) -> None:
    folder = write(tmp_path / "cohort")
    assert deidentify(folder, "--retain-patient-characteristics") == 0
    outside = tree(tmp_path / "out") | {"report": (tmp_path / "out.json").read_bytes()}
    outside["messages"] = "".join(capsys.readouterr()).encode()
    for name, content in outside.items():
        plain = gzip.decompress(content) if name.endswith(".gz") else content
        for secret in SECRETS:
            assert secret.lower() not in name.lower()
            assert secret.lower().encode() not in plain.lower(), (name, secret)


@pytest.mark.parametrize("write", COHORTS)
def test_the_same_key_makes_the_same_bytes_in_parallel(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    folder = write(tmp_path / "cohort")
    assert deidentify(folder) == 0
    assert deidentify(folder, "--num-threads", "2", name="again") == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_dataset_json_of_nnunet_keeps_what_training_needs(tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "cohort", licence="x")
    assert deidentify(folder) == 0
    assert json.loads((tmp_path / "out" / "dataset.json").read_text()) == {
        "channel_names": {"0": "T1w", "1": "FLAIR"},
        "labels": REGIONS,
        "regions_class_order": [1, 2],
        "numTraining": 2,
        "file_ending": ".nii.gz",
    }


def test_participants_lose_their_characteristics_unless_they_are_retained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bids(tmp_path / "cohort")
    header = "participant_id\tage\tsex\tweight\tsite\tdiagnosis\n"
    rows = f"sub-{NAME}\t93\tF\t61.5\tSt Elsewhere\tx\nsub-774411\t40\tGrimshaw\theavy\ty\tz\nsub-9\t1\tM\t1\t1\t1\n"
    (folder / "participants.tsv").write_text(header + rows)
    assert deidentify(folder) == 0
    assert "5 columns of participants.tsv not written; retained: participant_id (" in capsys.readouterr().err
    lines = (tmp_path / "out" / "participants.tsv").read_text().splitlines()
    subjects = {path.name for path in (tmp_path / "out").glob("sub-*")}
    assert (lines[0], set(lines[1:])) == ("participant_id", subjects)
    assert deidentify(folder, "--retain-patient-characteristics", name="retained") == 0
    table = [line.split("\t") for line in (tmp_path / "retained" / "participants.tsv").read_text().splitlines()]
    assert table[0] == ["participant_id", "age", "sex", "weight"]
    assert sorted(row[1:] for row in table[1:]) == [["40", "n/a", "n/a"], ["90", "F", "61.5"]]
    assert "2 columns of participants.tsv not written" in capsys.readouterr().err


def test_files_that_are_not_written_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bids(tmp_path / "cohort")
    save(folder / f"sub-{NAME}/ses-Rosamund/anat/sub-{NAME}_ses-Rosamund_T2w.nii.gz", volume(5))
    save(folder / f"sub-{NAME}/ses-Rosamund/func/sub-{NAME}_ses-Rosamund_bold.nii.gz", volume(6))
    assert deidentify(folder) == 0
    printed = capsys.readouterr().err
    assert "fewer than half of the 4 cases have these channels, which are ignored" in printed
    assert "2 NIfTI files ignored" in printed
    assert results(folder)["left_aside"] == {"not-dicom": 5}  # sidecars and scans.tsv
    assert not [name for name in tree(tmp_path / "out") if "T2w" in name or "bold" in name]


def remove_channel(folder: Path) -> None:
    next(
        path for path in sorted(folder.rglob(f"*{NAME}*.nii.gz")) if "_0001" in path.name or "FLAIR" in path.name
    ).unlink()


@pytest.mark.parametrize("write", [nnunet, nnunet_1, bids])
def test_a_case_without_a_channel_is_refused_or_skipped_without_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path]
) -> None:
    folder = write(tmp_path / "cohort")
    remove_channel(folder)
    assert deidentify(folder) == 65
    printed = capsys.readouterr().err
    assert "the case has no file of channel FLAIR" in printed
    assert not any(secret.lower() in printed.lower() for secret in SECRETS)
    assert not (tmp_path / "out").exists()
    assert deidentify(folder, "--on-error", "skip") == 0
    assert results(folder)["left_out"] == {"missing-channel": 1}
    assert len(check(tmp_path / "out").index.cases) == len(check(folder, skip=True).index.cases)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channel_names": {"0": "T1w", "1": "PET"}}, "neither CT nor MR"),
        ({"labels": {"background": 0, "edema": [1, 2], "core": [2, 3]}}, "cannot be predicted together"),
        ({"labels": {"background": 0, "edema": 1, "ignore": 1}}, "dataset.json is invalid"),
        ({"file_ending": ".nrrd"}, "the nnU-Net data set has an unsupported layout"),
    ],
)
def test_data_sets_that_check_refuses_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    folder = nnunet(tmp_path / "cohort", **changes)
    assert deidentify(folder) == 65
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_mask_for_two_volumes_is_refused_without_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nnunet_1(tmp_path / "cohort")
    dataset = json.loads((folder / "dataset.json").read_text())
    dataset["training"][1]["label"] = dataset["training"][0]["label"]
    (folder / "dataset.json").write_text(json.dumps(dataset))
    assert deidentify(folder) == 65
    printed = capsys.readouterr().err
    assert printed.count("dataset.json lists the same mask for another volume") == 2
    assert NAME not in printed


def test_bids_suffixes_that_may_be_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for subject in "12":
        save(tmp_path / f"cohort/sub-{subject}/anat/sub-{subject}_{NAME}.nii.gz", volume(int(subject)))
    assert deidentify(tmp_path / "cohort") == 65
    printed = capsys.readouterr().err
    assert "words that are no known contrasts" in printed
    assert NAME not in printed


def test_contrasts_that_the_output_would_not_show_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_brats(tmp_path / "cohort", 3, ("t1", "t2"))
    save(tmp_path / "cohort/BraTS_000/BraTS_000_flair.nii.gz", volume(50))
    assert deidentify(tmp_path / "cohort") == 65
    assert "only T1, T2 or PD in common" in capsys.readouterr().err


@pytest.mark.parametrize("write", [nnunet, bids, contrasts])
def test_a_cut_off_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path]
) -> None:
    folder = write(tmp_path / "cohort")
    path = max(sorted(folder.rglob(f"*{NAME}*.nii.gz")), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:900])
    assert deidentify(folder) == 65
    printed = capsys.readouterr().err
    assert "is truncated or corrupt" in printed
    assert not any(secret.lower() in printed.lower() for secret in SECRETS)


def brain() -> np.ndarray:
    """Return a brain mask on the grid of the volumes that keeps the labelled voxels."""
    values = np.zeros((8, 9, 10), np.uint8)
    values[1:7, 2:8, 3:9] = 1
    return values


def with_masks(folder: Path, names: list[str]) -> tuple[str, ...]:
    for name in names:
        save(folder / "masks" / f"{name}.nii.gz", brain())
    return ("--faces", "present", "--brain-masks", str(folder / "masks"))


CASES: dict[Callable[[Path], Path], list[str]] = {
    nnunet: [f"{NAME}0", f"imagesTr/{NAME}1", "t_0_0001"],
    bids: [f"sub-{subject}_ses-{session}" for subject in SUBJECTS for session in SESSIONS],
    contrasts: [f"{NAME}000", f"{NAME}001_t1ce", f"{NAME}002/{NAME}002"],
}


@pytest.mark.parametrize("write", CASES)
def test_a_brain_mask_applies_to_every_channel_of_its_case(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    folder = write(tmp_path / "cohort")
    masks = with_masks(tmp_path, CASES[write])
    assert deidentify(folder, *masks) == 0
    files = way_back(folder)["files"]
    images = {old: new for old, new in files.items() if not ("seg" in old or "labels" in old or "dseg" in old)}
    for old, new in images.items():
        before, after = (np.asarray(nibabel.load(path).dataobj) for path in (folder / old, tmp_path / "out" / new))
        np.testing.assert_array_equal(after, np.where(brain(), before, 0))
    assert check(tmp_path / "out").index.data_class == "de-identified"
    assert results(folder)["actions"]["face-removed"] == len(images)


def test_a_case_without_brain_mask_keeps_the_cohort_identified(tmp_path: Path) -> None:
    folder = contrasts(tmp_path / "cohort")
    assert deidentify(folder, *with_masks(tmp_path, [f"{NAME}000"])) == 0
    assert check(tmp_path / "out").index.data_class == "identified"
    assert deidentify(folder, *with_masks(tmp_path, []), "--require-deidentified", name="strict") == 65


def coarse_channel(folder: Path, offset: float = 0.0) -> Path:
    """Replace the second channel of one case by a volume of 4 mm voxels."""
    path = folder / "imagesTr" / f"{NAME}0_0001.nii.gz"
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[0, 3] = offset
    save(path, np.full((4, 5, 5), 500, np.int16), affine)
    return path


def test_a_channel_on_another_grid_gets_the_mask_at_its_voxel_centers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nnunet(tmp_path / "cohort")
    path = coarse_channel(folder)
    assert deidentify(folder, *with_masks(tmp_path, CASES[nnunet])) == 0
    assert "1 channel is not on the grid of the brain mask of its case" in capsys.readouterr().err
    new = tmp_path / "out" / way_back(folder)["files"][path.relative_to(folder).as_posix()]
    values = np.asarray(nibabel.load(new).dataobj)
    np.testing.assert_array_equal(
        values, np.where(brain()[::2, ::2, ::2], 500, 0)
    )  # voxel i is at voxel 2 i of the mask


def test_a_channel_apart_from_the_mask_and_a_mask_of_no_channel_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = nnunet(tmp_path / "cohort")
    coarse_channel(folder, offset=500.0)
    masks = with_masks(tmp_path, CASES[nnunet])
    assert deidentify(folder, *masks) == 65
    assert "the volume of channel FLAIR does not overlap the brain mask" in capsys.readouterr().err
    save(tmp_path / "masks" / f"{NAME}0.nii.gz", brain(), AFFINE * [[1.1], [1], [1], [1]])
    assert deidentify(folder, *masks) == 65
    assert "the brain mask is on another grid than its scan" in capsys.readouterr().err


def test_labels_outside_of_the_brain_mask_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = contrasts(tmp_path / "cohort")
    truth = mask()
    truth[0, 0, 0] = 1
    save(folder / f"{NAME}000" / f"{NAME}000_seg.nii.gz", truth)
    assert deidentify(folder, *with_masks(tmp_path, [f"{NAME}000"])) == 65
    assert "1 labelled voxels that the mask removes" in capsys.readouterr().err


def test_a_brain_mask_of_two_cases_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case in "ab":
        for contrast in ("flair", "t1ce"):
            save(tmp_path / "cohort" / case / f"{contrast}.nii.gz", volume(ord(case) + len(contrast)))
    assert deidentify(tmp_path / "cohort", *with_masks(tmp_path, ["flair"])) == 65
    assert "masks do not match the cases" in capsys.readouterr().err
