"""Parts of the classification task: sampler, loss, calibration, calibration images, and the gate's rule on figures made by hand."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.gate import GateClassCase, GateClassTolerances
from medweave_core.contracts.model import InputContract, OutputContract, Postprocessing
from medweave_core.contracts.volume import COLOR_CHANNELS
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.metrics.classification import expected_calibration_error, log_loss
from medweave_steps.tasks import task_named
from medweave_steps.tasks.classification.calibration import calibration
from medweave_steps.tasks.classification.judging import ClassificationJudge
from medweave_steps.tasks.classification.loss import balanced_weights, classification_loss
from medweave_steps.tasks.classification.outputs import ClassTargets
from medweave_steps.tasks.classification.sampler import EpochSampler, ImageSampler, flipped
from medweave_steps.tasks.classification.temperature import BOUNDS, calibrated, fitted_temperature, predictions
from medweave_steps.tasks.classification.training import ClassificationOptions, ClassificationTraining
from medweave_steps.tasks.classification.validation import ClassTally
from support.image_set import CLASSES, SHAPE, image_set
from support.model_folders import tiny_card

EXCLUSIVE = ClassTargets(classes=tuple(ImageClass(name=name) for name in CLASSES), is_multi_label=False)
TOGETHER = dataclasses.replace(EXCLUSIVE, is_multi_label=True)
RARE = [("MEL",), *[("NV",)] * 8, ("BCC",)]


def opened(folder: Path, *, targets: ClassTargets = EXCLUSIVE, **changes: Any) -> ImageSampler:
    """Return a sampler of the training cases of a folder."""
    options: dict[str, Any] = {
        "targets": targets, "shape": SHAPE, "batch_size": 5, "window_hu": None, "scaled_range": (0.0, 1.0),
        "is_balanced": True, "augment": True, "flip_axes": (0, 1), "seed": 3,
    } | changes  # fmt: skip
    cases = open_prepared(folder).cases("train")
    if "cache_mib" in options:
        del options["is_balanced"]
        return EpochSampler(cases, **options)
    return ImageSampler(cases, **options)


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten training cases, of two classes only one each."""
    return image_set(tmp_path_factory.mktemp("rare"), of_split={"train": 10}, classes=RARE)


def drawn_classes(sampler: ImageSampler, steps: int) -> Counter[int]:
    return Counter(int(truth.argmax()) for step in range(steps) for truth in sampler.batch(step).label_BCIJK)


def test_balanced_sampling_shows_each_class_equally_often_and_natural_sampling_each_case(rare: Path) -> None:
    balanced = drawn_classes(opened(rare), 120)
    assert all(150 < balanced[place] < 250 for place in range(3))
    natural = drawn_classes(opened(rare, is_balanced=False), 120)
    assert 420 < natural[1] < 540


def test_balanced_sampling_of_findings_shows_cases_without_one_too(tmp_path: Path) -> None:
    classes = [(), *[("MEL",)] * 5, ("NV", "BCC")]
    image_set(tmp_path, of_split={"train": 7}, classes=classes, is_multi_label=True)
    sampler = opened(tmp_path, targets=TOGETHER)
    names = Counter(name for step in range(100) for name in sampler.batch(step).case_ids)
    assert 90 < names["case-00"] < 160  # one of four groups
    assert 190 < names["case-06"] < 310  # the only case of two of them


@pytest.mark.parametrize("cache_mib", [None, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_a_step_is_the_same_in_any_order_and_for_any_number_of_ranks(
    rare: Path, whole: bool, cache_mib: int | None
) -> None:
    changes: dict[str, Any] = {"cache_mib": cache_mib} if whole else {}
    one, other = opened(rare, **changes), opened(rare, **changes)
    for step in (7, 0, 3, 7):
        together, shares = one.batch(step), [other.batch(step, rank=rank, world_size=2) for rank in (1, 0)]
        np.testing.assert_array_equal(together.image_BCIJK[1::2], shares[0].image_BCIJK)
        np.testing.assert_array_equal(together.image_BCIJK[::2], shares[1].image_BCIJK)
        assert together.case_ids[::2] == shares[1].case_ids
        assert shares[0].num_together == together.num_together == len(together.case_ids)
    assert one.digest() == other.digest()


def test_an_epoch_has_every_case_once_and_a_rank_without_a_case_gets_padding(rare: Path) -> None:
    sampler = opened(rare, cache_mib=None, batch_size=3)
    names = [name for step in range(4) for name in sampler.batch(step).case_ids]
    assert sorted(names) == [f"case-{place:02}" for place in range(10)]
    padding = sampler.batch(3, rank=1, world_size=2)
    assert (padding.is_padding, padding.num_counted, padding.num_together) == (True, 0, 1)
    assert [sampler.num_counted(4, rank=rank, world_size=2) for rank in (0, 1)] == [7, 3]
    assert [sampler.num_padding(4, rank=rank, world_size=2) for rank in (0, 1)] == [0, 1]


def test_an_image_from_memory_opens_no_file(rare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = opened(rare, cache_mib=1, augment=False)
    before = [sampler.batch(step).image_BCIJK for step in range(2)]
    monkeypatch.setattr("medweave_steps.io.cohort.prepared.CaseFolder.volume_CIJK", pytest.fail)
    np.testing.assert_array_equal(before, [sampler.batch(step).image_BCIJK for step in range(2)])


def test_images_are_mirrored_only_along_the_axes_that_were_named() -> None:
    image = np.arange(24, dtype=np.float32).reshape(1, 4, 6, 1)
    seen = {flipped(image, (1,), np.random.default_rng(seed)).tobytes() for seed in range(20)}
    assert seen == {image.tobytes(), image[:, :, ::-1].tobytes()}
    assert flipped(image, (), np.random.default_rng(0)) is image


def test_without_augmentation_an_image_is_as_stored(rare: Path) -> None:
    batch = opened(rare, augment=False).batch(0)
    stored = np.load(rare / "cases" / batch.case_ids[0] / "volume.npy")
    np.testing.assert_array_equal(batch.image_BCIJK[0], stored)


def test_the_loss_is_torchs_and_its_mean_over_parts_is_that_of_the_batch() -> None:
    import torch

    rng = torch.Generator().manual_seed(0)
    logits, places = torch.randn(6, 3, generator=rng), torch.tensor([0, 1, 2, 1, 1, 0])
    truth = torch.eye(3)[places]
    plain = classification_loss(num_classes=3, is_multi_label=False, label_smoothing=0.1)
    expected = torch.nn.functional.cross_entropy(logits, places, label_smoothing=0.1)
    torch.testing.assert_close(plain(logits, truth), expected)
    several = classification_loss(num_classes=3, is_multi_label=True)
    torch.testing.assert_close(
        several(logits, truth), torch.nn.functional.binary_cross_entropy_with_logits(logits, truth)
    )
    for is_multi_label in (False, True):
        weighted = classification_loss(num_classes=3, is_multi_label=is_multi_label, class_weights=[1.0, 0.5, 3.0])
        parts = (weighted(logits[:4], truth[:4]) * 4 + weighted(logits[4:], truth[4:]) * 2) / 6
        torch.testing.assert_close(weighted(logits, truth), parts)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    places = [0, 1, 1, 1, 1, 2, 2]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=places)
    assert balanced_weights([1, 4, 2], 7, is_multi_label=False) == pytest.approx(expected)
    assert balanced_weights([1, 4, 7], 7, is_multi_label=True) == pytest.approx([6.0, 0.75, 1.0])


def test_the_best_weights_have_the_largest_macro_f1_or_the_smallest_log_loss(rare: Path) -> None:
    prepared = open_prepared(rare)
    sure, calibrated_one = {"macro_f1": 0.8, "log_loss": 0.9}, {"macro_f1": 0.7, "log_loss": 0.5}
    for best_by, best in (("score", sure), ("loss", calibrated_one)):
        task = ClassificationTraining.of(prepared.cohort, EXCLUSIVE, ClassificationOptions(best_by=best_by))  # type: ignore[arg-type]
        recipe: Any = None
        validator = task.open_validator(
            recipe, prepared, prepared.cases("train"), window_shape=SHAPE, overlap=0.0, device=None
        )
        assert max((sure, calibrated_one), key=validator.score) is best
        assert validator.score({"macro_f1": None, "log_loss": None}) == 0
    assert validator.score({"log_loss": math.nan}) == 0, "a validation, so that the weights are checked"
    tallies = [ClassTally(logits=(margin, *[0.0] * 2), truth=(True, False, False)) for margin in (12.0, 12.5)]
    scores = [validator.score(validator.figures([tally])) for tally in tallies]
    assert scores[0] < scores[1], "losses below the rounding of a figure compare, too"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), is_multi_label=st.booleans(), factor=st.floats(0.3, 8))
def test_the_temperature_has_the_least_log_loss_within_the_bounds(
    seed: int, is_multi_label: bool, factor: float
) -> None:
    rng, targets = np.random.default_rng(seed), TOGETHER if is_multi_label else EXCLUSIVE
    logits = rng.normal(size=(60, 3))
    probability = targets.probabilities(logits)
    if is_multi_label:
        truth = rng.random((60, 3)) < probability
    else:
        truth = np.array([np.arange(3) == rng.choice(3, p=row) for row in probability])

    def loss(temperature: float) -> float:
        value = log_loss(predictions(logits * factor, truth, targets, Postprocessing(temperature=temperature)))
        assert value is not None
        return value

    fitted = fitted_temperature(logits * factor, truth, targets)
    best = minimize_scalar(lambda x: loss(float(np.exp(x))), bounds=np.log(BOUNDS), method="bounded")
    assert BOUNDS[0] <= fitted <= BOUNDS[1]
    assert loss(fitted) <= best.fun + 1e-6


def test_calibration_lowers_the_calibration_error_of_an_overconfident_network() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 3))
    probability = EXCLUSIVE.probabilities(logits)
    truth = np.array([np.arange(3) == rng.choice(3, p=row) for row in probability])
    chosen = calibrated(logits * 4, truth, EXCLUSIVE)
    assert chosen.temperature == pytest.approx(4, rel=0.1)
    before, after = (
        expected_calibration_error(predictions(logits * 4, truth, EXCLUSIVE, one)) for one in (Postprocessing(), chosen)
    )
    assert before is not None
    assert after is not None
    assert before > 0.15 > 0.04 > after


def test_each_finding_has_the_threshold_with_its_best_f1() -> None:
    # Of the first class all positives have 0.2 or more, all negatives less; the second fits one half; the third does not occur.
    probability = np.array([[0.3, 0.9, 0.4], [0.25, 0.8, 0.1], [0.1, 0.2, 0.2], [0.05, 0.1, 0.3]])
    truth = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
    logits = np.log(probability / (1 - probability))
    chosen = calibrated(logits, truth, TOGETHER)
    thresholds = [one.threshold for one in chosen.by_output]
    calibrated_to = TOGETHER.probabilities(logits, temperature=chosen.temperature)
    assert (calibrated_to[:2, 0] >= thresholds[0]).all()
    assert (calibrated_to[2:, 0] < thresholds[0]).all()
    assert thresholds[1:] == [0.5, 0.5]


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[1000.0, -1000.0, 0.0]])
    with np.errstate(all="raise", under="ignore"):
        assert EXCLUSIVE.probabilities(logits).tolist() == [[1.0, 0.0, 0.0]]
        assert TOGETHER.probabilities(logits).tolist() == [[1.0, 0.0, 0.5]]


CARD = tiny_card(
    labels=(), classes=EXCLUSIVE.classes, task_name="classification", output=OutputContract(activation="softmax"),
    input=InputContract(
        spacing_mm=(1.0, 1.0, 1.0), window_hu=None, patch_shape=SHAPE, patch_multiple=1, crop="none", modality="XC", unit="1",
        channels=3, channel_names=COLOR_CHANNELS,
    ),
)  # fmt: skip


def test_calibration_images_are_of_each_class_in_turn_and_the_same_by_seed(rare: Path) -> None:
    cases = open_prepared(rare).cases("train")
    drawn = calibration(cases, CARD, num_windows=7, seed=0)
    assert drawn.figures == {"windows_by_class": {"MEL": 3, "NV": 2, "BCC": 2}}
    assert drawn.num_cases == 4
    assert {values.shape for values in drawn.inputs_BCIJK} == {(1, 3, *SHAPE)}
    assert drawn.inputs_BCIJK[0] is not drawn.inputs_BCIJK[0]  # 200 of them are not held in memory
    assert drawn.sha256 == calibration(cases[::-1], CARD, num_windows=7, seed=0).sha256
    assert drawn.sha256 != calibration(cases, CARD, num_windows=7, seed=1).sha256
    with pytest.raises(UserInputError, match="no training case"):
        calibration([], CARD, num_windows=1, seed=0)


def test_an_image_of_another_shape_does_not_fit_the_model(tmp_path: Path) -> None:
    image_set(tmp_path, of_split={"train": 1}, shapes={0: (20, 12, 1)})
    with pytest.raises(UserInputError, match="the image of case-00 does not fit"):
        calibration(open_prepared(tmp_path).cases("train"), CARD, num_windows=1, seed=0)


def test_decisions_are_classes_or_a_bit_for_each_finding() -> None:
    logits = np.array([[1.0, 2.0, 0.0], [3.0, 2.0, -5.0]], np.float32)
    task = task_named("classification")
    assert task.decisions(logits, CARD).tolist() == [1, 0]
    several = dataclasses.replace(CARD, output=OutputContract(activation="sigmoid"))
    assert task.decisions(logits, several).tolist() == [[1, 1, 1], [1, 1, 0]]
    assert task.output_shape(CARD, (2, 3, *SHAPE)) == (2, 3)


def test_cases_of_other_classes_cannot_judge_a_model(tmp_path: Path) -> None:
    task = task_named("classification")
    cohort = open_prepared(image_set(tmp_path)).cohort
    task.check_truth(cohort, CARD)
    for other in (
        dataclasses.replace(cohort, classes=cohort.classes[::-1]),
        dataclasses.replace(cohort, is_multi_label=True),
        dataclasses.replace(cohort, classes=()),
    ):
        with pytest.raises(UserInputError, match="the classes of the preprocessed cases are not those of the model"):
            task.check_truth(other, CARD)


TOLERANCES = GateClassTolerances(accuracy=0.02, macro_f1=0.05, min_speedup=1.1, max_slowdown=1.1)


def judged_cases(predicted: list[int]) -> list[GateClassCase]:
    """Cases whose true classes come in turn."""
    return [
        GateClassCase(
            case_id=f"case-{place}", patient_key=str(place), classes=(CLASSES[place % 3],), predicted=(CLASSES[own],),
            probabilities={name: float(name == CLASSES[own]) for name in CLASSES}, is_multi_label=False,
        )
        for place, own in enumerate(predicted)
    ]  # fmt: skip


def test_the_gate_judges_accuracy_and_macro_f1_by_their_intervals() -> None:
    judge, base = ClassificationJudge(), judged_cases([place % 3 for place in range(60)])
    same = judge.judged(judge.compare(base, base, seed=0), TOLERANCES)
    assert same == [
        (True, "accuracy ±0.00 (95 % interval ±0.00 to ±0.00)"),
        (True, "macro-F1 ±0.00 (95 % interval ±0.00 to ±0.00)"),
    ]
    worse = judged_cases([0 if place < 4 else place % 3 for place in range(60)])
    (accuracy, text), (macro_f1, _) = judge.judged(judge.compare(base, worse, seed=0), TOLERANCES)
    assert not accuracy
    assert not macro_f1
    assert text.startswith("accuracy −0.033 (95 % interval −0.083 to ±0.000)")
    assert text.endswith("must stay above −0.02")
    better = judge.compare(worse, base, seed=0)
    assert all(good for good, _ in judge.judged(better, TOLERANCES))
    assert better.accuracy.value == pytest.approx(2 / 60)
    assert judge.metrics(better.figures)["validation_f1_mel"] == 1.0


def test_one_patient_is_too_few_to_judge_a_classification() -> None:
    judge, one = ClassificationJudge(), judged_cases([0])
    judged = judge.judged(judge.compare(one, one, seed=0), TOLERANCES)
    why = "cannot be judged: the validation split has fewer than two patients"
    assert judged == [(False, f"accuracy {why}"), (False, f"macro-F1 {why}")]
