"""The structured reports of `classify`: coded findings for DICOM radiographs, from files to files."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.labels import CodedTerm
from medweave_core.contracts.model import RESEARCH_USE_ONLY, InputContract, Postprocessing
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.dicom.source_headers import read_headers, write_headers
from medweave_steps.io.hashing import digests_below
from support.classified import Run, classify, write_classifier
from support.image_files import noise, preprocess, radiograph, save_dicom, save_table
from support.prepared_builder import prepare
from support.segmented import scan_of, series_with
from support.validators import dciodvfy_errors

OPACITY = ImageClass(name="Opacity", code=CodedTerm(value="T-1", scheme="99TEST", meaning="Opacity"))
NODULE = ImageClass(name="Nodule", code=CodedTerm(value="27925004", scheme="SCT", meaning="Nodule"))
SIZE = (24, 20, 1)


@pytest.fixture(scope="module", params=["DX", "CR", "MG"])
def modality(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepared_radiographs(folder: Path, modality: str = "DX", **values: Any) -> Path:
    """Write two radiographs, a dark and a bright one; check and preprocess them, and return their batch."""
    cohort = folder / "cohort"
    for key, brightest in (("dark", 1000), ("bright", 4000)):
        stored = (noise(1, (20, 24)).astype(np.int64) * brightest // 255).astype(np.uint16)
        save_dicom(cohort / f"{key}.dcm", radiograph(key, modality, stored, **values))
    save_table(cohort / "targets.csv", "image,class", "dark.dcm,Nodule", "bright.dcm,Opacity")
    code, prepared, _ = preprocess(cohort, "--image-size", "24", "20", "--purpose", "inference")
    assert code == 0
    return prepared / "inference_batches" / "batch-000"


def write_model(folder: Path, modality: str = "DX", **changes: Any) -> Path:
    """Write a model that says Opacity for bright images and Nodule for dark ones."""
    values: dict[str, Any] = {
        "classes": (NODULE, OPACITY), "channels": (modality,), "shape": SIZE, "weights": np.array([[-8.0, 8.0]]),
        "bias": (4.0, -4.0), "postprocessing": Postprocessing(temperature=1.0),
    }  # fmt: skip
    write_classifier(folder, **(values | changes))
    return folder


@pytest.fixture(scope="module")
def batch(modality: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_radiographs(tmp_path_factory.mktemp("radiographs"), modality)


@pytest.fixture(scope="module")
def dx_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_radiographs(tmp_path_factory.mktemp("dx"))


def reports_of(run: Run) -> dict[str, Path]:
    """Return the path of the report by predicted class."""
    return {case.classes[0]: run.output / case.case_id / "classification_sr.dcm" for case in run.record.cases}


def test_a_radiograph_gets_a_valid_report_with_a_coded_finding_and_its_probability(
    tmp_path: Path, batch: Path, modality: str
) -> None:
    run = classify(tmp_path, write_model(tmp_path / "model", modality), batch)
    assert run.exit_code == 0
    assert set(reports_of(run)) == {"Nodule", "Opacity"}
    for case in run.record.cases:
        (name,) = case.classes
        path = reports_of(run)[name]
        assert dict(case.files) == digests_below(path.parent)
        assert dciodvfy_errors(path) == []
        report = highdicom.sr.srread(path)
        assert isinstance(report, highdicom.sr.ComprehensiveSR)
        (group,) = report.content.get_image_measurement_groups()
        code = NODULE.code if name == "Nodule" else OPACITY.code
        assert code is not None
        assert (group.finding_type.value, group.finding_type.meaning) == (code.value, code.meaning)
        (measurement,) = group.get_measurements()
        assert measurement.name.meaning == "Certainty of Finding"
        assert measurement.value == pytest.approx(100 * case.probabilities[name], abs=0.006)
        assert measurement.unit.value == "%"
        (header,) = read_headers(batch / "cases" / case.case_id / "source_headers.zip")
        (image,) = group.source_images
        assert image.referenced_sop_instance_uid == header.SOPInstanceUID
        assert report.StudyInstanceUID == header.StudyInstanceUID
        assert report.SeriesInstanceUID != header.SeriesInstanceUID
        assert (report.PatientID, report.PatientName) == (header.PatientID, "Doe^Jane")
        assert "research use only" in report.SeriesDescription
        assert report.CompletionFlag == "COMPLETE"
        assert report.VerificationFlag == "UNVERIFIED"
    assert run.record.intended_use == RESEARCH_USE_ONLY


def test_two_runs_give_the_same_reports_and_another_model_gives_others(tmp_path: Path, dx_batch: Path) -> None:
    model = write_model(tmp_path / "model")
    first, again = (classify(tmp_path, model, dx_batch, output=name) for name in ("first", "again"))
    assert digests_below(first.output) == digests_below(again.output)
    other = classify(tmp_path, write_model(tmp_path / "other", name="other"), dx_batch, output="other-run")
    uids = [{pydicom.dcmread(path).SOPInstanceUID for path in reports_of(run).values()} for run in (first, other)]
    assert len(uids[0] | uids[1]) == 4


def test_without_a_code_for_each_class_there_is_no_report(
    tmp_path: Path, dx_batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", classes=(dataclasses.replace(NODULE, code=None), OPACITY))
    run = classify(tmp_path, model, dx_batch)
    assert run.exit_code == 0
    assert list(run.output.rglob("*.dcm")) == []
    message = capsys.readouterr().err
    assert message.count("no DICOM SR: 1 of 2 classes of the model card have no DICOM code (Nodule)") == 1
    assert "cohort_card.json" in message


def test_a_case_without_a_predicted_class_has_no_report(
    tmp_path: Path, dx_batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", is_multi_label=True, weights=np.array([[0.0, 8.0]]), bias=(-9.0, -6.0))
    run = classify(tmp_path, model, dx_batch)
    assert sorted(case.classes for case in run.record.cases) == [(), ("Opacity",)]
    assert len(list(run.output.rglob("*.dcm"))) == 1
    assert "no DICOM SR: no class reaches its threshold" in capsys.readouterr().err


def test_a_multi_label_report_has_a_finding_for_each_predicted_class(tmp_path: Path, dx_batch: Path) -> None:
    model = write_model(tmp_path / "model", is_multi_label=True, weights=np.array([[0.0, 0.0]]), bias=(1.0, 3.0))
    run = classify(tmp_path, model, dx_batch)
    for path in run.output.rglob("*.dcm"):
        assert dciodvfy_errors(path) == []
        groups = highdicom.sr.srread(path).content.get_image_measurement_groups()
        assert [group.finding_type.meaning for group in groups] == ["Nodule", "Opacity"]


def test_the_report_of_a_ct_references_every_slice(tmp_path: Path) -> None:
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    (case,) = open_prepared(batch).cases()
    contract = InputContract(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=case.info().grid.shape, patch_multiple=1,
        crop="none",
    )  # fmt: skip
    run = classify(tmp_path, write_model(tmp_path / "model", input=contract, channels=("CT",)), batch)
    assert run.exit_code == 0
    (path,) = run.output.rglob("*.dcm")
    assert dciodvfy_errors(path) == []
    (group,) = highdicom.sr.srread(path).content.get_image_measurement_groups()
    assert len(group.source_images) == 24


def test_missing_source_headers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = prepared_radiographs(tmp_path)
    next(batch.glob("cases/*/source_headers.zip")).unlink()
    run = classify(tmp_path, write_model(tmp_path / "model"), batch)
    assert run.exit_code == 65
    assert not run.output.exists()
    assert "source headers of case-" in capsys.readouterr().err


def test_an_image_without_identifiers_gets_a_row_and_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = prepared_radiographs(tmp_path)
    path = next(batch.glob("cases/*/source_headers.zip"))
    headers = read_headers(path)
    del headers[0].StudyInstanceUID
    write_headers(path, headers)
    run = classify(tmp_path, write_model(tmp_path / "model"), batch)
    assert run.exit_code == 0
    assert len(run.record.cases) == 2
    assert len(list(run.output.rglob("*.dcm"))) == 1
    assert sorted(path.name for path in run.output.iterdir() if path.is_dir()) == [
        case.case_id for case in run.record.cases if case.files
    ]
    assert "StudyInstanceUID (0020,000D) is empty in 1 of 1 files" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values",
    [
        {"PatientSex": "W", "PatientBirthDate": "19.5.1950", "StudyDate": "yesterday"},
        {"PatientName": "Müller^Jürgen", "SpecificCharacterSet": "ISO_IR 100"},
        {"PatientName": None, "PatientID": ""},
    ],
    ids=["odd-values", "umlauts", "empty"],
)
def test_odd_headers_give_valid_reports(tmp_path: Path, values: dict[str, Any]) -> None:
    batch = prepared_radiographs(tmp_path)
    path = next(batch.glob("cases/*/source_headers.zip"))
    headers = read_headers(path)
    with pydicom.config.disable_value_validation():
        for keyword, value in values.items():
            setattr(headers[0], keyword, value)
        write_headers(path, headers)
    run = classify(tmp_path, write_model(tmp_path / "model"), batch)
    assert run.exit_code == 0
    report = run.output / path.parent.name / "classification_sr.dcm"
    assert dciodvfy_errors(report) == []


def test_nothing_but_dicom_holds_patient_data(
    tmp_path: Path, dx_batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = classify(tmp_path, write_model(tmp_path / "model"), dx_batch)
    with zipfile.ZipFile(next(dx_batch.glob("cases/*/source_headers.zip"))) as archive:
        assert archive.namelist()
    words = ["Doe", "patient-dark", "patient-bright", str(tmp_path)]
    texts = [path.read_text() for path in (*run.output.glob("classifications.*"), run.report)]
    texts.append(capsys.readouterr().err)
    assert [word for word in words for text in texts if word in text] == []
    assert len(json.loads(run.report.read_text())["cases"]) == 2
