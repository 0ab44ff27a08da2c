"""From prepared cases to delivered files."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest

import medweave_steps
from medweave_core.contracts.codec import from_json
from medweave_core.contracts.model import RESEARCH_USE_ONLY, Postprocessing
from medweave_core.contracts.segmentations import Segmentations
from medweave_steps.io.hashing import digests_below, sha256_of_file
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from medweave_steps.segment.lesions import COLUMNS
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, rotated
from support.openvino_models import write_tiny_model
from support.prepared_builder import Scan, prepare, with_balls
from support.segmented import CASE, TWO_BALLS, scan_of, segment, segment_series, series_with

STEPS = Path(medweave_steps.__file__).parents[1]
DICOM_FILES = ["lesion_mask.dcm", "lesion_mask.nii.gz", "lesions.csv", "lesions_sr.dcm"]


def rows(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_dicom_case_gets_four_files_and_a_record(run, model):
    assert run.exit_code == 0
    assert sorted(path.name for path in run.case().iterdir()) == DICOM_FILES
    record = from_json(Segmentations, json.loads((run.output / "segmentations.json").read_text()), where="the record")
    assert record.intended_use == RESEARCH_USE_ONLY
    assert record.synthetic_data
    assert record.synthetic_model
    assert (record.precision, record.backend) == ("float32", "openvino")
    assert record.model_sha256 == card_sha256(model)
    (case,) = record.cases
    assert (case.case_id, case.num_lesions, case.source_format) == (CASE, 2, "dicom")
    assert dict(case.files) == digests_below(run.case())
    assert set(record.table_columns) == set(rows(run.case("lesions.csv"))[0])


def test_the_report_reports_seconds_per_stage_and_lesions(run):
    report = json.loads(run.report.read_text())
    assert report["results"]["num_lesions"] == 2
    assert report["cases"][0]["seconds"].keys() == {"load", "network", "restore", "write"}
    assert report["cases"][0]["num_lesions"] == 2
    assert "openvino" in report["versions"]


def test_progress_names_cases_and_lesions(tmp_path, model, capsys):
    scans = [
        scan_of(series_with(balls, key=str(n)), case_id=f"case-0000000{n}")
        for n, balls in enumerate(((), TWO_BALLS[:1]))
    ]
    assert segment(tmp_path, model, prepare(tmp_path / "batch", scans)).exit_code == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("segment: case 1/2: case-00000000: 0 lesions (")
    assert lines[1].startswith("segment: case 2/2: case-00000001: 1 lesion (")


def test_the_table_says_what_the_balls_are(run):
    first, second = rows(run.case("lesions.csv"))
    assert list(first) == list(COLUMNS)
    assert [first["lesion"], second["lesion"]] == ["1", "2"]
    series = series_with()
    for row, (centre, _) in zip((first, second), TWO_BALLS, strict=True):
        place = (series.affine_ras() @ [*centre, 1])[:3]
        np.testing.assert_allclose([float(row[f"centre_{a}_mm"]) for a in "ras"], place, atol=0.5)
        assert abs(int(row["slice"]) - 1 - centre[0]) <= 1
        assert int(row["first_slice"]) <= int(row["slice"]) <= int(row["last_slice"])
        assert int(row["instance_number"]) == series.datasets()[int(row["slice"]) - 1].InstanceNumber
        assert 0 < float(row["mean_hu"]) < 101
    assert float(first["volume_mm3"]) > float(second["volume_mm3"]) > 50


def test_mask_table_and_record_agree(run):
    mask = np.asarray(nibabel.load(run.case("lesion_mask.nii.gz")).dataobj)
    record = json.loads((run.output / "segmentations.json").read_text())["cases"][0]
    table = sum(float(row["volume_mm3"]) for row in rows(run.case("lesions.csv")))
    assert set(np.unique(mask)) == {0, 1}
    assert mask.sum() * 1.5 * 0.7 * 0.8 == pytest.approx(table, abs=0.02)
    assert record["lesion_volume_mm3"] == pytest.approx(table, abs=0.02)


def test_nothing_but_dicom_holds_patient_data(run, capsys):
    words = ["Doe", "patient-a", "19500101", series_with().datasets()[0].SeriesInstanceUID, str(run.output.parent)]
    texts = [path.read_text() for path in (run.case("lesions.csv"), run.output / "segmentations.json", run.report)]
    texts.append(gzip.decompress(run.case("lesion_mask.nii.gz").read_bytes())[:352].decode("latin-1"))
    texts.append(capsys.readouterr().err)
    assert [word for word in words for text in texts if word in text] == []


def test_two_runs_give_the_same_bytes(tmp_path, model, run):
    again = segment_series(tmp_path, model, series_with())
    assert digests_below(again.output) == digests_below(run.output)


def test_the_number_of_threads_changes_nothing(tmp_path, model, run):
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    again = segment(tmp_path, model, batch, "--num-threads", "2")
    assert digests_below(again.output) == digests_below(run.output)


def test_onnx_runtime_finds_the_same_lesions(tmp_path, model, run):
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    other = segment(tmp_path, model, batch, "--backend", "onnxruntime")
    assert other.exit_code == 0
    assert sha256_of_file(other.case("lesion_mask.nii.gz")) == sha256_of_file(run.case("lesion_mask.nii.gz"))
    assert json.loads((other.output / "segmentations.json").read_text())["backend"] == "onnxruntime"


def test_a_worker_with_onnx_runtime_alone_runs_a_model_whose_card_names_it(tmp_path, model, run, monkeypatch):
    for name in ("openvino", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    shutil.copytree(model, tmp_path / "model")
    write_card(tmp_path / "model", dataclasses.replace(read_card(model), runtime="onnxruntime"))
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    other = segment(tmp_path, tmp_path / "model", batch)
    assert other.exit_code == 0
    assert sha256_of_file(other.case("lesion_mask.nii.gz")) == sha256_of_file(run.case("lesion_mask.nii.gz"))
    results = json.loads(other.report.read_text())["results"]
    assert (results["backend"], results["device"]) == ("onnxruntime", "cpu")


def test_a_nifti_case_keeps_its_axes_and_gets_no_dicom(tmp_path, model):
    affine = np.array([[0, 0.9, 0, -40], [-0.8, 0, 0, 30], [0, 0, 1.5, 10], [0, 0, 0, 1.0]])  # [i, j, k] = [P, R, S]
    hu = with_balls((60, 54, 30), affine, [((20, 30, 12), 7.0)])
    scan = Scan(case_id="lung_001", hu=hu, affine_ras=affine, source_format="nifti")
    run = segment(tmp_path, model, prepare(tmp_path / "batch", [scan]))
    assert run.exit_code == 0
    assert sorted(path.name for path in run.case(case_id="lung_001").iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]
    image = nibabel.load(run.case("lesion_mask.nii.gz", "lung_001"))
    np.testing.assert_allclose(image.affine, affine, atol=1e-5)
    where = np.argwhere(np.asarray(image.dataobj))
    np.testing.assert_allclose(where.mean(axis=0), (20, 30, 12), atol=0.7)
    (row,) = rows(run.case("lesions.csv", "lung_001"))
    assert row["instance_number"] == ""
    assert abs(int(row["slice"]) - 13) <= 1


def test_positions_that_drift_sideways_by_part_of_a_pixel_are_referenced(tmp_path, model):
    series = series_with()
    headers = series.datasets()
    for index, header in enumerate(headers):
        header.ImagePositionPatient[0] += (
            0.16 * index / (len(headers) - 1)
        )  # rounded direction cosines; check accepts it
    run = segment_series(tmp_path, model, series, headers=headers)
    assert run.exit_code == 0
    assert run.case("lesion_mask.dcm").is_file()


def test_small_lesions_are_dropped_as_the_card_says(tmp_path, run):
    volumes = [float(row["volume_mm3"]) for row in rows(run.case("lesions.csv"))]
    write_tiny_model(tmp_path / "model", postprocessing=Postprocessing(min_volume_mm3=sum(volumes) / 2))
    filtered = segment_series(tmp_path, tmp_path / "model", series_with())
    assert [float(row["volume_mm3"]) for row in rows(filtered.case("lesions.csv"))] == volumes[:1]


def test_another_threshold_gives_other_outlines_and_is_reported(tmp_path, model, run, capsys):
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    assert segment(tmp_path, model, batch, "--threshold", "1", output="none").exit_code == 2
    other = segment(tmp_path, model, batch, "--threshold", "0.9")
    assert other.exit_code == 0
    assert "threshold 0.9 instead of 0.5" in capsys.readouterr().err
    volumes = [sum(float(row["volume_mm3"]) for row in rows(item.case("lesions.csv"))) for item in (run, other)]
    assert 0 < volumes[1] < volumes[0]


@pytest.mark.slow
def test_a_worker_needs_neither_torch_nor_monai(tmp_path, model):
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    words = ["segment", "--segmentation-model", model, "--case-batch", batch, "--output", tmp_path / "out"]
    program = """
import sys
from medweave_steps.cli import main
code = main(sys.argv[1:])
sys.exit(code or sorted({"torch", "monai", "SimpleITK", "onnxruntime"} & set(sys.modules)) or 0)
"""
    command = [sys.executable, "-c", program, *map(str, words), "--run-report", str(tmp_path / "report.json")]
    ended = subprocess.run(command, env={"PYTHONPATH": str(STEPS)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_an_empty_batch_is_reported(tmp_path, model, capsys):
    run = segment(tmp_path, model, prepare(tmp_path / "batch", []))
    assert run.exit_code == 0
    assert json.loads((run.output / "segmentations.json").read_text())["cases"] == []
    assert "the batch contains no case" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "orientation"), [("axial", AXIAL), ("feet-first", FEET_FIRST_PRONE), ("oblique", rotated((1, 1, 0.2), 17))]
)
def test_source_nifti_and_segmentation_lie_in_one_place(tmp_path, model, name, orientation):
    import SimpleITK as sitk

    series = series_with(key=name, orientation=orientation)
    run = segment_series(tmp_path, model, series)
    series.write(tmp_path / "source")
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "source")))
    source = reader.Execute()
    masks = [sitk.ReadImage(str(run.case(file))) for file in ("lesion_mask.dcm", "lesion_mask.nii.gz")]
    for mask in masks:
        assert mask.GetSize() == source.GetSize()
        np.testing.assert_allclose(mask.GetSpacing(), source.GetSpacing(), atol=1e-5)
        np.testing.assert_allclose(mask.GetOrigin(), source.GetOrigin(), atol=1e-3)
        np.testing.assert_allclose(mask.GetDirection(), source.GetDirection(), atol=1e-5)
    from_dicom, from_nifti = (sitk.GetArrayFromImage(mask) > 0 for mask in masks)
    np.testing.assert_array_equal(from_dicom, from_nifti)
    # SimpleITK's array is [slice, row, column]: the lesion must be bright in the source.
    assert sitk.GetArrayFromImage(source)[from_nifti].min() > -850 + 300
