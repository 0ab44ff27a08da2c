"""events.jsonl: whole lines, valid against the published schema, never continued."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from medweave_connectors.runlog.event_log import EventLog
from medweave_core.errors import StorageError, UsageError
from support.engine import valid_events


def test_events_are_numbered_lines_of_the_published_schema(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "run-1" / "events.jsonl", "run-1")
    log.append("run.started", data={"workflow": "lung"})
    log.append(
        "job.progress", job="/train/0", step="/train", deployment="laptop", location="here", data={"text": "Ä\n2"}
    )
    log.append("run.ended")
    log.close()
    events = valid_events(log.path)
    assert [event["type"] for event in events] == ["run.started", "job.progress", "run.ended"]
    assert events[1]["data"]["text"] == "Ä\n2"
    assert events[0]["time"].endswith("+00:00")


def test_a_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "run-1")
    log.append("job.progress", data={"loss": math.nan, "figures": [1.0, math.inf], "nested": {"dice": -math.inf}})
    (event,) = valid_events(log.path)
    assert event["data"] == {"loss": None, "figures": [1.0, None], "nested": {"dice": None}}


def test_the_log_of_a_run_is_never_continued(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl", "run-1").append("run.started")
    with pytest.raises(UsageError, match="'run-1' exists already"):
        EventLog(tmp_path / "events.jsonl", "run-1")
    assert len(valid_events(tmp_path / "events.jsonl")) == 1


def test_a_reader_sees_each_event_at_once(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "run-1")
    for number in range(1, 4):
        log.append("notice", data={"text": str(number)})
        assert len(valid_events(log.path)) == number


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl", "run-1")
    log.append("run.started")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))  # what a full disk does
    with pytest.raises(StorageError, match="could not be written"):
        log.append("notice", data={"text": "lost"})
    monkeypatch.undo()
    assert [json.loads(line)["type"] for line in log.path.read_text().splitlines()] == ["run.started"]
