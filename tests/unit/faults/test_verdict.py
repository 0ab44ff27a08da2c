"""Verdicts of the fault campaign: correct, false, lost and duplicated jobs."""

from __future__ import annotations

from typing import Any

import pytest

from faults.verdict import Facts, ReportedOutcome, judge, read_reported, row
from medweave_connectors.jobs.retries.policy import FailureKind

FAILED = ReportedOutcome(exit_code=1, state="failed", job="failed", failure="Timeout", job_exit_code=1, at=103.0)
DONE = ReportedOutcome(exit_code=0, state="completed", job="completed", job_exit_code=0, at=101.5)


def facts(**changes: Any) -> Facts:
    """Return facts of a job past its time limit that is reported correctly."""
    usual: dict[str, Any] = {
        "fault": "time-limit",
        "injected": "a long step",
        "happened": True,
        "scheduler": "TIMEOUT 0:0 on n1",
        "completed": False,
        "right": frozenset({FailureKind.TIMEOUT}),
        "whole": False,
        "submissions": 1,
        "executions": 1,
        "since": 100.0,
        "reported": FAILED,
    }
    return Facts(**{**usual, **changes})


def done(**changes: Any) -> Facts:
    """Return facts of a job that completed despite its fault."""
    return facts(
        **{"scheduler": "COMPLETED 0:0", "completed": True, "right": frozenset(), "whole": True, "reported": DONE}
        | changes
    )


def flags(case: Facts) -> list[str]:
    verdict = judge(case)
    names = ("counts", "false_success", "lost", "doubled", "orphans")
    return [name for name in names if getattr(verdict, name)]


def test_correct_reports_are_good() -> None:
    for case in (facts(), done()):
        assert flags(case) == ["counts"]
        assert judge(case).good
        assert judge(case).why == ()


def test_a_success_that_the_scheduler_denies_is_false() -> None:
    assert flags(facts(reported=DONE, whole=True)) == ["counts", "false_success"]
    assert judge(facts(reported=DONE, whole=True)).why == ("false success: the scheduler reported TIMEOUT 0:0 on n1",)


def test_a_success_without_its_complete_output_is_false() -> None:
    assert flags(done(whole=False)) == ["counts", "false_success"]
    assert judge(done(whole=False)).why == ("false success: its output is not complete",)


@pytest.mark.parametrize("reported", [ReportedOutcome(exit_code=0), ReportedOutcome(exit_code=1, state="completed")])
def test_either_report_of_success_makes_a_false_one(reported: ReportedOutcome) -> None:
    assert flags(facts(reported=reported)) == ["counts", "false_success"]


@pytest.mark.parametrize(
    "reported",
    [
        ReportedOutcome(
            exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=1
        ),  # another kind
        ReportedOutcome(exit_code=1, state="failed", job="failed"),  # none
        ReportedOutcome(exit_code=1, state="failed"),  # the job never ended
        ReportedOutcome(exit_code=None, state="failed", job="failed", failure="Timeout"),  # the driver never ended
        ReportedOutcome(
            exit_code=1, state="failed", job="completed"
        ),  # the job completed, and its outputs were not delivered
    ],
)
def test_a_failure_without_its_right_kind_is_lost(reported: ReportedOutcome) -> None:
    assert flags(facts(reported=reported)) == ["counts", "lost"]


def test_any_failure_is_lost_where_the_job_must_complete() -> None:
    assert flags(done(reported=FAILED)) == ["counts", "lost"]
    assert "expected a success" in judge(done(reported=FAILED)).why[0]


def test_a_failure_must_report_the_exit_code() -> None:
    right = {"right": frozenset({FailureKind.STEP_FAILED}), "right_code": 7}
    correct = ReportedOutcome(exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=7)
    assert flags(facts(reported=correct, **right)) == ["counts"]
    wrong = ReportedOutcome(exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=1)
    assert flags(facts(reported=wrong, **right)) == ["counts", "lost"]


def test_two_jobs_or_two_executions_are_doubled() -> None:
    assert flags(done(submissions=2)) == ["counts", "doubled"]
    assert flags(done(executions=2)) == ["counts", "doubled"]
    assert flags(done(executions=2, replaced=1)) == ["counts"], "the scheduler has logged a restart"
    assert flags(done(executions=3, replaced=1)) == ["counts", "doubled"]
    assert flags(facts(executions=0)) == ["counts"]  # cancelled before it began


def test_a_remaining_trace_is_an_orphan() -> None:
    assert flags(facts(alive=["job 7 RUNNING"])) == ["counts", "orphans"]
    assert judge(facts(alive=["job 7 RUNNING"])).why == ("orphan: job 7 RUNNING",)


def test_a_fault_that_did_not_happen_does_not_count_but_is_judged() -> None:
    assert flags(facts(happened=False)) == []
    assert judge(facts(happened=False)).why == ("it did not happen: the scheduler reported TIMEOUT 0:0 on n1",)
    assert flags(facts(happened=False, reported=DONE)) == ["false_success"]
    assert not judge(facts(happened=False)).good


def test_a_fault_that_was_not_injected_does_not_count() -> None:
    assert flags(facts(trouble="no driver")) == []
    assert judge(facts(trouble="no driver")).why == ("not played: no driver",)


def test_seconds_to_know_run_from_the_schedulers_record_to_our_event() -> None:
    assert row(facts())["seconds_to_know"] == 3.0
    assert row(facts(since=103.4))["seconds_to_know"] == 0.0  # sacct truncates to whole seconds, and clocks differ
    assert row(facts(since=None))["seconds_to_know"] is None
    assert row(facts(reported=ReportedOutcome(exit_code=1)))["seconds_to_know"] is None


def test_medweaves_report_is_read_from_its_events() -> None:
    site = {"state": "TIMEOUT", "failure": "Timeout"}
    data = {
        "state": "failed",
        "attempt": 1,
        "exit_code": 1,
        "message": "hpc: it hit its time limit.\n  seen: x",
        "site": site,
    }
    events = [
        {"type": "job.ended", "time": "1970-01-01T00:00:05.000+00:00", "data": {"state": "failed"}},
        {"type": "job.ended", "time": "1970-01-01T00:01:40.500+00:00", "data": data},
        {"type": "run.ended", "time": "1970-01-01T00:01:41.000+00:00", "data": {"state": "failed"}},
    ]
    reported = read_reported(events, "a\nb\nc\nd\ne\n", 1)
    assert reported == ReportedOutcome(
        exit_code=1,
        state="failed",
        job="failed",
        failure="Timeout",
        job_exit_code=1,
        message="hpc: it hit its time limit.",
        at=100.5,
        last_lines=("b", "c", "d", "e"),
    )
    assert read_reported([], "", -9) == ReportedOutcome(exit_code=-9)
