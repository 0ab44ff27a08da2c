"""`medweave-step preprocess` on real files: its outputs, and their inverse transform to the source."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from scipy import ndimage
from scipy.ndimage import map_coordinates

from medweave_core.contracts.cohort import CaseEntry, CohortIndex
from medweave_core.contracts.labels import Label
from medweave_core.contracts.model import InputContract
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import CaseFolder, PreparedFolder, open_prepared
from medweave_steps.io.cohort.source import open_source
from medweave_steps.io.dicom.source_headers import frame_order, read_headers
from medweave_steps.io.geometry import ras_axes, source_positions, to_ras_order
from medweave_steps.io.hashing import digests_below, sha256_of_text
from medweave_steps.io.model.folder import write_card
from support.checked import read_truth
from support.chest_cohort import index_of, save_index, write_dicom, write_index, write_msd
from support.dicom_builder import FEET_FIRST_PRONE
from support.model_folders import tiny_card

SPACING = (4.0, 4.0, 4.0)


def preprocess(cohort: Path, output: Path, *words: str, threads: int = 2, spacing=SPACING) -> int:
    words = (*(("--spacing-mm", *map(str, spacing)) if spacing else ()), *words)
    paths = {
        "cohort": cohort,
        "cohort-index": index_of(cohort),
        "output": output,
        "run-report": output.with_name("report.json"),
    }
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    return main(["preprocess", *options, "--num-threads", str(threads), *words])


def report_of(output: Path) -> dict:
    return json.loads(output.with_name("report.json").read_text())


def folders_of(output: Path) -> list[PreparedFolder]:
    return [open_prepared(output / "training_set")] + [
        open_prepared(path) for path in sorted((output / "inference_batches").iterdir())
    ]


def all_cases(output: Path) -> dict[str, CaseFolder]:
    return {case.case.case_id: case for folder in folders_of(output) for case in folder.cases()}


def check_way_back(cohort: Path, entry: CaseEntry, case: CaseFolder) -> None:
    """Every prepared voxel has the value of the source at its place in the patient."""
    info, volume = case.info(), case.volume_IJK()
    assert volume.shape == info.grid.shape
    indices = np.stack(np.meshgrid(*map(np.arange, info.grid.shape), indexing="ij")).reshape(3, -1)
    in_patient = np.asarray(info.grid.affine) @ np.vstack([indices, np.ones(indices.shape[1])])
    on_source = np.linalg.inv(np.asarray(entry.grid.affine)) @ in_patient
    source = open_source(cohort, entry).volume().astype(np.float64)
    expected = map_coordinates(source, on_source[:3], order=1, mode="nearest").reshape(volume.shape)
    assert np.abs(volume - np.clip(expected, *info.window_hu)).max() < 1e-2
    # The same through the indices that the inverse transform uses.
    turned = to_ras_order(source, info.source_axis, info.source_flipped)
    assert ras_axes(entry.grid) == (info.source_axis, info.source_flipped)
    on_volume = np.stack(np.meshgrid(*[source_positions(info, a) for a in range(3)], indexing="ij"))
    inside = np.all([(p >= 0) & (p <= n - 1) for p, n in zip(on_volume, volume.shape, strict=True)], axis=0)
    back = map_coordinates(volume.astype(np.float64), on_volume, order=1, mode="nearest")
    flat = (turned > -900) & (turned < 400) & inside
    assert np.median(np.abs(back - turned)[flat]) < 40, "up to noise, the restored values are at the same place"


@pytest.fixture(scope="module")
def msd(tmp_path_factory) -> tuple[Path, CohortIndex, Path]:
    """A cohort of seven, prepared for training on two processes."""
    folder = tmp_path_factory.mktemp("msd")
    index = write_msd(folder / "cohort", 7)
    assert preprocess(folder / "cohort", folder / "prepared") == 0
    return folder / "cohort", index, folder / "prepared"


@pytest.mark.slow
def test_every_case_is_prepared_once_and_patients_do_not_leak(msd):
    _, index, output = msd
    training, *batches = folders_of(output)
    splits = {case.case.case_id: case.case.split for folder in (training, *batches) for case in folder.cases()}
    assert splits.keys() == {entry.case_id for entry in index.cases}
    assert sorted(splits.values()) == ["test"] + ["train"] * 5 + ["validation"]
    assert {case.case.split for case in training.cases()} == {"train", "validation"}
    assert [case.case.split for batch in batches for case in batch.cases()] == ["test"]


@pytest.mark.slow
def test_volumes_lie_where_they_were_in_the_patient(msd):
    cohort, index, output = msd
    prepared = all_cases(output)
    for entry in index.cases[:3]:
        check_way_back(cohort, entry, prepared[entry.case_id])


def test_the_crop_holds_lungs_and_lesions(msd):
    cohort, index, output = msd
    for case_id, case in all_cases(output).items():
        entry = next(entry for entry in index.cases if entry.case_id == case_id)
        label, lung, volume = case.label_IJK(), case.lung_IJK(), case.volume_IJK()
        assert label.shape == lung.shape == volume.shape
        assert (label.dtype, lung.dtype, volume.dtype) == (np.uint8, np.bool_, np.float32)
        assert isinstance(volume, np.memmap)
        assert case.case.num_lesions == 2
        assert case.case.num_label_voxels == np.count_nonzero(label) > 0
        assert lung[label > 0].mean() > 0.95
        truth = read_truth(cohort, entry)
        voxel = np.prod(entry.grid.spacing_mm)
        assert np.count_nonzero(label) * 64 == pytest.approx(np.count_nonzero(truth) * voxel, rel=0.25)
        # Lungs of 110 x 160 x 190 mm, twice side by side, with 10 mm on each side.
        np.testing.assert_allclose(np.multiply(volume.shape, SPACING), (280, 180, 210), atol=14)


def test_cohort_files_say_what_was_done(msd):
    _, index, output = msd
    for folder in folders_of(output):
        cohort = folder.cohort
        assert (cohort.spacing_mm, cohort.window_hu, cohort.crop, cohort.margin_mm) == (
            SPACING,
            (-1000.0, 400.0),
            "lungs",
            10.0,
        )
        assert cohort.labels == (Label(value=1, name="nodule"),)
        digests = {entry.case_id: entry.content_sha256 for entry in index.cases}
        assert cohort.data_sha256 == sha256_of_text(digests[case.case_id] for case in cohort.cases)
        assert [case.case_id for case in cohort.cases] == sorted(case.case_id for case in cohort.cases)
        assert all(case.info().source_sha256 == digests[case.case.case_id] for case in folder.cases())


def test_the_report_holds_figures_and_no_paths(msd, tmp_path):
    cohort, index, output = msd
    report = report_of(output)
    assert report["results"]["cases_per_split"] == {"train": 5, "validation": 1, "test": 1}
    assert report["results"]["num_lesions"] == 14
    assert [case["case_id"] for case in report["cases"]] == sorted(entry.case_id for entry in index.cases)
    first = report["cases"][0]
    assert first["source_shape"] == [80, 64, 50]
    assert first["source_spacing_mm"] == [5.0, 5.0, 5.0]
    assert first["lung_volume_ml"] == pytest.approx(2 * 4 / 3 * np.pi * 55 * 80 * 95 / 1000, rel=0.1)
    assert first["seconds"] > 0
    assert str(cohort.parent) not in json.dumps(report)


@pytest.mark.slow
def test_one_process_writes_the_same_bytes(msd, tmp_path):
    cohort, _, output = msd
    assert preprocess(cohort, tmp_path / "prepared", threads=1) == 0
    assert digests_below(tmp_path / "prepared") == digests_below(output)


@pytest.mark.slow
def test_inference_puts_every_case_into_even_batches(msd, tmp_path):
    cohort, index, _ = msd
    assert preprocess(cohort, tmp_path / "out", "--purpose", "inference", "--cases-per-batch", "3") == 0
    training, *batches = folders_of(tmp_path / "out")
    assert training.cohort.cases == ()
    assert [path.name for path in sorted((tmp_path / "out" / "inference_batches").iterdir())] == [
        "batch-000", "batch-001", "batch-002",
    ]  # fmt: skip
    assert [len(batch.cohort.cases) for batch in batches] == [2, 3, 2]
    cases = [case for batch in batches for case in batch.cases()]
    assert [case.case.case_id for case in cases] == sorted(entry.case_id for entry in index.cases)
    assert not any(case.case.has_label or (case.folder / "label.npy").exists() for case in cases)
    assert {case.case.split for case in cases} == {"test"}


@pytest.mark.slow
def test_a_fixed_test_split_is_kept(tmp_path):
    write_msd(tmp_path / "cohort", 5, splits={"test": ["lung_001", "lung_004"]})
    assert preprocess(tmp_path / "cohort", tmp_path / "out", "--split-seed", "3") == 0
    splits = {case_id: case.case.split for case_id, case in all_cases(tmp_path / "out").items()}
    assert sorted(case_id for case_id, split in splits.items() if split == "test") == ["lung_001", "lung_004"]
    assert set(splits.values()) == {"train", "validation", "test"}


@pytest.mark.slow
@pytest.mark.parametrize("orientation", ["axial", "feet-first"])
def test_dicom_series_with_segmentations(tmp_path, orientation):
    index = (
        write_dicom(tmp_path / "cohort", 3)
        if orientation == "axial"
        else write_dicom(tmp_path / "cohort", 3, orientation=FEET_FIRST_PRONE, syntax="rle")
    )
    assert preprocess(tmp_path / "cohort", tmp_path / "out") == 0
    prepared = all_cases(tmp_path / "out")
    for entry in index.cases:
        case = prepared[entry.case_id]
        check_way_back(tmp_path / "cohort", entry, case)
        assert case.case.num_lesions == 2
        assert case.volume_IJK()[case.label_IJK() > 0].mean() > -300
        assert case.volume_IJK()[case.lung_IJK() & (case.label_IJK() == 0)].mean() < -700
        if case.case.split != "test":
            assert not (case.folder / "source_headers.zip").exists(), "patient data goes only where a result needs it"
            continue
        headers = read_headers(case.folder / "source_headers.zip")
        assert len(headers) == entry.grid.shape[0]
        assert not any("PixelData" in header for header in headers)
        affine = np.asarray(entry.grid.affine)
        for place, (header, frame) in enumerate(frame_order(headers)):
            position = np.asarray(headers[header].ImagePositionPatient, dtype=float) * (-1, -1, 1)
            np.testing.assert_allclose(position, affine[:3, 3] + place * affine[:3, 0], atol=1e-3)
            assert frame == 0


@pytest.mark.slow
def test_one_case_alone_needs_no_process(tmp_path):
    write_dicom(tmp_path / "cohort", 1, syntax="jpeg2000")
    assert preprocess(tmp_path / "cohort", tmp_path / "out", "--purpose", "inference", "--crop", "none") == 0
    (case,) = all_cases(tmp_path / "out").values()
    assert case.info().crop_start == (0, 0, 0)
    assert case.volume_IJK().shape == (99, 79, 62)
    assert 0.1 < case.lung_IJK().mean() < 0.4


@pytest.mark.slow
def test_a_model_sets_spacing_window_and_crop(msd, tmp_path):
    wanted = InputContract(
        spacing_mm=(6.0, 5.0, 7.0), window_hu=(-900.0, 100.0), crop="none", patch_shape=(8, 8, 8), patch_multiple=2
    )
    (tmp_path / "model").mkdir()
    write_card(tmp_path / "model", tiny_card(input=wanted))
    words = ("--purpose", "inference", "--segmentation-model", str(tmp_path / "model"))
    assert preprocess(msd[0], tmp_path / "out", *words, spacing=None) == 0
    for case in all_cases(tmp_path / "out").values():
        assert case.info().grid.spacing_mm == pytest.approx(wanted.spacing_mm)
        volume = case.volume_IJK()
        assert (volume.min(), volume.max()) == (-900.0, 100.0)
        assert case.info().crop_start == (0, 0, 0)


@pytest.mark.slow
def test_the_spacing_follows_the_scans_by_nnunets_rule(msd, tmp_path, capfd):
    assert preprocess(msd[0], tmp_path / "out", "--spacing-rule", "nnunet", spacing=None) == 0
    assert "spacing of 5 x 5 x 5 mm by nnU-Net's rule" in capfd.readouterr().err
    assert all(case.info().grid.spacing_mm == pytest.approx((5, 5, 5)) for case in all_cases(tmp_path / "out").values())
    assert preprocess(msd[0], tmp_path / "again", "--spacing-rule", "nnunet", spacing=(2, 2, 2)) == 2
    assert "fixed with --spacing-mm" in capfd.readouterr().err


def with_lesion_below_the_lungs(cohort: Path) -> None:
    """Adds to every mask a lesion of 20 x 20 x 10 mm in the lowest slices, where there is no lung."""
    write_msd(cohort, 3, splits={"train": ["lung_000"], "validation": ["lung_001"], "test": ["lung_002"]})
    for path in (cohort / "labelsTr").iterdir():
        image = nibabel.load(path)
        label = np.asarray(image.dataobj).astype(np.uint8)
        label[38:42, 30:34, 0:2] = 1
        nibabel.Nifti1Image(label, image.affine, image.header).to_filename(path)
    write_index(cohort)


@pytest.mark.slow
def test_a_lesion_outside_the_lungs_widens_the_crop_in_training_only(tmp_path):
    """Elsewhere the ground truth must not help: at inference the lesion is unknown."""
    with_lesion_below_the_lungs(tmp_path / "cohort")
    assert preprocess(tmp_path / "cohort", tmp_path / "out") == 0
    cases = all_cases(tmp_path / "out")
    report = report_of(tmp_path / "out")
    figures = {case["case_id"]: case for case in report["cases"]}
    for case_id, split, lost in (("lung_000", "train", 0), ("lung_001", "validation", 1), ("lung_002", "test", 1)):
        assert (cases[case_id].case.split, cases[case_id].case.num_lesions) == (split, 3)
        assert figures[case_id]["num_lesions_outside_crop"] == lost
        _, number = ndimage.label(cases[case_id].label_IJK(), structure=np.ones((3, 3, 3)))
        assert number == 3 - lost
        assert (cases[case_id].info().crop_start[2] <= 2) == (split == "train")
    assert sum("widened for 1 lesion" in text for text in report["notices"]) == 1
    assert sum("1 lesion of the ground truth outside the crop" in text for text in report["notices"]) == 2


def test_voxels_without_annotation_are_no_lesions_of_the_crop(tmp_path):
    cohort = tmp_path / "cohort"
    write_msd(cohort, 2, splits={"train": ["lung_000"], "validation": ["lung_001"]})
    index = write_index(cohort)
    assert preprocess(cohort, tmp_path / "before" / "out") == 0
    for path in (cohort / "labelsTr").iterdir():
        image = nibabel.load(path)
        label = np.asarray(image.dataobj).astype(np.uint8)
        label[38:42, 30:34, 0:2] = 2  # below the lungs
        nibabel.Nifti1Image(label, image.affine, image.header).to_filename(path)
    save_index(cohort, dataclasses.replace(index, ignore_value=2))
    assert preprocess(cohort, tmp_path / "out") == 0
    before, report = (report_of(path) for path in (tmp_path / "before" / "out", tmp_path / "out"))
    for name in ("shape", "num_lesions", "num_lesions_outside_crop"):
        assert {c["case_id"]: c[name] for c in report["cases"]} == {c["case_id"]: c[name] for c in before["cases"]}
    assert not any("crop" in text for text in report["notices"])


@pytest.mark.slow
def test_a_margin_or_no_crop_keeps_it(tmp_path):
    with_lesion_below_the_lungs(tmp_path / "cohort")
    for number, words in enumerate((("--margin-mm", "60"), ("--crop", "none"))):
        assert preprocess(tmp_path / "cohort", tmp_path / str(number) / "out", *words) == 0
        assert {case["num_lesions_outside_crop"] for case in report_of(tmp_path / str(number) / "out")["cases"]} == {0}


def test_a_scan_without_lungs_is_kept_whole_with_a_notice(tmp_path, capsys):
    cohort = tmp_path / "cohort"
    write_msd(cohort, 1)
    path = cohort / "imagesTr" / "lung_000.nii.gz"
    image = nibabel.load(path)
    volume = np.asarray(image.dataobj)
    body = np.where(np.abs(volume + 850) < 100, 40, volume).astype(np.int16)  # lungs become tissue
    nibabel.Nifti1Image(body, image.affine, image.header).to_filename(path)
    write_index(cohort)
    assert preprocess(cohort, tmp_path / "out", "--purpose", "inference") == 0
    assert "lung_000: no lungs were found; the crop is the whole body." in capsys.readouterr().err
    report = report_of(tmp_path / "out")
    assert report["cases"][0]["field_of_view"] == "body"
    assert report["cases"][0]["lung_volume_ml"] is None
    (case,) = all_cases(tmp_path / "out").values()
    np.testing.assert_allclose(np.multiply(case.volume_IJK().shape, SPACING), (370, 270, 246), atol=14)
    specks = 0.002  # noise of the air that became tissue above; the body is one piece
    assert np.mean(case.lung_IJK() != ndimage.binary_fill_holes(case.volume_IJK() > -500)) < specks
