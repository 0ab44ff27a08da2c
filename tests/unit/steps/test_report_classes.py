"""`report` of a classification: one self-contained fragment, and the figures that it shows."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from medweave_core.contracts import codec
from medweave_core.contracts.classification_evaluation import ClassCaseFigures, ClassificationEvaluation
from medweave_core.contracts.explanations import (
    OVERLAY,
    ExplainedCase,
    ExplainedLayer,
    Explanations,
    RegionMass,
    SanityCheck,
)
from medweave_core.contracts.report_fragment import ReportSummary
from medweave_steps.cli import main
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.metrics.classification import expected_calibration_error
from medweave_steps.report.classification.charts import predictions_of, reliability, without_temperature
from medweave_steps.report.classification.pictures import worst_cases
from medweave_steps.tasks.classification.outputs import ClassTargets
from support.evaluated_classes import NAMES, made_run, write_covariates
from support.image_set import CLASSES, SHAPE, image_set
from support.page import check
from support.reported import run_report
from support.reported_classes import TRAINED, write_class_inputs


def report(root: Path, options: list[str], *more: str, name: str = "report") -> tuple[str, ReportSummary]:
    assert main(["report", *options, "--output", str(root / name), *more]) == 0
    summary = json.loads((root / name / "summary.json").read_text())
    return (root / name / "fragment.html").read_text(), codec.from_json(ReportSummary, summary, where="summary.json")


def evaluation_of(root: Path) -> ClassificationEvaluation:
    document = json.loads((root / "evaluation" / "metrics.json").read_text())
    return codec.from_json(ClassificationEvaluation, document, where="the evaluation")


def test_fragment_stands_alone_and_shows_the_figures(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    made.change_record(temperature=1.5)
    options = write_class_inputs(tmp_path, made)
    html, summary = report(tmp_path, options, "--max-overlays", "4")
    page, figures = check(html), evaluation_of(tmp_path)
    assert figures.accuracy_ci is not None
    assert None not in figures.accuracy_ci
    low, high = figures.accuracy_ci
    for text in (
        "Classification of photographs into 3 classes",
        "Research use only",
        "Synthetic data",
        "39 images",
        f"{figures.accuracy:.2f}",
        f"{low:.2f} to {high:.2f}",
        "Confusion matrix",
        "excluded from all metrics because the classes are not known: 1 image",
        "mobilenet, width 0.25",
        "100.0 images per second",
        "MEL 12, NV 10, BCC 8",
        "red, green, blue",
        "a" * 64,
    ):
        assert text in page.text, text
    assert [heading for level, heading in page.headings if level == 2][:-1] == [h for _, h in summary.sections]
    assert {identifier for identifier, _ in summary.sections} <= set(page.ids)
    assert len(page.images) == 4
    assert (summary.patients, summary.cases, summary.lesions) == (figures.patients, 39, 0)
    assert {figure.key: figure.value for figure in summary.figures}["accuracy"] == figures.accuracy
    assert "best is 0.900 at step 90" in html, "the curve of macro-F1"
    assert report(tmp_path, options, "--max-overlays", "4", name="again")[0] == html, "equal inputs, equal bytes"


def test_multi_label_shows_decisions_and_thresholds_in_place_of_a_confusion_matrix(tmp_path: Path) -> None:
    made = made_run(tmp_path, is_multi_label=True)
    html, _ = report(tmp_path, write_class_inputs(tmp_path, made))
    page = check(html)
    for text in ("into 3 findings", "Decisions of each class", "True positives", "MEL 0.5; NV 0.5; BCC 0.5"):
        assert text in page.text, text
    assert "Confusion matrix" not in page.text


def test_radiographs_are_pictures_in_gray(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    shutil.rmtree(tmp_path / "batch")
    image_set(tmp_path / "batch", of_split={"test": 40}, classes=made.truth, channels=("DX",))
    for path in (tmp_path / "batch").rglob("volume.npy"):
        np.save(path, np.load(path)[:1])
    html, summary = report(tmp_path, write_class_inputs(tmp_path, made))
    assert summary.title == "Classification of DX radiographs into 3 classes"
    sources = [image["src"] for image in check(html).images]
    shown = [Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))) for data in sources]
    assert [(image.mode, image.size) for image in shown] == [("L", SHAPE[:2])] * 6


def case(case_id: str, truth: str, **probabilities: float) -> ClassCaseFigures:
    decided = max(probabilities, key=lambda name: probabilities[name])
    return ClassCaseFigures(
        case_id=case_id, patient_key=case_id, classes=(truth,), predicted=(decided,), is_correct=decided == truth,
        true_probability=probabilities[truth], probabilities=probabilities,
    )  # fmt: skip


def test_the_most_confident_wrong_decisions_come_first(tmp_path: Path) -> None:
    write_class_inputs(tmp_path, made_run(tmp_path))
    cases = (
        case("sure", "MEL", MEL=0.9, NV=0.1, BCC=0.0),
        case("unsure", "MEL", MEL=0.5, NV=0.4, BCC=0.1),
        case("a little wrong", "MEL", MEL=0.3, NV=0.4, BCC=0.3),
        case("very wrong", "MEL", MEL=0.0, NV=1.0, BCC=0.0),
    )
    evaluation = dataclasses.replace(evaluation_of(tmp_path), per_case=cases)
    assert [one.case_id for one in worst_cases(evaluation, 3)] == ["very wrong", "a little wrong", "unsure"]


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_probabilities_before_the_temperature_are_those_of_the_logits(tmp_path: Path, is_multi_label: bool) -> None:
    targets = ClassTargets(classes=NAMES, is_multi_label=is_multi_label)
    logits = np.random.default_rng(0).normal(0, 2, (50, 3))
    write_class_inputs(tmp_path, made_run(tmp_path, is_multi_label=is_multi_label))
    seen = predictions_of(evaluation_of(tmp_path))
    after = dataclasses.replace(
        seen, truth_NC=logits > 0, decided_NC=logits > 0, probability_NC=targets.probabilities(logits, temperature=2.5)
    )
    np.testing.assert_allclose(
        without_temperature(after, 2.5).probability_NC, targets.probabilities(logits), rtol=0, atol=1e-9
    )


def test_the_reliability_diagram_has_the_bins_of_the_calibration_error(tmp_path: Path) -> None:
    write_class_inputs(tmp_path, made_run(tmp_path))
    seen = predictions_of(evaluation_of(tmp_path))
    bins = reliability(seen)
    error = (np.abs(bins.probability - bins.frequency) * bins.counts).sum() / bins.counts.sum()
    assert error == pytest.approx(expected_calibration_error(seen))


@pytest.mark.parametrize("kind", ["both", "neither"])
def test_segmentations_and_classifications_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    options: list[Any] = ["--evaluation", tmp_path, "--case-batches", tmp_path, "--run-reports", tmp_path]
    if kind == "both":
        options += ["--segmentations", tmp_path, "--classifications", tmp_path]
    assert main(["report", *map(str, options), "--output", str(tmp_path / "report")]) == 2
    assert "set one of the two options" in capsys.readouterr().err


def test_folders_of_two_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_run(tmp_path)
    options = write_class_inputs(tmp_path, made)
    shutil.copytree(tmp_path / "classifications", tmp_path / "other")
    made.change_record(model_sha256="b" * 64)
    place = options.index("--classifications") + 1
    options.insert(place, str(tmp_path / "other"))
    assert main(["report", *options, "--output", str(tmp_path / "report")]) == 65
    assert "of different models" in capsys.readouterr().err


def test_an_evaluation_of_masks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_class_inputs(tmp_path, made_run(tmp_path))
    (tmp_path / "evaluation" / "metrics.json").write_text('{"evaluation_version": 1, "dice_mean": 0.5}')
    assert main(["report", *options, "--output", str(tmp_path / "report")]) == 65
    assert "metrics.json" in capsys.readouterr().err


def test_a_batch_without_an_evaluated_case_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_class_inputs(tmp_path, made_run(tmp_path))
    shutil.rmtree(tmp_path / "batch")
    image_set(tmp_path / "batch", of_split={"test": 2}, classes=[(CLASSES[0],), (CLASSES[1],)])
    assert main(["report", *options, "--output", str(tmp_path / "report")]) == 65
    assert "evaluation and case batches do not match" in capsys.readouterr().err


def test_accuracy_by_covariate_is_a_table_for_each_covariate(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    options = write_class_inputs(tmp_path, made, "--covariates", str(write_covariates(made, rows=38)))
    html, summary = report(tmp_path, options)
    page, by_group = check(html), {(one.covariate, one.group): one for one in evaluation_of(tmp_path).by_covariate}
    women = by_group["sex", "F"]
    assert women.accuracy_ci is not None
    low, high = women.accuracy_ci
    heads = "GroupPatientsImagesAccuracy95 % interval"
    for text in (
        "The covariates were not given to the network",
        f"Sex {heads} F1919{women.accuracy:.2f}{low:.2f} to {high:.2f}",
        f"Age, years {heads} 70 to below 801919",
        f"MMSE, points {heads} 20 to below 25",
        "unknown11",
    ):
        assert text in page.text, text
    assert [heading for level, heading in page.headings if level == 2][:-1] == [h for _, h in summary.sections]
    assert [identifier for identifier, _ in summary.sections][1:4] == ["classes", "covariates", "calibration"]


def test_a_training_of_several_ranks_is_shown_next_to_the_papers_times(tmp_path: Path) -> None:
    options = write_class_inputs(tmp_path, made_run(tmp_path, 6))
    for ranks, seconds in ((1, 40.0), (2, 25.0)):
        known = TRAINED["training"] | {
            "network": "resattnet18",
            "strategy": "ddp",
            "world_size": ranks,
            "step_seconds": seconds,
        }
        path = tmp_path / f"train-{ranks}.json"
        path.write_text(codec.dumps(run_report("train", TRAINED | {"training": known})))
        options.insert(options.index("--run-reports") + 1, str(path))
    html, summary = report(tmp_path, options)
    page = check(html)
    for text in (
        "3D-ResAttNet-18. Speed-up over one rank",
        "Measured, ddpModeled, stages onlyModeled, consecutive stagesModeled, stages and replicasPublished, sMCI vs pMCI"
        "Published, AD vs NC",
        "225 s1.60 (0.80)0.72",
        "those of the 18-layer columns of its table",
    ):
        assert text in page.text, text
    assert ("scaling", "Ranks, time and speed-up") in summary.sections


def test_without_covariates_there_is_no_such_section(tmp_path: Path) -> None:
    html, summary = report(tmp_path, write_class_inputs(tmp_path, made_run(tmp_path, 6)))
    assert "covariates" not in html
    assert "covariates" not in dict(summary.sections)


def explained(folder: Path, **changes: Any) -> Path:
    """Write a folder of `explain` with eight maps of two classes, the last one empty."""
    regions = (
        RegionMass(value=1, name="border", mass_share=0.6, volume_share=0.2, ratio=3.0),
        RegionMass(value=2, name="center", mass_share=0.1, volume_share=0.2, ratio=0.5),
    )
    empty = (dataclasses.replace(regions[0], mass_share=None, ratio=None),)
    cases = []
    for place in range(8):
        path = folder / f"case-{place:02}" / OVERLAY
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 6), (place, 0, 0)).save(path)
        case = ExplainedCase(
            case_id=path.parent.name, source_format="image", files={OVERLAY: sha256_of_file(path)},
            explained_class=CLASSES[place % 2], is_predicted=place != 1, probability=0.75, is_empty=place == 7,
            regions=empty if place == 7 else regions, brain_mass_share=None if place == 7 else 0.9,
            brain_volume_share=0.5,
        )  # fmt: skip
        cases.append(case)
    layer = ExplainedLayer(name="stage2", kind="Conv2d", grid=(4, 3), input_shape=SHAPE, is_default=True)
    check = SanityCheck(
        seed=0, num_cases=8, num_compared=7, median_absolute_correlation=0.12, threshold=0.5, passed=True
    )
    values: dict[str, Any] = {
        "model_name": "tiny", "model_sha256": "b" * 64, "layer": layer, "synthetic_data": True, "synthetic_model": True,
        "classes": NAMES, "cases": tuple(cases), "sanity_check": check,
    }  # fmt: skip
    (folder / "explanations.json").write_text(codec.dumps(Explanations(**(values | changes))))
    return folder


def test_maps_are_shown_with_their_mass_per_region_and_the_sanity_check(tmp_path: Path) -> None:
    options = write_class_inputs(tmp_path, made_run(tmp_path))
    html, summary = report(tmp_path, [*options, "--explanations", str(explained(tmp_path / "explanations"))])
    page = check(html)
    for text in (
        "Explanation maps",
        "6 of 8 images, the classes in turn. Grad-CAM at layer stage2 (Conv2d): 4 × 3 features for 16 × 12 × 1 voxels",
        "Sanity check passed. The maps have a median absolute rank correlation of 0.12",
        "case-00Class and probability: MEL 0.75Mass relative to the share of the image: border 3.0, center 0.5",
        "case-01Class and probability: NV 0.75 (not predicted)",
        "MELborder4 cases0.6000.2003.0",
        "NVborder3 cases",
        "compare the ratio of a region with that of the whole brain",
        "NVcenter3 cases0.1000.2000.5 NVwhole brain3 cases0.9000.5001.8",
    ):
        assert text in page.text, text
    assert "case-07Class" not in page.text, "cases with a map come first"
    assert ("explanations", "Explanation maps") in summary.sections
    assert [heading for level, heading in page.headings if level == 2][:-1] == [h for _, h in summary.sections]
    assert len(page.images) == 12


def test_maps_that_cannot_be_shown_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_class_inputs(tmp_path, made_run(tmp_path))
    first, other = explained(tmp_path / "first"), explained(tmp_path / "other", model_sha256="c" * 64)
    words = ["report", *options, "--output", str(tmp_path / "report"), "--explanations", str(first)]
    assert main([*words, str(other)]) == 65
    assert "different models or layers" in capsys.readouterr().err
    (first / "case-00" / OVERLAY).write_bytes(b"another picture")
    assert main(words) == 65
    assert "the picture of the explanation of case-00 cannot be shown" in capsys.readouterr().err
