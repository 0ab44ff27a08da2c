"""`evaluate` of whole ECG recordings: the rule, the mean F1 of the scored classes, and their intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classification_evaluation import RecordingEvaluation
from medweave_core.contracts.classifications import ClassifiedCase
from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.volume import Grid
from medweave_steps.evaluate.classified.cases import KnownCase, KnownCases
from medweave_steps.evaluate.classified.summary import summarize
from medweave_steps.io.cohort.reference import RHYTHMS
from medweave_steps.io.cohort.signals import recording_of, sample_id
from medweave_steps.io.geometry import affine_rows
from medweave_steps.tasks.classification.outputs import ClassTargets

GRID = Grid(shape=(2700, 1, 1), affine=affine_rows(np.eye(4)))
PEAKS = (200, 500, 800, 1100, 1400)


def sample(recording: str, number: int, truth: str, probabilities: dict[str, float], beats: tuple[int, ...]) -> Any:
    case_id = sample_id(recording, number)
    entry = CaseEntry(
        case_id=case_id, series_ordinal=1, patient_key=f"patient of {recording}", source_format="wfdb",
        files=(f"{recording}.hea",), ground_truth=None, grid=GRID, fixed_split=None, content_sha256="0" * 64,
        channels=("ECG",), classes=(truth,), beats=beats,
    )  # fmt: skip
    likely = (max(probabilities, key=lambda name: probabilities[name]),)
    classified = ClassifiedCase(
        case_id=case_id, source_format="wfdb", files={}, classes=likely, probabilities=probabilities
    )
    return KnownCase(entry=entry, classified=classified, prepared=None)  # type: ignore[arg-type]


def evaluated(
    recordings: dict[str, tuple[str, list[list[float]]]], classes: tuple[ImageClass, ...] = RHYTHMS,
    beats: tuple[int, ...] = PEAKS,
) -> RecordingEvaluation | None:  # fmt: skip
    """Return the figures of recordings, each with its class and the probabilities of its samples."""
    names = [one.name for one in classes]
    cases = [
        sample(name, number, truth, dict(zip(names, row, strict=True)), beats)
        for name, (truth, rows) in recordings.items()
        for number, row in enumerate(rows)
    ]
    targets = ClassTargets(classes=classes, is_multi_label=False)
    known = KnownCases(targets=targets, cases=tuple(cases), without_truth=())
    return summarize(known, baseline=None, synthetic=True, seed=0, num_resamples=200).by_recording


def test_a_recording_has_the_class_with_the_largest_mean_probability() -> None:
    # Two of three samples say N, and the third is so certain of A that the mean says A.
    unsure, certain = [0.5, 0.45, 0.05, 0.0], [0.0, 1.0, 0.0, 0.0]
    figures = evaluated({"A1": ("A", [unsure, unsure, certain]), "A2": ("N", [unsure])})
    assert figures is not None
    first, second = figures.per_recording
    assert (first.recording, first.samples, first.class_name, first.predicted) == ("A1", 3, "A", "A")
    assert list(first.probabilities.values()) == pytest.approx([1 / 3, 1.9 / 3, 0.1 / 3, 0], abs=1e-6)
    assert second.predicted == "N"
    assert figures.accuracy == 1.0


def test_the_mean_f1_leaves_out_the_noisy_class_and_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(7)
    names = [one.name for one in RHYTHMS]
    recordings = {}
    for number in range(40):
        rows = rng.dirichlet(np.ones(4) * 0.5 + 2 * (np.arange(4) == number % 4), size=rng.integers(1, 5))
        recordings[f"A{number:05d}"] = (names[number % 4], rows.round(6).tolist())
    figures = evaluated(recordings)
    assert figures is not None
    truth = [one.class_name for one in figures.per_recording]
    predicted = [one.predicted for one in figures.per_recording]
    expected = [names[int(np.mean(rows, axis=0).argmax())] for _, rows in recordings.values()]
    assert (figures.recordings, predicted) == (40, expected)
    scores = f1_score(truth, predicted, labels=names, average=None)
    assert [one.f1 for one in figures.by_class] == pytest.approx(scores, abs=1e-6)
    assert figures.scored_classes == ("N", "A", "O")
    assert figures.macro_f1 == pytest.approx(scores[:3].mean(), abs=1e-6)
    assert abs(scores.mean() - scores[:3].mean()) > 1e-3, "the noisy class would change the mean"
    assert figures.confusion_matrix == tuple(map(tuple, confusion_matrix(truth, predicted, labels=names).tolist()))
    assert figures.macro_f1_ci is not None
    assert figures.macro_f1_ci[0] < figures.macro_f1 < figures.macro_f1_ci[1]


def test_every_class_counts_where_the_cohort_leaves_none_out() -> None:
    classes = (ImageClass(name="regular"), ImageClass(name="irregular"))
    figures = evaluated({"a": ("regular", [[0.9, 0.1]]), "b": ("irregular", [[0.8, 0.2]])}, classes)
    assert figures is not None
    assert figures.scored_classes == ("regular", "irregular")
    assert figures.macro_f1 == pytest.approx((2 / 3 + 0) / 2)


def test_cases_other_than_samples_of_a_recording_have_no_such_figures() -> None:
    assert evaluated({"a": ("N", [[1, 0, 0, 0]]), "b": ("A", [[0, 1, 0, 0]])}, beats=()) is None


def test_the_id_of_a_sample_starts_with_that_of_its_recording() -> None:
    assert sample_id("A00001", 3) == "A00001-w03"
    assert recording_of(sample_id("ecg-w1", 112)) == "ecg-w1"
