"""Why a job was run, or not: what event logs of several runs tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave.cli.main_command import main
from medweave.plan.past_runs import read_past
from medweave.report.command import render
from medweave.report.energy import Model
from medweave.runs.explain import Why, explain
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.run import RunRecord
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import read_run
from medweave_core.runlog.job_parts import changes
from support.recorded import Recorder

PARTS = {"input scan": "a1", "input steps": "b1", "command": "c1", "programs": "d1"}


def record(
    runs: Path,
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 9.0,
    job: str = "/train/0",
    **looked_up: Any,
) -> Path:
    """A run with one job, which was looked up unless nothing is said about that."""
    monkeypatch.setenv("MEDWEAVE_RUN_ID", run_id)
    made = RunRecord(runs, "lung")
    made.begin(workflow_file="train.cwl")
    made.job_scheduled(job, deployment="laptop", service=None, location="here", cores=1)
    made.job_started(job)
    if looked_up:
        made.job_looked_up(job, **looked_up)
    made.command_ended(
        job, CommandOutcome(exit_code=0, seconds=seconds, reused_from=str(looked_up.get("reused_from", "")))
    )
    made.job_ended(job, "completed")
    made.engine_verdict = "completed"
    made.finish()
    return made.folder


def why(runs: Path, run_id: str) -> Why:
    (told,) = explain([read_run(log.parent) for log in runs.glob("*/events.jsonl")], "train", run_id)
    return told


def test_each_answer_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "run-1", monkeypatch, parts=PARTS)
    record(tmp_path, "run-2", monkeypatch, parts=PARTS, reused_from="run-1")
    record(tmp_path, "run-3", monkeypatch, parts=PARTS | {"input steps": "b2", "programs": "d2", "command": "c2"})
    record(tmp_path, "run-4", monkeypatch, parts=PARTS | {"input steps": "b2", "programs": "d2", "command": "c2"})
    record(tmp_path, "run-5", monkeypatch, why="its tool says so")
    record(tmp_path, "run-6", monkeypatch)
    assert [why(tmp_path, f"run-{number}").why for number in range(1, 7)] == [
        "run: no earlier run of this folder has done it",
        "not run again: nothing has changed since run run-1 did it",
        "run: since run run-2 another input steps and programs",
        "run: nothing has changed since run run-3, whose outputs were not kept (it failed, or they made room)",
        "run: its tool says so",
        "run: it was not looked up whether it was done before: reuse is switched off (MEDWEAVE_REUSE, reuse_gib, storeGiB), or a "
        "connector or data manager is not medweave's",
    ]
    third = why(tmp_path, "run-3")
    assert (third.compared_with, third.changed) == ("run-2", ("input steps", "programs"))


def test_a_command_alone_is_told() -> None:
    assert changes(PARTS, PARTS | {"command": "c2"}) == ("command",)
    assert changes(PARTS, PARTS | {"input gpu": "e1"}) == ("input gpu",)
    assert changes(PARTS, PARTS) == ()


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserInputError, match="there is no such run"):
        explain([], "train")
    record(tmp_path, "run-1", monkeypatch)
    with pytest.raises(UserInputError, match="run-1"):
        why(tmp_path, "run-9")
    with pytest.raises(UserInputError, match=r"has no job of this step.*\n.*trian\n.*one of train"):
        explain([read_run(tmp_path / "run-1")], "trian")


@pytest.mark.parametrize(("num_jobs", "names"), [(3, "m.0, m.1, m.2"), (14, "m.0, m.1, m.2, …, m.13")])
def test_a_job_that_is_not_there_is_told_with_its_steps_jobs(tmp_path: Path, num_jobs: int, names: str) -> None:
    run = Recorder(tmp_path / "run")
    run.job("/check/0", 0, 1)
    for number in range(num_jobs):
        run.job(f"/m/0.{number}", 1, 2)
    with pytest.raises(UserInputError, match="has no such job") as caught:
        explain([read_run(run.folder)], "m.77")
    assert caught.value.expected == f"one of {names}"


def test_the_command_takes_a_runs_folder_and_one_job_of_a_scatter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "run-1", monkeypatch, job="/segment/0.3", parts=PARTS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("no event\n\n")
    assert main(["explain", "segment.3", "--run", str(tmp_path / "run-1")]) == 0
    assert capsys.readouterr().out == "Run run-1\n  segment.3  run: no earlier run of this folder has done it\n"


def test_the_time_of_work_that_was_not_done_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "run-1", monkeypatch, parts=PARTS)
    record(tmp_path, "run-2", monkeypatch, parts=PARTS, reused_from="run-1", seconds=0.0)
    past = read_past([tmp_path], Path("train.cwl"))
    assert len(past.runs) == 2
    seconds = past.job_seconds("/train", ("laptop", None))
    assert seconds is not None
    assert (seconds.median, seconds.num_runs) == (9.0, 1)
    whole = past.seconds({"/train": ("laptop", None)})
    assert whole is not None
    assert whole.num_runs == 1


def test_the_report_says_what_was_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = render(read_run(record(tmp_path, "run-2", monkeypatch, parts=PARTS, reused_from="run-1")), None, Model())
    assert '<td class="good">not done again</td>' in page
    assert "1 of 1 completed, 1 by earlier runs" in page
