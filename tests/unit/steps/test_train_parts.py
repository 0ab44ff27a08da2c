"""Parts of `train`: where patches are cut, how validation counts, what the network and the loss are."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from medweave_core.contracts.model import Postprocessing
from medweave_steps.inference.windows import predict_probability as predict_as_segment
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.runtime import environment
from medweave_steps.runtime.environment import computes_in_bfloat16
from medweave_steps.tasks.segmentation import validation as validate
from medweave_steps.tasks.segmentation.loss import dice_cross_entropy
from medweave_steps.tasks.segmentation.sampler import PatchSampler, lesion_boxes, open_training_case
from medweave_steps.train.config import TrainConfig
from medweave_steps.train.network import seeded_network
from medweave_steps.training.data.augment import augmented, changed_intensity
from medweave_steps.training.data.batches import Batches
from medweave_steps.training.loop.stepper import uses_bfloat16
from medweave_steps.training.recipe import Recipe
from support.model_folders import seeded_network as any_network
from support.model_folders import tiny_card
from support.one_label import TASK
from support.training_set import WINDOW_HU, training_set


def sampler(folder: Path, **changes: Any) -> PatchSampler:
    """Over the training cases of a folder: by default no augmentation, lesions only."""
    values: dict[str, Any] = {
        "patch_shape": (10, 10, 10), "batch_size": 4, "window_hu": WINDOW_HU, "lesion_share": 1.0, "bright_share": 0.0,
        "thick_share": 0.0,
        "augment": False, "seed": 0,
    }  # fmt: skip
    cases = [
        open_training_case(case, spacing_mm=(2.0, 2.0, 2.0), seed=0) for case in open_prepared(folder).cases("train")
    ]
    return PatchSampler(cases, **values | changes)


def test_every_lesion_is_as_likely_whatever_its_size(tmp_path: Path) -> None:
    # 123 voxels against 7: by voxels the small one would get one patch in 19.
    folder = training_set(tmp_path, ("train", "validation"), balls=(((8, 9, 8), 3.0), ((18, 9, 8), 1.0)))
    batches = [sampler(folder, patch_shape=(8, 8, 8)).batch(step) for step in range(100)]
    sizes = np.concatenate([batch.label_BCIJK.sum(axis=(1, 2, 3, 4)) for batch in batches])
    small = float(((sizes > 0) & (sizes <= 7)).mean())
    assert 0.4 < small < 0.6


def test_a_lesion_patch_holds_the_whole_lesion(tmp_path: Path) -> None:
    folder = training_set(tmp_path, ("train", "validation"), balls=(((12, 10, 8), 2.0),))
    label = open_prepared(folder).cases("train")[0].label_IJK()
    places = set()
    for step in range(20):
        batch = sampler(folder, patch_shape=(14, 14, 14)).batch(step)
        assert batch.image_BCIJK.shape == batch.label_BCIJK.shape == (4, 1, 14, 14, 14)
        assert batch.label_BCIJK.sum(axis=(1, 2, 3, 4)).tolist() == [label.sum()] * 4
        places |= {tuple(np.argwhere(patch[0])[0]) for patch in batch.label_BCIJK}
    assert len(places) > 10, "the lesion must not always lie in the middle"


def test_image_and_label_are_cut_at_the_same_place_and_turned_together(tmp_path: Path) -> None:
    batch = sampler(training_set(tmp_path), augment=True).batch(3)
    assert ((batch.image_BCIJK > 0.5) == (batch.label_BCIJK > 0)).all()
    assert batch.image_BCIJK.dtype == batch.label_BCIJK.dtype == np.float32


def test_background_patches_prefer_bright_structures(tmp_path: Path) -> None:
    folder = training_set(tmp_path, ("train", "validation"), balls=())
    volume = np.load(folder / "cases/case-0/volume.npy")
    volume[4:6, 4:6, 4:6] = 0
    np.save(folder / "cases/case-0/volume.npy", volume)

    def share_with_it(bright_share: float) -> float:
        cut = sampler(folder, lesion_share=0.0, bright_share=bright_share, patch_shape=(14, 14, 14))
        batches = [cut.batch(step).image_BCIJK for step in range(30)]
        return float((np.concatenate(batches).max(axis=(1, 2, 3, 4)) > 0.5).mean())

    assert share_with_it(1.0) > 0.95 > 0.7 > share_with_it(0.0)


def test_background_patches_prefer_thick_structures_to_thin_ones(tmp_path: Path) -> None:
    folder = training_set(tmp_path, ("train", "validation"), balls=())
    volume = np.load(folder / "cases/case-0/volume.npy")
    volume[2:9, 2:9, 2:9] = 0  # a block of 14 mm, and many tubes of one voxel
    volume[14::2, 10::2, :] = 100
    np.save(folder / "cases/case-0/volume.npy", volume)
    case = open_training_case(open_prepared(folder).cases("train")[0], spacing_mm=(2.0, 2.0, 2.0), seed=0)
    assert len(case.bright_points) > 2 * 7**3
    assert len(case.thick_points) > 0
    assert case.thick_points.max() < 9
    cut = sampler(folder, lesion_share=0.0, thick_share=1.0, patch_shape=(20, 20, 16))
    assert all((patch == np.float32(1000 / 1400)).any() for step in range(5) for patch in cut.batch(step).image_BCIJK)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_cut_ahead_are_those_of_their_steps(tmp_path: Path, num_workers: int) -> None:
    cut = sampler(training_set(tmp_path), augment=True)
    ahead = Batches(cut, rank=1, world_size=2, num_workers=num_workers, device=torch.device("cpu"))
    random_state = torch.get_rng_state()
    for step in (3, 4, 5, 0, 1):  # a resumed training starts anywhere
        batch, wanted = ahead.batch(step), cut.batch(step, rank=1, world_size=2)
        np.testing.assert_array_equal(batch.image_BCIJK, wanted.image_BCIJK)
        np.testing.assert_array_equal(batch.label_BCIJK, wanted.label_BCIJK)
        assert batch.case_ids == wanted.case_ids
    ahead.close()
    assert ahead.waited_s > 0
    assert torch.equal(torch.get_rng_state(), random_state), "a resumed training starts new workers"


def test_steps_and_seeds_give_other_patches(tmp_path: Path) -> None:
    folder = training_set(tmp_path)
    first = sampler(folder).batch(0).image_BCIJK
    np.testing.assert_array_equal(first, sampler(folder).batch(0).image_BCIJK)
    assert (first != sampler(folder).batch(1).image_BCIJK).any()
    assert (first != sampler(folder, seed=1).batch(0).image_BCIJK).any()


def test_a_volume_smaller_than_a_patch_is_filled_with_air(tmp_path: Path) -> None:
    batch = sampler(training_set(tmp_path), patch_shape=(32, 32, 32)).batch(0)
    assert batch.image_BCIJK.shape == (4, 1, 32, 32, 32)
    assert (batch.image_BCIJK[:, :, 24:] == 0).all()


def test_lesion_boxes() -> None:
    label = np.zeros((8, 8, 8), np.uint8)
    label[1:4, 2, 2] = 1
    label[6, 6, 5:7] = 2
    centres, extents = lesion_boxes(label)
    assert centres.tolist() == [[2, 2, 2], [6, 6, 5.5]]
    assert extents.tolist() == [[3, 1, 1], [1, 1, 2]]


def test_augmentation_moves_voxels_and_keeps_them() -> None:
    image = np.arange(6 * 6 * 4, dtype=np.float32).reshape(6, 6, 4)
    seen = set()
    for seed in range(40):
        turned, label = augmented(image, image % 2, np.random.default_rng(seed))
        assert sorted(turned.ravel()) == sorted(image.ravel())
        np.testing.assert_array_equal(label, turned % 2)
        seen.add(turned.tobytes())
    assert len(seen) == 16, "the sixteen symmetries of a square prism"
    oblong, _ = augmented(np.zeros((6, 4, 4), np.float32), np.zeros((6, 4, 4), np.float32), np.random.default_rng(0))
    assert oblong.shape == (6, 4, 4)


def test_intensity_changes_stay_within_a_scanners_calibration() -> None:
    image = np.full((8, 8, 8), 0.5, np.float32)
    changed = [changed_intensity(image, np.random.default_rng(seed)) for seed in range(200)]
    means = np.array([one.mean() for one in changed])
    assert means.std() > 0.005
    assert np.abs(means - 0.5).max() < 0.1
    assert all(one.dtype == np.float32 for one in changed)
    assert (image == 0.5).all()


@pytest.mark.slow
def test_the_loss_is_dice_over_the_batch_plus_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 1, 4, 4, 4, generator=generator)
    label = (torch.rand(2, 1, 4, 4, 4, generator=generator) > 0.7).float()
    label[1] = 0  # a background patch
    p = torch.sigmoid(logits)
    dice = 1 - (2 * (p * label).sum() + 1) / (p.sum() + label.sum() + 1)
    entropy = -(label * p.log() + (1 - label) * (1 - p).log()).mean()
    loss = dice_cross_entropy(dice_weight=1.0, cross_entropy_weight=0.5)(logits, label)
    torch.testing.assert_close(loss, dice + 0.5 * entropy)


def test_the_network_normalises_by_batches_and_keeps_the_shape() -> None:
    config = TrainConfig(training_set=Path("a"), output=Path("b"))
    network = seeded_network(config, TASK)
    kinds = {type(module).__name__ for module in network.modules()}
    assert "BatchNorm3d" in kinds
    assert not any("InstanceNorm" in kind for kind in kinds)
    side = 2 * config.patch_multiple
    logits = network.eval()(torch.zeros(1, 1, side, side, side))
    assert logits.shape == (1, 1, side, side, side)
    assert torch.sigmoid(logits).mean() < 0.05, "an untrained network calls lesions rare"


def test_validation_predicts_as_segment_does() -> None:
    network = any_network(seed=3)
    card = tiny_card(patch=8)
    volume = np.random.default_rng(0).normal(-500, 300, (14, 11, 6)).astype(np.float32)

    def infer(batch: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(batch)).numpy()

    engine: Any = SimpleNamespace(batch_shape=(2, 1, 8, 8, 8), infer=infer)
    ours = validate.predict_probability(
        network,
        volume[None],
        window_hu=card.input.window_hu,
        window_shape=(8, 8, 8),
        overlap=0.25,
        device=torch.device("cpu"),
    )
    np.testing.assert_allclose(ours, predict_as_segment(engine, volume[None], card), atol=1e-5)


def label_and_probability() -> tuple[np.ndarray, np.ndarray]:
    """Two lesions of 8 and 1 voxels; found: all of the first (0.9), a false one of 2 voxels (0.6), the second at 0.4 only."""
    label, probability = np.zeros((12, 12, 12), np.uint8), np.zeros((12, 12, 12), np.float32)
    label[1:3, 1:3, 1:3] = 1
    label[8, 8, 8] = 1
    probability[1:3, 1:3, 1:3] = 0.9
    probability[8, 8, 8] = 0.4
    probability[5, 5, 1:3] = 0.6
    return label, probability


def test_tallies_count_voxels_and_lesions_per_choice() -> None:
    label, probability = label_and_probability()
    choices = [
        Postprocessing(threshold=0.5), Postprocessing(threshold=0.3), Postprocessing(threshold=0.5, min_volume_mm3=17),
        Postprocessing(threshold=0.5, min_volume_mm3=16), Postprocessing(threshold=0.3, min_peak=0.7),
    ]  # fmt: skip
    plain, low, filtered, equal, certain = validate.tallies(probability, label, (2.0, 2.0, 2.0), choices=choices)
    assert (plain.num_common, plain.num_predicted, plain.num_reference) == (8, 10, 9)
    assert plain.dice == pytest.approx(16 / 19)
    assert (plain.hit, plain.num_false_positives) == ((True, False), 1)
    assert (low.hit, low.num_false_positives) == ((True, True), 1)
    assert (filtered.num_predicted, filtered.num_false_positives) == (8, 0)
    assert equal == plain, "a component of exactly the limit stays"
    assert (certain.hit, certain.num_false_positives) == ((True, False), 0)
    assert plain.diameters_mm == pytest.approx((2 * math.sqrt(2) + 2, 2.0))


def test_summary_leaves_out_what_is_undefined() -> None:
    empty = validate.tallies(
        np.zeros((4, 4, 4), np.float32), np.zeros((4, 4, 4), np.uint8), (1, 1, 1), choices=[Postprocessing()]
    )
    assert validate.summary(empty) == {
        "dice": None, "sensitivity": None, "sensitivity_6mm": None, "sensitivity_10mm": None, "false_positives_per_scan": 0.0,
    }  # fmt: skip


def test_the_choice_keeps_false_positives_below_the_limit() -> None:
    label, probability = label_and_probability()
    choices = validate.all_choices(0.25)
    per_case = [validate.tallies(probability, label, (3.0, 3.0, 3.0), choices=choices)]
    free, figures = validate.choose_postprocessing(choices, per_case, max_false_positives=1.0)
    assert (figures["sensitivity"], figures["false_positives_per_scan"]) == (1.0, 1.0)
    assert (free.threshold, free.min_peak, free.min_volume_mm3) == (0.4, 0.0, 0.0), "0.4 finds the second lesion"
    strict, figures = validate.choose_postprocessing(choices, per_case, max_false_positives=0.0)
    assert (figures["sensitivity"], figures["false_positives_per_scan"]) == (0.5, 0.0)
    # A filter of 60 mm³ (two voxels are 54) and a peak of 0.7 score the same; the size filter is the first to be left out.
    assert (strict.threshold, strict.min_peak, strict.min_volume_mm3) == (0.4, 0.7, 0.0), "the outline stays"


def test_false_positives_do_not_pay_with_the_outline() -> None:
    # Two specks are one component at 0.3 and two at 0.5, and the lesion is too large at 0.3.
    label, probability = np.zeros((12, 12, 12), np.uint8), np.zeros((12, 12, 12), np.float32)
    label[2:5, 2:5, 2:5] = 1
    probability[1:6, 1:6, 1:6] = 0.35
    probability[2:5, 2:5, 2:5] = 0.9999
    probability[9, 9, 7:10] = (0.9999, 0.35, 0.9999)
    choices = validate.all_choices(0.25)
    per_case = [validate.tallies(probability, label, (3.0, 3.0, 3.0), choices=choices)]
    chosen, _ = validate.choose_postprocessing(choices, per_case, max_false_positives=0.0)
    assert chosen.threshold == 0.5


def test_where_no_choice_is_good_enough_the_fewest_false_positives_win() -> None:
    label = np.zeros((12, 12, 12), np.uint8)
    label[0, 0, 0] = 1
    probability = np.zeros((12, 12, 12), np.float32)
    probability[2:8, 2:8, 2:8] = 0.999
    probability[10, 10, 10] = 0.65
    choices = validate.all_choices(0.25)
    per_case = [validate.tallies(probability, label, (3.0, 3.0, 3.0), choices=choices)]
    _, figures = validate.choose_postprocessing(choices, per_case, max_false_positives=0.0)
    assert figures["false_positives_per_scan"] == 1.0


def test_bfloat16_is_reported_from_the_processors_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"fpu avx512f avx512_bf16": True, "fpu avx2": False, "fpu amx_bf16": True, "": False}
    for flags, expected in answers.items():
        monkeypatch.setattr(
            Path, "read_text", lambda self, encoding, flags=flags: f"model name\t: x\nflags\t\t: {flags}\n"
        )
        assert computes_in_bfloat16() is expected


def test_weights_that_see_lesions_everywhere_do_not_win() -> None:
    eager = {"dice": 0.75, "sensitivity": 0.84, "false_positives_per_scan": 7.0}
    annealed = {"dice": 0.79, "sensitivity": 0.78, "false_positives_per_scan": 3.5}
    assert validate.score(annealed) > validate.score(eager)


def test_grouped_convolutions_train_in_float32_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "computes_in_bfloat16", lambda: True)
    dense, grouped = torch.nn.Conv2d(4, 4, 3), torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=4))
    recipe, cpu = Recipe(training_set=Path("t"), output=Path("o")), torch.device("cpu")
    assert uses_bfloat16(recipe, cpu, dense)
    assert uses_bfloat16(recipe, cpu)
    assert not uses_bfloat16(recipe, cpu, grouped)
    assert uses_bfloat16(dataclasses.replace(recipe, precision="bfloat16"), cpu, grouped)
