"""F11 and F18: images whose identifiers are empty, repeated or only in the file meta header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from cases.chest import chest_hu, ct_series, save_series
from medweave_core.contracts.model import InputContract
from medweave_steps.cli import main
from support.checked import check
from support.identified import deidentify, uids_of
from support.openvino_models import WINDOW_HU, write_tiny_model
from support.validators import dciodvfy_errors

PIXEL_MM, SLICE_MM, NUM_SLICES = 3.6, 8.0, 24


def same(dataset: Dataset) -> None:
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.826.0.1.2.1"


def empty(dataset: Dataset) -> None:
    dataset.SOPInstanceUID = ""


def nostudy(dataset: Dataset) -> None:
    dataset.StudyInstanceUID = ""


def anon(dataset: Dataset) -> None:
    dataset.SOPClassUID = dataset.SOPInstanceUID = dataset.SeriesInstanceUID = ""
    dataset.StudyInstanceUID = dataset.PatientID = ""


def series(folder: Path, change: Callable[[Dataset], None]) -> Path:
    datasets = ct_series(chest_hu(NUM_SLICES), pixel_mm=PIXEL_MM, slice_mm=SLICE_MM)
    for dataset in datasets:
        change(dataset)
    return save_series(folder, datasets)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that finds voxels brighter than 0 HU on a grid of 4 mm."""
    folder = tmp_path_factory.mktemp("model")
    contract = InputContract(
        spacing_mm=(4.0, 4.0, 4.0), window_hu=WINDOW_HU, patch_shape=(32, 32, 32), patch_multiple=4, crop="lungs"
    )
    write_tiny_model(folder, kernel=np.full((1, 1, 1), 400.0), bias=-400 * 1000 / 1400, input=contract)
    return folder


def segment(cohort: Path, model: Path) -> Path:
    """Run check, preprocess and segment; return the folder of the only case."""
    base = cohort.parent

    def step(*words: object) -> None:
        report = ("--run-report", base / f"{words[0]}.json", "--num-threads", "1")
        assert main([str(word) for word in (*words, *report)]) == 0

    step("check", "--cohort", cohort, "--output", base / "index.json")
    words = ("--cohort", cohort, "--cohort-index", base / "index.json", "--segmentation-model", model)
    step("preprocess", *words, "--purpose", "inference", "--output", base / "prepared")
    batch = base / "prepared" / "inference_batches" / "batch-000"
    step("segment", "--segmentation-model", model, "--case-batch", batch, "--output", base / "segmentations")
    (case,) = (path for path in (base / "segmentations").iterdir() if path.is_dir())
    return case


@pytest.mark.case("uids", expected="no DICOM output, with a notice that names the attribute")
@pytest.mark.parametrize("change", [same, nostudy])
def test_images_that_cannot_be_referenced_get_no_dicom_results(
    tmp_path: Path,
    model: Path,
    seen: Callable[[object], None],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Dataset], None],
) -> None:
    case = segment(series(tmp_path / "cohort", change), model)
    files = sorted(path.name for path in case.iterdir())
    seen(", ".join(files))
    assert files == ["lesion_mask.nii.gz", "lesions.csv"]
    message = capsys.readouterr().err
    attribute = "SOPInstanceUID (0008,0018)" if change is same else "StudyInstanceUID (0020,000D)"
    assert sum(attribute in line for line in message.splitlines()) == 2  # of check and of segment


@pytest.mark.case("uids", expected="empty SOPInstanceUID: that of the file meta header is referenced")
def test_an_empty_instance_uid_is_taken_from_the_file_meta_header(
    tmp_path: Path, model: Path, seen: Callable[[object], None]
) -> None:
    case = segment(series(tmp_path / "cohort", empty), model)
    errors = [error for name in ("lesion_mask.dcm", "lesions_sr.dcm") for error in dciodvfy_errors(case / name)]
    seen(f"{len(errors)} errors of dciodvfy")
    assert errors == []
    in_meta = {f"1.2.826.0.1.2.{number}" for number in range(1, NUM_SLICES + 1)}
    referenced = uids_of(pydicom.dcmread(case / "lesion_mask.dcm").ReferencedSeriesSequence[0])
    assert in_meta <= referenced


@pytest.mark.case("uids", expected="anon: refused, and the message names the empty attribute")
@pytest.mark.parametrize("verb", ["check", "deidentify"])
def test_an_empty_series_uid_is_named(
    tmp_path: Path, seen: Callable[[object], None], capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    cohort = series(tmp_path / "cohort", anon)
    if verb == "check":
        (finding,) = [f for f in check(cohort).index.findings if f.severity == "error"]
        message = f"{finding.what} {finding.seen}"
    else:
        assert deidentify(cohort) == 65
        message = capsys.readouterr().err
    seen(message.splitlines()[0])
    assert "SeriesInstanceUID (0020,000E) is empty" in message
    assert "truncated" not in message
