"""DICOM MR and PET through check and preprocess: channels, units, reports, and the headers that results refer to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from medweave_core.contracts.volume import VolumeInfo
from medweave_steps.cli import main
from medweave_steps.dicom_results.common import read_source
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared
from medweave_steps.io.dicom.source_headers import read_headers
from medweave_steps.segment.dicom_seg import draft_segmentation
from support.dicom_builder import segmentation, uid, write_datasets
from support.model_folders import tiny_card
from support.mr_pet_builder import MrSeries, PetSeries
from support.openvino_models import NODULE_ANYWHERE, write_tiny_model
from support.openvino_models import tiny_card as openvino_card

SHAPE = (12, 40, 36)
SPACING = {"shape": SHAPE, "spacing_mm": (2.0, 1.0, 1.0)}
JOBS = Path(__file__).resolve().parents[3] / "workflows" / "brain-tumour-segmentation" / "jobs"
RULES = [{"name": "T2w", "echo_time_ms": [80, 120]}, {"name": "T1gd", "contrast": True}]


def prepare(folder: Path, *options: str, channels: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Run check and preprocess on `cohort`; return the run report of the latter."""
    (folder / "rules.json").write_text(json.dumps(channels))
    rules = ["--channels", str(folder / "rules.json")] if channels else []
    common = ["--num-threads", "1", "--cohort", str(folder / "cohort")]
    assert (
        main(
            [
                "check",
                *common,
                "--output",
                str(folder / "index.json"),
                *rules,
                "--run-report",
                str(folder / "check.json"),
            ]
        )
        == 0
    )
    words = ["--cohort-index", str(folder / "index.json"), "--output", str(folder / "prepared"), *options]
    assert main(["preprocess", *common, *words, "--run-report", str(folder / "report.json")]) == 0
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def write_study(folder: Path, patient: str) -> None:
    first = MrSeries(key=f"{patient}-t2", patient=patient, **SPACING)
    other = MrSeries(
        key=f"{patient}-t1c",
        patient=patient,
        echo_time_ms=10.0,
        contrast="GD",
        shape=(14, 30, 30),
        spacing_mm=(1.8, 1.4, 1.3),
    )
    first.write(folder / patient / "t2")
    other.write(folder / patient / "t1c")
    mask = np.zeros(SHAPE, np.uint8)
    mask[4:8, 10:20, 10:20] = 1
    write_datasets([segmentation(first.datasets(), mask)], folder / patient / "seg")


@pytest.fixture(scope="module")
def brains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with cohort/ of three studies and prepared/, and the report of preprocess."""
    folder = tmp_path_factory.mktemp("brains")
    for patient in ("ann", "bob", "eve"):
        write_study(folder / "cohort", patient)
    return folder, prepare(folder, "--spacing-mm", "1", "1", "2", channels=RULES)


def batch_of(folder: Path) -> PreparedFolder:
    return open_prepared(folder / "prepared" / "inference_batches" / "batch-000")


def test_each_channel_is_on_the_grid_of_the_first_and_standardized(brains: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = brains
    training = open_prepared(folder / "prepared" / "training_set")
    assert (training.cohort.channels, training.cohort.window_hu) == (("T2w", "T1gd"), None)
    for case in training.cases():
        volume, info = case.volume_CIJK(), case.info()
        assert volume.shape == (2, 32, 40, 8)
        np.testing.assert_allclose(volume.mean((1, 2, 3), dtype=np.float64), 0, atol=1e-4)
        assert (info.unit, info.channels, info.source_grid.shape) == ("SD", ("T2w", "T1gd"), SHAPE)
        assert np.count_nonzero(np.load(case.folder / "label.npy")) == 4 * 10 * 10


def test_resampling_of_a_channel_is_reported(brains: tuple[Path, dict[str, Any]]) -> None:
    _, report = brains
    assert "channel T1gd of 3 cases: resampled linearly to the grid of the first channel (T2w)." in str(report)
    assert all(case["resampled_channels"] == ["T1gd"] for case in report["cases"])


def test_dicom_results_refer_to_the_first_channel(brains: tuple[Path, dict[str, Any]]) -> None:
    (case,) = batch_of(brains[0]).cases()
    info: VolumeInfo = case.info()
    source = read_source(read_headers(case.folder / "source_headers.zip"), info)
    assert source is not None
    assert source.series_uid in {uid(f"{patient}-t2", "series") for patient in ("ann", "bob", "eve")}
    draft = draft_segmentation(source, info.source_grid.shape, tiny_card(), model_sha256="0" * 64)
    (referenced,) = draft.ReferencedSeriesSequence
    assert referenced.SeriesInstanceUID == source.series_uid
    assert len(referenced.ReferencedInstanceSequence) == SHAPE[0]
    assert draft.FrameOfReferenceUID == source.images[0].FrameOfReferenceUID


def test_pet_keeps_its_suv(tmp_path: Path) -> None:
    scan = PetSeries(key="pet", shape=SHAPE, spacing_mm=(4.0, 4.0, 4.0), slopes=3.0)
    scan.write(tmp_path / "cohort")
    report = prepare(tmp_path, "--purpose", "inference", "--crop", "none", "--spacing-mm", "4", "4", "4")
    (case,) = batch_of(tmp_path).cases()
    expected = scan.becquerels_per_ml() * 70e3 / (3.7e8 * 0.5 ** (3600 / 6586.2))
    info = case.info()
    assert (info.unit, info.channels, info.window_hu) == ("SUV", ("PET",), None)
    volume = case.volume_CIJK()[0]
    np.testing.assert_allclose(np.sort(volume.ravel()), np.sort(expected.ravel()), rtol=1e-5)
    assert "window_hu" not in report


def test_a_window_in_hu_is_refused_for_pet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PetSeries(key="pet").write(tmp_path / "cohort")
    with pytest.raises(AssertionError):
        prepare(tmp_path, "--purpose", "inference", "--window-hu", "-100", "100")
    assert "the cohort is PET, which has no HU" in capsys.readouterr().err


def test_dicom_and_msd_of_the_same_brain_give_equal_volumes(tmp_path: Path) -> None:
    volumes = []
    rules = json.loads((JOBS / "demo-channels.json").read_text())
    for form in ("dicom", "msd"):
        folder = tmp_path / form
        folder.mkdir()
        words = ["--cases", "1", "--grid", "demo", "--format", form, "--output", str(folder / "cohort")]
        words += ["--num-threads", "1", "--run-report", str(folder / "phantom.json")]
        assert main(["phantom", "brain", *words]) == 0
        spacing = ("--purpose", "inference", "--spacing-mm", "3.75", "3.75", "3.75")
        prepare(folder, *spacing, channels=rules if form == "dicom" else None)
        (case,) = batch_of(folder).cases()
        volumes.append(case.volume_CIJK())
    np.testing.assert_array_equal(*volumes)


def hot_ball(series: type[MrSeries], **options: Any) -> tuple[MrSeries, np.ndarray]:
    """Return a series of low values with a ball of high ones, and the ball's mask [slice, row, column]."""
    places = np.stack(np.meshgrid(*map(np.arange, (16, 40, 40)), indexing="ij"))
    ball = (((places - np.array([7, 18, 22])[:, None, None, None]) ** 2).sum(0) <= 25).astype(np.uint8)
    scan = series(
        key="hot", shape=(16, 40, 40), spacing_mm=(2.0, 2.0, 2.0), stored=100 + 20000 * ball.astype(int), **options
    )
    return scan, ball


@pytest.mark.parametrize(
    ("scan", "contract", "bias"),
    [
        (hot_ball(PetSeries, slopes=2.0), {"modality": "PT", "unit": "SUV", "channel_names": ("PET",)}, -5.0),
        (hot_ball(MrSeries), {"modality": "MR", "unit": "SD", "channel_names": ("MR",)}, -2.0),
    ],
    ids=["PET", "MR"],
)
def test_results_of_segment_lie_on_the_source_series(
    tmp_path: Path, scan: tuple[MrSeries, np.ndarray], contract: dict[str, Any], bias: float
) -> None:
    series, ball = scan
    series.write(tmp_path / "cohort")
    write_datasets([segmentation(series.datasets(), ball)], tmp_path / "cohort" / "seg")
    wanted = dataclasses.replace(openvino_card().input, window_hu=None, **contract)
    write_tiny_model(tmp_path / "model", kernel=np.ones((1, 1, 1)), bias=bias, input=wanted, labels=(NODULE_ANYWHERE,))
    prepare(tmp_path, "--purpose", "inference", "--segmentation-model", str(tmp_path / "model"))
    batch = tmp_path / "prepared" / "inference_batches" / "batch-000"
    words = ["--segmentation-model", str(tmp_path / "model"), "--case-batch", str(batch), "--num-threads", "1"]
    words += ["--output", str(tmp_path / "out"), "--run-report", str(tmp_path / "segment.json")]
    assert main(["segment", *words]) == 0
    (path,) = (tmp_path / "out").rglob("lesion_mask.dcm")
    mask = pydicom.dcmread(path)
    np.testing.assert_array_equal(mask.pixel_array, ball)
    assert mask.ReferencedSeriesSequence[0].SeriesInstanceUID == uid("hot", "series")
    assert mask.FrameOfReferenceUID == uid("patient-a", "frame")
    words = [
        "--cohort",
        str(tmp_path / "cohort"),
        "--cohort-index",
        str(tmp_path / "index.json"),
        "--case-batches",
        str(batch),
    ]
    words += ["--segmentations", str(tmp_path / "out"), "--output", str(tmp_path / "evaluation"), "--num-threads", "1"]
    words += ["--baseline-threshold-sd", "0.05", "--run-report", str(tmp_path / "evaluate.json")]
    assert main(["evaluate", *words]) == 0
    (row,) = json.loads((tmp_path / "evaluation" / "metrics.json").read_text())["per_case"]
    assert (row["dice"], row["baseline_dice"]) == (1.0, 1.0)
