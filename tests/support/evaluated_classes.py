"""A classified batch with known classes, written from random numbers, for `evaluate` and `report`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.classifications import RECORD_FILE, Classifications, ClassifiedCase
from medweave_core.contracts.cohort import CaseEntry, CohortIndex, PreparedCase
from medweave_core.contracts.volume import COLOR_CHANNELS
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from support.image_set import CLASSES, image_set

NAMES = tuple(ImageClass(name=name) for name in CLASSES)


@dataclasses.dataclass
class Made:
    """Files of a run, and the options of `evaluate`."""

    root: Path
    truth: list[tuple[str, ...] | None]
    predicted: list[tuple[str, ...]]
    probabilities: np.ndarray

    def evaluate(self, *extra: str) -> tuple[int, Path]:
        output = self.root / "evaluation"
        words = ["--cohort-index", self.root / "index.json", "--classifications", self.root / "classifications"]
        words += ["--case-batches", self.root / "batch", "--output", output, "--run-report", self.root / "report.json"]
        return main(["evaluate", *map(str, words), "--bootstrap-resamples", "100", *extra]), output

    def change_record(self, **values: Any) -> None:
        path = self.root / "classifications" / RECORD_FILE
        record = codec.from_json(Classifications, json.loads(path.read_text()), where="the record")
        path.write_text(codec.dumps(dataclasses.replace(record, **values)))

    def change_index(self, **values: Any) -> None:
        path = self.root / "index.json"
        index = codec.from_json(CohortIndex, json.loads(path.read_text()), where="the index")
        path.write_text(codec.dumps(dataclasses.replace(index, **values)))


def made_run(folder: Path, number: int = 40, *, is_multi_label: bool = False, seed: int = 3) -> Made:
    """Write a batch, the index of its cohort, and random classifications; the last case has no known class."""
    rng = np.random.default_rng(seed)
    if is_multi_label:
        probabilities = rng.uniform(0.01, 0.99, (number, 3)).round(6)
        truth = [tuple(np.array(CLASSES)[row].tolist()) for row in rng.uniform(size=(number, 3)) < probabilities]
        predicted = [tuple(np.array(CLASSES)[row].tolist()) for row in probabilities >= 0.5]
    else:
        probabilities = rng.dirichlet((1, 1, 1), number).round(6)
        truth = [(CLASSES[rng.choice(3, p=row / row.sum())],) for row in probabilities]
        predicted = [(CLASSES[place],) for place in probabilities.argmax(axis=1)]
    known: list[tuple[str, ...] | None] = [*truth[:-1], None]
    patients = [f"patient-{place // 2}" for place in range(number)]
    image_set(
        folder / "batch", of_split={"test": number}, classes=known, patients=patients, is_multi_label=is_multi_label
    )
    prepared = open_prepared(folder / "batch")
    entries = [entry_of(case.case, case.info()) for case in prepared.cases()]
    index = CohortIndex(
        layout="images", synthetic=True, labels=(), cases=tuple(entries), findings=(), channels=COLOR_CHANNELS,
        classes=NAMES, is_multi_label=is_multi_label,
    )  # fmt: skip
    (folder / "index.json").write_text(codec.dumps(index))
    cases = tuple(
        ClassifiedCase(
            case_id=entry.case_id, source_format="image", files={}, classes=classes,
            probabilities=dict(zip(CLASSES, row.tolist(), strict=True)),
        )
        for entry, classes, row in zip(entries, predicted, probabilities, strict=True)
    )  # fmt: skip
    record = Classifications(
        model_name="tiny", model_sha256="a" * 64, precision="float32", backend="openvino", synthetic_data=True,
        synthetic_model=True, classes=NAMES, is_multi_label=is_multi_label, temperature=1.0,
        thresholds=(0.5, 0.5, 0.5) if is_multi_label else (), table_columns={}, cases=cases,
    )  # fmt: skip
    (folder / "classifications").mkdir()
    (folder / "classifications" / RECORD_FILE).write_text(codec.dumps(record))
    return Made(folder, known, predicted, probabilities)


def write_covariates(made: Made, *, rows: int) -> Path:
    """Write sex, age and MMSE of the first cases, and of a case that is not in the run."""
    cases = [case.case.case_id for case in open_prepared(made.root / "batch").cases()]
    lines = [
        f"{case}\t{'fM'[n % 2]}\t{71.5 + 10 * (n % 2)}\t{'n/a' if n == 0 else 20 + n % 10}"
        for n, case in enumerate(cases)
    ]
    path = made.root / "participants.tsv"
    path.write_text("\n".join(["case_id\tsex\tage\tMMSE", *lines[:rows], "another\tF\t1\t1"]) + "\n")
    return path


def entry_of(case: PreparedCase, info: Any) -> CaseEntry:
    return CaseEntry(
        case_id=case.case_id, series_ordinal=1, patient_key=case.patient_key, source_format="image", files=("a.jpg",),
        ground_truth=None, grid=info.grid, fixed_split="test", content_sha256="0" * 64, channels=COLOR_CHANNELS,
        classes=case.classes,
    )  # fmt: skip
