"""`evaluate` with several labels or regions, on real NIfTI and DICOM files whose figures can be worked out by head."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.evaluation import Evaluation
from medweave_core.contracts.labels import Label, Region
from medweave_steps.cli import main
from support.evaluated import CaseSpec, write_run

SHAPE = (20, 20, 20)
EDEMA, CORE, ENHANCING = (
    Label(value=value, name=name) for value, name in ((1, "edema"), (2, "core"), (5, "enhancing"))
)
LABELS = (EDEMA, CORE, ENHANCING)
REGIONS = (
    Region(name="whole", values=(1, 2, 5)), Region(name="tumor core", values=(2, 5)), Region(name="enhancing", values=(5,)),
)  # fmt: skip


def nested(*boxes: tuple[int, int, int]) -> np.ndarray:
    """Return a label map of cubes: (first, last, value)."""
    labels = np.zeros(SHAPE, np.uint8)
    for first, last, value in boxes:
        labels[first:last, first:last, first:last] = value
    return labels


# Edema around a core: the model finds all edema, half of the core, and no enhancing part.
TRUTH = nested((2, 12, 1), (4, 8, 2), (5, 7, 5))
FOUND = nested((2, 12, 1), (4, 8, 2))
FOUND[4:6, 4:8, 4:8] = 1


def run(folder: Path, specs: list[CaseSpec], **changes: Any) -> tuple[int, Path]:
    made = write_run(folder, specs, **{"labels": LABELS, "delivered": LABELS} | changes)
    return main(["evaluate", *made.options(folder / "evaluation")]), folder / "evaluation"


def evaluated(folder: Path, specs: list[CaseSpec], **changes: Any) -> Evaluation:
    code, output = run(folder, specs, **changes)
    assert code == 0
    return codec.from_json(Evaluation, json.loads((output / "metrics.json").read_text()), where="metrics.json")


def two_cases(source_format: str = "nifti") -> list[CaseSpec]:
    return [
        CaseSpec(case_id="case-a", reference=TRUTH, predicted=FOUND, source_format=source_format),
        CaseSpec(case_id="case-b", reference=TRUTH, predicted=TRUTH, source_format=source_format),
    ]


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return 2 * (a & b).sum() / (a.sum() + b.sum())


def test_each_label_has_its_own_figures_and_the_union_those_of_one_mask(tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, two_cases())
    assert [(one.name, one.values) for one in evaluation.by_label] == [
        ("edema", (1,)),
        ("core", (2,)),
        ("enhancing", (5,)),
    ]
    for one in evaluation.by_label:
        value = one.values[0]
        expected = overlap(value == FOUND, value == TRUTH)
        assert [case.dice for case in one.per_case] == pytest.approx([expected, 1.0], abs=1e-6)
        assert one.dice_mean == pytest.approx((expected + 1) / 2, abs=1e-6)
        assert one.dice_ci == pytest.approx((expected, 1.0), abs=1e-6)
    edema, core, enhancing = evaluation.by_label
    assert (enhancing.per_case[0].dice, enhancing.per_case[0].hd95_mm, enhancing.cases_one_empty) == (0, None, 1)
    assert core.per_case[0].reference_volume_mm3 == 4**3 - 2**3
    assert core.per_case[0].predicted_volume_mm3 == 32
    assert evaluation.dice_mean == 1.0  # as one mask both cases are complete
    mean = np.mean([edema.dice_mean, core.dice_mean, enhancing.dice_mean])
    assert evaluation.dice_by_label_mean == pytest.approx(mean, abs=1e-6)
    assert evaluation.dice_by_label_ci is not None
    assert evaluation.per_case[0].lesions == 1  # edema, core and enhancing part touch: one lesion
    assert evaluation.labels_not_evaluated == ()


def test_the_regions_of_the_model_are_evaluated_instead_of_its_labels(tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, two_cases(), regions=REGIONS)
    assert [(one.name, one.values) for one in evaluation.by_label] == [
        ("whole", (1, 2, 5)), ("tumor core", (2, 5)), ("enhancing", (5,))
    ]  # fmt: skip
    core = overlap(np.isin(FOUND, (2, 5)), np.isin(TRUTH, (2, 5)))
    assert [one.per_case[0].dice for one in evaluation.by_label] == pytest.approx([1, core, 0], abs=1e-6)


def test_segments_of_a_dicom_mask_are_the_labels_in_ascending_order(tmp_path: Path) -> None:
    # The ground truth numbers its segments 1 to 3, the model's card has the values 1, 2 and 3; both read from DICOM SEG.
    labels = (EDEMA, CORE, Label(value=3, name="enhancing"))
    specs = two_cases("dicom")
    for spec in specs:
        spec.reference, spec.predicted = (
            np.where(a == 5, 3, a).astype(np.uint8) for a in (spec.reference, spec.predicted)
        )
    evaluation = evaluated(tmp_path, specs, labels=labels, delivered=labels)
    assert {case.mask_format for case in evaluation.per_case} == {"dicom-seg"}
    assert [one.per_case[0].dice for one in evaluation.by_label] == pytest.approx(
        [overlap(value == FOUND, value == TRUTH) for value in (1, 2, 5)], abs=1e-6
    )


def test_segments_have_the_values_of_the_card_where_these_have_gaps(tmp_path: Path) -> None:
    from medweave_steps.evaluate.delivered import read_label_map
    from support.evaluated import write_seg, write_series

    spec = CaseSpec(case_id="case-a", reference=TRUTH, predicted=TRUTH, source_format="dicom")
    made = write_run(tmp_path, [spec], labels=(EDEMA, CORE, Label(value=3, name="enhancing")))
    entry = codec.from_json(
        __import__("medweave_core.contracts.cohort", fromlist=["CohortIndex"]).CohortIndex,
        json.loads(made.index.read_text()), where="test",
    ).cases[0]  # fmt: skip
    folder = made.segmentations[0] / "case-a"
    write_seg(folder / "lesion_mask.dcm", TRUTH, write_series(tmp_path / "again", spec), LABELS)
    label_map, mask_format = read_label_map(made.cohort, folder, entry, LABELS)
    assert mask_format == "dicom-seg"
    np.testing.assert_array_equal(label_map, TRUTH)


def test_tables_have_a_row_for_each_label_and_for_all_labels(tmp_path: Path) -> None:
    evaluated(tmp_path, two_cases())
    rows = list(csv.DictReader((tmp_path / "evaluation/per_case.csv").open()))
    assert list(rows[0])[:3] == ["case_id", "label", "patient_key"]
    assert [(row["case_id"], row["label"]) for row in rows] == [
        (case, label) for case in ("case-a", "case-b") for label in ("all labels", "edema", "core", "enhancing")
    ]
    assert rows[0]["baseline_dice"]
    assert rows[1]["baseline_dice"] == ""
    lesions = list(csv.DictReader((tmp_path / "evaluation/lesions.csv").open()))
    assert [(row["case_id"], row["label"], row["hit"]) for row in lesions[:4]] == [
        ("case-a", "all labels", "1"), ("case-a", "edema", "1"), ("case-a", "core", "1"), ("case-a", "enhancing", "0")
    ]  # fmt: skip


def test_voxels_without_annotation_are_in_no_figure(tmp_path: Path) -> None:
    truth, found = TRUTH.copy(), FOUND.copy()
    truth[14:18, 14:18, 14:18] = 9
    found[15:17, 15:17, 15:17] = 2  # would be a false positive
    specs = [CaseSpec(case_id="case-a", reference=truth, predicted=found)]
    evaluation = evaluated(tmp_path, specs, ignore_value=9)
    assert evaluation.per_case[0].dice == 1.0
    assert evaluation.per_case[0].false_positives == 0
    core = next(one for one in evaluation.by_label if one.name == "core")
    assert core.per_case[0].dice == pytest.approx(overlap(FOUND == 2, TRUTH == 2), abs=1e-6)
    assert core.false_positives_per_scan == 0


def test_one_label_with_voxels_without_annotation(tmp_path: Path) -> None:
    truth = (TRUTH > 0).astype(np.uint8)
    truth[2:4] = 9
    found = (TRUTH > 0).astype(np.uint8)
    specs = [CaseSpec(case_id="case-a", reference=truth, predicted=found)]
    evaluation = evaluated(tmp_path, specs, labels=(EDEMA,), delivered=None, ignore_value=9)
    assert (evaluation.per_case[0].dice, evaluation.by_label) == (1.0, ())
    assert evaluation.per_case[0].reference_volume_mm3 == 8 * 10 * 10


# --- labels that one side lacks


def test_a_label_without_ground_truth_is_named_and_not_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = np.where(TRUTH == 5, 0, TRUTH).astype(np.uint8)
    specs = [CaseSpec(case_id="case-a", reference=truth, predicted=TRUTH)]
    evaluation = evaluated(tmp_path, specs, labels=(EDEMA, CORE), regions=REGIONS)
    assert evaluation.labels_not_evaluated == ("enhancing", "whole", "tumor core")
    assert [one.name for one in evaluation.by_label] == ["edema", "core"]  # no region is left
    assert evaluation.per_case[0].dice == 1.0  # the enhancing part counts as background
    assert "the ground truth has no such labels: enhancing, whole, tumor core" in capsys.readouterr().err
    again = evaluated(tmp_path / "labels", specs, labels=(EDEMA, CORE))
    assert [one.name for one in again.by_label] == ["edema", "core"]


@pytest.mark.parametrize(
    ("changes", "message", "advice"),
    [
        (
            {"delivered": (EDEMA, CORE)}, "the ground truth has labels that the model does not predict",
            "--merge-labels 0,5:background",
        ),
        (
            {"delivered": (EDEMA, Label(value=2, name="cyst"), ENHANCING)}, "use the same values for different labels",
            "2 (core) in the cohort index",
        ),
        ({"delivered": (EDEMA,)}, "the ground truth has labels that the model does not predict", "5 (enhancing)"),
    ],
)  # fmt: skip
def test_labels_that_do_not_match_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str, advice: str
) -> None:
    assert run(tmp_path, two_cases(), **changes)[0] == 65
    error = capsys.readouterr().err
    assert message in error
    assert advice in error


def test_folders_of_models_with_other_labels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path, two_cases(), labels=LABELS, delivered=LABELS, num_batches=2)
    path = made.segmentations[1] / "segmentations.json"
    record = json.loads(path.read_text())
    record["regions"] = codec.to_json(REGIONS)
    path.write_text(json.dumps(record))
    assert main(["evaluate", *made.options(tmp_path / "evaluation")]) == 65
    assert "regions whole (labels 1, 2, 5)" in capsys.readouterr().err


def test_a_mask_with_a_value_that_the_record_does_not_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [CaseSpec(case_id="case-a", reference=TRUTH, predicted=np.where(TRUTH == 5, 7, TRUTH).astype(np.uint8))]
    assert run(tmp_path, specs)[0] == 65
    error = capsys.readouterr().err
    assert "contains labels that segmentations.json does not name" in error
    assert "the values 7" in error
