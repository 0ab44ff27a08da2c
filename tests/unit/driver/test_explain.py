"""Why a job ran or was a cache hit, by the event logs of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave.cli.main_command import main
from medweave.plan.past_runs import read_past
from medweave.report.command import render
from medweave.report.energy import Model
from medweave.runs.explain import JobExplanation, explain
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
    """Record a run with one job; `looked_up` are the facts of its cache lookup, none for a run without one."""
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


def why(runs: Path, run_id: str) -> JobExplanation:
    (explanation,) = explain([read_run(log.parent) for log in runs.glob("*/events.jsonl")], "train", run_id)
    return explanation


def test_each_answer_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "run-1", monkeypatch, parts=PARTS)
    record(tmp_path, "run-2", monkeypatch, parts=PARTS, reused_from="run-1")
    record(tmp_path, "run-3", monkeypatch, parts=PARTS | {"input steps": "b2", "programs": "d2", "command": "c2"})
    record(tmp_path, "run-4", monkeypatch, parts=PARTS | {"input steps": "b2", "programs": "d2", "command": "c2"})
    record(tmp_path, "run-5", monkeypatch, why="its tool says so")
    record(tmp_path, "run-6", monkeypatch)
    assert [why(tmp_path, f"run-{number}").why for number in range(1, 7)] == [
        "ran: no earlier run in this folder has this job",
        "cache hit: nothing has changed since run run-1",
        "ran: changed since run run-2: input steps and programs",
        "ran: nothing has changed since run run-3, but its outputs are not in the cache (the job failed, or they were evicted)",
        "ran: its tool says so",
        "ran: the cache was not used: it is disabled (MEDWEAVE_REUSE, reuse_gib, storeGiB), or a "
        "connector or the data manager is not from medweave",
    ]
    third = why(tmp_path, "run-3")
    assert (third.compared_with, third.changed) == ("run-2", ("input steps", "programs"))


def test_a_changed_command_alone_is_named() -> None:
    assert changes(PARTS, PARTS | {"command": "c2"}) == ("command",)
    assert changes(PARTS, PARTS | {"input gpu": "e1"}) == ("input gpu",)
    assert changes(PARTS, PARTS) == ()


def test_an_unknown_run_or_step_is_an_error_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserInputError, match="no such run"):
        explain([], "train")
    record(tmp_path, "run-1", monkeypatch)
    with pytest.raises(UserInputError, match="run-1"):
        why(tmp_path, "run-9")
    with pytest.raises(UserInputError, match=r"has no job of this step.*\n.*trian\n.*one of train"):
        explain([read_run(tmp_path / "run-1")], "trian")


@pytest.mark.parametrize(("num_jobs", "names"), [(3, "m.0, m.1, m.2"), (14, "m.0, m.1, m.2, …, m.13")])
def test_an_unknown_job_is_an_error_with_the_jobs_of_its_step(tmp_path: Path, num_jobs: int, names: str) -> None:
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
    assert capsys.readouterr().out == "Run run-1\n  segment.3  ran: no earlier run in this folder has this job\n"


def test_cache_hits_do_not_count_in_past_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_report_shows_cache_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = render(read_run(record(tmp_path, "run-2", monkeypatch, parts=PARTS, reused_from="run-1")), None, Model())
    assert '<td class="good">cache hit</td>' in page
    assert "1 of 1 completed, 1 of them cache hits" in page
