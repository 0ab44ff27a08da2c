"""The event log of a run with one job, as the connectors write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.runlog import current_run
from medweave_connectors.runlog.run import RunRecord


def run_with_job(folder: Path, monkeypatch: pytest.MonkeyPatch, job: str = "/train/0") -> RunRecord:
    """Begin a run below a folder, make it the current one, and schedule a job of it."""
    record = RunRecord(folder / "runs", "lung")
    monkeypatch.setattr(current_run, "_runs", {"": record})
    record.begin()
    record.job_scheduled(job, deployment="hpc", service=None, location="login")
    return record


def events_of(run: RunRecord) -> list[dict[str, Any]]:
    """Return all events of a run."""
    return [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
