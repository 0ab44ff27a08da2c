"""A run's history from its event log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave.report.command import render
from medweave.report.energy import Model
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.run import RunRecord
from medweave_core.contracts import codec
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import read_events, read_run
from support.recorded import Recorder, completed_run, failed_run
from support.reported import run_report


def test_the_history_of_a_completed_run(tmp_path: Path) -> None:
    completed_run(tmp_path / "run-1")
    run = read_run(tmp_path / "run-1")
    assert (run.run_id, run.state, run.seconds, run.workflow) == ("run-1", "completed", 600, "lung")
    assert [job.label for job in run.jobs] == ["check", "train", "segment.0", "segment.1", "segment.2"]
    train = run.jobs[1]
    assert (train.where, train.state) == ("site-a/gpu4", "completed")
    assert (train.scheduled_s, train.started_s, train.ended_s) == (21, 21.5, 400)
    assert train.duration_s == pytest.approx(378.4)
    assert train.peak_memory_mib == 321.4
    assert train.requested == {"cores": 2, "memory_mib": 1024}
    assert train.report is not None
    assert train.report.verb == "train"
    assert run.notices == (("segment.1", "the batch holds no case: the output holds none either"),)
    assert run.failures() == []


def test_a_failed_run_names_its_first_cause_first(tmp_path: Path) -> None:
    failed_run(tmp_path / "run-2")
    run = read_run(tmp_path / "run-2")
    assert run.state == "failed"
    (failure,) = run.failures()
    assert (failure.label, failure.exit_code) == ("preprocess", 65)
    assert "a slice is missing" in failure.message
    assert failure.progress == "case 3/22: case-0000000a"


def test_the_driver_reads_the_log_of_the_plug_in(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, "lung")
    record.begin(streamflow_version="0.2.0rc3")
    for name in ("/check/0", "/segment/0.1"):
        record.job_scheduled(name, deployment="laptop", service=None, location="here", cores=2)
        record.job_started(name)
    record.job_progress("/check/0", {"unit": "case", "done": 1, "total": 2, "text": "case 1/2"})
    output = tmp_path / "output"
    (output / "report").mkdir(parents=True)
    (output / "run_report.json").write_text(codec.dumps(run_report("check")))
    (output / "report" / "fragment.html").write_text("x")
    record.command_ended(
        "/check/0", CommandOutcome(exit_code=0, seconds=2.0, peak_memory_mib=5.0, report_folder=output)
    )
    record.job_ended("/check/0", "completed")
    record.command_ended(
        "/segment/0.1", CommandOutcome(exit_code=65, seconds=1.0, message="medweave-step segment: no.")
    )
    record.job_ended("/segment/0.1", "failed")
    record.finish()
    run = read_run(record.folder)
    assert run.state == "failed"
    check, segment = run.jobs
    assert (check.state, check.duration_s, check.peak_memory_mib) == ("completed", 2.0, 5.0)
    assert check.report is not None
    assert (record.folder / "reports" / "check").samefile(check.folder)
    assert (segment.label, segment.message, segment.exit_code) == ("segment.1", "medweave-step segment: no.", 65)
    assert run.first_cause == "/segment/0.1"


def test_copies_are_added_up_per_pair_of_places_and_route(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, "lung")
    record.begin()
    for num_bytes, num_files in ((100, 2), (50, 1)):
        record.transfer_ended(
            source="laptop", destination="hpc", location="login", route="from-driver", reason="it is here",
            num_bytes=num_bytes, num_files=num_files, reused_bytes=5, wire_bytes=num_bytes // 2, seconds=0.5,
        )  # fmt: skip
    record.transfer_ended(
        source="hpc", destination="pods", location="pod-0", route="through-driver", reason="connection refused",
        num_bytes=7, num_files=1, reused_bytes=0, wire_bytes=None, seconds=2,
    )  # fmt: skip
    record.finish()
    first, second = read_run(record.folder).transfers
    assert (first.source, first.destination, first.route) == ("laptop", "hpc", "from-driver")
    assert (first.num_copies, first.num_files, first.num_bytes, first.seconds) == (2, 3, 150, 1.0)
    assert (first.reused_bytes, second.reused_bytes) == (10, 0)
    assert (first.wire_bytes, second.wire_bytes) == (75, 7)
    assert (second.destination, second.num_bytes) == ("pods", 7)
    html = render(read_run(record.folder), None, Model())
    assert "Transfers between places" in html
    assert html.count("on the wire") == 1
    assert "through-driver" in html
    assert first.reasons == ("it is here",)
    assert "connection refused" in html


def test_a_job_that_was_tried_again_is_no_failure(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.job("/train/0", 1, 5, state="failed", exit_code=137)
    run.event(6, "job.scheduled", "/train/0", deployment="laptop", attempt=2)
    run.event(7, "job.started", "/train/0", deployment="laptop", attempt=2)
    run.event(9, "job.ended", "/train/0", deployment="laptop", attempt=2, state="completed", exit_code=0, seconds=2.0)
    run.end(10)
    run_record = read_run(tmp_path / "run")
    assert [(job.attempt, job.state) for job in run_record.jobs] == [(1, "failed"), (2, "completed")]
    assert run_record.failures() == []


def test_a_log_without_an_end_is_unfinished(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.event(1, "job.scheduled", "/train/0", deployment="laptop", attempt=1)
    run.event(2, "job.started", "/train/0", deployment="laptop", attempt=1)
    run.event(60, "job.progress", "/train/0", deployment="laptop", text="epoch 1/2")
    run_record = read_run(tmp_path / "run")
    assert (run_record.state, run_record.seconds) == ("unfinished", 60)
    assert (run_record.jobs[0].state, run_record.jobs[0].progress) == ("unfinished", "epoch 1/2")


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    path = tmp_path / "run" / "events.jsonl"
    path.write_text("".join(run.lines)[:-20])
    assert read_run(tmp_path / "run").state == "unfinished"


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    run.lines[3] = run.lines[3][:30] + "\n"
    (tmp_path / "run" / "events.jsonl").write_text("".join(run.lines))
    with pytest.raises(UserInputError) as error:
        read_run(tmp_path / "run")
    assert "line 4" in error.value.seen


def test_events_of_later_versions_are_ignored(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    later = run.lines[0].replace("run.started", "energy.measured")
    assert len(read_events("".join([*run.lines, later]))) == len(run.lines)


def test_an_unreadable_report_is_ignored(tmp_path: Path) -> None:
    completed_run(tmp_path / "run")
    (tmp_path / "run" / "reports" / "train" / "run_report.json").write_text("{")
    run = read_run(tmp_path / "run")
    assert run.jobs[1].report is None
    assert run.jobs[0].report is not None


def test_folders_outside_the_run_are_not_read(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.event(1, "job.scheduled", "/train/0", deployment="laptop", attempt=1)
    run.event(2, "job.report", "/train/0", deployment="laptop", folder="../elsewhere", files=[])
    assert read_run(tmp_path / "run").jobs[0].folder is None


@pytest.mark.parametrize("content", [None, ""])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_text(content)
    with pytest.raises(UserInputError):
        read_run(tmp_path)


def queued_run(folder: Path, state: str = "completed", **ended: Any) -> Recorder:
    """Record a Slurm job as the connector does: two hours in the queue, a minute of work, the end noticed 4 s late."""
    run = Recorder(folder)
    run.event(1, "job.scheduled", "/train/0", deployment="site-a", attempt=1, cores=4, memory_mib=1024)
    run.event(1.1, "job.started", "/train/0", deployment="site-a", attempt=1)
    run.event(1.3, "notice", "/train/0", deployment="site-a", text="Slurm job 17")
    run.event(31, "notice", "/train/0", deployment="site-a", text="waits in the queue: Priority")
    if state == "completed":
        run.event(90, "notice", "/train/0", deployment="site-a", text="Slurm does not answer; it is asked again")
        run.event(7203, "notice", "/train/0", deployment="site-a", text="runs now, after 2 h 00 min in the queue")
    run.event(7265, "job.ended", "/train/0", deployment="site-a", attempt=1, state=state, **ended)
    run.end(7266, state)
    return run


IN_THE_QUEUE = {"slurm_job_id": "17", "state": "COMPLETED", "num_nodes": 1, "gpus": 0, "queue_seconds": 7200.0}


def test_a_job_begins_after_its_wait_in_the_queue(tmp_path: Path) -> None:
    queued_run(tmp_path / "run", exit_code=0, seconds=60.0, cpu_seconds=200.0, site=IN_THE_QUEUE)
    (job,) = read_run(tmp_path / "run").jobs
    assert (job.started_s, job.queued_s, job.duration_s) == (7201.1, 7200.0, 60.0)
    assert job.waited_s == pytest.approx(7200.1)
    assert not job.is_queued


def test_without_a_figure_of_the_site_the_notices_count(tmp_path: Path) -> None:
    queued_run(tmp_path / "run", exit_code=0, seconds=60.0)
    (job,) = read_run(tmp_path / "run").jobs
    assert (job.started_s, job.queued_s) == (7203, 7172)


def test_a_re_attached_job_waited_before_this_run_too(tmp_path: Path) -> None:
    queued_run(tmp_path / "run", exit_code=0, seconds=60.0, site=IN_THE_QUEUE | {"queue_seconds": 90000.0})
    (job,) = read_run(tmp_path / "run").jobs
    assert (job.started_s, job.queued_s) == (7205, 90000.0)


def test_a_job_that_ends_in_the_queue_has_not_begun(tmp_path: Path) -> None:
    queued_run(tmp_path / "run", "cancelled")
    (job,) = read_run(tmp_path / "run").jobs
    assert (job.started_s, job.duration_s, job.waited_s) == (None, None, 7264)
    assert job.is_queued


def test_a_pod_that_could_never_start_has_taken_no_time(tmp_path: Path) -> None:
    queued_run(tmp_path / "run", "failed", exit_code=75, seconds=7263.0, site={"failure": "SubmitRejected"})
    (job,) = read_run(tmp_path / "run").jobs
    assert (job.started_s, job.duration_s, job.queued_s) == (None, None, 7234)
