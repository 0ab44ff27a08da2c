"""What a segmentation learns and how it is judged: labels of batches, loss, sampling and tallies of several labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.losses import DiceCELoss, DiceLoss

from medweave_core.contracts.labels import Label, distinct_names, slugs
from medweave_core.contracts.model import OutputContract, Postprocessing
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.tasks.segmentation.loss import dice_cross_entropy
from medweave_steps.tasks.segmentation.sampler import PatchSampler, open_training_case
from medweave_steps.tasks.segmentation.targets import (
    IGNORED,
    ONE_LABEL,
    Targets,
    parse_regions,
    targets_of_cohort,
)
from medweave_steps.tasks.segmentation.validation import SegmentationValidator, predict_probability
from support.label_set import IGNORE, LABELS, REGIONS, label_set


def softmax(ignore_value: int | None = None) -> Targets:
    return Targets(
        head=OutputHead(output=OutputContract(activation="softmax"), labels=LABELS), ignore_value=ignore_value
    )


def regions(ignore_value: int | None = None) -> Targets:
    return Targets(head=OutputHead(output=OutputContract(regions=REGIONS), labels=LABELS), ignore_value=ignore_value)


def one_label(ignore_value: int | None = None) -> Targets:
    return Targets(head=ONE_LABEL.head, ignore_value=ignore_value)


KINDS = {"one label": one_label, "softmax": softmax, "regions": regions}


def label_map(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice([0, 1, 2, 4], (3, 6, 5, 4)).astype(np.float32)


def labels_of(targets: Targets, maps: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([targets.encoded(one) for one in maps]))


def logits_of(targets: Targets, seed: int = 1) -> torch.Tensor:
    shape = (3, targets.head.num_channels, 6, 5, 4)
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32)).requires_grad_()


def test_the_labels_of_a_batch_are_class_numbers_or_one_channel_for_each_region() -> None:
    values = np.array([0, 1, 2, 4, IGNORE], np.float32).reshape(5, 1, 1)
    encoded = {name: kind(IGNORE).encoded(values)[:, :, 0, 0].tolist() for name, kind in KINDS.items()}
    assert encoded == {
        "one label": [[0, 1, 1, 1, IGNORED]],
        "softmax": [[0, 1, 2, 3, IGNORED]],
        "regions": [[0, 1, 1, 1, IGNORED], [0, 0, 1, 1, IGNORED], [0, 0, 0, 1, IGNORED]],
    }


@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_monai(kind: str, over_batch: bool) -> None:
    targets = KINDS[kind]()
    logits, labels = logits_of(targets), labels_of(targets, label_map())
    smoothing = {"smooth_nr": 1.0, "smooth_dr": 1.0, "batch": over_batch}
    if kind == "one label":
        expected = DiceCELoss(sigmoid=True, lambda_dice=0.7, lambda_ce=1.5, **smoothing)(logits, labels)
    elif kind == "softmax":
        options = {"softmax": True, "to_onehot_y": True, "include_background": False, **smoothing}
        expected = DiceCELoss(lambda_dice=0.7, lambda_ce=1.5, **options)(logits, labels)
    else:  # MONAI's DiceCELoss has no binary cross-entropy for several channels
        terms = [torch.nn.BCEWithLogitsLoss()(logits[:, n], labels[:, n]) for n in range(3)]
        expected = 0.7 * DiceLoss(sigmoid=True, **smoothing)(logits, labels) + 1.5 * sum(terms) / 3
    loss = dice_cross_entropy(dice_weight=0.7, cross_entropy_weight=1.5, over_batch=over_batch, targets=targets)
    assert loss(logits, labels).item() == pytest.approx(expected.item(), abs=1e-6)
    masked = dice_cross_entropy(
        dice_weight=0.7, cross_entropy_weight=1.5, over_batch=over_batch, targets=KINDS[kind](IGNORE)
    )
    assert masked(logits, labels).item() == pytest.approx(expected.item(), abs=1e-6), "nothing is ignored"


@pytest.mark.parametrize("over_batch", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_voxels_without_annotation_have_no_gradient_and_do_not_change_the_loss(kind: str, over_batch: bool) -> None:
    targets, maps = KINDS[kind](IGNORE), label_map()
    maps[:, :2] = IGNORE
    maps[2] = IGNORE  # a whole patch
    loss = dice_cross_entropy(dice_weight=1.0, cross_entropy_weight=1.0, over_batch=over_batch, targets=targets)
    logits, labels = logits_of(targets), labels_of(targets, maps)
    value = loss(logits, labels)
    value.backward()
    gradient = logits.grad.numpy()
    ignored = np.broadcast_to(maps[:, None] == IGNORE, gradient.shape)
    assert math.isfinite(value.item())
    assert np.all(gradient[ignored] == 0)
    assert np.count_nonzero(gradient[~ignored]) > 0.9 * np.count_nonzero(~ignored)
    other = logits.detach().clone()
    other[torch.from_numpy(ignored.copy())] = 3.0
    assert float(loss(other, labels)) == pytest.approx(value.item(), abs=1e-6)


def test_one_label_stays_one_channel_and_several_exclude_each_other_unless_regions_are_declared(tmp_path: Path) -> None:
    cohort = open_prepared(label_set(tmp_path / "a")).cohort
    assert targets_of_cohort(cohort, ()) == softmax()
    assert targets_of_cohort(cohort, REGIONS) == regions()
    declared = open_prepared(label_set(tmp_path / "b", regions=REGIONS)).cohort
    assert targets_of_cohort(declared, ()) == regions()
    single = open_prepared(label_set(tmp_path / "c", labels=LABELS[:1], regions=REGIONS)).cohort
    assert targets_of_cohort(single, ()).head.output == OutputContract()
    with pytest.raises(UserInputError, match="the regions cannot be predicted together"):
        targets_of_cohort(cohort, parse_regions(["whole tumor:1,2,3"]))


@pytest.mark.parametrize("text", ["tumor core", "tumor core:", ":1,2", "tumor core:1;2", "tumor core:0,1", "core:256"])
def test_a_region_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid value of --regions"):
        parse_regions([text])


def test_regions_are_read_with_colons_in_their_names() -> None:
    assert [(one.name, one.values) for one in parse_regions(["BraTS: core:4,2", "whole:1"])] == [
        ("BraTS: core", (2, 4)), ("whole", (1,)),
    ]  # fmt: skip


def test_metric_names_are_distinct() -> None:
    names = [Label(value=n, name=name) for n, name in enumerate(("Tumor Core", "tumor-core", "Ödem"), start=1)]
    head = OutputHead(output=OutputContract(activation="softmax"), labels=tuple(names))
    assert slugs(distinct_names(head.outputs)) == ("tumor_core_1", "tumor_core_2", "dem")


def sampler_of(folder: Path, targets: Targets, **changes: object) -> PatchSampler:
    cases = open_prepared(folder).cases("train")
    opened = [
        open_training_case(case, spacing_mm=(2.0, 2.0, 2.0), seed=0, has_lungs=False, targets=targets) for case in cases
    ]
    values = {
        "patch_shape": (8, 8, 8), "batch_size": 40, "window_hu": None, "lesion_share": 1.0, "bright_share": 0.3,
        "thick_share": 0.4, "augment": True, "seed": 0, "targets": targets,
    }  # fmt: skip
    return PatchSampler(opened, **values | changes)


def test_every_label_is_as_likely_whatever_its_number_of_lesions(tmp_path: Path) -> None:
    folder = label_set(tmp_path / "data")
    path = folder / "cases" / "case-0" / "label.npy"
    label = np.load(path)
    label[::6, 0, ::6] = 1  # twelve more lesions of one label
    np.save(path, label)
    sampler = sampler_of(folder, softmax())
    values = [int(sampler.cases[case].lesion_values[number]) for case, number in sampler.lesions]
    assert (values.count(1), values.count(2), values.count(4)) == (14, 2, 2)
    rng = np.random.default_rng(0)
    drawn = [sampler._lesion(rng) for _ in range(900)]
    shares = [int(sampler.cases[case].lesion_values[number]) for case, number in drawn]
    assert all(250 < shares.count(value) < 350 for value in (1, 2, 4))


def test_patches_hold_matching_images_and_labels_after_augmentation(tmp_path: Path) -> None:
    folder = label_set(tmp_path / "data", ignored_planes=2)
    batch = sampler_of(folder, softmax(IGNORE)).batch(3)
    assert batch.label_BCIJK.shape == (40, 1, 8, 8, 8)
    assert set(np.unique(batch.label_BCIJK)) <= {IGNORED, 0, 1, 2, 3}
    edema, core = (batch.image_BCIJK[:, :, None] * (batch.label_BCIJK == n)[:, None] for n in (1, 3))
    numbers = [(batch.label_BCIJK == n).sum() for n in (1, 3)]
    assert (edema.sum((0, 2, 3, 4, 5)) / numbers[0]).round(1) == pytest.approx([2, 0], abs=0.15)
    assert (core.sum((0, 2, 3, 4, 5)) / numbers[1]).round(1) == pytest.approx([0, 2], abs=0.15)
    of_regions = sampler_of(folder, regions(IGNORE)).batch(3)
    np.testing.assert_array_equal(of_regions.image_BCIJK, batch.image_BCIJK)
    np.testing.assert_array_equal(of_regions.label_BCIJK[:, 2:] == 1, batch.label_BCIJK == 3)


def test_a_voxel_without_annotation_is_no_lesion(tmp_path: Path) -> None:
    folder = label_set(tmp_path / "data", ignored_planes=2, labels=LABELS[:1])
    sampler = sampler_of(folder, one_label(IGNORE))
    assert all(len(case.lesion_centres) == 1 for case in sampler.cases)
    assert all(case.lesion_centres[0, 0] - case.lesion_extents[0, 0] / 2 >= 1.5 for case in sampler.cases)


def validator_of(folder: Path, targets: Targets) -> SegmentationValidator:
    cases = open_prepared(folder).cases("validation")
    return SegmentationValidator(
        cases=cases, targets=targets, spacing_mm=(2.0, 2.0, 2.0), window_hu=None, window_shape=(24, 20, 16), overlap=0.0,
        max_false_positives=0.0, device=torch.device("cpu"),
    )  # fmt: skip


def perfect(targets: Targets, folder: Path) -> object:
    """Return a predictor that answers with the ground truth, whatever it is given, and with noise where nothing is annotated."""
    label = open_prepared(folder).cases("validation")[0].label_IJK()
    channels = [targets.reference(label, output) for output in targets.outputs]
    if targets.is_softmax:
        channels.insert(0, ~np.any(channels, axis=0))
    logits = np.where(np.stack(channels), 9.0, -9.0).astype(np.float32)
    logits[:, label == IGNORE] = np.random.default_rng(0).normal(0, 9, (len(channels), int((label == IGNORE).sum())))
    return lambda window: torch.from_numpy(logits)[None]


@pytest.mark.parametrize("kind", ["softmax", "regions"])
def test_each_output_has_its_own_figures_and_the_score_is_their_mean(tmp_path: Path, kind: str) -> None:
    folder = label_set(tmp_path / "data", ignored_planes=2)
    targets = KINDS[kind](IGNORE)
    validator = validator_of(folder, targets)
    tallies = validator.tallies(perfect(targets, folder), [validator.plain])
    figures = validator.figures([case[0] for case in tallies])
    names = slugs(distinct_names(targets.outputs))
    assert figures["dice"] == validator.score(figures) == 1.0, "voxels without annotation do not count"
    assert [figures[f"dice_{name}"] for name in names] == [1.0, 1.0, 1.0]
    assert [figures[f"false_positives_per_scan_{name}"] for name in names] == [0.0, 0.0, 0.0]

    def without_last(window: torch.Tensor) -> torch.Tensor:
        logits = perfect(targets, folder)(window).clone()
        logits[:, -1] = -20.0
        return logits

    tallies = validator.tallies(without_last, [validator.plain])
    figures = validator.figures([case[0] for case in tallies])
    others = [figures[f"dice_{name}"] for name in names[:2]]
    assert figures[f"dice_{names[2]}"] == 0.0
    assert figures["dice"] == pytest.approx(sum(others) / 3, abs=1e-4)


def test_the_choice_is_made_for_each_output(tmp_path: Path) -> None:
    from medweave_steps.runtime.verb import StepContext

    folder = label_set(tmp_path / "data")
    targets = regions()
    validator = validator_of(folder, targets)
    label = open_prepared(folder).cases("validation")[0].label_IJK()

    def predictor(window: torch.Tensor) -> torch.Tensor:
        logits = perfect(targets, folder)(window).clone()
        logits[0, 0][torch.from_numpy(np.isin(label, [1]))] = -0.6  # 0.35 in the rim of the whole tumor
        logits[0, 2, 0, 0, 0] = 1.0  # a false positive of the last region
        return logits

    context = StepContext(verb="train", num_threads=1, quiet=True)
    chosen, figures = validator.choose(context, validator.tallies(predictor, validator.choices))
    whole, core, enhancing = chosen.by_output
    assert (whole.threshold, core.threshold) == (0.3, 0.5)
    assert (whole.min_peak, core.min_peak) == (0.0, 0.0)
    assert enhancing.min_peak > 0.73
    assert (chosen.threshold, chosen.min_peak, chosen.overlap) == (0.5, 0.0, 0.0), "the common values stay as they are"
    assert figures["dice"] == 1.0
    assert context.cases == [
        {
            "case_id": "case-2", "split": "validation", "dice": 1.0, "lesions": 3, "lesions_found": 3, "false_positives": 0,
            "dice_whole_tumor": 1.0, "dice_core": 1.0, "dice_enhancing_tumor": 1.0,
        }
    ]  # fmt: skip


def test_softmax_probabilities_are_those_of_monais_sliding_window(tmp_path: Path) -> None:
    from monai.inferers import sliding_window_inference

    network = torch.nn.Conv3d(2, 4, 3, padding=1)
    volume = np.random.default_rng(0).normal(size=(2, 14, 11, 6)).astype(np.float32)
    with torch.inference_mode():
        logits = sliding_window_inference(
            torch.from_numpy(volume)[None], (8, 8, 8), 2, network, overlap=0.25, mode="gaussian", sigma_scale=0.125,
        )  # fmt: skip
    ours = predict_probability(
        network,
        volume,
        window_hu=None,
        window_shape=(8, 8, 8),
        overlap=0.25,
        device=torch.device("cpu"),
        is_softmax=True,
    )
    np.testing.assert_allclose(ours, logits.softmax(1)[0].numpy(), atol=1e-6)
    assert Postprocessing().by_output == ()
