"""Parsers and states: the pure parts of `medweave.slurm`. Texts of Slurm 22.05 on Debian 12."""

from __future__ import annotations

import pytest

from medweave_connectors.sites.slurm import answers
from medweave_connectors.sites.slurm.commands import END
from medweave_connectors.sites.slurm.states import (
    SchedulerState,
    SlurmJobState,
    apply_time_limit,
    judge,
    shell_exit_code,
    state_of,
)
from support.slurm_words import reported

SACCT_TIMEOUT = """\
sacct 1|TIMEOUT|0:0|89|2026-11-21T20:19:57|2026-11-21T20:19:58|00:00.005||n1|00:01:00|None
sacct 1.batch|CANCELLED|0:15|89|2026-11-21T20:19:58|2026-11-21T20:19:58|00:00.005|4517888|n1|
"""
SACCT_MEMORY = """\
sacct 11|FAILED|0:9|2|2026-11-21T20:38:28|2026-11-21T20:38:30|00:00.004||n1|01:00:00|NodeDown
sacct 11.batch|CANCELLED by 0|0:9|2|2026-11-21T20:38:30|2026-11-21T20:38:30|00:00.004|376328192|n1|
"""
SCONTROL = (
    "scontrol JobId=10 JobName=sbatch UserId=me(1002) JobState=COMPLETED Reason=None Requeue=1 ExitCode=0:0 "
    "RunTime=1-00:00:02 TimeLimit=2-00:00:00 TimeMin=N/A SubmitTime=2026-11-21T20:38:22 StartTime=2026-11-21T20:38:24 "
    "EndTime=2026-11-22T20:38:26 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2\n"
)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", SlurmJobState.COMPLETED),
        ("CANCELLED by 1000", SlurmJobState.CANCELLED),
        ("NODE_FAIL+", SlurmJobState.NODE_FAIL),
        ("DEADLINE", SlurmJobState.TIMEOUT),
        ("STAGE_OUT", SlurmJobState.RUNNING),
        ("REQUEUED", SlurmJobState.WAITING),
        ("SOMETHING_NEW", SlurmJobState.UNKNOWN),
        ("", SlurmJobState.UNKNOWN),
    ],
)
def test_words_of_slurm(word: str, state: SlurmJobState) -> None:
    assert state_of(word) is state


def test_an_unknown_state_is_not_final() -> None:
    assert not SlurmJobState.UNKNOWN.ended
    state = SchedulerState(source="sacct", word="SOMETHING_NEW")
    assert judge(state, None, SchedulerState(source="exit file", word="COMPLETED"), purged=False) is None


def test_accounting_comes_first_then_the_controller_then_the_exit_file() -> None:
    sacct, scontrol, file = (
        reported("sacct", "COMPLETED"),
        reported("scontrol", "FAILED"),
        reported("exit file", "COMPLETED"),
    )
    assert judge(sacct, scontrol, file, purged=False) is sacct
    late = reported("sacct", "RUNNING")
    assert judge(late, scontrol, file, purged=False) is scontrol
    assert judge(None, None, file, purged=True) is file
    # Requeued, or restarted: accounting still reports the end of the earlier start.
    gone = SchedulerState(source="sacct", word="PREEMPTED")
    for word in ("PENDING", "RUNNING", "REQUEUED"):
        assert judge(gone, SchedulerState(source="scontrol", word=word), None, purged=False) is None
    assert judge(gone, SchedulerState(source="scontrol", word="COMPLETING"), None, purged=False) is gone
    assert judge(None, None, file, purged=False) is None, (
        "while Slurm has the job, the end of its script is not the end of the job"
    )


def test_only_the_controller_reports_the_last_end_of_a_job_that_may_be_requeued() -> None:
    first, last, file = (
        reported("sacct", "PREEMPTED"),
        reported("scontrol", "COMPLETED"),
        reported("exit file", "COMPLETED"),
    )
    assert judge(first, last, None, purged=False, may_requeue=True) is last, "accounting may lag behind"
    for scontrol in (None, reported("scontrol", "COMPLETING"), reported("scontrol", "PENDING")):
        assert judge(first, scontrol, file, purged=False, may_requeue=True) is None
    assert judge(reported("sacct", "COMPLETED"), None, file, purged=True, may_requeue=True) is not None


@pytest.mark.parametrize(
    "word", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "FAILED", "RUNNING", "SOMETHING_NEW"]
)
def test_only_completed_has_the_exit_code_0(word: str) -> None:
    assert shell_exit_code(reported("sacct", word)) != 0


def test_exit_codes_are_those_of_a_shell() -> None:
    assert shell_exit_code(reported("sacct", "COMPLETED")) == 0
    assert shell_exit_code(reported("sacct", "FAILED", 70)) == 70
    assert shell_exit_code(reported("sacct", "FAILED", 0, 9)) == 137


@pytest.mark.parametrize(
    ("word", "ran_s", "limit_s", "expected"),
    [
        ("COMPLETED", 4, 3, "TIMEOUT"),
        ("FAILED", 4, 3, "TIMEOUT"),
        ("COMPLETED", 3, 3, "COMPLETED"),
        ("COMPLETED", 4, 0, "COMPLETED"),  # no limit, in CWL
        ("COMPLETED", 4, None, "COMPLETED"),
        ("COMPLETED", None, 3, "COMPLETED"),
        ("NODE_FAIL", 4, 3, "NODE_FAIL"),
    ],
)
def test_the_time_limit_of_a_tool_is_applied(
    word: str, ran_s: float | None, limit_s: int | None, expected: str
) -> None:
    ran = SchedulerState(source="exit file", word="COMPLETED", seconds=ran_s)
    seen = apply_time_limit(SchedulerState(source="sacct", word=word, seconds=9.0), ran, limit_s)
    assert seen.word == expected
    assert apply_time_limit(seen, None, limit_s) == seen


def test_output_of_sacct_is_parsed() -> None:
    end = answers.parse_final_report(
        f"{SACCT_TIMEOUT}scontrol slurm_load_jobs error: Invalid job id specified\n{END}", "1"
    )
    assert end.sacct == SchedulerState(
        source="sacct", word="TIMEOUT", exit_code=0, signal_number=0, seconds=89.0, queue_seconds=1.0, cpu_seconds=0.005,
        peak_memory_mib=4.3, nodes="n1", time_limit="00:01:00",
    )  # fmt: skip
    assert end.scontrol is None
    assert end.purged
    assert end.reason == ""
    end = answers.parse_final_report(SACCT_MEMORY + END, "11")
    assert end.sacct is not None
    assert (end.sacct.signal_number, end.sacct.peak_memory_mib) == (9, 358.9)
    assert end.reason == "NodeDown"
    assert not end.purged


def test_output_of_scontrol_is_parsed() -> None:
    end = answers.parse_final_report(SCONTROL + END, "10")
    assert end.scontrol == SchedulerState(
        source="scontrol", word="COMPLETED", seconds=86402.0, queue_seconds=2.0, nodes="n[1-2]", time_limit="2-00:00:00"
    )
    assert end.sacct is None


def test_the_controllers_reason_is_about_the_end() -> None:
    text = SCONTROL.replace("JobId=10", "JobId=11").replace("Reason=None", "Reason=NonZeroExitCode")
    end = answers.parse_final_report(SACCT_MEMORY + text + END, "11")
    assert end.reason == "NonZeroExitCode"
    assert end.answered


def test_an_error_of_the_controller_is_no_report_about_a_job() -> None:
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    end = answers.parse_final_report(f"{SACCT_MEMORY}scontrol {away}\n{END}", "11")
    assert (end.answered, end.error, end.purged) == (False, away, False)


def test_exit_records_of_a_job_are_parsed() -> None:
    text = (
        "file exit 3 100 107 n1\nfile exit.0 0 100 107 n1\nfile exit.1 137 100 105 n2\ntail stdout b3V0\ntail stderr \n"
    )
    end = answers.parse_final_report(text + END, "1")
    assert end.exit_file == SchedulerState(source="exit file", word="FAILED", exit_code=3, seconds=7.0, nodes="n1")
    assert end.ranks == {0: (0, 107, "n1"), 1: (137, 105, "n2")}
    assert end.tails == {"stdout": b"out", "stderr": b""}


def test_truncated_output_is_refused() -> None:
    for text in ("", SACCT_TIMEOUT, "job 1|RUNNING|None|N/A|x\nsqueue 0"):
        for read in (
            lambda t: answers.parse_final_report(t, "1"),
            answers.parse_poll,
            answers.parse_submission,
        ):
            with pytest.raises(ValueError, match="the answer is incomplete"):
                read(text)
    with pytest.raises(ValueError, match="the answer is incomplete"):
        answers.parse_poll(f"text 0 abc\n{END}")


def test_output_of_squeue_is_parsed() -> None:
    polled = answers.parse_poll(
        f"job 7|RUNNING|None|2026-11-22T10:00:00|a key\njob 8|PENDING|Resources|N/A|(null)\nsqueue 0\ntext 1 b3V0\nended 1\n{END}"
    )
    assert polled.answered
    assert polled.jobs == {
        "7": ("RUNNING", "None", "2026-11-22T10:00:00", "a key"),
        "8": ("PENDING", "Resources", "", "(null)"),
    }
    assert polled.by_key["a key"] == "7"
    assert (polled.text, polled.ended) == ({1: b"out"}, {1})
    failed = answers.parse_poll(f"slurm_load_jobs error: Unable to contact slurm controller\nsqueue 1\n{END}")
    assert not failed.answered
    assert "Unable to contact" in failed.error
    assert not answers.parse_poll(f"text 0 \n{END}").answered, "without squeue there is no answer"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17\ncode 0", ("17", "")),
        ("17;cluster2\ncode 0", ("17", "")),  # fault Q9 of the engine: that is not an id
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified\ncode 1",
            ("", "sbatch: error: …"),
        ),
        ("code 1", ("", "exit code 1")),
        ("code", ("", "")),
        ("17\ncode", ("17", "")),
    ],
)
def test_output_of_sbatch_is_parsed(text: str, expected: tuple[str, str]) -> None:
    job_id, refusal = answers.parse_submission(f"{text}\n{END}")
    assert job_id == expected[0]
    assert refusal.startswith(expected[1].removesuffix("…"))
    assert bool(refusal) == bool(expected[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04.567", 184.567), ("Unknown", None), ("", None)],
)
def test_durations(text: str, expected: float | None) -> None:
    assert answers.seconds(text) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("text", "expected"), [("1024K", 1.0), ("1.5G", 1536.0), ("2097152", 2.0), ("", None)])
def test_sizes(text: str, expected: float | None) -> None:
    assert answers.mebibytes(text) == expected
