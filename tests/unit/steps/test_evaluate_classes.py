"""`evaluate` for classifications: the figures against scikit-learn, the color-histogram baseline, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    recall_score,
    roc_auc_score,
)

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classification_evaluation import ClassificationEvaluation
from medweave_core.contracts.classifications import RECORD_FILE, Classifications
from medweave_core.contracts.cohort import CohortIndex
from medweave_core.contracts.schema import schema_of
from medweave_steps.cli import main
from medweave_steps.evaluate.classified import covariates
from medweave_steps.evaluate.classified.baseline import fit_baseline, histogram
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.metrics.bootstrap import confidence_interval, confidence_intervals
from medweave_steps.tasks.classification.outputs import ClassTargets
from support.evaluated import write_run
from support.evaluated_classes import NAMES, Made, made_run, write_covariates
from support.image_set import CLASSES, image_set
from support.reported import three_cases


def figures_of(output: Path) -> ClassificationEvaluation:
    document = json.loads((output / "metrics.json").read_text())
    jsonschema.validate(document, schema_of("classification-evaluation"))
    return codec.from_json(ClassificationEvaluation, document, where="the evaluation")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, ClassificationEvaluation]:
    made = made_run(tmp_path_factory.mktemp("exclusive"))
    code, output = made.evaluate()
    assert code == 0
    return made, figures_of(output)


def test_the_figures_are_those_of_scikit_learn(run: tuple[Made, ClassificationEvaluation]) -> None:
    made, figures = run
    truth = [CLASSES.index(names[0]) for names in made.truth if names]
    predicted = [CLASSES.index(names[0]) for names in made.predicted[:-1]]
    probability = made.probabilities[:-1]
    assert figures.accuracy == pytest.approx(accuracy_score(truth, predicted), abs=1e-6)
    assert figures.balanced_accuracy == pytest.approx(balanced_accuracy_score(truth, predicted), abs=1e-6)
    assert figures.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-6)
    assert figures.weighted_f1 == pytest.approx(f1_score(truth, predicted, average="weighted"), abs=1e-6)
    assert figures.log_loss == pytest.approx(log_loss(truth, probability / probability.sum(axis=1)[:, None]), abs=1e-5)
    assert figures.confusion_matrix == tuple(map(tuple, confusion_matrix(truth, predicted).tolist()))
    recalls = recall_score(truth, predicted, average=None)
    for place, one in enumerate(figures.by_class):
        is_true = np.array(truth) == place
        assert one.cases == is_true.sum() == one.true_positives + one.false_negatives
        assert one.predicted_cases == one.true_positives + one.false_positives
        assert one.sensitivity == pytest.approx(recalls[place], abs=1e-6)
        assert one.roc_auc == pytest.approx(roc_auc_score(is_true, probability[:, place]), abs=1e-6)
        assert one.average_precision == pytest.approx(average_precision_score(is_true, probability[:, place]), abs=1e-6)
        assert one.f1 == pytest.approx(f1_score(is_true, np.array(predicted) == place), abs=1e-6)


def test_a_probability_that_was_rounded_to_zero_counts_as_half_of_the_last_decimal(tmp_path: Path) -> None:
    made = made_run(tmp_path, 3)
    record = json.loads((tmp_path / "classifications" / RECORD_FILE).read_text())
    for case, known in zip(record["cases"], made.truth, strict=True):
        wrong = next(name for name in CLASSES if name not in (known or ()))
        case |= {"classes": [wrong], "probabilities": {name: float(name == wrong) for name in CLASSES}}
    (tmp_path / "classifications" / RECORD_FILE).write_text(json.dumps(record))
    code, output = made.evaluate()
    assert code == 0
    assert figures_of(output).log_loss == pytest.approx(-np.log(5e-7), abs=1e-5)


def test_every_figure_lies_in_its_interval_over_patients(run: tuple[Made, ClassificationEvaluation]) -> None:
    _, figures = run
    assert (figures.cases, figures.patients) == (39, 20)
    for one in (figures, *figures.by_class):
        for field in dataclasses.fields(one):
            if field.name.endswith("_ci"):
                low, high = getattr(one, field.name)
                assert low <= getattr(one, field.name.removesuffix("_ci")) <= high


def test_cases_without_a_known_class_are_in_no_figure(run: tuple[Made, ClassificationEvaluation]) -> None:
    _, figures = run
    assert figures.cases_without_ground_truth == ("case-39",)
    assert [case.case_id for case in figures.per_case] == [f"case-{place:02}" for place in range(39)]


def test_cases_have_the_probability_of_their_class(run: tuple[Made, ClassificationEvaluation]) -> None:
    made, figures = run
    for case, row in zip(figures.per_case, made.probabilities, strict=False):
        assert case.true_probability == row[CLASSES.index(case.classes[0])]
        assert case.is_correct == (case.classes == case.predicted)
        assert case.baseline_predicted is None


def test_the_tables_have_a_row_for_each_case_and_class(run: tuple[Made, ClassificationEvaluation]) -> None:
    made, figures = run
    with (made.root / "evaluation/per_case.csv").open() as stream:
        cases = list(csv.DictReader(stream))
    assert [row["classes"] for row in cases] == [case.classes[0] for case in figures.per_case]
    with (made.root / "evaluation/per_class.csv").open() as stream:
        classes = list(csv.DictReader(stream))
    assert [row["name"] for row in classes] == list(CLASSES)
    assert figures.by_class[0].f1_ci is not None
    assert float(classes[0]["f1_low"]) == figures.by_class[0].f1_ci[0]
    report = json.loads((made.root / "report.json").read_text())
    assert report["results"]["accuracy"] == figures.accuracy
    assert len(report["cases"]) == 39


def test_multi_label_figures_count_each_class_apart(tmp_path: Path) -> None:
    made = made_run(tmp_path, is_multi_label=True)
    code, output = made.evaluate()
    assert code == 0
    figures = figures_of(output)
    truth = np.array([[name in names for name in CLASSES] for names in made.truth if names is not None])
    predicted = np.array([[name in names for name in CLASSES] for names in made.predicted[:-1]])
    assert figures.accuracy == pytest.approx(accuracy_score(truth, predicted), abs=1e-6)
    assert figures.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-6)
    assert figures.confusion_matrix == ()
    for place, one in enumerate(figures.by_class):
        counts = confusion_matrix(truth[:, place], predicted[:, place]).ravel().tolist()
        assert [one.true_negatives, one.false_positives, one.false_negatives, one.true_positives] == counts
    first, row = figures.per_case[0], made.probabilities[0]
    of_truth = [p if name in first.classes else 1 - p for name, p in zip(CLASSES, row, strict=True)]
    assert first.true_probability == pytest.approx(min(of_truth), abs=1e-6)


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_the_baseline_is_a_logistic_regression_on_histograms(tmp_path: Path, is_multi_label: bool) -> None:
    image_set(tmp_path / "train", of_split={"train": 30, "validation": 5}, is_multi_label=is_multi_label)
    prepared = open_prepared(tmp_path / "train")
    targets = ClassTargets(classes=NAMES, is_multi_label=is_multi_label)
    baseline = fit_baseline(prepared, targets)
    assert (baseline.bins, baseline.training_cases) == (216, 30)
    training = prepared.cases("train")
    features = np.stack([histogram(case.volume_CIJK()) for case in training])
    truth = np.stack([targets.truth_C(case.case) for case in training])
    logits = features @ baseline.weights_FC[:-1] + baseline.weights_FC[-1]
    columns = range(3) if is_multi_label else [None]
    for column in columns:
        other = LogisticRegression(C=10.0, tol=1e-8, max_iter=5000)
        if column is None:
            expected = other.fit(features, truth.argmax(axis=1)).predict_proba(features)
            np.testing.assert_allclose(targets.probabilities(logits), expected, atol=2e-3)
        else:
            expected = other.fit(features, truth[:, column]).predict_proba(features)[:, 1]
            np.testing.assert_allclose(targets.probabilities(logits)[:, column], expected, atol=2e-3)
    assert (baseline.decided(features) == truth).mean() > 0.9


def test_a_histogram_holds_every_pixel_once_whatever_its_place() -> None:
    rng = np.random.default_rng(1)
    image = rng.uniform(size=(3, 8, 6, 1)).astype(np.float32)
    image.reshape(3, -1)[:, :2] = [[0, 1]] * 3
    own = histogram(image)
    assert (own**2).sum() == pytest.approx(1)
    order = rng.permutation(48)
    np.testing.assert_array_equal(own, histogram(image.reshape(3, -1)[:, order].reshape(image.shape)))
    assert histogram(image[:1]).shape == (64,)


def test_the_baseline_is_evaluated_on_the_same_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path)
    image_set(tmp_path / "train", of_split={"train": 12, "validation": 3})
    code, output = made.evaluate("--training-set", str(tmp_path / "train"))
    assert code == 0
    figures = figures_of(output)
    assert figures.baseline is not None
    assert figures.baseline.training_cases == 12
    # The images show their classes as colors, so the baseline finds them all.
    assert figures.baseline.accuracy == 1.0
    assert {case.baseline_predicted == case.classes for case in figures.per_case} == {True}
    assert f"accuracy {figures.accuracy:.3f}; baseline (color histogram) 1.000" in capsys.readouterr().err


def test_without_a_training_set_there_is_no_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = made_run(tmp_path, 6).evaluate()
    assert code == 0
    assert figures_of(output).baseline is None
    assert "no histogram baseline" in capsys.readouterr().err


def test_intervals_of_several_statistics_are_those_of_each_alone() -> None:
    rows = np.random.default_rng(5).normal(size=(30, 2))
    patients = [str(place // 3) for place in range(30)]
    statistics = [lambda drawn: float(drawn[:, 0].mean()), lambda drawn: float(np.median(drawn[:, 1]))]
    together = confidence_intervals(rows, lambda drawn: [one(drawn) for one in statistics], seed=4, patients=patients)
    assert together == [confidence_interval(rows, one, seed=4, patients=patients) for one in statistics]


def refused(made: Made, capsys: pytest.CaptureFixture[str], *words: str, extra: tuple[str, ...] = ()) -> None:
    code, output = made.evaluate(*extra)
    message = capsys.readouterr().err
    assert code == 65, message
    assert not output.exists()
    for word in words:
        assert word in message


def test_a_case_without_result_and_a_result_without_case_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run(tmp_path, 6)
    path = tmp_path / "classifications" / RECORD_FILE
    record = codec.from_json(Classifications, json.loads(path.read_text()), where="the record")
    made.change_record(cases=record.cases[1:])
    refused(made, capsys, "case-00: preprocessed, but without result")
    made.change_record(cases=(*record.cases, dataclasses.replace(record.cases[0], case_id="case-99")))
    refused(made, capsys, "case-99: classified, but not in any case batch")
    made.change_record(cases=(*record.cases, record.cases[0]))
    refused(made, capsys, "case-00 was classified twice")


def test_classes_that_the_model_does_not_predict_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run(tmp_path, 6)
    made.change_index(classes=(*NAMES, ImageClass(name="AK")))
    refused(made, capsys, "the cohort has classes that the model does not predict", "MEL, NV, BCC, AK")
    made.change_index(classes=NAMES, is_multi_label=True)
    refused(made, capsys, "any number of MEL, NV, BCC", "exactly one of MEL, NV, BCC")


def test_results_of_different_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, other = made_run(tmp_path / "a", 6), made_run(tmp_path / "b", 6)
    other.change_record(model_sha256="b" * 64, model_name="other")
    words = ["--classifications", str(made.root / "classifications"), str(other.root / "classifications")]
    refused(made, capsys, "come from different models", "'other'", extra=tuple(words))


def test_a_cohort_without_targets_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path, 4)
    path = tmp_path / "index.json"
    index = codec.from_json(CohortIndex, json.loads(path.read_text()), where="the index")
    made.change_index(cases=tuple(dataclasses.replace(case, classes=None) for case in index.cases), classes=())
    refused(made, capsys, "no case has a known class to compare with")


def test_a_folder_of_segmentations_is_no_folder_of_classifications(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_run(tmp_path / "classes", 4)
    masks = write_run(tmp_path / "masks", three_cases())
    refused(made, capsys, "no file classifications.json", extra=("--classifications", str(masks.segmentations[0])))
    words = [*masks.options(tmp_path / "out"), "--segmentations", str(made.root / "classifications")]
    assert main(["evaluate", *words]) == 65
    message = capsys.readouterr().err
    assert "a folder of --segmentations has classifications" in message
    assert "--classifications" in message


def test_options_of_masks_and_of_classes_do_not_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path, 4)
    assert made.evaluate("--segmentations", str(tmp_path))[0] == 2
    assert "both --segmentations and --classifications" in capsys.readouterr().err
    assert made.evaluate("--cohort", str(tmp_path))[0] == 2
    assert "--cohort does not apply" in capsys.readouterr().err
    index = ["--cohort-index", str(tmp_path / "index.json"), "--case-batches", str(tmp_path / "batch")]
    assert main(["evaluate", *index, "--output", str(tmp_path / "out")]) == 2
    assert "masks or classes" in capsys.readouterr().err
    assert main(["evaluate", *index, "--output", str(tmp_path / "out"), "--segmentations", str(tmp_path)]) == 2
    assert "--cohort is missing" in capsys.readouterr().err


def test_a_training_set_of_other_channels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path, 4)
    image_set(tmp_path / "train", channels=("gray",))
    refused(made, capsys, "channels gray (cohort.json)", extra=("--training-set", str(tmp_path / "train")))


def test_a_training_set_without_training_cases_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path, 4)
    refused(made, capsys, "the baseline has no training case", extra=("--training-set", str(tmp_path / "batch")))


def test_accuracy_by_covariate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path)
    code, output = made.evaluate("--covariates", str(write_covariates(made, rows=38)))
    assert code == 0
    figures = figures_of(output)
    by_group = {(one.covariate, one.group): one for one in figures.by_covariate}
    assert list(by_group) == [
        ("sex", "F"), ("sex", "M"), ("sex", "unknown"),
        ("age", "70 to below 80"), ("age", "80 to below 90"), ("age", "unknown"),
        ("mmse", "20 to below 25"), ("mmse", "25 to 30"), ("mmse", "unknown"),
    ]  # fmt: skip
    hits = [set(case.classes) == set(case.predicted) for case in figures.per_case]
    assert by_group["sex", "F"].cases == 19
    assert by_group["sex", "F"].accuracy == pytest.approx(np.mean(hits[0:38:2]), abs=1e-6)
    assert by_group["age", "80 to below 90"].accuracy == pytest.approx(np.mean(hits[1:38:2]), abs=1e-6)
    assert by_group["sex", "unknown"].cases == 1
    assert by_group["mmse", "unknown"].cases == 2
    assert by_group["sex", "M"].patients == 19
    low, high = by_group["sex", "F"].accuracy_ci or (1, 0)
    assert low <= (by_group["sex", "F"].accuracy or 0) <= high
    message = capsys.readouterr().err
    assert "1 of 39 cases have no sex in the table of covariates" in message
    assert "70 to below 80" not in message


@pytest.mark.parametrize(
    ("score", "band"),
    [("24.9", "20 to below 25"), ("25", "25 to 30"), ("30", "25 to 30"), ("31", "unknown"), ("-1", "unknown")],
)
def test_the_last_band_contains_the_highest_mmse(score: str, band: str) -> None:
    assert covariates._group_of("mmse", score) == band


def test_the_other_figures_do_not_depend_on_covariates(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    code, output = made.evaluate()
    assert code == 0
    before = figures_of(output)
    output.rename(tmp_path / "before")
    assert made.evaluate("--covariates", str(write_covariates(made, rows=38)))[0] == 0
    assert before == dataclasses.replace(figures_of(output), by_covariate=())


def test_a_table_without_covariates_is_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path, 6)
    path = tmp_path / "covariates.csv"
    path.write_text("case_id,group\nx,AD\n")
    code, output = made.evaluate("--covariates", str(path))
    assert code == 0
    assert "has none of the columns sex, age and mmse" in capsys.readouterr().err
    assert json.loads((output / "metrics.json").read_text())["by_covariate"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("case_id,sex\nx,F\n", "no row that names an evaluated case"),
        ("case_id,sex\nFIRST,F\nFIRST,M\n", "in two rows with different values"),
    ],
)
def test_a_table_of_covariates_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    made = made_run(tmp_path, 6)
    first = open_prepared(made.root / "batch").cases()[0].case.case_id
    path = tmp_path / "covariates.csv"
    path.write_text(text.replace("FIRST", first))
    assert made.evaluate("--covariates", str(path))[0] == 65
    assert message in capsys.readouterr().err
    assert made.evaluate("--covariates", str(tmp_path / "none.csv"))[0] == 2
