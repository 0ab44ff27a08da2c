"""Cases with one NIfTI file per channel: streaming, resampling to the first channel's grid, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK

from medweave_core.contracts.volume import Grid
from medweave_core.errors import UserInputError
from medweave_steps.io.channel_grid import covered_share, is_same_grid, resample_to_grid
from medweave_steps.io.cohort.digest import nifti_digest, read_content
from medweave_steps.io.cohort.source import open_source
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.geometry import affine_rows
from medweave_steps.io.nifti.volume import open_nifti
from support.checked import cases_of, check, notices_of, only_error
from support.nifti_files import AFFINE, mask, save, volume

SHAPE = (8, 9, 10)


def grid(affine: np.ndarray = AFFINE, shape: tuple[int, int, int] = SHAPE) -> Grid:
    return Grid(shape=shape, affine=affine_rows(affine))


def prostate(folder: Path, cases: int = 2) -> Path:
    """Write an nnU-Net v2 data set with the channels T2w and ADC."""
    for case in range(cases):
        for channel in range(2):
            save(folder / "imagesTr" / f"p_{case:03d}_{channel:04d}.nii.gz", volume(10 * case + channel))
        save(folder / "labelsTr" / f"p_{case:03d}.nii.gz", mask())
    data = {
        "channel_names": {"0": "T2w", "1": "ADC"},
        "labels": {"background": 0, "lesion": 1},
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(data))
    return folder


def planes(folder: Path, **options) -> np.ndarray:
    """Return the planes of the first case, [plane, i, j]."""
    return np.stack(list(open_source(folder, cases_of(folder)[0]).planes(num_workers=1, **options)))


def stored(folder: Path, channel: int) -> np.ndarray:
    image = nibabel.load(folder / "imagesTr" / f"p_000_{channel:04d}.nii.gz")
    return np.moveaxis(np.asarray(image.dataobj, dtype=np.float32), 2, 0)


def test_channels_follow_one_another_in_the_order_of_their_names(tmp_path):
    folder = prostate(tmp_path)
    np.testing.assert_array_equal(planes(folder, verify=True), np.concatenate([stored(folder, 0), stored(folder, 1)]))
    np.testing.assert_array_equal(planes(folder, wanted=[2, 5])[2:], stored(folder, 1)[[2, 5]])
    case = cases_of(folder)[0]
    assert (case.channels, case.files) == (("T2w", "ADC"), ("imagesTr/p_000_0000.nii.gz", "imagesTr/p_000_0001.nii.gz"))
    assert "channels-resampled" not in notices_of(folder)


def test_the_digest_covers_every_file_and_a_single_file_keeps_its_own(tmp_path):
    folder = prostate(tmp_path)
    before = cases_of(folder)[0]
    save(folder / "imagesTr" / "p_000_0001.nii.gz", volume(77))
    assert cases_of(folder)[0].content_sha256 != before.content_sha256
    with pytest.raises(UserInputError, match="the cohort has changed"):
        list(open_source(folder, before).planes(num_workers=1, verify=True))
    single = tmp_path / "single"
    save(single / "a.nii.gz", volume())
    nifti = open_nifti(single / "a.nii.gz", SeriesName(case_id="a", ordinal=1))
    assert cases_of(single)[0].content_sha256 == read_content(nifti).sha256
    assert nifti_digest(nifti).hexdigest() != read_content(nifti).sha256


def test_a_channel_on_another_grid_is_resampled_linearly_and_reported(tmp_path):
    folder = prostate(tmp_path)
    i, j, k = np.meshgrid(np.arange(12), np.arange(13), np.arange(9), indexing="ij")
    affine = np.diag([1.5, 1.5, 2.5, 1.0])
    affine[:3, 3] = (-1, -1, -1)
    # A linear function of the position in mm: linear interpolation must return it exactly.
    values = (3 * (1.5 * i - 1) - 2 * (1.5 * j - 1) + 5 * (2.5 * k - 1)).astype(np.float32)
    save(folder / "imagesTr" / "p_000_0001.nii.gz", values, affine)
    at_k, at_i, at_j = np.meshgrid(np.arange(10) * 2.0, np.arange(8) * 2.0, np.arange(9) * 2.0, indexing="ij")
    expected = 3 * at_i - 2 * at_j + 5 * at_k
    np.testing.assert_allclose(planes(folder, verify=True)[10:], expected, atol=1e-3)
    np.testing.assert_array_equal(planes(folder)[:10], stored(folder, 0))
    np.testing.assert_allclose(planes(folder, wanted=[3])[1], expected[3], atol=1e-3)
    assert notices_of(folder)["channels-resampled"].what == (
        "channel ADC of 1 case: resampled linearly to the grid of the first channel (T2w)."
    )
    assert "ADC 100%" in notices_of(folder)["channels-resampled"].seen


def test_a_channel_stored_in_another_orientation_keeps_its_place(tmp_path):
    folder = prostate(tmp_path)
    values, flipped = volume(5), AFFINE.copy()
    flipped[0, 0], flipped[0, 3] = -2, 14
    save(folder / "imagesTr" / "p_000_0001.nii.gz", values[::-1], flipped)
    np.testing.assert_allclose(planes(folder)[10:], np.moveaxis(values, 2, 0), atol=1e-3)


def test_voxels_that_a_channel_does_not_cover_are_0(tmp_path):
    folder = prostate(tmp_path)
    save(folder / "imagesTr" / "p_000_0001.nii.gz", np.full((8, 9, 5), 7, np.int16))
    seen = planes(folder)[10:]
    assert (seen[:5] == 7).all()
    assert (seen[5:] == 0).all()
    assert "ADC 50%" in notices_of(folder)["channels-resampled"].seen


def as_itk(values: np.ndarray, affine: np.ndarray) -> SimpleITK.Image:
    """Return an image of SimpleITK (LPS, axes reversed in memory)."""
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(values.T))
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    return image


def test_a_rotated_grid_is_resampled_as_simpleitk_does():
    cosine, sine = np.cos(np.deg2rad(25)), np.sin(np.deg2rad(25))
    turned = np.array([[cosine, -1.7 * sine, 0, 9], [sine, 1.7 * cosine, 0, 3], [0, 0, 2.5, -1], [0, 0, 0, 1]])
    values = np.random.default_rng(3).normal(size=(20, 15, 9)).astype(np.float32)
    seen = np.stack(
        list(
            resample_to_grid(
                values, grid(turned, values.shape), grid(), planes=range(SHAPE[2]), plane_axis=2, outside=-99.0
            )
        ),
        axis=2,
    )
    target, linear = as_itk(np.zeros(SHAPE, np.float32), AFFINE), SimpleITK.sitkLinear
    expected = SimpleITK.Resample(as_itk(values, turned), target, SimpleITK.Transform(), linear, -99.0)
    np.testing.assert_allclose(seen, SimpleITK.GetArrayFromImage(expected).T, atol=1e-4)
    assert 0.05 < (seen == -99).mean() < 0.95


def test_grids_differ_from_a_tenth_of_a_voxel_on():
    near, far = AFFINE.copy(), AFFINE.copy()
    near[0, 3], far[0, 3] = 0.1, 0.3
    assert is_same_grid(grid(near), grid())
    assert not is_same_grid(grid(far), grid())
    assert not is_same_grid(grid(shape=(8, 9, 9)), grid())
    assert covered_share(grid(shape=(8, 9, 5)), grid()) == 0.5


def test_channels_that_do_not_overlap_are_an_error(tmp_path):
    folder, away = prostate(tmp_path), AFFINE.copy()
    away[2, 3] = 500
    save(folder / "imagesTr" / "p_001_0001.nii.gz", volume(), away)
    error = only_error(folder)
    assert (error.code, error.case_id) == ("channels-do-not-overlap", "p_001")
    assert "ADC and T2w" in error.what
    assert "ADC centered at 7, 8, 509 mm, T2w at 7, 8, 9 mm" in error.seen
    assert [case.case_id for case in check(folder, skip=True).index.cases] == ["p_000"]


def test_a_truncated_channel_is_named(tmp_path):
    folder = prostate(tmp_path)
    path = folder / "imagesTr" / "p_001_0001.nii.gz"
    path.write_bytes(path.read_bytes()[:-200])
    error = only_error(folder)
    assert (error.code, error.case_id) == ("truncated-file", "p_001")
    assert "volume of channel ADC" in error.what


def test_a_channel_of_another_case_shape_is_named(tmp_path):
    folder = prostate(tmp_path)
    save(folder / "imagesTr" / "p_000_0001.nii.gz", np.stack([volume(), volume(1)], axis=-1))
    error = only_error(folder)
    assert (error.code, error.case_id) == ("not-a-3d-volume", "p_000")
    assert "volume of channel ADC" in error.what


def test_a_file_that_is_gone_after_check_is_reported(tmp_path):
    folder = prostate(tmp_path)
    case = cases_of(folder)[0]
    (folder / case.files[1]).unlink()
    with pytest.raises(UserInputError, match="the cohort has changed"):
        open_source(folder, case)
    swapped = dataclasses.replace(case, files=("imagesTr/p_001_0000.nii.gz", "imagesTr/p_001_0001.nii.gz"))
    with pytest.raises(UserInputError, match="the cohort has changed"):
        list(open_source(folder, swapped).planes(num_workers=1, verify=True))
