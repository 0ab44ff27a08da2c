"""`deidentify` on whole cohorts: the output identifies no patient and has everything that later steps need."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CohortIndex
from medweave_core.contracts.deidentification import Deidentification, ReidentificationMap
from medweave_core.contracts.labels import Label
from medweave_steps.cli import main
from support.checked import cases_of, check
from support.chest_cohort import write_dicom, write_msd
from support.dicom_builder import CtSeries, write_datasets
from support.identified import (
    NAME,
    PATIENT,
    SECRETS,
    data,
    deidentify,
    identified_series,
    results,
    tree,
    way_back,
    write_identified,
)
from support.validators import dciodvfy_errors


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_identified(tmp_path_factory.mktemp("hospital") / "cohort")
    assert deidentify(folder) == 0
    return folder


def files_of(folder: Path) -> list[pydicom.Dataset]:
    return [pydicom.dcmread(path) for path in sorted((folder.parent / "out").rglob("*.dcm"))]


def source_of(folder: Path, new: pydicom.Dataset) -> pydicom.Dataset:
    old = {new_uid: old_uid for old_uid, new_uid in way_back(folder)["uids"].items()}[new.SOPInstanceUID]
    return next(one for one in map(pydicom.dcmread, folder.rglob("*.dcm")) if one.SOPInstanceUID == old)


def test_nothing_that_names_anybody_leaves_home(cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deidentify(cohort, name="again") == 0
    message = "".join(capsys.readouterr())
    outside = {
        "stderr": message.encode(),
        "report": (cohort.parent / "out.json").read_bytes(),
        **tree(cohort.parent / "out"),
    }
    uids = {
        uid
        for one in cohort.rglob("*.dcm")
        for uid in (pydicom.dcmread(one).SOPInstanceUID, pydicom.dcmread(one).StudyInstanceUID)
    }
    for name, content in outside.items():
        searched = name.encode().lower() + b"\n" + content.lower()
        for secret in (*SECRETS, *uids, "fortescue", str(cohort.parent)):
            assert secret.lower().encode() not in searched, (name, secret)


def test_the_same_key_makes_the_same_bytes_and_another_makes_others(cohort: Path) -> None:
    assert deidentify(cohort, name="second") == 0
    assert tree(cohort.parent / "second") == tree(cohort.parent / "out")
    assert deidentify(cohort, "--key", str(cohort.parent / "other-key"), name="other") == 0
    assert not set(data(cohort.parent / "other")) & set(data(cohort.parent / "out"))
    assert (cohort.parent / "other-key").stat().st_mode & 0o777 == 0o600


def test_more_threads_make_the_same_bytes(cohort: Path) -> None:
    assert deidentify(cohort, "--num-threads", "2", name="parallel") == 0
    assert tree(cohort.parent / "parallel") == tree(cohort.parent / "out")


def test_pixels_and_geometry_stay_and_the_header_says_what_was_done(cohort: Path) -> None:
    retained = (
        "ImagePositionPatient",
        "ImageOrientationPatient",
        "PixelSpacing",
        "RescaleSlope",
        "RescaleIntercept",
        "InstanceNumber",
    )
    for new in files_of(cohort):
        old = source_of(cohort, new)
        assert np.array_equal(new.pixel_array, old.pixel_array)
        assert all(new.get(keyword) == old.get(keyword) for keyword in retained)
        assert new.PatientIdentityRemoved == "YES"
        assert new.LongitudinalTemporalInformationModified == "MODIFIED"
        assert new.BurnedInAnnotation == "NO"
        assert {item.CodeValue for item in new.DeidentificationMethodCodeSequence} == {"113100", "113107"}
        assert new.file_meta.MediaStorageSOPInstanceUID == new.SOPInstanceUID
        assert new.preamble == bytes(128)
        assert str(new.PatientName) == new.PatientID


def test_references_lead_to_files_of_the_cohort(cohort: Path) -> None:
    files = files_of(cohort)
    instances = {one.SOPInstanceUID for one in files}
    for one in files:
        if one.Modality == "SEG":
            (series,) = one.ReferencedSeriesSequence
            assert {item.ReferencedSOPInstanceUID for item in series.ReferencedInstanceSequence} <= instances
            images = [other for other in files if other.SeriesInstanceUID == series.SeriesInstanceUID]
            assert len(images) == 6
            assert {image.FrameOfReferenceUID for image in images} == {one.FrameOfReferenceUID}
            assert {image.PatientID for image in images} == {one.PatientID}
            assert one.SegmentSequence[0].SegmentLabel == "nodule"
            assert one.SegmentSequence[0].TrackingID.startswith("tracking-")
        else:
            assert one.SourceImageSequence[0].ReferencedSOPInstanceUID in instances


def test_dates_of_a_patient_move_together(cohort: Path) -> None:
    shifts = {one["pseudonym"]: one["date_shift_days"] for one in way_back(cohort)["patients"]}
    assert len(shifts) == 2
    for new in files_of(cohort):
        if new.Modality == "CT":
            moved = np.datetime64("2019-03-04") + shifts[new.PatientID]
            assert new.StudyDate == new.SeriesDate == str(moved).replace("-", "")
            assert new.AcquisitionDateTime == f"{new.StudyDate}101500.25+0100"
            assert new.StudyTime == "120000"


def test_what_stays_at_home(cohort: Path) -> None:
    home = cohort.parent / "out-home"
    assert home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in home.iterdir()] == ["way_back.json"]
    assert (home / "way_back.json").stat().st_mode & 0o777 == 0o600
    retained = codec.from_json(ReidentificationMap, way_back(cohort), where="")
    assert {patient.patient_id for patient in retained.patients} == {PATIENT, "HOSP-774412"}
    assert set(retained.files) == {path.relative_to(cohort).as_posix() for path in cohort.rglob("*.dcm")}
    assert set(retained.files.values()) == set(data(cohort.parent / "out"))


def test_the_report_counts(cohort: Path) -> None:
    message = codec.from_json(Deidentification, results(cohort), where="")
    assert (message.num_patients, message.num_cases, message.num_files) == (2, 2, 13)
    assert message.left_aside == {"not-dicom": 1}
    assert message.left_out == {}
    # Three private elements, three of an overlay, one unknown one, in each of twelve images.
    assert message.actions["private-removed"] == 12 * 3
    assert message.actions["overlay-removed"] == 12 * 3
    assert message.actions["unknown-removed"] == 12
    assert message.actions["identifier-replaced"] >= 12


def test_check_finds_the_same_cases(cohort: Path) -> None:
    before = {case.content_sha256: case for case in cases_of(cohort)}
    after = {case.content_sha256: case for case in cases_of(cohort.parent / "out")}
    assert set(before) == set(after)
    for digest, case in before.items():
        assert after[digest].grid == case.grid
        assert (after[digest].ground_truth is None) == (case.ground_truth is None)
    assert len({case.patient_key for case in after.values()}) == 2


@pytest.mark.parametrize("syntax", ["rle", "jpegls", "implicit"])
def test_pixels_stay_byte_for_byte(tmp_path: Path, syntax: str) -> None:
    folder = tmp_path / "cohort"
    write_datasets(identified_series(), folder, syntax=syntax)
    assert deidentify(folder) == 0
    for new in files_of(folder):
        old = source_of(folder, new)
        assert new.PixelData == old.PixelData
        assert new.file_meta.TransferSyntaxUID == old.file_meta.TransferSyntaxUID
        assert NAME.encode() not in (folder.parent / "out" / way_back(folder)["files"]["000.dcm"]).read_bytes()


def test_dciodvfy_finds_no_new_error(cohort: Path) -> None:
    files = way_back(cohort)["files"]
    for modality in ("CT", "SEG"):
        old, new = next(
            (cohort / old, cohort.parent / "out" / new)
            for old, new in files.items()
            if pydicom.dcmread(cohort / old).Modality == modality
        )
        assert [line for line in dciodvfy_errors(new) if line not in dciodvfy_errors(old)] == []


@pytest.mark.slow
def test_preprocess_makes_the_same_volumes(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    write_dicom(folder, 2)
    assert deidentify(folder) == 0
    prepared = [volumes(prepare(path)) for path in (folder, tmp_path / "out")]
    assert prepared[0] == prepared[1]
    assert len(prepared[0]) == 2
    masks = [sorted(one.num_label_voxels or 0 for one in check(path).examined) for path in (folder, tmp_path / "out")]
    assert masks[0] == masks[1]
    assert min(masks[0]) > 0


def prepare(folder: Path) -> Path:
    index = folder.with_name(f"{folder.name}.index.json")
    index.write_text(codec.dumps(check(folder).index))
    output = folder.with_name(f"{folder.name}-prepared")
    words = ["preprocess", "--cohort", folder, "--cohort-index", index, "--output", output, "--purpose", "inference"]
    words += ["--spacing-mm", "4", "4", "4"]
    assert main([*map(str, words), "--num-threads", "1", "--run-report", str(output) + ".json"]) == 0
    return output


def volumes(prepared: Path) -> set[tuple[bytes, ...]]:
    return {
        tuple(path.read_bytes() for path in sorted(case.glob("*.npy")))
        for case in prepared.glob("inference_batches/*/cases/*")
    }


def test_splits_and_card_are_written_anew(tmp_path: Path) -> None:
    folder = write_identified(tmp_path / "cohort")
    first = cases_of(folder)[0]
    (folder / "splits.json").write_text(json.dumps({"test": [first.case_id]}))
    card = {"synthetic": True, "generator": NAME, "labels": {"0": "background", "1": "nodule"}}
    (folder / "cohort_card.json").write_text(json.dumps(card))
    assert deidentify(folder) == 0
    index: CohortIndex = check(tmp_path / "out").index
    assert index.synthetic
    assert index.data_class == "de-identified"
    assert index.labels == (Label(value=1, name="nodule"),)
    (fixed,) = [case for case in index.cases if case.fixed_split == "test"]
    assert fixed.content_sha256 == first.content_sha256
    assert NAME not in (tmp_path / "out" / "cohort_card.json").read_text()


def test_a_patient_without_an_id_is_the_patient_of_their_study(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    for key in "ab":
        CtSeries(key=key, patient="").write(folder / key)
    assert deidentify(folder) == 0
    assert results(folder)["num_patients"] == 1
    assert len({case.patient_key for case in cases_of(tmp_path / "out")}) == 1


def identified_msd(folder: Path) -> Path:
    """An MSD data set whose headers and files name people."""
    write_msd(folder, 2, splits={"test": ["lung_001"]})
    listed = json.loads((folder / "dataset.json").read_text())
    for item in listed["training"]:
        for kind in ("image", "label"):
            path = folder / item[kind]
            image = nibabel.load(path)
            image.header["descrip"], image.header["db_name"] = f"CT of {NAME}".encode(), b"Grimshaw"
            image.header["aux_file"], image.header["intent_name"] = b"St Elsewhere", b"private words"
            image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", f"about {NAME}".encode()))
            new = path.with_name(path.name.replace("lung", NAME))
            image.to_filename(new)
            path.unlink()
            with gzip.open(new) as stream:
                content = stream.read()
            new.write_bytes(gzip.compress(content + b"words that follow the voxels of Rosamund"))
            item[kind] = item[kind].replace("lung", NAME)
    listed |= {"description": f"by {NAME}", "reference": "St Elsewhere", "test": []}
    (folder / "dataset.json").write_text(json.dumps(listed))
    (folder / "splits.json").write_text(json.dumps({"test": [f"{NAME}_001"]}))
    return folder


def voxels(path: Path) -> bytes:
    image = nibabel.load(path)
    return np.asarray(image.dataobj).tobytes() + image.affine.tobytes()


@pytest.mark.slow
def test_a_data_set_of_nifti_files(tmp_path: Path) -> None:
    folder = identified_msd(tmp_path / "cohort")
    assert deidentify(folder) == 0
    for name, content in tree(tmp_path / "out").items():
        plain = gzip.decompress(content) if name.endswith(".gz") else content
        for secret in SECRETS:
            assert secret.lower() not in name.lower()
            assert secret.lower().encode() not in content.lower() + plain.lower(), (name, secret)
    for old, new in way_back(folder)["files"].items():
        assert voxels(tmp_path / "out" / new) == voxels(folder / old)
    before, after = cases_of(folder), cases_of(tmp_path / "out")
    assert {case.content_sha256 for case in before} == {case.content_sha256 for case in after}
    assert {case.content_sha256: case.fixed_split for case in before} == {
        case.content_sha256: case.fixed_split for case in after
    }
    assert deidentify(folder, name="again") == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_plain_nifti_files_of_both_versions_and_byte_orders(tmp_path: Path, kind: type) -> None:
    folder = tmp_path / "cohort"
    rng = np.random.default_rng(1)
    for order, place in (("<", f"{NAME}.nii"), (">", f"of Rosamund/{NAME}-2.nii")):
        values = rng.integers(-1000, 1000, (20, 18, 16)).astype(f"{order}i2")
        header = kind.header_class(endianness=order)
        header.set_data_dtype(values.dtype)
        header["descrip"] = f"CT of {NAME}".encode()
        image = kind(values, np.diag([2.0, 2, 2, 1]), header)
        image.header.set_xyzt_units("mm")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        image.to_filename(folder / place)
    mask = kind((rng.integers(0, 2, (20, 18, 16))).astype("u1"), np.diag([2.0, 2, 2, 1]))
    (folder / "labels").mkdir()
    mask.to_filename(folder / "labels" / f"{NAME}.nii")
    assert deidentify(folder) == 0
    result = data(tmp_path / "out")
    assert len(result) == 3
    assert all(NAME.encode() not in content and NAME not in name for name, content in result.items())
    assert {case.content_sha256 for case in cases_of(folder)} == {
        case.content_sha256 for case in cases_of(tmp_path / "out")
    }
    for content in result.values():
        assert struct.unpack_from("<i", content)[0] in (348, 540, 1543569408, 469893120)
