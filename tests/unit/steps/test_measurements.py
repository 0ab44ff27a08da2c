"""Measurements of delivered lesions equal what numpy gives for source HU under the delivered mask."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import scipy.ndimage
import scipy.spatial

from medweave_core.contracts.model import InputContract
from medweave_steps.cli import main
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, CtSeries, rotated
from support.openvino_models import NODULE_ANYWHERE, WINDOW_HU, write_tiny_model

BACKGROUND_HU = -950.0
# Diameter in mm, HU, and center in mm from the first voxel along each array axis.
SPHERES = ((5.0, -700.0, (14, 20, 20)), (8.0, 50.0, (40, 22, 60)), (24.0, 1200.0, (38, 62, 30)))
EXTENT_MM = (70, 86, 80)


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """One segmented case: its table, mask and source, and the folder of the prepared case."""

    rows: list[dict[str, str]]
    mask: np.ndarray
    hu: np.ndarray
    affine: np.ndarray
    folder: Path
    prepared: Path


def spheres(spacing_mm: tuple[float, ...], noise_hu: float = 12.0) -> np.ndarray:
    """Return float HU of three spheres in air, on a grid of this spacing."""
    shape = tuple(round(extent / step) for extent, step in zip(EXTENT_MM, spacing_mm, strict=True))
    places = np.stack(
        np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing_mm, strict=True)], indexing="ij"), -1
    )
    hu = np.full(shape, BACKGROUND_HU)
    for diameter_mm, value, center_mm in SPHERES:
        hu[np.linalg.norm(places - center_mm, axis=-1) <= diameter_mm / 2] = value
    return hu + np.random.default_rng(0).normal(0, noise_hu, shape)


@pytest.fixture(scope="module")
def sphere_model(tmp_path_factory) -> Path:
    """A model that finds everything brighter than -825 HU, voxel by voxel."""
    folder = tmp_path_factory.mktemp("sphere-model")
    wanted = InputContract(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=WINDOW_HU, patch_shape=(16, 16, 16), patch_multiple=4, crop="none"
    )
    write_tiny_model(folder, kernel=np.full((1, 1, 1), 400.0), bias=-50.0, input=wanted, labels=(NODULE_ANYWHERE,))
    return folder


def step(folder: Path, *words: object) -> int:
    verb, *options = map(str, words)
    return main([verb, *options, "--run-report", str(folder / f"{verb}.json"), "--num-threads", "1"])


def run_steps(folder: Path, cohort: Path, model: Path, hu: np.ndarray, affine: np.ndarray) -> Delivered:
    """Run check, preprocess and segment on a cohort of one case."""
    index, prepared, output = folder / "index.json", folder / "prepared", folder / "segmentations"
    assert step(folder, "check", "--cohort", cohort, "--output", index) == 0
    words = ("--cohort", cohort, "--cohort-index", index, "--segmentation-model", model, "--purpose", "inference")
    assert step(folder, "preprocess", *words, "--output", prepared) == 0
    batch = prepared / "inference_batches" / "batch-000"
    assert step(folder, "segment", "--segmentation-model", model, "--case-batch", batch, "--output", output) == 0
    return read_results(output, next((batch / "cases").iterdir()), hu, affine)


def read_results(output: Path, prepared: Path, hu: np.ndarray, affine: np.ndarray) -> Delivered:
    (case,) = [path for path in output.iterdir() if path.is_dir()]
    mask = np.asarray(nibabel.load(case / "lesion_mask.nii.gz").dataobj).astype(bool)
    is_dicom = (case / "lesion_mask.dcm").is_file()
    with (case / "lesions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    return Delivered(
        rows=rows,
        mask=mask.transpose(2, 1, 0) if is_dicom else mask,
        hu=hu,
        affine=affine,
        folder=case,
        prepared=prepared,
    )


def segment_dicom(folder: Path, model: Path, series: CtSeries, hu: np.ndarray) -> Delivered:
    series.write(folder / "cohort")
    return run_steps(folder, folder / "cohort", model, hu, series.affine_ras())


def segment_nifti(folder: Path, model: Path, hu: np.ndarray, affine: np.ndarray) -> Delivered:
    (folder / "cohort").mkdir()
    image = nibabel.Nifti1Image(hu, affine)
    image.header.set_xyzt_units("mm")
    image.to_filename(folder / "cohort" / "scan.nii.gz")
    return run_steps(folder, folder / "cohort", model, hu, affine)


def check_lesions(result: Delivered, *, num_lesions: int = 3) -> None:
    """Compare every row with numpy: each lesion is one component of the delivered mask, by falling volume."""
    labels, count = scipy.ndimage.label(result.mask, structure=np.ones((3, 3, 3)))
    order = np.argsort(-np.bincount(labels.ravel(), minlength=count + 1)[1:], kind="stable") + 1
    assert len(result.rows) == count == num_lesions
    voxel_mm3 = abs(np.linalg.det(result.affine[:3, :3]))
    is_dicom = (result.folder / "lesion_mask.dcm").exists()
    axis = (
        0 if is_dicom else int(np.argmax(np.abs(result.affine[2, :3] / np.linalg.norm(result.affine[:3, :3], axis=0))))
    )
    for row, label in zip(result.rows, order, strict=True):
        inside = labels == label
        assert float(row["mean_hu"]) == pytest.approx(np.nanmean(result.hu[inside]), abs=0.051)
        assert float(row["volume_mm3"]) == pytest.approx(inside.sum() * voxel_mm3, abs=0.006)
        assert float(row["longest_diameter_mm"]) == pytest.approx(
            longest_diameter(inside, result.affine, axis), abs=0.006
        )
    total = json.loads((result.folder.parent / "segmentations.json").read_text())["cases"][0]["lesion_volume_mm3"]
    assert total == pytest.approx(result.mask.sum() * voxel_mm3, abs=0.02)


def longest_diameter(inside: np.ndarray, affine: np.ndarray, axis: int) -> float:
    """Return the longest distance of two voxels of one plane in mm, plus one pixel (mean of both in-plane spacings)."""
    steps = np.delete(affine[:3, :3], axis, axis=1)
    longest = 0.0
    for number in range(inside.shape[axis]):
        places = np.argwhere(np.take(inside, number, axis=axis)) @ steps.T
        if len(places):
            longest = max(longest, float(scipy.spatial.distance.cdist(places, places).max()))
    return longest + float(np.linalg.norm(steps, axis=0).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spacing_mm", "orientation"),
    [((2.5, 0.9, 0.9), AXIAL), ((1.25, 1.4, 0.8), rotated((1, 1, 0.2), 17)), ((3.0, 1.0, 1.0), FEET_FIRST_PRONE)],
    ids=["anisotropic", "oblique", "feet-first"],
)
def test_dicom_measures_come_from_source_values(tmp_path, sphere_model, spacing_mm, orientation):
    hu = np.rint(spheres(spacing_mm))
    series = CtSeries(shape=hu.shape, spacing_mm=spacing_mm, orientation=orientation, stored=hu.astype(int) + 1024)
    result = segment_dicom(tmp_path, sphere_model, series, hu)
    check_lesions(result)
    assert float(result.rows[0]["mean_hu"]) > 700, "a window up to 400 HU does not limit the mean"
    assert np.load(result.prepared / "source_hu.npy").dtype == np.int16
    check_structured_report(result)


def check_structured_report(result: Delivered) -> None:
    import highdicom

    groups = highdicom.sr.srread(result.folder / "lesions_sr.dcm").content.get_volumetric_roi_measurement_groups()
    for row, group in zip(result.rows, groups, strict=True):
        values = {m.name.meaning: m.value for m in group.get_measurements()}
        assert values["Attenuation Coefficient"] == pytest.approx(float(row["mean_hu"]), abs=0.051)
        assert values["Volume"] == pytest.approx(float(row["volume_mm3"]), abs=0.006)
        assert values["Long axis"] == pytest.approx(float(row["longest_diameter_mm"]), abs=0.006)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_nifti_measures_come_from_source_values(tmp_path, sphere_model, dtype):
    """An oblique grid whose axes run to the left, down and back, with HU that are whole numbers or not."""
    spacing_mm = (0.9, 2.5, 1.3)
    hu = spheres(spacing_mm)
    hu = np.rint(hu).astype(dtype) if dtype is np.int16 else hu.astype(dtype)
    cosines = np.reshape(rotated((1, 2, 3), 12), (2, 3))
    axes = np.stack([-cosines[0], np.cross(*cosines) * -1, cosines[1]], axis=1)
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = axes * spacing_mm, (30, 20, -100)
    result = segment_nifti(tmp_path, sphere_model, hu, affine)
    check_lesions(result)
    assert np.load(result.prepared / "source_hu.npy").dtype == dtype


@pytest.mark.slow
def test_padding_does_not_enter_the_mean(tmp_path, sphere_model):
    """Padding inside of the largest lesion: its voxels count for the volume, not for the mean HU."""
    hu = np.rint(spheres((2.5, 1.0, 1.0)))
    stored = hu.astype(int) + 1024
    stored[14:17, 60, 28] = -2000  # the prepared grid does not sample these voxels, so the mask covers them
    series = CtSeries(shape=hu.shape, spacing_mm=(2.5, 1.0, 1.0), stored=stored, padding=-2000)
    result = segment_dicom(tmp_path, sphere_model, series, np.where(stored == -2000, np.nan, hu))
    assert np.isnan(result.hu[result.mask]).sum() == 3
    check_lesions(result)


def test_slopes_that_are_no_whole_numbers_keep_their_values(tmp_path, sphere_model):
    hu = spheres((2.5, 1.0, 1.0))
    stored = np.rint((hu + 1024) / 0.3).astype(int)
    series = CtSeries(shape=hu.shape, spacing_mm=(2.5, 1.0, 1.0), stored=stored, slopes=0.3)
    result = segment_dicom(tmp_path, sphere_model, series, stored * 0.3 - 1024)
    check_lesions(result)
    assert np.load(result.prepared / "source_hu.npy").dtype == np.float32


@pytest.mark.slow
def test_a_batch_without_source_hu_has_no_mean_hu_and_a_notice(tmp_path, sphere_model, capsys):
    """As a batch of an earlier version: mean HU is left out of table and SR, everything else is measured."""
    hu = np.rint(spheres((2.5, 1.0, 1.0)))
    series = CtSeries(shape=hu.shape, spacing_mm=(2.5, 1.0, 1.0), stored=hu.astype(int) + 1024)
    first = segment_dicom(tmp_path, sphere_model, series, hu)
    info_file = first.prepared / "volume_info.json"
    info = json.loads(info_file.read_text())
    del info["source_hu_start"]
    info_file.write_text(json.dumps(info))
    (first.prepared / "source_hu.npy").unlink()
    output, batch = tmp_path / "again", first.prepared.parent.parent
    assert (
        step(tmp_path, "segment", "--segmentation-model", sphere_model, "--case-batch", batch, "--output", output) == 0
    )
    assert "1 of 1 cases were preprocessed without source HU: mean HU is omitted." in capsys.readouterr().err
    again = read_results(output, first.prepared, hu, first.affine)
    assert [row["mean_hu"] for row in again.rows] == ["", "", ""]
    assert [row["volume_mm3"] for row in again.rows] == [row["volume_mm3"] for row in first.rows]
    report = pydicom.dcmread(again.folder / "lesions_sr.dcm")
    assert "Attenuation" not in str(report)
    assert "Long axis" in str(report)


@pytest.mark.slow
def test_a_damaged_source_hu_is_a_data_error(tmp_path, sphere_model, capsys):
    hu = np.rint(spheres((2.5, 1.0, 1.0)))
    series = CtSeries(shape=hu.shape, spacing_mm=(2.5, 1.0, 1.0), stored=hu.astype(int) + 1024)
    first = segment_dicom(tmp_path, sphere_model, series, hu)
    batch = first.prepared.parent.parent
    for damage in (lambda path: np.save(path, np.zeros((2, 2, 2), np.int16)), lambda path: path.write_bytes(b"")):
        damage(first.prepared / "source_hu.npy")
        words = ("--segmentation-model", sphere_model, "--case-batch", batch, "--output", tmp_path / "again")
        assert step(tmp_path, "segment", *words) == 65
        assert f"source_hu.npy of {first.folder.name} is invalid" in capsys.readouterr().err
