"""`evaluate` on real NIfTI and DICOM files whose figures can be worked out by head."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.evaluation import Evaluation
from medweave_steps.cli import main
from support.evaluated import CaseSpec, MadeRun, save_nifti, write_run, write_seg, write_series

SHAPE = (24, 24, 24)


def cube(*boxes: tuple[int, int], shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Cubes, each from (first, last) on all axes."""
    mask = np.zeros(shape, bool)
    for first, last in boxes:
        mask[first:last, first:last, first:last] = True
    return mask


def spec(case_id: str, reference: np.ndarray | None, predicted: np.ndarray | None, **more: object) -> CaseSpec:
    return CaseSpec(case_id=case_id, reference=reference, predicted=predicted, **more)


def evaluate(made: MadeRun, *more: str) -> tuple[Evaluation, Path]:
    output = made.root / "evaluation"
    assert main(["evaluate", *made.options(output), *more]) == 0
    text = (output / "metrics.json").read_text()
    return codec.from_json(Evaluation, json.loads(text), where="metrics.json"), output


def test_figures_of_two_cases_are_those_worked_out_by_head(tmp_path: Path) -> None:
    # Case a: a cube of 4 voxels found exactly. Case b: a cube of 8 found by its half, one small lesion missed, one extra.
    half = cube((10, 18))
    half[14:] = False
    specs = [
        spec("case-a", cube((2, 6)), cube((2, 6))),
        spec("case-b", cube((10, 18), (1, 3)), half | cube((20, 22))),
    ]
    evaluation, output = evaluate(write_run(tmp_path, specs))
    a, b = evaluation.per_case
    assert (a.dice, a.hd95_mm, a.nsd_2mm) == (1.0, 0.0, 1.0)
    assert b.dice == pytest.approx(2 * 256 / (512 + 8 + 256 + 8), abs=1e-6)
    assert (b.lesions, b.lesions_hit, b.predicted_components, b.false_positives) == (2, 1, 2, 1)
    assert (b.reference_volume_mm3, b.predicted_volume_mm3) == (520.0, 264.0)
    assert evaluation.dice_mean == pytest.approx((1 + b.dice) / 2, abs=1e-6)
    assert evaluation.false_positives_per_scan == 0.5
    # Cubes of 4 and 8 voxels of 1 mm: diagonals of 5.24 and 10.9 mm in the plane.
    assert (evaluation.lesions, evaluation.lesions_10mm, evaluation.lesions_any_size) == (1, 1, 3)
    assert evaluation.lesion_sensitivity_6mm == 1.0
    assert evaluation.lesion_sensitivity_any_size == pytest.approx(2 / 3, abs=1e-6)
    assert evaluation.lesion_sensitivity_6_to_8mm is None  # no lesion of this size: undefined, not 0
    assert (evaluation.patients, evaluation.cases) == (2, 2)
    assert evaluation.synthetic
    assert b.dice <= evaluation.dice_ci[0] < evaluation.dice_mean < evaluation.dice_ci[1] <= 1.0
    with (output / "lesions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["hit"] for row in rows] == ["1", "0", "1"]
    assert float(rows[0]["diameter_mm"]) == pytest.approx(3 * 2**0.5 + 1, abs=0.01)
    assert float(rows[0]["volume_mm3"]) == 64
    with (output / "per_case.csv").open() as stream:
        assert [row["case_id"] for row in csv.DictReader(stream)] == ["case-a", "case-b"]


def test_dicom_masks_are_read_from_the_seg_and_not_from_the_nifti(tmp_path: Path) -> None:
    shape = (12, 20, 16)
    reference = np.zeros(shape, bool)
    reference[3:7, 5:13, 4:11] = True
    specs = [
        spec("case-00000001", reference, reference, source_format="dicom", spacing_mm=(2.0, 0.8, 0.7)),
        spec("case-00000002", reference, reference, source_format="dicom", spacing_mm=(2.0, 0.8, 0.7)),
    ]
    made = write_run(tmp_path, specs, num_batches=2)
    wrong = made.segmentations[0] / "case-00000001" / "lesion_mask.nii.gz"
    wrong.write_bytes(b"no mask")
    evaluation, _ = evaluate(made)
    assert [case.dice for case in evaluation.per_case] == [1.0, 1.0]
    assert {case.mask_format for case in evaluation.per_case} == {"dicom-seg"}
    # In plane: 8 rows of 0.8 mm and 7 columns of 0.7 mm; the slices do not count.
    expected = float(np.hypot(7 * 0.8, 6 * 0.7) + 0.75)
    assert f"{expected:.2f}" in (made.root / "evaluation" / "lesions.csv").read_text()


def test_a_dicom_case_without_a_seg_is_read_from_its_nifti(tmp_path: Path) -> None:
    reference = np.zeros((6, 10, 8), bool)
    reference[1:4, 2:5, 3:8] = True
    lesion = spec("case-00000001", reference, reference, source_format="dicom", spacing_mm=(2.0, 0.8, 0.7))
    made = write_run(tmp_path, [lesion])
    (made.segmentations[0] / "case-00000001" / "lesion_mask.dcm").unlink()
    evaluation, _ = evaluate(made)
    assert (evaluation.per_case[0].mask_format, evaluation.per_case[0].dice) == ("nifti", 1.0)


def test_baseline_is_the_threshold_in_the_lungs_on_the_source_grid(tmp_path: Path) -> None:
    lesion, bone, vessel = cube((4, 8)), cube((12, 18)), cube((20, 22))
    volume = np.where(lesion | bone | vessel, 50.0, -850.0)
    specs = [spec("case-a", lesion, lesion, volume_hu=volume, lung=~bone), spec("case-b", lesion, lesion)]
    evaluation, output = evaluate(write_run(tmp_path, specs, crop_start=(1, 2, 3)))
    a, b = evaluation.per_case
    assert (a.baseline_dice, a.baseline_false_positives) == (
        1.0,
        0,
    )  # the vessel's 8 mm³ are too small, the bone lies outside
    assert b.baseline_dice == 1.0
    (output / "metrics.json").unlink()
    for file in sorted(output.iterdir()):
        file.unlink()
    evaluation, _ = evaluate(
        write_run(tmp_path / "again", specs, crop_start=(1, 2, 3)), "--baseline-volume-mm3", "1", "1000"
    )
    assert evaluation.per_case[0].baseline_false_positives == 1
    assert evaluation.baseline.false_positives_per_scan == 0.5
    assert evaluation.baseline.volume_mm3 == (1.0, 1000.0)


def test_baseline_of_a_coarser_grid_comes_back_in_the_right_place(tmp_path: Path) -> None:
    lesion = cube((6, 14))
    made = write_run(tmp_path, [spec("case-a", lesion, lesion)], prepared_spacing_mm=(2.0, 2.0, 2.0))
    evaluation, _ = evaluate(made)
    assert evaluation.per_case[0].baseline_dice > 0.75


def test_cases_without_ground_truth_are_listed_apart(tmp_path: Path) -> None:
    specs = [spec("case-a", cube((2, 6)), cube((2, 6))), spec("case-b", None, cube((2, 6)))]
    evaluation, _ = evaluate(write_run(tmp_path, specs))
    assert evaluation.cases_without_ground_truth == ("case-b",)
    assert [case.case_id for case in evaluation.per_case] == ["case-a"]
    assert evaluation.dice_ci is None  # one patient has no interval


def test_empty_masks_are_counted_apart(tmp_path: Path) -> None:
    nothing = cube()
    specs = [
        spec("case-a", cube((2, 6)), cube((2, 6))),
        spec("case-b", nothing, nothing),
        spec("case-c", cube((2, 6)), nothing),
    ]
    evaluation, _ = evaluate(write_run(tmp_path, specs))
    assert [case.dice for case in evaluation.per_case] == [1.0, None, 0.0]
    assert [case.nsd_2mm for case in evaluation.per_case] == [1.0, None, 0.0]
    assert [case.hd95_mm for case in evaluation.per_case] == [0.0, None, None]
    assert evaluation.dice_mean == 0.5
    assert (evaluation.cases_both_empty, evaluation.cases_one_empty) == (1, 1)
    # One of two defined cases is infinitely far off, so the median is too, and that is no number.
    assert evaluation.hd95_mm_median is None


@pytest.mark.slow
def test_equal_runs_write_equal_bytes_whatever_the_threads(tmp_path: Path) -> None:
    specs = [spec(f"case-{i}", cube((2, 6 + i)), cube((3, 7))) for i in range(4)]
    made = write_run(tmp_path, specs, num_batches=2)
    written = []
    for threads in ("1", "4"):
        output = tmp_path / f"evaluation-{threads}"
        assert main(["evaluate", *made.options(output), "--num-threads", threads]) == 0
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {"metrics.json", "per_case.csv", "lesions.csv"}


def test_run_report_holds_the_figures_and_no_path(tmp_path: Path) -> None:
    made = write_run(tmp_path, [spec("case-a", cube((2, 6)), cube((2, 6)))])
    evaluate(made)
    report = json.loads((tmp_path / "evaluation-run_report.json").read_text())
    assert report["results"]["dice_mean"] == 1.0
    assert report["cases"][0]["case_id"] == "case-a"
    assert "synthetic data" in " ".join(report["notices"])
    assert str(tmp_path) not in json.dumps(report)


def failure(made: MadeRun, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    output = made.root / "evaluation"
    code = main(["evaluate", *made.options(output), *more])
    assert not output.exists()
    assert not list(made.root.glob(".evaluation*"))
    return code, capsys.readouterr().err


def test_a_case_without_a_mask_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [spec("case-a", cube((2, 6)), cube((2, 6))), spec("case-b", cube((2, 6)), None)]
    code, text = failure(write_run(tmp_path, specs), capsys)
    assert code == 65
    assert "case-b: preprocessed, but without mask" in text
    assert "case-a" not in text


def test_a_mask_without_its_prepared_case_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [spec(f"case-{i}", cube((2, 6)), cube((2, 6))) for i in "ab"]
    made = write_run(tmp_path, specs, num_batches=2)
    made.batches.pop()
    code, text = failure(made, capsys)
    assert code == 65
    assert "case-b: segmented, but not in any case batch" in text


def test_a_prepared_case_of_another_cohort_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path / "one", [spec("case-a", cube((2, 6)), cube((2, 6)))])
    other = write_run(tmp_path / "other", [spec("case-z", cube((2, 6)), cube((2, 6)))])
    made.index = other.index
    code, text = failure(made, capsys)
    assert code == 65
    assert "case-a: preprocessed, but not in the cohort index" in text


def test_a_case_that_was_segmented_twice_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path, [spec("case-a", cube((2, 6)), cube((2, 6)))])
    made.segmentations *= 2
    code, text = failure(made, capsys)
    assert code == 65
    assert "case-a was segmented twice" in text


def test_no_ground_truth_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = failure(write_run(tmp_path, [spec("case-a", None, cube((2, 6)))]), capsys)
    assert code == 65
    assert "none with a ground truth" in text


def test_a_nifti_mask_on_another_grid_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lesion = spec("case-a", cube((2, 6)), cube((2, 6)))
    made = write_run(tmp_path, [lesion])
    moved = spec("case-a", cube((2, 6)), None, spacing_mm=(1.0, 1.0, 1.1)).grid()
    save_nifti(made.segmentations[0] / "case-a" / "lesion_mask.nii.gz", lesion.predicted.astype(np.uint8), moved)
    code, text = failure(made, capsys)
    assert code == 65
    assert "case-a" in text
    assert "grid" in text


def test_a_dicom_mask_of_another_series_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = np.zeros((6, 8, 8), bool)
    reference[2:4, 2:5, 2:5] = True
    made = write_run(tmp_path, [spec("case-00000001", reference, reference, source_format="dicom")])
    other = spec("case-00000002", reference, None, source_format="dicom")
    images = write_series(tmp_path / "other-series", other)
    write_seg(made.segmentations[0] / "case-00000001" / "lesion_mask.dcm", reference, images)
    code, text = failure(made, capsys)
    assert code == 65
    assert "the delivered mask cannot be compared with the ground truth" in text
    assert "1.2.826" not in text  # no UID


@pytest.mark.parametrize("name", ["lesion_mask.dcm", "lesion_mask.nii.gz"])
def test_a_truncated_mask_is_an_error(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reference = np.random.default_rng(0).random((6, 32, 32)) < 0.5
    source_format = "dicom" if name.endswith(".dcm") else "nifti"
    made = write_run(tmp_path, [spec("case-00000001", reference, reference, source_format=source_format)])
    path = made.segmentations[0] / "case-00000001" / name
    path.write_bytes(path.read_bytes()[:-300])
    code, text = failure(made, capsys)
    assert code == 65
    assert "case-00000001" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--baseline-volume-mm3", "100", "50"), "invalid value of --baseline-volume-mm3"),
        (("--bootstrap-resamples", "10"), "too small for an interval"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = failure(write_run(tmp_path, [spec("case-a", cube((2, 6)), cube((2, 6)))]), capsys, *words)
    assert code == 2
    assert expected in text


def test_prepared_volumes_of_another_grid_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path / "one", [spec("case-a", cube((2, 6)), cube((2, 6)))])
    other = [spec("case-a", cube((2, 6)), cube((2, 6)), spacing_mm=(1.0, 1.0, 2.0))]
    made.batches = write_run(tmp_path / "other", other).batches
    code, text = failure(made, capsys)
    assert code == 65
    assert "the preprocessed volume of case-a has another source" in text


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    made = write_run(tmp_path, [spec("case-a", cube((2, 6)), cube((2, 6)))])
    output = tmp_path / "evaluation"
    blocked = made.batches[0] / "cases" / "case-a" / "volume.npy"
    blocked.unlink()
    os.mkfifo(blocked)  # reading the prepared volume waits for ever
    process = subprocess.Popen(
        [sys.executable, "-m", "medweave_steps", "evaluate", *made.options(output)], stderr=subprocess.PIPE, text=True
    )
    writer = None
    while writer is None:  # opens once the step has begun to read
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(OSError):
            writer = os.open(blocked, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=20)
    os.close(writer)
    assert process.returncode == 130
    assert "interrupted" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "batches",
        "cohort",
        "cohort_index.json",
        "segmentations",
    ]
