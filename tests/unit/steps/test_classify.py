"""From prepared images to tables of classes, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.model import RESEARCH_USE_ONLY, ComponentFilter, Postprocessing
from medweave_core.contracts.schema import schema_of
from medweave_steps.io.hashing import digests_below
from medweave_steps.io.model.folder import card_sha256
from support.classified import Run, classify, write_classifier
from support.image_set import CLASSES, image_set
from support.openvino_models import write_tiny_model
from support.prepared_builder import prepare
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line
from support.segmented import scan_of, segment, series_with


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    write_classifier(folder)
    return folder


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_set(tmp_path_factory.mktemp("batches") / "batch", of_split={"test": 6})


@pytest.fixture(scope="module")
def run(model: Path, batch: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return classify(tmp_path_factory.mktemp("run"), model, batch)


def rows(run: Run) -> list[dict[str, str]]:
    with (run.output / "classifications.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def refused(folder: Path, model: Path, batch: Path, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """Check that `classify` ends with 65 and these words, and leaves nothing."""
    ended = classify(folder, model, batch, output="refused")
    message = capsys.readouterr().err
    assert ended.exit_code == 65, message
    assert not list(folder.glob("*refused*/"))
    for word in words:
        assert word in message
    assert str(folder) not in message


def test_images_get_their_classes_in_a_table_and_a_record(run: Run, model: Path) -> None:
    assert run.exit_code == 0
    assert sorted(path.name for path in run.output.iterdir()) == ["classifications.csv", "classifications.json"]
    assert [row["predicted"] for row in rows(run)] == [*CLASSES, *CLASSES]
    jsonschema.validate(json.loads((run.output / "classifications.json").read_text()), schema_of("classifications"))
    record = run.record
    assert record.intended_use == RESEARCH_USE_ONLY
    assert (record.precision, record.backend, record.temperature) == ("float32", "openvino", 2.0)
    assert record.model_sha256 == card_sha256(model)
    assert record.synthetic_data
    assert not record.is_multi_label
    assert record.thresholds == ()
    assert set(record.table_columns) == set(rows(run)[0])


def test_probabilities_are_those_of_the_softmax_at_the_temperature_of_the_card(run: Run, batch: Path) -> None:
    for case, row in zip(run.record.cases, rows(run), strict=True):
        brightest = np.load(batch / "cases" / case.case_id / "volume.npy").max(axis=(1, 2, 3))
        powers = np.exp((10 * brightest.astype(np.float64) - 7) / 2)
        expected = dict(zip(CLASSES, powers / powers.sum(), strict=True))
        assert case.probabilities == pytest.approx(expected, abs=1e-5)
        assert {name: float(row[f"probability_{name}"]) for name in CLASSES} == case.probabilities
        assert row["case_id"] == case.case_id


def test_the_report_counts_cases_by_class(run: Run) -> None:
    report = json.loads(run.report.read_text())
    assert report["results"]["num_cases_by_class"] == dict.fromkeys(CLASSES, 2)
    assert report["cases"][0]["classes"] == ["MEL"]
    assert "openvino" in report["versions"]


def test_a_multi_label_model_decides_by_the_threshold_of_each_class(tmp_path: Path) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 5}, is_multi_label=True)
    thresholds = tuple(ComponentFilter(threshold=value) for value in (0.5, 0.999, 0.5))
    postprocessing = Postprocessing(by_output=thresholds, temperature=1.0)
    write_classifier(tmp_path / "model", is_multi_label=True, postprocessing=postprocessing)
    run = classify(tmp_path, tmp_path / "model", batch)
    assert run.exit_code == 0
    assert [row["predicted"] for row in rows(run)] == ["", "MEL", "", "BCC", "MEL|BCC"]
    assert run.record.thresholds == (0.5, 0.999, 0.5)
    assert run.record.is_multi_label


def test_onnx_runtime_and_an_int8_model_give_the_same_classes(
    tmp_path: Path, model: Path, batch: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    other = classify(tmp_path, model, batch, "--backend", "onnxruntime")
    assert other.record.backend == "onnxruntime"
    write_classifier(tmp_path / "int8", precision="int8")
    small = classify(tmp_path, tmp_path / "int8", batch, output="small")
    assert small.record.precision == "int8"
    for one in (other, small):
        assert [case.classes for case in one.record.cases] == [case.classes for case in run.record.cases]
    assert classify(tmp_path, tmp_path / "int8", batch, "--backend", "onnxruntime", output="none").exit_code == 65
    assert "precision int8" in capsys.readouterr().err


def test_two_runs_give_the_same_bytes_with_any_number_of_threads(
    tmp_path: Path, model: Path, batch: Path, run: Run
) -> None:
    again = classify(tmp_path, model, batch, "--num-threads", "2")
    assert digests_below(again.output) == digests_below(run.output)


def test_an_empty_batch_is_reported(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "batch").mkdir()
    run = classify(tmp_path, model, image_set(tmp_path / "batch", of_split={"test": 0}, classes=()))
    assert run.exit_code == 0
    assert "the batch contains no case" in capsys.readouterr().err
    assert run.record.cases == ()
    assert rows(run) == []


def test_a_segmentation_model_is_refused(tmp_path: Path, batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "model")
    refused(
        tmp_path, tmp_path / "model", batch, capsys, "'tiny-nodules' does not classify", "task segmentation, 0 classes"
    )


def test_segment_refuses_a_classification_model(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volumes = prepare(tmp_path / "volumes", [scan_of(series_with())])
    assert segment(tmp_path, model, volumes).exit_code == 65
    message = capsys.readouterr().err
    assert "'tiny-classes' does not segment" in message
    assert "medweave-step classify" in message


def test_gray_images_are_refused_by_a_model_of_color_images(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 1}, channels=("gray",))
    refused(tmp_path, model, batch, capsys, "1 channel: gray (cohort.json)", "3 channels: red, green, blue")


def test_images_of_another_size_are_refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 2}, shapes={1: (24, 12, 1)})
    refused(tmp_path, model, batch, capsys, "case-01", "24 x 12 x 1 voxels", "16 x 12 x 1 voxels")


def test_volumes_of_another_spacing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    write_classifier(tmp_path / "model", channels=("CT",), weights=np.ones((1, 3)), shape=(16, 16, 16))
    refused(tmp_path, tmp_path / "model", batch, capsys, "spacing (2.00, 2.00, 2.00) mm (volume_info.json)")


def test_an_array_that_is_cut_off_is_refused_and_leaves_nothing(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 3})
    array = batch / "cases" / "case-01" / "volume.npy"
    array.write_bytes(array.read_bytes()[:500])
    refused(tmp_path, model, batch, capsys, "volume.npy of case-01 cannot be read", "run preprocess again")


def test_an_array_of_another_shape_than_its_geometry_is_refused(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 1})
    np.save(batch / "cases" / "case-00" / "volume.npy", np.zeros((3, 8, 8, 1), np.float32))
    refused(tmp_path, model, batch, capsys, "the image of case-00 does not fit", "(3, 8, 8, 1)")


def test_a_changed_model_file_is_refused(tmp_path: Path, batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_classifier(tmp_path / "model")
    with (tmp_path / "model/models/float32.bin").open("r+b") as stream:
        stream.write(b"\1")
    refused(tmp_path, tmp_path / "model", batch, capsys, "was modified after its model card was written")


def test_thresholds_of_other_classes_and_equal_names_are_refused(
    tmp_path: Path, batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postprocessing = Postprocessing(by_output=(ComponentFilter(),) * 2)
    write_classifier(tmp_path / "two", is_multi_label=True, postprocessing=postprocessing)
    refused(tmp_path, tmp_path / "two", batch, capsys, "thresholds of 2 classes")
    write_classifier(tmp_path / "same", classes=(ImageClass(name="A"),) * 3)
    refused(tmp_path, tmp_path / "same", batch, capsys, "the classes need different names")


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, model: Path, batch: Path) -> None:
    with nearly_full_disk(tmp_path, 500) as output:
        run = classify(tmp_path, model, batch)
    assert run.exit_code == 74, output.getvalue()
    assert "a file could not be read or written" in output.getvalue()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_needs_neither_torch_nor_monai(tmp_path: Path, model: Path, batch: Path) -> None:
    program = """
import sys
from medweave_steps.cli import main
code = main(sys.argv[1:])
sys.exit(code or sorted({"torch", "monai", "SimpleITK", "onnxruntime", "scipy.optimize"} & set(sys.modules)) or 0)
"""
    words = ["classify", "--model", model, "--case-batch", batch, "--output", tmp_path / "out"]
    command = [sys.executable, "-c", program, *map(str, words), "--run-report", str(tmp_path / "report.json")]
    ended = subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, model: Path) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 2})
    blocked = batch / "cases" / "case-01" / "volume.npy"
    blocked.unlink()
    os.mkfifo(blocked)  # reading the second image waits for ever
    (tmp_path / "here").mkdir()
    words = ["classify", "--model", str(model), "--case-batch", str(batch), "--output", "out"]
    process = started(words, folder=tmp_path / "here")
    wait_for_line(process, "case 1/2")
    code, message = interrupted(process)
    assert code == 130
    assert "interrupted" in message
    assert names_below(tmp_path / "here") == []
