"""Rotation, scaling, gamma, noise and mirroring of patches with label maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.tasks import task_named
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.data import augment, full_augmentation
from support.training_set import training_set

PATCH = (12, 10, 8)
CENTER = (np.array(PATCH) - 1) / 2


def quarter_turn() -> np.ndarray:
    """Return a rotation by 90° around K."""
    return np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


def sampler(folder: Path, **options: Any) -> Any:
    prepared = open_prepared(training_set(folder))
    config = TrainConfig(
        training_set=folder, output=folder, patch_shape=(16, 16, 16), augmentation="full", batch_size=6, **options
    )
    task = task_named("segmentation").training_of_cohort(prepared.cohort, config.task_options)
    return task.open_sampler(config, prepared, prepared.cases("train"))


def test_a_quarter_turn_is_that_of_numpy_for_image_and_label() -> None:
    cube = (9, 9, 5)
    image = np.random.default_rng(0).normal(size=cube).astype(np.float32)
    label = (image > 1).astype(np.uint8) * 3
    center = (np.array(cube) - 1) / 2
    for array, order in ((image, 1), (label, 0)):
        turned = full_augmentation.interpolated(array, quarter_turn(), center, cube, order=order, outside=0)
        assert turned.dtype == array.dtype
        np.testing.assert_allclose(turned, np.rot90(array, -1, (0, 1)), atol=1e-5)


def test_labels_keep_their_values_under_any_rotation_and_scaling() -> None:
    rng = np.random.default_rng(0)
    label = rng.choice(np.array([0, 2, 7], np.uint8), size=(30, 30, 30))
    matrices = [m for m in (full_augmentation.draw_matrix(PATCH, rng) for _ in range(60)) if m is not None]
    for matrix in matrices[:8]:
        patch = full_augmentation.interpolated(label, matrix, np.full(3, 14.5), PATCH, order=0, outside=0)
        assert patch.shape == PATCH
        assert set(np.unique(patch)) <= {0, 2, 7}


def test_the_box_holds_all_that_a_patch_is_interpolated_from() -> None:
    rng = np.random.default_rng(1)
    image = rng.normal(size=(40, 40, 40)).astype(np.float32)
    center = np.array([20.0, 18.5, 21.0])
    for _ in range(40):
        matrix = full_augmentation.draw_matrix(PATCH, rng)
        if matrix is None:
            continue
        box = full_augmentation.box_of(matrix, center, PATCH, image.shape)
        within = center - np.array([side.start for side in box])
        small = full_augmentation.interpolated(image[box], matrix, within, PATCH, order=1, outside=0)
        whole = full_augmentation.interpolated(image, matrix, center, PATCH, order=1, outside=0)
        np.testing.assert_allclose(small, whole, atol=1e-4)
        assert image[box].size < image.size


def test_most_patches_are_neither_rotated_nor_scaled_and_flat_ones_only_in_their_plane() -> None:
    rng = np.random.default_rng(0)
    drawn = [full_augmentation.draw_matrix((32, 32, 8), rng) for _ in range(500)]
    changed = [matrix for matrix in drawn if matrix is not None]
    assert 0.3 < len(changed) / 500 < 0.42  # 1 - 0.8 * 0.8 = 0.36
    for matrix in changed:
        scale = np.cbrt(np.linalg.det(matrix))
        assert 0.7 <= scale <= 1.4
        assert abs(matrix[2, 2] - scale) < 1e-9  # the axis of the rotation


def test_gamma_keeps_mean_and_spread_and_changes_the_values_between() -> None:
    image = np.random.default_rng(0).normal(2, 3, (1, *PATCH)).astype(np.float32)
    changes = [full_augmentation.with_full_intensity_changes(image, np.random.default_rng(n)) for n in range(60)]
    changed = [one for one in changes if one is not image]
    assert 20 < len(changed) < 45  # 1 - 0.9 * 0.9 * 0.7 = 0.43
    for one in changed:
        assert (one.dtype, one.shape) == (np.float32, image.shape)
        assert one.mean() == pytest.approx(image.mean(), abs=0.05)
        assert one.std() == pytest.approx(image.std(), rel=0.02)
    constant = np.full((1, *PATCH), 1.5, np.float32)
    assert all(
        np.isfinite(full_augmentation.with_full_intensity_changes(constant, np.random.default_rng(n))).all()
        for n in range(40)
    )


def test_image_and_label_are_mirrored_together() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, PATCH).astype(np.uint8)
    seen = set()
    for _ in range(40):
        image, mirrored = augment.mirrored(label[None].astype(np.float32), label, rng)
        np.testing.assert_array_equal(image[0], mirrored)
        seen.add(mirrored.tobytes())
    assert len(seen) == 8


def test_a_patch_depends_only_on_seed_step_and_place(tmp_path: Path) -> None:
    one = sampler(tmp_path / "data", seed=3)
    first, again = one.batch(5), one.batch(5)
    np.testing.assert_array_equal(first.image_BCIJK, again.image_BCIJK)
    np.testing.assert_array_equal(first.label_BCIJK, again.label_BCIJK)
    half = one.batch(5, rank=1, world_size=2)
    np.testing.assert_array_equal(half.image_BCIJK, first.image_BCIJK[1::2])
    assert not np.array_equal(one.batch(6).image_BCIJK, first.image_BCIJK)


def test_lesions_stay_where_the_image_shows_them(tmp_path: Path) -> None:
    one = sampler(tmp_path / "data", lesion_share=1.0)
    for step in range(10):
        batch = one.batch(step)
        assert batch.image_BCIJK.shape == (6, 1, 16, 16, 16)
        assert set(np.unique(batch.label_BCIJK)) == {0, 1}
        inside = batch.image_BCIJK[:, 0][batch.label_BCIJK[:, 0] > 0]
        outside = batch.image_BCIJK[:, 0][batch.label_BCIJK[:, 0] == 0]
        assert inside.mean() > outside.mean() + 0.3  # 40 HU against -850 HU of a window of 1400 HU
