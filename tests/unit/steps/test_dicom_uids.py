"""Identifiers of DICOM images: validity, the file meta header, references, and what each step does without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medweave_steps.io.dicom.source_headers import read_headers, read_source_header, write_headers
from medweave_steps.io.dicom.uids import ImageUids, is_valid_uid, reference_problem
from support.checked import cases_of, errors_of, notices_of
from support.dicom_builder import CtSeries, segmentation, uid, write_datasets
from support.identified import deidentify, results, uids_of

GOOD = [ImageUids(study="1.2.3", series="1.2.4", instance=f"1.2.5.{n}", frame_of_reference="1.2.6") for n in range(3)]


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ("1.2.840.10008.1.2", True),
        ("2.25.0", True),
        ("1." + "2" * 62, True),
        ("1." + "2" * 63, False),
        ("", False),
        ("1", False),
        ("1.02.3", False),
        ("1.2.", False),
        (".1.2", False),
        ("1..2", False),
        ("1.2.a", False),
        ("1.2 ", False),
        ("1.2.\u0661", False),
        ("-1.2", False),
    ],
)
def test_validity_of_a_uid(value: str, is_valid: bool) -> None:
    assert is_valid_uid(value) == is_valid


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"instance": ""}, "SOPInstanceUID (0008,0018) is empty in 1 of 3 files"),
        ({"instance": "1.2.5.1"}, "SOPInstanceUID (0008,0018) is the same in several files, 2 of 3"),
        ({"instance": "1.2.05"}, "SOPInstanceUID (0008,0018) is not a valid UID in 1 of 3 files"),
        ({"study": ""}, "StudyInstanceUID (0020,000D) is empty in 1 of 3 files"),
        ({"study": "1.2.9"}, "StudyInstanceUID (0020,000D) differs between files of the series"),
        ({"series": "anonymous"}, "SeriesInstanceUID (0020,000E) is not a valid UID in 1 of 3 files"),
        ({"frame_of_reference": ""}, ""),
        ({"frame_of_reference": "none"}, "FrameOfReferenceUID (0020,0052) is not a valid UID in 1 of 2 files"),
    ],
)
def test_problems_of_references(changes: dict[str, str], problem: str) -> None:
    images = [dataclasses.replace(GOOD[0], **changes), *GOOD[1:]]
    if changes.get("frame_of_reference"):
        images = images[:2]
    assert reference_problem(images) == problem


def written(folder: Path, change: Callable[[int, Dataset], None], key: str = "a", **options: object) -> list[Dataset]:
    """Write a series whose slices are changed after their file meta headers are complete."""
    datasets = CtSeries(key=key, **options).datasets()
    folder.mkdir(parents=True, exist_ok=True)
    for number, dataset in enumerate(datasets):
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        change(number, dataset)
        pydicom.dcmwrite(folder / f"{key}{number:03d}.dcm", dataset, enforce_file_format=True)
    return datasets


def without_study(_: int, dataset: Dataset) -> None:
    dataset.StudyInstanceUID = ""


def test_unusable_identifiers_leave_the_case_usable(tmp_path: Path) -> None:
    written(tmp_path, without_study)
    notice = notices_of(tmp_path)["no-dicom-results"]
    assert notice.seen == "StudyInstanceUID (0020,000D) is empty in 6 of 6 files"
    assert len(cases_of(tmp_path)) == 1


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("keyword", ["SOPClassUID", "SeriesInstanceUID"])
def test_a_missing_identifier_is_named_or_taken_from_the_file_meta_header(
    tmp_path: Path, keyword: str, is_missing: bool
) -> None:
    def change(_: int, dataset: Dataset) -> None:
        dataset[keyword].value = ""
        if is_missing:
            del dataset[keyword]

    written(tmp_path, change)
    if keyword == "SOPClassUID":
        assert errors_of(tmp_path) == []
    else:
        (error,) = errors_of(tmp_path)
        assert error.seen.startswith("SeriesInstanceUID (0020,000E) is empty or missing: number 1, 2")


def test_one_instance_uid_in_two_series_is_reported_and_not_followed(tmp_path: Path) -> None:
    def change(number: int, dataset: Dataset) -> None:
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid("shared", number)

    datasets = written(tmp_path / "a", change)
    written(tmp_path / "b", change, key="b", patient="patient-b")
    mask = np.zeros((len(datasets), datasets[0].Rows, datasets[0].Columns), np.uint8)
    mask[2, 3:6, 3:6] = 1
    truth = segmentation(datasets, mask)
    del truth.ReferencedSeriesSequence[0].SeriesInstanceUID
    write_datasets([truth], tmp_path / "truth")
    notices = notices_of(tmp_path)
    assert "6 SOPInstanceUIDs" in notices["shared-instance-uid"].what
    assert "orphan-mask" in notices


def test_a_mask_is_placed_by_position_where_instances_share_a_uid(tmp_path: Path) -> None:
    datasets = CtSeries().datasets()
    mask = np.zeros((len(datasets), datasets[0].Rows, datasets[0].Columns), np.uint8)
    mask[2, 3:6, 3:6] = 1
    truth = segmentation(datasets, mask)
    for dataset in datasets:
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid("same")
    for group in truth.PerFrameFunctionalGroupsSequence:
        group.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID = uid("same")
    write_datasets([*datasets, truth], tmp_path)
    (case,) = cases_of(tmp_path)
    assert case.ground_truth is not None


def test_headers_without_identifiers_are_written_and_read(tmp_path: Path) -> None:
    (dataset,) = CtSeries(shape=(1, 36, 34)).datasets()
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = ""
    pydicom.dcmwrite(tmp_path / "a.dcm", dataset, enforce_file_format=False, implicit_vr=False, little_endian=True)
    write_headers(tmp_path / "headers.zip", [read_source_header(tmp_path / "a.dcm")])
    (header,) = read_headers(tmp_path / "headers.zip")
    assert header.SeriesInstanceUID == dataset.SeriesInstanceUID
    assert not header.SOPInstanceUID


@pytest.mark.parametrize("bad", ["1.2.03.4", "1." + "2" * 70, "study of Rosamund", "1.2..3"])
def test_deidentify_replaces_invalid_identifiers_by_valid_ones(tmp_path: Path, bad: str) -> None:
    def change(number: int, dataset: Dataset) -> None:
        dataset.StudyInstanceUID = dataset.FrameOfReferenceUID = bad
        dataset.SeriesInstanceUID = f"{bad}.1"
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"{bad}.{number}"

    written(tmp_path / "cohort", change)
    assert deidentify(tmp_path / "cohort") == 0
    paths = list((tmp_path / "out").rglob("*.dcm"))
    assert len(paths) == 6
    for path in paths:
        assert bad.encode() not in path.read_bytes()
        assert all(map(is_valid_uid, uids_of(pydicom.dcmread(path))))


def test_deidentify_takes_the_instance_uid_from_the_file_meta_header(tmp_path: Path) -> None:
    def change(_: int, dataset: Dataset) -> None:
        dataset.SOPInstanceUID = ""

    written(tmp_path / "cohort", change)
    assert deidentify(tmp_path / "cohort") == 0
    assert len({pydicom.dcmread(path).SOPInstanceUID for path in (tmp_path / "out").rglob("*.dcm")}) == 6


def test_deidentify_keeps_patients_apart_whose_studies_have_no_uid(tmp_path: Path) -> None:
    written(tmp_path / "cohort" / "a", without_study)
    written(tmp_path / "cohort" / "b", without_study, key="b", patient="patient-b")

    def nameless(number: int, dataset: Dataset) -> None:
        without_study(number, dataset)
        dataset.PatientID = ""

    written(tmp_path / "cohort" / "c", nameless, key="c")
    written(tmp_path / "cohort" / "d", nameless, key="d")
    assert deidentify(tmp_path / "cohort") == 0
    assert results(tmp_path / "cohort")["num_patients"] == 4
