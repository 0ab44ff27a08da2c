"""`medweave ps` and `medweave logs`: runs by their event logs, and the output of their steps."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave.cli import main_command
from medweave_core.errors import UserInputError

FACTS = {"workflow": "lung", "workflow_file": "flow.cwl"}
DONE = {"state": "completed", "exit_code": 0}


def write_run(runs: Path, name: str, events: list[tuple[str, str | None, dict[str, Any]]], *, hour: int = 10) -> Path:
    """Write a run whose log has these events (type, job, data) one second apart, after its start."""
    folder = runs / name
    folder.mkdir(parents=True)
    lines = []
    for number, (kind, job, data) in enumerate([("run.started", None, FACTS), *events]):
        event = {
            "sequence": number + 1, "time": f"2026-11-23T{hour:02d}:00:{number:02d}.000+00:00",
            "run_id": name, "type": kind, "job": job,
            "step": job.rpartition("/")[0] if job else None, "deployment": "here", "service": None, "location": None, "data": data,
        }  # fmt: skip
        lines.append(json.dumps(event) + "\n")
    (folder / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def write_output(folder: Path, label: str, text: str) -> None:
    path = folder / "work" / "stderr" / label
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a workflow and four runs: ended, running, killed, and one with a damaged log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.cwl").write_text("class: Workflow\nsteps: {check: {}, train: {}, report: {}}\n", encoding="utf-8")
    runs = tmp_path / "runs"
    (runs / ".kept").mkdir(parents=True)
    check = [("job.scheduled", "/check/0", {}), ("job.started", "/check/0", {}), ("job.ended", "/check/0", DONE)]
    write_run(runs, "old", [*check, ("run.ended", None, {"state": "completed", "seconds": 65.0})], hour=8)
    running = write_run(
        runs, "current", [*check, ("job.scheduled", "/train/0", {}), ("job.started", "/train/0", {})], hour=9
    )
    write_run(runs, "killed", [("job.scheduled", "/check/0", {}), ("job.started", "/check/0", {})], hour=10)
    write_run(runs, "bad", [], hour=11)
    (runs / "bad" / "events.jsonl").write_text("{}\nno event\n{}\n", encoding="utf-8")
    driver = os.open(running / "events.jsonl", os.O_RDONLY)
    fcntl.flock(driver, fcntl.LOCK_EX)  # as a running driver does
    yield tmp_path
    os.close(driver)


@pytest.mark.usefixtures("place")
def test_ps_lists_states_and_progress_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["ps"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "workflow", "state", "started", "took", "steps", "jobs"]
    assert [row.split()[0] for row in rows] == ["killed", "current", "old", "bad"], "the latest first"
    assert [
        row.split("  ") and word in row
        for row, word in zip(rows, ("driver gone", "running", "completed", "log damaged"), strict=True)
    ] == [True] * 4
    assert rows[1].split()[-2:] == ["1/3", "1/2"], "steps of the workflow, jobs that have begun"
    assert "2026-11-23 08:00:00  1 min 05 s" in rows[2]


@pytest.mark.usefixtures("place")
def test_ps_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["ps", "--json"]) == 0
    runs = {entry["run"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert runs["current"]["state"] == "running"
    assert (runs["current"]["steps_done"], runs["current"]["steps"]) == (1, 3)
    assert runs["old"]["seconds"] == 65.0


def test_ps_without_a_folder_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main_command.main(["ps"]) == UserInputError.exit_code
    assert "--runs FOLDER" in capsys.readouterr().err


def test_logs_prints_the_output_of_a_step_in_the_latest_or_named_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "runs" / "bad" / "events.jsonl").unlink()
    write_output(place / "runs" / "killed", "check", "second\n")
    write_output(place / "runs" / "killed", "check.1", "first\n")  # the file was rotated once
    write_output(place / "runs" / "current", "train", "epoch\n")
    assert main_command.main(["logs", "check"]) == 0
    assert capsys.readouterr().out == "first\nsecond\n"
    assert main_command.main(["logs", "train", "--run", "current"]) == 0
    assert capsys.readouterr().out == "epoch\n"


def test_logs_of_a_scatter_and_of_one_of_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [(kind, f"/segment/0.{number}", {}) for number in (0, 1) for kind in ("job.scheduled", "job.started")]
    folder = write_run(tmp_path, "wide", jobs)
    for number in (0, 1):
        write_output(folder, f"segment.{number}", f"case {number}\n")
    assert main_command.main(["logs", "segment", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "== segment.0\ncase 0\n== segment.1\ncase 1\n"
    assert main_command.main(["logs", "segment.1", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "case 1\n"


def test_logs_of_a_run_without_scratch_come_from_the_event_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = {"text": "case 1/2: x", "done": 1, "total": 2}
    events: list[tuple[str, str | None, dict[str, Any]]] = [
        ("job.scheduled", "/check/0", {}), ("job.started", "/check/0", {}), ("job.progress", "/check/0", progress),
        ("notice", "/check/0", {"text": "one case has no mask"}), ("job.ended", "/check/0", DONE),
    ]  # fmt: skip
    write_run(tmp_path, "old", events)
    assert main_command.main(["logs", "check", "--runs", str(tmp_path), "--follow"]) == 0, (
        "there is nothing more to come"
    )
    assert capsys.readouterr().out == "case 1/2: x\nnote: one case has no mask\ndone in 3.0 s\n"


def test_logs_of_an_unknown_step_names_the_known_ones(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_command.main(["logs", "chekc", "--run", "killed"]) == UserInputError.exit_code
    text = capsys.readouterr().err
    assert "one of check" in text
    assert main_command.main(["logs", "check", "--run", "killd"]) == UserInputError.exit_code
    assert "killed" in capsys.readouterr().err
