"""The fingerprint of a training set, and the plan that follows from it by nnU-Net's rules."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.cohort.target_spacing import target_spacing_mm
from medweave_steps.train.fingerprint import read_fingerprint
from medweave_steps.train.planner import (
    MEMORY_MODELS,
    DoesNotFitError,
    MemoryModel,
    PlanInput,
    count_features,
    count_weights,
    find_topology,
    first_patch,
    make_plan,
)
from support.training_set import SHAPE, training_set

BY_FEATURES = MemoryModel(base_bytes=0, bytes_per_weight=0, bytes_per_feature=1)
REFERENCE = 2 * 680e6
"""Numbers of two patches that nnU-Net takes for 8 GB."""


def plan_input(spacing: tuple, median: tuple, cases: int, **changes: object) -> PlanInput:
    facts = {"spacing_mm": spacing, "median_shape": median, "num_voxels": math.prod(median) * cases, "out_channels": 2}
    return PlanInput(**facts | changes)


@pytest.mark.parametrize(
    ("spacing", "median", "cases", "patch", "batch", "stages"),
    [
        # ResEncUNetPlanner of nnU-Net 2.8.1 with the same facts (8 GB). Known differences: where memory limits the batch, nnU-Net
        # rounds it up or down and this planner down; nnU-Net does not count the logits of lower resolutions.
        ((1.0, 1.0, 1.0), (64, 64, 40), 12, (64, 64, 40), 2, 5),
        ((0.78, 0.78, 1.25), (512, 512, 300), 51, (160, 160, 96), 2, 6),
        ((1.0, 1.0, 1.0), (140, 170, 140), 388, (128, 128, 128), 2, 6),
        ((0.62, 0.62, 3.6), (320, 320, 20), 26, (320, 256, 16), 2, 7),
        ((1.56, 1.56, 10.0), (220, 240, 9), 160, (224, 256, 10), 5, 6),
        ((1.0, 1.0, 1.0), (36, 50, 35), 208, (40, 56, 40), 7, 4),
        ((0.5, 1.0, 2.5), (301, 200, 77), 30, (160, 112, 48), 2, 6),
        ((2.36, 3.25, 4.98), (309, 475, 27), 30, (256, 320, 20), 2, 7),
    ],
)
def test_patch_batch_and_depth_are_those_of_nnunet(
    spacing: tuple, median: tuple, cases: int, patch: tuple, batch: int, stages: int
) -> None:
    plan = make_plan(plan_input(spacing, median, cases), BY_FEATURES, REFERENCE)
    assert (plan.topology.patch_shape, plan.batch_size, len(plan.topology.strides)) == (patch, batch, stages)
    assert plan.channels == (32, 64, 128, 256, 320, 320, 320, 320)[:stages]
    assert plan.blocks == (1, 3, 4, 6, 6, 6, 6, 6)[:stages]


def test_a_coarse_axis_is_halved_last_and_has_flat_kernels_until_then() -> None:
    topology = find_topology((1.0, 1.0, 4.0), (64, 64, 16))
    assert topology.strides == ((1, 1, 1), (2, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 2))
    assert topology.kernels == ((3, 3, 1), (3, 3, 1), (3, 3, 3), (3, 3, 3), (3, 3, 3))
    assert topology.multiples == (16, 16, 4)


def test_a_patch_is_padded_to_what_the_strides_divide() -> None:
    assert find_topology((1.0, 1.0, 1.0), (36, 50, 35)).patch_shape == (40, 56, 40)


def test_the_first_patch_is_a_cube_in_mm_cut_to_the_median_case() -> None:
    assert first_patch((1.0, 1.0, 4.0), (1000, 1000, 1000)) == [406, 406, 102]
    assert first_patch((1.0, 1.0, 1.0), (64, 300, 40)) == [64, 256, 40]


def test_features_and_weights_are_those_of_the_published_network() -> None:
    torch = pytest.importorskip("torch")
    from medweave_steps.networks.resenc import ResEncUnet

    topology = find_topology((1.0, 1.0, 1.0), (128, 128, 128))
    channels, blocks = (32, 64, 128, 256, 320, 320), (1, 3, 4, 6, 6, 6)
    # The number in nnU-Net's source, for three classes and outputs at all resolutions but one.
    assert count_features(topology, channels, blocks, out_channels=3) == 558_319_104
    flat = find_topology((1.0, 1.0, 4.0), (64, 64, 16))
    with torch.device("meta"):
        network = ResEncUnet(
            in_channels=2, out_channels=3, channels=(4, 6, 8, 8, 8), strides=flat.strides, kernels=flat.kernels,
            blocks=(1, 2, 1, 1, 1),
        )  # fmt: skip
    counted = count_weights(flat, (4, 6, 8, 8, 8), (1, 2, 1, 1, 1), in_channels=2, out_channels=3)
    assert counted == sum(weight.numel() for weight in network.parameters())


def test_the_plan_stays_within_the_memory_and_uses_most_of_it() -> None:
    model, gib = MEMORY_MODELS["cpu", False], 2**30
    for memory in (4 * gib, 8 * gib, 24 * gib):
        plan = make_plan(plan_input((1.0, 1.0, 1.0), (300, 300, 300), 100), model, memory)
        assert 0.7 * memory < plan.step_bytes <= memory
        own = {"num_weights": plan.num_weights, "num_features": plan.num_features, "batch_size": plan.batch_size}
        assert plan.step_bytes == model.step_bytes(**own)


def test_options_of_the_user_are_kept() -> None:
    facts = plan_input((1.0, 1.0, 1.0), (300, 300, 300), 100, channels=(8, 16, 32), patch_shape=(32, 32, 32))
    plan = make_plan(facts, BY_FEATURES, REFERENCE)
    assert (plan.channels, plan.topology.patch_shape, len(plan.topology.strides)) == ((8, 16, 32), (32, 32, 32), 3)
    few = make_plan(dataclasses.replace(facts, batch_size=3), BY_FEATURES, REFERENCE)
    assert (few.batch_size, few.batch_limit) == (3, "the user")
    # 36 is no multiple of 8: fewer stages, not another patch.
    odd = make_plan(dataclasses.replace(facts, channels=None, patch_shape=(36, 36, 36)), BY_FEATURES, REFERENCE)
    assert (odd.topology.patch_shape, odd.topology.multiples) == ((36, 36, 36), (4, 4, 4))
    large = make_plan(plan_input((1.0, 1.0, 1.0), (300, 300, 300), 100, batch_size=8), BY_FEATURES, REFERENCE)
    assert large.batch_size == 8
    assert large.step_bytes <= REFERENCE


def test_what_does_not_fit_says_what_would() -> None:
    facts = plan_input((1.0, 1.0, 1.0), (300, 300, 300), 100)
    with pytest.raises(DoesNotFitError) as error:
        make_plan(facts, MEMORY_MODELS["cpu", False], 2**29)
    assert (error.value.smallest.topology.patch_shape, error.value.fitting) == ((16, 16, 16), None)
    with pytest.raises(DoesNotFitError) as error:
        make_plan(dataclasses.replace(facts, patch_shape=(256, 256, 256)), BY_FEATURES, REFERENCE)
    assert error.value.fitting is not None
    assert error.value.fitting.topology.patch_shape == (128, 128, 128)


def test_the_target_spacing_is_the_median() -> None:
    spacings = [(0.7, 0.7, 1.0), (0.8, 0.8, 2.5), (0.9, 0.9, 5.0)]
    assert target_spacing_mm(spacings, [(512, 512, 300)] * 3) == (0.8, 0.8, 2.5)


def test_the_target_spacing_of_few_thick_slices_is_a_low_percentile() -> None:
    spacings = [(0.6, 0.6, 3.0), (0.6, 0.6, 3.6), (0.6, 0.6, 4.0)]
    assert target_spacing_mm(spacings, [(320, 320, 20)] * 3) == pytest.approx((0.6, 0.6, 3.12))
    finest = [(1.5, 1.5, 1.0), (1.5, 1.5, 10.0), (1.5, 1.5, 10.0)]
    # The 10th percentile, 2.8, is above the others; with 1.0 twice it would be below and is kept at 1.5.
    assert target_spacing_mm(finest, [(250, 250, 9)] * 3) == pytest.approx((1.5, 1.5, 2.8))
    finer = [(1.5, 1.5, 1.0)] * 2 + [(1.5, 1.5, 10.0)] * 3
    assert target_spacing_mm(finer, [(250, 250, 9)] * 5) == (1.5, 1.5, 1.5)


def test_the_fingerprint_has_shapes_spacing_classes_and_foreground_intensities(tmp_path: Path) -> None:
    folder = training_set(tmp_path / "data")
    for place in range(2):
        volume, label = (np.load(folder / "cases" / f"case-{place}" / name) for name in ("volume.npy", "label.npy"))
        volume[label > 0] = np.where(np.arange(label.astype(bool).sum()) % 2, 30, 50)
        np.save(folder / "cases" / f"case-{place}" / "volume.npy", volume)
    prepared = open_prepared(folder)
    found = read_fingerprint(prepared.cohort, prepared.cases("train"))
    assert (found.num_cases, found.shapes, found.median_shape) == (2, (SHAPE,) * 2, SHAPE)
    assert found.num_voxels == 2 * math.prod(SHAPE)
    assert found.source_spacings_mm == ((2.0, 2.0, 2.0),) * 2
    assert found.voxels_by_label == {1: sum(case.num_label_voxels for case in prepared.cohort.cases[:2])}
    (intensity,) = found.intensities
    assert (intensity.low, intensity.high) == (30, 50)
    assert (intensity.mean, intensity.sd) == pytest.approx((40, 10), abs=0.5)
    assert found == read_fingerprint(prepared.cohort, prepared.cases("train"))


def test_voxels_without_annotation_are_no_foreground(tmp_path: Path) -> None:
    folder = training_set(tmp_path / "data")
    path = folder / "cases" / "case-0" / "label.npy"
    label = np.load(path)
    label[0] = 255
    np.save(path, label)
    prepared = open_prepared(folder)
    cohort = dataclasses.replace(prepared.cohort, ignore_value=255)
    found = read_fingerprint(cohort, prepared.cases("train")[:1])
    assert set(found.voxels_by_label) == {1}
    assert found.intensities[0].low == 40
