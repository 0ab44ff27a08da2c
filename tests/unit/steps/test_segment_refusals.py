"""Bad input and bad luck: a clear error, the right exit code, and nothing half written."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import medweave_steps
from medweave_core.contracts.model import Postprocessing
from medweave_steps.inference.runtimes import devices
from support.openvino_models import tiny_card, write_tiny_model
from support.prepared_builder import Scan, prepare
from support.processes import nearly_full_disk
from support.segmented import CASE, scan_of, segment, series_with

ENVIRONMENT = {"PYTHONPATH": str(Path(medweave_steps.__file__).parents[1]), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def batch(tmp_path):
    return prepare(tmp_path / "batch", [scan_of(series_with())])


def left_behind(folder: Path) -> list[str]:
    """Return the files next to the inputs."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("batch", "model"))


def refused(tmp_path, model, batch, capsys, *words: str, exit_code: int = 65, extra=()) -> str:
    run = segment(tmp_path, model, batch, *extra)
    text = capsys.readouterr().err
    assert run.exit_code == exit_code, text
    assert left_behind(tmp_path) == []
    for word in words:
        assert word in text
    assert str(tmp_path) not in text
    return text


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (
            {"spacing_mm": (1.0, 1.0, 1.0)},
            ["spacing (2.00, 2.00, 2.00) mm (volume_info.json)", "spacing (1.00, 1.00, 1.00) mm"],
        ),
        ({"window_hu": (-1000.0, 1000.0)}, ["values clipped to [-1000, 400] HU", "values clipped to [-1000, 1000] HU"]),
        ({"crop": "lungs"}, ["crop 'none' (cohort.json)", "crop 'lungs' (model_card.json, input)"]),
    ],
)
def test_a_model_whose_contract_does_not_fit(tmp_path, batch, capsys, contract, words):
    values = dataclasses.replace(tiny_card().input, **contract)
    write_tiny_model(tmp_path / "model", input=values)
    text = refused(tmp_path, tmp_path / "model", batch, capsys, *words)
    assert f"medweave-step segment: the model 'tiny-nodules' does not match {CASE}." in text
    assert "run preprocess on the cohort with --segmentation-model" in text


def test_a_volume_whose_axes_are_not_ras(tmp_path, model, batch, capsys):
    path = batch / "cases" / CASE / "volume_info.json"
    info = json.loads(path.read_text())
    for row in info["grid"]["affine"]:
        row[0], row[1] = -row[0], -row[1]
    path.write_text(json.dumps(info))
    refused(tmp_path, model, batch, capsys, "axes LPS (volume_info.json)", "axes RAS (model_card.json, input)")


def test_a_model_of_more_channels(tmp_path, batch, capsys):
    write_tiny_model(tmp_path / "model", input=dataclasses.replace(tiny_card().input, channels=2))
    refused(tmp_path, tmp_path / "model", batch, capsys, "2 channels", "1 channel")


def test_a_model_of_another_modality(tmp_path, model, batch, capsys):
    shutil.copytree(model, tmp_path / "model")
    card = tmp_path / "model/model_card.json"
    card.write_text(card.read_text().replace('"modality": "CT"', '"modality": "PT"'))
    refused(tmp_path, tmp_path / "model", batch, capsys, "modality", '"PT"', "CT")


def test_a_patch_shape_that_the_network_cannot_take(tmp_path, batch, capsys):
    write_tiny_model(tmp_path / "model", input=dataclasses.replace(tiny_card().input, patch_shape=(16, 16, 18)))
    refused(tmp_path, tmp_path / "model", batch, capsys, "patch shape (16, 16, 18)", "multiples of 4")


def test_a_patch_shape_that_fits_one_axis_only(tmp_path, batch, capsys):
    arguments = {"strides": [[1, 1, 1], [2, 2, 1], [2, 2, 2], [2, 2, 2]]}
    architecture = {"class": "medweave_steps.networks.resenc.ResEncUnet", "arguments": arguments}
    contract = dataclasses.replace(tiny_card().input, patch_shape=(16, 20, 16))
    write_tiny_model(tmp_path / "model", architecture=architecture, input=contract)
    refused(tmp_path, tmp_path / "model", batch, capsys, "patch shape (16, 20, 16)", "multiples of 8 8 4")


def test_a_flipped_byte_in_the_weights(tmp_path, model, batch, capsys):
    shutil.copytree(model, tmp_path / "model")
    weights = tmp_path / "model/models/float32.bin"
    data = bytearray(weights.read_bytes())
    data[5] ^= 1
    weights.write_bytes(data)
    refused(
        tmp_path, tmp_path / "model", batch, capsys, "modified after its model card was written", "models/float32.bin"
    )


def test_a_folder_that_is_no_model(tmp_path, batch, capsys):
    refused(tmp_path, batch, batch, capsys, "the model card (model_card.json of the model folder) is missing")


def test_a_folder_that_holds_no_cases(tmp_path, model, capsys):
    refused(tmp_path, model, model, capsys, "the preprocessed cohort (cohort.json) is missing")


def test_a_volume_that_was_cut_off(tmp_path, model, batch, capsys):
    path = batch / "cases" / CASE / "volume.npy"
    path.write_bytes(path.read_bytes()[:2000])
    refused(tmp_path, model, batch, capsys, f"volume.npy of {CASE} cannot be read", "run preprocess again")


def test_a_volume_of_another_case(tmp_path, model, batch, capsys):
    np.save(batch / "cases" / CASE / "volume.npy", np.zeros((9, 9, 9), np.float32))
    refused(tmp_path, model, batch, capsys, f"volume.npy of {CASE} does not match", "shape (9, 9, 9)")


def test_headers_that_are_missing(tmp_path, model, batch, capsys):
    (batch / "cases" / CASE / "source_headers.zip").unlink()
    refused(tmp_path, model, batch, capsys, f"the source headers of {CASE} are missing")


def test_headers_that_lack_a_slice(tmp_path, model, capsys):
    # highdicom would not notice: its masks would name the wrong images.
    series = series_with()
    batch = prepare(tmp_path / "batch", [scan_of(series, headers=series.datasets()[:-1])])
    refused(tmp_path, model, batch, capsys, "23 slices (source_headers.zip)", "24 slices (volume_info.json)")


def test_headers_of_another_order(tmp_path, model, capsys):
    series = series_with()
    batch = prepare(tmp_path / "batch", [scan_of(series, headers=series.datasets()[::-1])])
    refused(tmp_path, model, batch, capsys, f"the source headers of {CASE} do not match its volume")


def test_an_output_that_exists(tmp_path, model, batch, capsys):
    (tmp_path / "segmentations").mkdir()
    (tmp_path / "segmentations/kept.txt").write_text("kept")
    assert segment(tmp_path, model, batch).exit_code == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "segmentations").iterdir()] == ["kept.txt"]


def test_onnx_runtime_with_an_int8_model(tmp_path, batch, capsys):
    write_tiny_model(tmp_path / "model", precision="int8")
    extra = ("--backend", "onnxruntime")
    refused(
        tmp_path, tmp_path / "model", batch, capsys, "cannot run with ONNX Runtime", "precision float32", extra=extra
    )


@pytest.mark.parametrize(("library", "backend"), [("openvino", "openvino"), ("onnxruntime", "onnxruntime")])
def test_a_machine_without_the_library(tmp_path, model, batch, capsys, monkeypatch, library, backend):
    monkeypatch.setitem(sys.modules, library, None)
    extra = ("--backend", backend)
    refused(tmp_path, model, batch, capsys, f"the library '{library}'", "pip install", exit_code=69, extra=extra)


def test_a_machine_with_another_runtime_is_reported_the_backend_that_works(tmp_path, model, batch, capsys, monkeypatch):
    write_tiny_model(tmp_path / "model", precision="int8")
    monkeypatch.setitem(sys.modules, "openvino", None)
    text = refused(tmp_path, model, batch, capsys, "--backend onnxruntime: installed here", exit_code=69)
    assert "torch" not in text  # the folder has no weights for it
    assert "--backend" not in refused(tmp_path, tmp_path / "model", batch, capsys, "pip install", exit_code=69)


@pytest.mark.parametrize("backend", ["auto", "onnxruntime", "torch"])
def test_cuda_where_there_is_none(tmp_path, model, batch, capsys, monkeypatch, backend):
    monkeypatch.setattr(devices, "can_use_cuda", lambda name: False)
    extra = ("--device", "cuda", "--backend", backend)
    refused(tmp_path, model, batch, capsys, "--device cuda is not available", "--device cpu", exit_code=2, extra=extra)


@pytest.mark.parametrize("bias", [float("nan"), float("inf")])
def test_a_network_that_gives_no_numbers(tmp_path, batch, capsys, bias):
    write_tiny_model(tmp_path / "model", bias=bias)
    refused(
        tmp_path, tmp_path / "model", batch, capsys, "returned values that are NaN", "NaN or infinite", exit_code=70
    )


def test_a_full_disk(tmp_path, model, batch, capsys, monkeypatch):
    import os

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(tmp_path, model, batch, capsys, "ENOSPC", "free space on the disk", exit_code=74)


def command(tmp_path, model, batch):
    words = [
        "--segmentation-model",
        model,
        "--case-batch",
        batch,
        "--output",
        tmp_path / "segmentations",
        "--num-threads",
        "1",
    ]
    return [
        sys.executable,
        "-m",
        "medweave_steps",
        "segment",
        *map(str, words),
        "--run-report",
        str(tmp_path / "report.json"),
    ]


def test_a_write_that_fails_half_way(tmp_path, model, batch):
    with nearly_full_disk(tmp_path, 8_000) as output:  # the SEG is larger, the table smaller
        run = segment(tmp_path, model, batch)
    assert run.exit_code == 74, output.getvalue()
    assert "could not be read or written" in output.getvalue()
    assert left_behind(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_in_the_middle_of_a_case(tmp_path, number, exit_code):
    # Windows of 64³ voxels with a kernel of 9³: a case takes seconds, so the signal comes while the network runs.
    kernel = np.full((9, 9, 9), 40 / 729)
    values = dataclasses.replace(tiny_card().input, patch_shape=(64, 64, 64))
    write_tiny_model(tmp_path / "model", kernel=kernel, input=values, postprocessing=Postprocessing(overlap=0.9))
    small = scan_of(series_with(), case_id="case-00000001")
    large = Scan(
        case_id="case-00000002",
        hu=np.full((96, 96, 96), -850, np.float32),
        affine_ras=np.diag([2, 2, 2, 1.0]),
        source_format="nifti",
    )
    batch = prepare(tmp_path / "batch", [small, large])
    process = subprocess.Popen(
        command(tmp_path, tmp_path / "model", batch),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "case 1/2" in first, first + process.stderr.read()
    time.sleep(0.3)
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == exit_code
    assert "interrupted" in rest
    assert "case 2/2" not in rest
    assert left_behind(tmp_path) == []
