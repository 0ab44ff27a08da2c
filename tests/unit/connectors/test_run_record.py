"""From the engine's words to events and a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import parse_progress
from medweave_connectors.runlog.run import RunRecord
from medweave_core.runlog import causes
from medweave_core.runlog.run_ownership import new_run_id
from support.engine import valid_events


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    monkeypatch.delenv("MEDWEAVE_RUN_ID", raising=False)
    record = RunRecord(tmp_path / "runs", "lung")
    record.begin(pid=1)
    return record


def schedule(run: RunRecord, *names: str) -> None:
    for name in names:
        run.job_scheduled(name, deployment="laptop", service=None, location="here", cores=2, memory_mib=512)
        run.job_started(name)


def end(run: RunRecord, name: str, state: Any, **outcome: Any) -> None:
    if outcome:
        run.command_ended(name, CommandOutcome(**({"exit_code": 0, "seconds": 1.0} | outcome)))
    run.job_ended(name, state)


def last(run: RunRecord) -> dict[str, Any]:
    event = valid_events(run.folder / "events.jsonl")[-1]
    assert event["type"] == "run.ended"
    return dict(event["data"])


def test_run_ids_sort_by_time_and_name_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDWEAVE_RUN_ID", raising=False)
    workflow, day, clock, random = new_run_id("lung").split("-")
    assert workflow == "lung"
    assert (len(day), len(clock), len(random)) == (8, 6, 4)
    monkeypatch.setenv("MEDWEAVE_RUN_ID", "mine")
    assert new_run_id("lung") == "mine"


def test_nothing_is_written_before_the_run_begins(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "runs", "lung")
    assert record.finish() is None
    assert not (tmp_path / "runs").exists()


def test_a_run_was_refused_where_nothing_was_done(run: RunRecord) -> None:
    schedule(run, "/check/0", "/train/0")
    end(run, "/check/0", "completed", reused_from="earlier")
    assert not run.has_done_anything
    end(run, "/train/0", "completed", cause="")
    assert run.has_done_anything


def test_completed_needs_the_engines_word_and_every_job(run: RunRecord) -> None:
    schedule(run, "/check/0")
    end(run, "/check/0", "completed")
    run.engine_verdict = "completed"
    assert run.finish() == "completed"
    assert last(run)["state"] == "completed"


def test_no_word_from_the_engine_is_unknown(run: RunRecord) -> None:
    schedule(run, "/check/0")
    end(run, "/check/0", "completed")
    assert run.finish() == "unknown"


def test_a_failed_job_is_a_failed_run_whatever_the_engine_says(run: RunRecord) -> None:
    schedule(run, "/check/0", "/train/0", "/gate/0")
    end(run, "/check/0", "completed")
    end(run, "/train/0", "failed", exit_code=70, cause="loss is NaN", message="loss is NaN")
    end(run, "/gate/0", "failed", exit_code=65)
    run.engine_verdict = "completed"
    assert run.finish() == "failed"
    assert last(run)["failed"] == ["/gate/0", "/train/0"]
    assert last(run)["first_cause"] == "/train/0"


def test_jobs_that_were_still_running_are_cancelled(run: RunRecord) -> None:
    schedule(run, "/check/0", "/train/0")
    end(run, "/check/0", "failed", exit_code=65)
    run.engine_verdict = "failed"
    assert run.finish() == "failed"
    ends = {e["job"]: e["data"]["state"] for e in valid_events(run.folder / "events.jsonl") if e["type"] == "job.ended"}
    assert ends == {"/check/0": "failed", "/train/0": "cancelled"}


def test_a_signal_makes_the_run_cancelled(run: RunRecord) -> None:
    run.signal_number = 15
    assert run.finish() == "cancelled"
    assert last(run)["signal"] == 15


def test_a_retry_that_works_is_no_failure(run: RunRecord) -> None:
    schedule(run, "/train/0")
    run.command_ended("/train/0", CommandOutcome(exit_code=75, seconds=1.0, cause="try again"))
    run.job_recovering("/train/0")
    schedule(run, "/train/0")
    end(run, "/train/0", "completed")
    run.job_ended("/train/0", "completed")  # the engine says it once more for the first attempt
    run.engine_verdict = "completed"
    assert run.finish() == "completed"
    events = [e for e in valid_events(run.folder / "events.jsonl") if e["type"] == "job.ended"]
    assert [(e["data"]["attempt"], e["data"]["state"]) for e in events] == [(1, "failed"), (2, "completed")]


def test_a_retry_that_cannot_start_is_a_failure(run: RunRecord) -> None:
    schedule(run, "/train/0")
    run.job_recovering("/train/0")
    run.job_ended("/train/0", "failed")
    assert run.finish() == "failed"
    assert last(run)["first_cause"] == "/train/0"


def test_jobs_that_were_never_scheduled_are_not_events(run: RunRecord) -> None:
    run.job_started("/cohort-injector/0")
    run.job_ended("/cohort-injector/0", "completed")
    assert [e["type"] for e in valid_events(run.folder / "events.jsonl")] == ["run.started"]


def test_the_step_report_is_kept_and_the_job_is_named_by_step_and_tag(run: RunRecord, tmp_path: Path) -> None:
    work = run.folder / "work" / "uuid"
    (work / "report" / "images").mkdir(parents=True)
    (work / "run_report.json").write_text("{}")
    (work / "report" / "fragment.html").write_text("<p>")
    (work / "report" / "images" / "a.svg").write_text("<svg/>")
    (work / "identified.dcm").write_text("stays")
    schedule(run, "/segment/0.3")
    end(run, "/segment/0.3", "completed", report_folder=work)
    run.engine_verdict = "completed"
    run.finish()
    (event,) = (e for e in valid_events(run.folder / "events.jsonl") if e["type"] == "job.report")
    assert event["data"]["folder"] == "reports/segment.3"
    assert event["data"]["files"] == ["report/fragment.html", "report/images/a.svg", "run_report.json"]
    for name in event["data"]["files"]:
        assert (run.folder / "reports/segment.3" / name).is_file()
    assert not (run.folder / "work").exists(), "scratch is removed after a success"


def test_scratch_is_readable_only_by_its_owner(run: RunRecord) -> None:
    assert (run.folder / "work").stat().st_mode & 0o777 == 0o700


def test_scratch_is_kept_after_a_failure_and_its_report_is_not_taken(
    run: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    work = run.folder / "work" / "uuid"
    work.mkdir(parents=True)
    (work / "run_report.json").write_text("{}")
    schedule(run, "/check/0")
    end(run, "/check/0", "failed", exit_code=65, report_folder=work, kept_at="hpc:/scratch/uuid")
    run.finish()
    assert "its files are in hpc:/scratch/uuid\n" in capsys.readouterr().err
    assert work.is_dir()
    assert not (run.folder / "reports").exists()


def test_progress_is_an_event_and_a_line(run: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    schedule(run, "/train/0")
    figures = parse_progress(
        'medweave-progress {"unit": "epoch", "done": 4, "total": 20, "seconds_left": 70.0, '
        '"detail": "loss 0.31, Dice 0.78", "loss": 0.31}'
    )
    assert figures is not None
    run.job_progress("/train/0", figures)
    assert "  train        epoch 4/20: loss 0.31, Dice 0.78, 1 min 10 s left\n" in capsys.readouterr().err
    event = valid_events(run.folder / "events.jsonl")[-1]
    assert event["data"]["loss"] == 0.31
    assert (event["job"], event["step"], event["deployment"], event["location"]) == (
        "/train/0",
        "/train",
        "laptop",
        "here",
    )


def test_the_event_log_gets_only_what_a_step_vouches_for(run: RunRecord, capsys: pytest.CaptureFixture[str]) -> None:
    schedule(run, "/check/0")
    tail = [
        "Traceback: /data/MUELLER^ANNA/1.dcm",
        "medweave-step check: case-1 is broken.",
        "  do:       send it again",
    ]
    end(run, "/check/0", "failed", exit_code=65, cause=causes.cause(tail, [], 65), message=causes.step_message(tail))
    run.finish()
    assert "MUELLER" not in (run.folder / "events.jsonl").read_text()
    assert "medweave-step check: case-1 is broken.\n  do:       send it again\n" in capsys.readouterr().err


def test_what_others_say_after_the_steps_word_is_not_part_of_it() -> None:
    tail = [
        "medweave-step train: NaN.",
        "  do:       less",
        "slurmstepd: error: *** STEP 1.0 CANCELLED ***",
        "  PATIENT^NAME",
    ]
    assert causes.step_message(tail) == "medweave-step train: NaN.\n  do:       less"
    assert causes.cause(tail, [], 70) == "medweave-step train: NaN.\n  do:       less"


def test_without_the_steps_word_its_last_lines_are_shown() -> None:
    assert causes.step_message(["Killed"]) == ""
    assert causes.cause(["a", "b"], ["out"], 1) == "a\nb"
    assert causes.cause([], ["out"], 1) == "out"
    assert "exit code 137, killed" in causes.cause([], [], 137)
    assert "pip install" in causes.cause(["sh: 1: exec: medweave-step: not found"], [], 127)


def test_facts_are_in_the_first_event(run: RunRecord) -> None:
    first = json.loads((run.folder / "events.jsonl").read_text().splitlines()[0])
    assert first["type"] == "run.started"
    assert first["data"] == {"workflow": "lung", "pid": 1}
