"""JSON documents of commit 4c21a2f against the schemas that `medweave schema` prints today."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.formats import FIXTURES, STEPS, program

# Kind of file to where the fixtures have some.
FILES = {
    "cohort-index": ["*_index.json"],
    "prepared-cohort": ["*prepared/**/cohort.json"],
    "volume-info": ["*prepared/**/volume_info.json"],
    "model-card": ["*/model_card.json", "search/**/model_card.json"],
    "run-report": ["reports/*.json", "trial_*/**/run_report.json"],
    "search-grid": ["grid.json"],
    "trial": ["trials/*.json"],
    "search-table": ["*/search.json"],
    "gate-decision": ["gate_decision.json"],
    "segmentations": ["*segmentations/segmentations.json"],
    "evaluation": ["evaluation/metrics.json"],
    "report-summary": ["report/summary.json"],
    "way-back": ["deidentified-home/way_back.json"],
}
VERBS = shlex.split(
    "bundle check check_dicom deidentify evaluate export gate phantom preprocess preprocess_dicom quantize report search_collect "
    "search_plan search_trial_0 search_trial_1 segment segment_dicom train train-distributed"
)


def schema_of(name: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert program("medweave")(["schema", name]) == 0
    return json.loads(capsys.readouterr().out)


def with_described_labels(document: Any) -> Any:
    """Return the document with its labels as a list; they were a mapping until #31, and steps read both forms."""
    if isinstance(document, dict) and isinstance(document.get("labels"), dict):
        named = [{"value": int(value), "name": name} for value, name in document["labels"].items() if value != "0"]
        return document | {"labels": named}
    return document


def documents(patterns: list[str]) -> Iterator[tuple[Path, Any]]:
    for pattern in patterns:
        paths = sorted(STEPS.glob(pattern))
        assert paths, pattern
        for path in paths:
            yield path, with_described_labels(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", FILES)
def test_files_of_steps(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(kind, capsys))
    for path, document in documents(FILES[kind]):
        errors = [
            f"{path.relative_to(STEPS)}: {error.json_path}: {error.message}"
            for error in validator.iter_errors(document)
        ]
        assert not errors


def test_every_verb_has_a_report() -> None:
    assert sorted(path.stem for path in (STEPS / "reports").iterdir()) == VERBS


def test_results_of_deidentify(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads((STEPS / "reports" / "deidentify.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema_of("deidentification", capsys)).validate(report["results"])


def test_event_logs(capsys: pytest.CaptureFixture[str]) -> None:
    validator = jsonschema.Draft202012Validator(schema_of("event", capsys))
    logs = sorted((FIXTURES / "root").rglob("events.jsonl"))
    assert len(logs) == 5
    for log in logs:
        for line in log.read_text(encoding="utf-8").splitlines():
            validator.validate(json.loads(line))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("site", "local/deployments/sites/here.yml"),
        ("streamflow", "local/bound/streamflow.yml"),
        ("streamflow", "site/streamflow.yml"),
        ("schedule", "schedule/schedule.yml"),
    ],
)
def test_files_of_users(kind: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load((FIXTURES / "root" / path).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema_of(kind, capsys)).validate(document)
