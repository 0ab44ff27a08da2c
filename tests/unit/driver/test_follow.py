"""A run's event log folded into a state, and shown as lines: no run and no clock."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.spinner import Spinner

from medweave.runs.follow.live_display import picture, visible
from medweave.runs.follow.plain_lines import PAUSE_S, PlainLines
from medweave.runs.follow.summary import RunInvocation, summary, unfinished_summary
from medweave_core.contracts.events import Event
from medweave_core.documents.line_numbers import shown
from medweave_core.runlog.log_reader import FollowedLog
from medweave_core.runlog.run_state import RunState, fold, steps

BEGAN = datetime.datetime(2026, 11, 23, 20, 0, 0, tzinfo=datetime.UTC)


class Log:
    """Numbered events, as a run writes them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.add("run.started", workflow="lung")

    def add(self, kind: Any, job: str | None = None, *, at: float = 0.0, deployment: str = "hpc", **data: Any) -> Event:
        """Add an event at some seconds after the start; `job` as the engine names it (`/segment/0.3`)."""
        event = Event(
            sequence=len(self.events) + 1, time=(BEGAN + datetime.timedelta(seconds=at)).isoformat(), run_id="lung-1",
            type=kind, job=job, step=job.rpartition("/")[0] if job else None,
            deployment=deployment if kind != "run.started" else None, service="gpu4" if job else None, data=data,
        )  # fmt: skip
        self.events.append(event)
        return event

    def state(self, *planned: str) -> RunState:
        """Return the state after all events."""
        state = RunState(planned=planned)
        for event in self.events:
            fold(state, event)
        return state

    def lines(self) -> list[str]:
        """Return the stripped lines of all events but the first."""
        state, plain = RunState(), PlainLines()
        return [line.strip() for event in self.events for line in plain.of(event, fold(state, event))][1:]


@pytest.fixture
def log() -> Log:
    return Log()


def begin(log: Log, job: str, at: float = 0.0, attempt: int = 1) -> None:
    log.add("job.scheduled", job, at=at, attempt=attempt)
    log.add("job.started", job, at=at, attempt=attempt)


def progress(log: Log, job: str, done: int, total: int, at: float) -> None:
    log.add("job.progress", job, at=at, done=done, total=total, text=f"epoch {done}/{total}: loss 0.3, Dice 0.8")


def test_a_step_waits_runs_and_ends(log: Log) -> None:
    assert [(row.label, row.state) for row in steps(log.state("check", "train"))] == [
        ("check", "later"),
        ("train", "later"),
    ]
    log.add("job.scheduled", "/train/0", at=1)
    assert [row.state for row in steps(log.state("check", "train"))] == ["later", "placed"]
    log.add("job.started", "/train/0", at=2)
    log.add("notice", "/train/0", at=3, text="waits in the queue: Priority")
    (job,) = log.state().running_jobs()
    assert (job.state, job.reason, job.where) == ("waiting", "waits in the queue: Priority", "hpc/gpu4")
    progress(log, "/train/0", 3, 24, 10)
    (job,) = log.state().running_jobs()
    assert (job.state, job.reason, job.done, job.total, job.seconds(12)) == ("running", "", 3, 24, 10)
    log.add("job.ended", "/train/0", at=32, state="completed", exit_code=0)
    log.add("run.ended", at=33, state="completed", seconds=33.0, failed=[])
    state = log.state()
    assert (state.end, state.running_jobs(), steps(state)[0].seconds(99)) == ("completed", [], 30)


def test_a_job_is_timed_from_the_end_of_its_wait(log: Log) -> None:
    begin(log, "/train/0", at=2)
    log.add("notice", "/train/0", at=3, text="waits in the queue: Priority")
    log.add("notice", "/train/0", at=602, text="runs now, after 10 min 00 s in the queue")
    (job,) = log.state().running_jobs()
    assert (job.state, job.seconds(632)) == ("running", 30)
    site = {"queue_seconds": 500.0}
    begin(log, "/segment/0", at=1000)
    log.add("job.ended", "/segment/0", at=1540, state="completed", exit_code=0, seconds=39.0, site=site)
    assert log.state().jobs["/segment/0"].seconds(9999) == 40


def test_a_scattered_step_is_one_row_for_each_place(log: Log) -> None:
    for number in range(3):
        begin(log, f"/segment/0.{number}", at=number)
    log.add("job.scheduled", "/segment/0.3", deployment="cloud")
    log.add("job.ended", "/segment/0.0", at=5, state="completed")
    first, second = steps(log.state("segment"))
    assert (first.where, first.count("completed"), len(first.jobs), first.state) == ("hpc/gpu4", 1, 3, "running")
    assert (second.where, second.state) == ("cloud/gpu4", "placed")


def test_of_several_attempts_only_the_last_one_counts(log: Log) -> None:
    begin(log, "/train/0")
    log.add("job.ended", "/train/0", at=5, state="failed", exit_code=137, attempt=1)
    log.add("job.reaction", "/train/0", at=5, text="tries again with 8 GiB")
    begin(log, "/train/0", at=6, attempt=2)
    assert log.state().failures() == []
    assert log.lines()[2:] == [
        "train        note: tries again with 8 GiB",
        "train        started on hpc/gpu4, attempt 2",
    ]


def test_copies_are_in_flight_until_they_have_arrived(log: Log) -> None:
    log.add("transfer.progress", **{"from": "laptop", "bytes": 2**20, "total_bytes": 2**30, "text": "1.0 MiB of 1 GiB"})
    assert log.state().copies["laptop", "hpc"].num_bytes == 2**20
    facts = {"from": "laptop", "bytes": 2**30, "route": "direct", "reused_bytes": 2**21, "seconds": 8.0}
    log.add("transfer.ended", at=9, **facts)
    state = log.state()
    assert state.copies == {}
    assert state.moved["laptop", "hpc", "direct"].num_bytes == 2**30
    assert (
        log.lines()[1] == "hpc          copy from laptop: 1.0 GiB in 8.0 s, direct, 2.0 MiB already at the destination"
    )


def test_progress_is_a_line_every_ten_seconds_and_no_flood(log: Log) -> None:
    begin(log, "/train/0")
    for number in range(1000):
        progress(log, "/train/0", number, 1000, at=number / 10)  # 100 s
    assert len(log.lines()) == 1 + 100 / PAUSE_S


def test_no_line_is_printed_twice(log: Log) -> None:
    begin(log, "/train/0")
    for at in (1, 2, 3):
        log.add("notice", "/train/0", at=at, text="one case has no mask")
    assert log.lines() == ["train        started on hpc/gpu4", "train        note: one case has no mask"]


def test_a_wide_scatter_shows_its_failures_and_its_last_job(log: Log) -> None:
    for number in range(200):
        begin(log, f"/segment/0.{number}")
    for number in range(200):
        log.add("job.ended", f"/segment/0.{number}", at=1, state="failed" if number == 7 else "completed", exit_code=65)
    lines = log.lines()
    assert lines[0] == "segment      started on hpc/gpu4"
    assert [line for line in lines if "FAILED" in line] == [
        "segment.7    FAILED after 1.0 s, exit code 65, bad data (7 done so far)"
    ]
    assert len(lines) == 3, "the first job's start, the first end, the failure"


def test_a_cache_hit_is_shown(log: Log) -> None:
    begin(log, "/train/0")
    log.add("job.ended", "/train/0", at=1, state="completed", reused_from="lung-0")
    assert log.lines()[-1] == "train        cache hit: outputs of run lung-0"


def test_the_summary_lists_outputs_without_file_names(log: Log, tmp_path: Path) -> None:
    begin(log, "/train/0")
    log.add("job.ended", "/train/0", at=1, state="completed")
    log.add("run.ended", at=2, state="completed", seconds=125.0, failed=[])
    file = {"class": "File", "basename": "Doe_John.nii.gz"}
    masks = [file, {**file, "class": "Directory"}, file]
    started = RunInvocation(tmp_path / "lung-1", outdir=tmp_path / "out")
    text = "\n".join(summary(log.state(), started, {"masks": masks, "home": None, "report": file}))
    assert "completed after 2 min 05 s; 1 of 1 jobs done" in text
    assert "masks (2 files, 1 folder), report" in text
    assert "Doe" not in text
    assert f"medweave report {shown(tmp_path / 'lung-1')}" in text
    assert "medweave clean" not in text, "after a success there is nothing to clean"
    assert "--resume" not in text, "and nothing to resume"


def test_the_summary_of_a_failure_begins_with_its_first_cause(log: Log, tmp_path: Path) -> None:
    for name in ("/check/0", "/train/0"):
        begin(log, name)
        log.add(
            "job.ended",
            name,
            at=1,
            state="failed",
            exit_code=65,
            message="" if name == "/train/0" else "medweave-step check: no.",
        )
    log.add("run.ended", at=2, state="failed", seconds=2.0, failed=["/check/0", "/train/0"], first_cause="/train/0")
    output = tmp_path / "work" / "stderr" / "train"
    output.parent.mkdir(parents=True)
    output.write_text("".join(f"line {number}\n" for number in range(100)), encoding="utf-8")
    lines = list(summary(log.state(), RunInvocation(tmp_path, tmp_path / "my.yml", tmp_path / "out"), {}))
    assert lines[1] == "  failed      train on hpc/gpu4, exit code 65, bad data"
    assert lines[2:14] == [f"    line {number}" for number in range(88, 100)]
    assert lines[14:16] == ["  failed      check on hpc/gpu4, exit code 65, bad data", "    medweave-step check: no."]
    file, results = shown(tmp_path / "my.yml"), shown(tmp_path / "out")
    assert f"medweave run --resume {shown(tmp_path)} --file {file} --outdir {results} " in lines[-2]
    assert f"medweave clean {shown(tmp_path)} --file {file} " in lines[-1]


def test_after_an_early_exit_jobs_that_may_still_run_are_listed(log: Log, tmp_path: Path) -> None:
    begin(log, "/train/0")
    text = "\n".join(unfinished_summary(log.state(), RunInvocation(tmp_path)))
    assert "train on hpc/gpu4" in text
    assert f"medweave clean {shown(tmp_path)}" in text


def test_a_log_is_read_in_whole_lines_and_types_of_later_versions_pass(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    followed = FollowedLog(path)
    assert list(followed.new()) == [], "the run has not begun"
    line = (
        '{"sequence":1,"time":"2026-11-23T20:00:00.000+00:00","run_id":"r","type":"%s","job":null,"step":null,'
        '"deployment":null,"service":null,"location":null,"data":{}}'
    )
    begun, later = line % "run.started", line % "run.dreamt"
    path.write_text(f"{begun}\n{later}\n{begun[:20]}", encoding="utf-8")
    assert [(text, event and event.type) for text, event in followed.new()] == [(begun, "run.started"), (later, None)]
    with path.open("a", encoding="utf-8") as stream:
        stream.write(f"{begun[20:]}\n")
    assert [text for text, _ in followed.new()] == [begun]


def drawn(state: RunState, now_s: float = 10.0, message: str = "", num_rows: int = 20) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(picture(state, now_s, Spinner("dots"), message, num_rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_picture_has_a_row_for_each_step_and_its_place(log: Log) -> None:
    begin(log, "/train/0", at=2)
    progress(log, "/train/0", 3, 24, 8)
    for number in range(3):
        begin(log, f"/segment/0.{number}", at=8)
    log.add("job.ended", "/segment/0.0", at=9, state="completed")
    log.add(
        "transfer.progress", at=9, **{"from": "laptop", "bytes": 2**20, "total_bytes": 2**21, "text": "1.0 of 2.0 MiB"}
    )
    log.add("notice", "/train/0", at=9, text="one case has no mask")
    text = drawn(log.state("check", "train", "segment"), message="medweave: SIGINT")
    rows = text.splitlines()
    assert rows[0] == "medweave lung-1  0 of 3 steps done, 10 s"
    assert "check" in rows[1]
    assert all(word in rows[2] for word in ("train", "hpc/gpu4", "━", "8.0 s", "epoch 3/24: loss 0.3, Dice 0.8"))
    assert all(word in rows[3] for word in ("segment ×3", "1 done, 2 running"))
    assert "━" not in rows[3], "the number of jobs is not known yet"
    assert all(word in rows[4] for word in ("laptop → hpc", "1.0 of 2.0 MiB"))
    assert "note train: one case has no mask" in rows[5]
    assert rows[6] == "medweave: SIGINT"


def test_the_reason_of_a_waiting_job_is_shown_once_in_its_row(log: Log) -> None:
    begin(log, "/train/0")
    log.add("notice", "/train/0", at=3, text="waits in the queue: Resources")
    assert drawn(log.state()).count("waits in the queue: Resources") == 1


def test_before_its_first_progress_a_job_shows_its_last_notice(log: Log) -> None:
    begin(log, "/train/0", at=1)
    log.add("notice", "/train/0", at=2, text="Slurm job 14")
    assert "running for" not in drawn(log.state()), "it may still be in the queue"
    assert drawn(log.state()).splitlines()[1].rstrip().endswith("Slurm job 14")
    log.add("job.ended", "/train/0", at=9, state="completed")
    assert drawn(log.state()).splitlines()[1].rstrip().endswith("done in 8.0 s")


def test_failed_and_running_steps_are_shown_if_not_all_rows_fit(log: Log) -> None:
    names = [f"step{number}" for number in range(30)]
    for name in names[:20]:
        begin(log, f"/{name}/0")
        log.add("job.ended", f"/{name}/0", at=1, state="failed" if name == "step3" else "completed", exit_code=65)
    begin(log, "/step20/0", at=2)
    rows = visible(steps(log.state(*names)), 4)
    assert [row.label for row in rows] == ["step3", "step20", "step21", "step22"]
    assert "and 26 more steps" in drawn(log.state(*names), num_rows=4)


def test_after_the_end_steps_that_did_not_run_are_marked(log: Log) -> None:
    begin(log, "/train/0")
    log.add("job.ended", "/train/0", at=1, state="completed")
    log.add("run.ended", at=2, state="completed", seconds=2.0, failed=[])
    assert "did not run" in drawn(log.state("deidentify", "train"), now_s=500)
    assert "8 min" not in drawn(log.state("train"), now_s=500), "the time of the end is shown"
