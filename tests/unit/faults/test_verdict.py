"""The fault campaign's verdicts: what counts, what is false, lost or doubled, and what is right."""

from __future__ import annotations

from typing import Any

import pytest

from faults.verdict import Facts, Said, judge, read_said, row
from medweave_connectors.jobs.retries.policy import FailureKind

FAILED = Said(exit_code=1, state="failed", job="failed", failure="Timeout", job_exit_code=1, at=103.0)
DONE = Said(exit_code=0, state="completed", job="completed", job_exit_code=0, at=101.5)


def facts(**changes: Any) -> Facts:
    """A job past its time limit, of which everybody tells the truth."""
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
        "said": FAILED,
    }
    return Facts(**{**usual, **changes})


def done(**changes: Any) -> Facts:
    """A job that did well in spite of its fault."""
    return facts(
        **{"scheduler": "COMPLETED 0:0", "completed": True, "right": frozenset(), "whole": True, "said": DONE} | changes
    )


def flags(given: Facts) -> list[str]:
    verdict = judge(given)
    names = ("counts", "false_success", "lost", "doubled", "orphans")
    return [name for name in names if getattr(verdict, name)]


def test_what_is_well() -> None:
    for each in (facts(), done()):
        assert flags(each) == ["counts"]
        assert judge(each).good
        assert judge(each).why == ()


def test_a_success_that_the_scheduler_denies_is_false() -> None:
    assert flags(facts(said=DONE, whole=True)) == ["counts", "false_success"]
    assert judge(facts(said=DONE, whole=True)).why == ("false success: the scheduler said TIMEOUT 0:0 on n1",)


def test_a_success_without_its_whole_output_is_false() -> None:
    assert flags(done(whole=False)) == ["counts", "false_success"]
    assert judge(done(whole=False)).why == ("false success: its output is not whole",)


@pytest.mark.parametrize("said", [Said(exit_code=0), Said(exit_code=1, state="completed")])
def test_one_word_for_success_is_enough_for_a_false_one(said: Said) -> None:
    assert flags(facts(said=said)) == ["counts", "false_success"]


@pytest.mark.parametrize(
    "said",
    [
        Said(exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=1),  # another kind
        Said(exit_code=1, state="failed", job="failed"),  # none
        Said(exit_code=1, state="failed"),  # the job never ended
        Said(exit_code=None, state="failed", job="failed", failure="Timeout"),  # the driver never ended
        Said(exit_code=1, state="failed", job="completed"),  # the job did well, and its outputs never came
    ],
)
def test_a_failure_without_its_right_kind_is_lost(said: Said) -> None:
    assert flags(facts(said=said)) == ["counts", "lost"]


def test_any_failure_is_lost_where_the_job_must_do_well() -> None:
    assert flags(done(said=FAILED)) == ["counts", "lost"]
    assert "right would be a success" in judge(done(said=FAILED)).why[0]


def test_a_failure_must_tell_the_exit_code() -> None:
    right = {"right": frozenset({FailureKind.STEP_FAILED}), "right_code": 7}
    told = Said(exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=7)
    assert flags(facts(said=told, **right)) == ["counts"]
    wrong = Said(exit_code=1, state="failed", job="failed", failure="StepFailed", job_exit_code=1)
    assert flags(facts(said=wrong, **right)) == ["counts", "lost"]


def test_two_jobs_or_two_executions_are_doubled() -> None:
    assert flags(done(submissions=2)) == ["counts", "doubled"]
    assert flags(done(executions=2)) == ["counts", "doubled"]
    assert flags(done(executions=2, replaced=1)) == ["counts"], "the scheduler itself says that it began it again"
    assert flags(done(executions=3, replaced=1)) == ["counts", "doubled"]
    assert flags(facts(executions=0)) == ["counts"]  # cancelled before it began


def test_what_lives_on_is_an_orphan() -> None:
    assert flags(facts(alive=["job 7 RUNNING"])) == ["counts", "orphans"]
    assert judge(facts(alive=["job 7 RUNNING"])).why == ("orphan: job 7 RUNNING",)


def test_what_did_not_happen_does_not_count_but_is_judged() -> None:
    assert flags(facts(happened=False)) == []
    assert judge(facts(happened=False)).why == ("it did not happen: the scheduler said TIMEOUT 0:0 on n1",)
    assert flags(facts(happened=False, said=DONE)) == ["false_success"]
    assert not judge(facts(happened=False)).good


def test_what_could_not_be_played_does_not_count() -> None:
    assert flags(facts(trouble="no driver")) == []
    assert judge(facts(trouble="no driver")).why == ("not played: no driver",)


def test_seconds_to_know_run_from_the_schedulers_word_to_ours() -> None:
    assert row(facts())["seconds_to_know"] == 3.0
    assert row(facts(since=103.4))["seconds_to_know"] == 0.0  # sacct cuts to whole seconds, clocks are what they are
    assert row(facts(since=None))["seconds_to_know"] is None
    assert row(facts(said=Said(exit_code=1)))["seconds_to_know"] is None


def test_what_medweave_said_is_read_from_its_events() -> None:
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
    said = read_said(events, "a\nb\nc\nd\ne\n", 1)
    assert said == Said(
        exit_code=1,
        state="failed",
        job="failed",
        failure="Timeout",
        job_exit_code=1,
        message="hpc: it hit its time limit.",
        at=100.5,
        last_lines=("b", "c", "d", "e"),
    )
    assert read_said([], "", -9) == Said(exit_code=-9)
