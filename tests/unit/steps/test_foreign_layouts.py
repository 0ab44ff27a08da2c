"""Layouts of other tools are read where that is certain; else check names them and says what to convert."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts.cohort import Finding
from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from support.checked import cases_of, check, errors_of, notices_of
from support.dicom_builder import CtSeries, segmentation, write_datasets
from support.nifti_files import mask, save, volume

NNUNET = {
    "channel_names": {"0": "CT"},
    "labels": {"background": 0, "lesion": 1},
    "numTraining": 2,
    "file_ending": ".nii.gz",
}


def nnunet(folder: Path, channels: int = 1, **changes: object) -> Path:
    """Write an nnU-Net v2 raw data set of two cases and one test case."""
    for case in range(2):
        for channel in range(channels):
            save(folder / "imagesTr" / f"case_{case:03d}_{channel:04d}.nii.gz", volume(case))
        save(folder / "labelsTr" / f"case_{case:03d}.nii.gz", mask())
    save(folder / "imagesTs" / "case_009_0000.nii.gz", volume(9))
    (folder / "dataset.json").write_text(json.dumps(NNUNET | changes))
    return folder


def refusal_of(folder: Path) -> Finding | UserInputError:
    try:
        (error,) = errors_of(folder)
    except UserInputError as refused:
        return refused
    return error


def test_an_nnunet_data_set_of_one_channel_is_read(tmp_path):
    cases = cases_of(nnunet(tmp_path / "cohort"))
    assert {case.case_id: case.ground_truth for case in cases} == {
        "case_000_0000": "labelsTr/case_000.nii.gz",
        "case_001_0000": "labelsTr/case_001.nii.gz",
        "case_009_0000": None,
    }
    index = check(tmp_path / "cohort").index
    assert [(label.value, label.name) for label in index.labels] == [(1, "lesion")]
    assert index.channels == ("CT",)


def test_a_label_without_its_volume_is_an_error(tmp_path):
    folder = nnunet(tmp_path / "cohort")
    (folder / "imagesTr" / "case_001_0000.nii.gz").unlink()
    (error,) = errors_of(folder)
    assert error.code == "missing-volume"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"channel_names": {"0": "T1w", "2": "T2w"}}, "channel numbers that do not count from 0"),
        ({"channel_names": None}, "no usable channels"),
        ({"file_ending": ".nrrd"}, "file_ending .nrrd"),
        ({"labels": ["background", "lesion"]}, "labels without a number"),
        ({"dataset": {"case_000": {"images": [], "label": ""}}}, "a list 'dataset'"),
    ],
)
def test_other_nnunet_data_sets_are_named(tmp_path, changes, seen):
    error = refusal_of(nnunet(tmp_path / "cohort", **changes))
    assert "the nnU-Net data set has an unsupported layout" in error.what
    assert seen in error.seen
    assert "dataset.json in the MSD format" in error.do


def test_an_undeclared_second_channel_is_named(tmp_path):
    assert "second channel" in refusal_of(nnunet(tmp_path / "cohort", channels=2)).seen


def test_an_nnunet_contrast_of_mr_is_read_as_mr(tmp_path):
    folder = nnunet(tmp_path / "cohort", channel_names={"0": "T2"})
    assert check(folder).index.channels == ("T2",)


def test_an_unknown_channel_is_not_taken_for_ct(tmp_path):
    assert "neither CT nor MR" in refusal_of(nnunet(tmp_path / "cohort", channel_names={"0": "PET"})).what


def nnunet_1(folder: Path, channels: int = 1) -> Path:
    """Write an nnU-Net v1 data set, whose dataset.json names cases without the number of their channel."""
    nnunet(folder, channels)
    listed = [{"image": f"./imagesTr/case_{n:03d}.nii.gz", "label": f"./labelsTr/case_{n:03d}.nii.gz"} for n in (0, 1)]
    text = {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "lesion"}, "training": listed}
    (folder / "dataset.json").write_text(json.dumps(text | {"test": ["./imagesTs/case_009.nii.gz"]}))
    return folder


def test_an_nnunet_1_data_set_is_read(tmp_path):
    cases = cases_of(nnunet_1(tmp_path / "cohort"))
    assert [case.files[0] for case in cases] == [
        "imagesTr/case_000_0000.nii.gz", "imagesTr/case_001_0000.nii.gz", "imagesTs/case_009_0000.nii.gz",
    ]  # fmt: skip


def test_several_channels_of_nnunet_1_are_named(tmp_path):
    error = refusal_of(nnunet_1(tmp_path / "cohort", channels=2))
    assert "the nnU-Net data set has an unsupported layout" in error.what
    assert "_0001" in error.seen


def test_deidentify_reads_an_nnunet_data_set(tmp_path):
    out = tmp_path / "out"
    words = ["deidentify", "--cohort", str(nnunet(tmp_path / "cohort")), "--output", str(out)]
    assert main([*words, "--home", str(tmp_path / "home"), "--run-report", str(tmp_path / "r.json")]) == 0
    index = check(out).index
    assert sum(case.ground_truth is not None for case in index.cases) == 2
    assert [(label.value, label.name) for label in index.labels] == [(1, "lesion")]


def test_a_mask_that_is_listed_twice_is_ambiguous(tmp_path):
    folder = nnunet_1(tmp_path / "cohort")
    dataset = json.loads((folder / "dataset.json").read_text())
    dataset["training"][1]["label"] = dataset["training"][0]["label"]
    (folder / "dataset.json").write_text(json.dumps(dataset))
    assert [error.code for error in errors_of(folder)] == ["ambiguous-mask"] * 2
    assert [case.files[0] for case in check(folder, skip=True).index.cases] == ["imagesTs/case_009_0000.nii.gz"]


def kits(folder: Path) -> Path:
    for case in range(2):
        save(folder / f"case_{case:05d}" / "imaging.nii.gz", volume(case))
        save(folder / f"case_{case:05d}" / "segmentation.nii.gz", mask())
    return folder


def test_kits_is_read_and_its_masks_are_no_volumes(tmp_path):
    cases = cases_of(kits(tmp_path / "cohort"))
    assert [(case.files[0], case.ground_truth) for case in sorted(cases, key=lambda case: case.files)] == [
        (f"case_{n:05d}/imaging.nii.gz", f"case_{n:05d}/segmentation.nii.gz") for n in (0, 1)
    ]


def bids_root(folder: Path) -> Path:
    save(folder / "sub-01" / "scan.nii.gz", volume())
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
    return folder


def total_segmentator(folder: Path) -> Path:
    for case in ("s0001", "s0002"):
        save(folder / case / "ct.nii.gz", volume())
        for organ in ("spleen", "liver", "aorta"):
            save(folder / case / "segmentations" / f"{organ}.nii.gz", mask())
    return folder


def nnunet_without_dataset(folder: Path) -> Path:
    (nnunet(folder) / "dataset.json").unlink()
    return folder


def nnunet_raw(folder: Path) -> Path:
    nnunet(folder / "Dataset001_Lung")
    return folder


UNREAD = [
    (bids_root, "BIDS", "MSD"),
    (total_segmentator, "TotalSegmentator", "one label map per volume"),
    (nnunet_without_dataset, "nnU-Net, without its dataset.json", "copy dataset.json"),
    (nnunet_raw, "data sets in subfolders", "one data set at a time"),
]


@pytest.mark.parametrize(
    ("verb", "write", "layout", "do"),
    [(verb, *case) for verb in ("check", "deidentify") for case in UNREAD],
)
def test_a_layout_that_is_not_read_is_named(tmp_path, capsys, verb, write, layout, do):
    cohort = write(tmp_path / "cohort")
    outputs = ["--output", str(tmp_path / "out"), *(["--home", str(tmp_path / "home")] if verb == "deidentify" else [])]
    assert main([verb, "--cohort", str(cohort), *outputs, "--run-report", str(tmp_path / "r.json")]) == 65
    printed = capsys.readouterr().err
    assert "an unsupported layout" in printed
    assert layout in printed
    assert do in printed
    assert not (tmp_path / "out").exists()


def test_masks_without_their_volumes_are_orphans(tmp_path):
    save(tmp_path / "a.nii.gz", volume())
    for name in "abc":
        save(tmp_path / "labels" / f"{name}.nii.gz", mask())
    assert [case.ground_truth for case in cases_of(tmp_path)] == ["labels/a.nii.gz"]
    assert "orphan-mask" in notices_of(tmp_path)


def zipped(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("001.dcm", b"x")


@pytest.mark.parametrize("write", [lambda folder: CtSeries().write(folder / "ct"), kits, nnunet])
def test_archives_and_other_formats_are_named_in_every_layout(tmp_path, write):
    folder = tmp_path / "cohort"
    write(folder)
    zipped(folder / "Doe.zip")
    (folder / "b.tar.gz").write_bytes(b"x")
    (folder / "c.mhd").write_text("ObjectType = Image")
    notices = notices_of(folder)
    assert notices["archive"].what == "2 archives are ignored: archives are not opened."
    assert notices["archive"].seen == ".gz, .zip"
    assert notices["unread-format"].seen == "MetaImage"
    assert "other-files" not in notices


def test_a_folder_of_archives_is_an_error_that_says_to_unpack(tmp_path, capsys):
    zipped(tmp_path / "cohort" / "Doe.zip")
    words = ["check", "--cohort", str(tmp_path / "cohort"), "--output", str(tmp_path / "i.json")]
    assert main([*words, "--run-report", str(tmp_path / "r.json")]) == 65
    printed = capsys.readouterr().err
    assert "1 archive is ignored" in printed
    assert "do:       unpack the archives that belong to the cohort" in printed
    assert "Doe" not in printed


def colored(folder: Path, photometric: str) -> None:
    datasets = CtSeries(signed=False, bits_stored=16).datasets()
    for dataset in datasets:
        dataset.PhotometricInterpretation = photometric
        if photometric == "RGB":
            dataset.SamplesPerPixel, dataset.PlanarConfiguration = 3, 0
            dataset.BitsAllocated = dataset.BitsStored = 8
            dataset.HighBit = 7
            dataset.PixelData = bytes(dataset.Rows * dataset.Columns * 3)
        else:
            for color in ("Red", "Green", "Blue"):
                dataset[f"{color}PaletteColorLookupTableDescriptor"] = _descriptor(color)
                setattr(dataset, f"{color}PaletteColorLookupTableData", bytes(512))
    write_datasets(datasets, folder)


def _descriptor(color: str):
    from pydicom.datadict import tag_for_keyword
    from pydicom.dataelem import DataElement

    return DataElement(tag_for_keyword(f"{color}PaletteColorLookupTableDescriptor"), "US", [256, 0, 16])


@pytest.mark.parametrize("photometric", ["PALETTE COLOR", "RGB"])
def test_color_pictures_are_named_and_never_read_as_hu(tmp_path, capsys, photometric):
    folder = tmp_path / "cohort"
    colored(folder / "color", photometric)
    words = ["--cohort", str(folder), "--output", str(tmp_path / "i.json"), "--run-report", str(tmp_path / "r.json")]
    assert main(["check", *words]) == 65
    printed = capsys.readouterr().err
    assert "6 CT images are in color (RGB or PALETTE COLOR)" in printed
    assert "do:       export the original images" in printed
    CtSeries(key="b").write(folder / "ct")
    assert "color-pictures" in notices_of(folder)
    assert len(cases_of(folder)) == 1


@pytest.mark.parametrize("photometric", ["PALETTE COLOR", "RGB"])
def test_deidentify_ends_with_a_data_error_or_well(tmp_path, photometric):
    colored(tmp_path / "cohort", photometric)
    words = ["deidentify", "--cohort", str(tmp_path / "cohort"), "--output", str(tmp_path / "out")]
    assert main([*words, "--home", str(tmp_path / "home"), "--run-report", str(tmp_path / "r.json")]) in (0, 65)


def test_monochrome1_is_a_scan(tmp_path):
    datasets = CtSeries().datasets()
    for dataset in datasets:
        dataset.PhotometricInterpretation = "MONOCHROME1"
    write_datasets(datasets, tmp_path / "cohort")
    assert len(cases_of(tmp_path / "cohort")) == 1


def test_a_segmentation_of_two_series_is_ambiguous(tmp_path):
    folder = tmp_path / "cohort"
    series = [CtSeries(key=key, patient=key) for key in "ab"]
    for one in series:
        one.write(folder / one.key)
    values = np.zeros(series[0].shape, np.uint8)
    values[2, 3:6, 3:6] = 1
    truth = segmentation(series[0].datasets(), values)
    other = segmentation(series[1].datasets(), values)
    truth.ReferencedSeriesSequence.append(other.ReferencedSeriesSequence[0])
    write_datasets([truth], folder / "seg")
    errors = errors_of(folder)
    assert [error.code for error in errors] == ["ambiguous-mask"] * 2
    assert len({error.case_id for error in errors}) == 2
