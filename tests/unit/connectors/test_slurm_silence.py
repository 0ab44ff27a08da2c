"""A Slurm that does not answer at the survey, at the submission or after the end: queries are repeated until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.host import deadlines
from medweave_connectors.host.deadlines import ResponseDeadline, SiteUnresponsive, retry_until_answered
from medweave_connectors.sites.slurm import messages, submission
from medweave_connectors.sites.slurm.commands import END
from medweave_connectors.sites.slurm.script import SlurmJobFiles
from support.engine import Run, wait_until
from support.fake_cluster import Cluster, fake_cluster, interrupted

GOOD = "echo {} > run_report.json; echo done > result.txt"
FOREVER = "always"
QUICK = (
    "from medweave_connectors.host import deadlines\n"
    "from medweave_connectors.sites.slurm import job\n"
    "deadlines.SHORTEST_PAUSE_S = 0.05\n"
)
NOTICED = QUICK + "deadlines.NOTICE_AFTER_S = 0.5\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


def num_calls(cluster: Cluster, program: str) -> int:
    path = cluster.folder / "slurm" / "queries"
    return path.read_text().split().count(program) if path.exists() else 0


def answers_again(cluster: Cluster) -> None:
    for program in ("sbatch", "squeue", "scontrol"):
        cluster.knob(f"{program}-fails", 0)


def assert_notified_once(ended: Run) -> None:
    assert ended.stderr.count("note: Slurm does not answer; the job stays submitted (") == 1, ended.stderr
    assert ended.stderr.count("note: Slurm answers again") == 1, ended.stderr


@pytest.mark.slow
def test_the_submission_waits_for_the_controller(cluster: Cluster) -> None:
    # Regression: the step failed after 40 s, and its driver reported that jobs may still run.
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    process = cluster.begin({"first": GOOD}, NOTICED)
    wait_until(lambda: num_calls(cluster, "squeue") > 12, 40)
    answers_again(cluster)
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 1
    assert_notified_once(ended)


@pytest.mark.slow
def test_ctrl_c_during_the_wait_ends_at_once_without_a_message_about_jobs(cluster: Cluster) -> None:
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    process = cluster.begin({"first": GOOD})
    wait_until(lambda: num_calls(cluster, "squeue") > 0, 40)
    ended = interrupted(process, within_s=5)
    assert "may still run" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_survey_waits_for_the_controller(cluster: Cluster) -> None:
    # Regression: the run ended at once: "no Slurm that answers".
    cluster.knob("sinfo-fails", 3)
    ended = cluster.go({"first": GOOD}, QUICK)
    assert ended.exit_code == 0, ended.stderr
    assert num_calls(cluster, "sinfo") == 4
    assert len(cluster.submitted) == 1
    begun = "medweave: hpc: Slurm does not answer; the run waits for it (sinfo: error: Unable to contact slurm"
    assert ended.stderr.count(begun) == 1, ended.stderr
    assert ended.stderr.count("medweave: hpc: Slurm answers again") == 1
    assert [event["data"]["text"].partition(";")[0] for event in ended.of_type("notice") if not event["job"]] == [
        "Slurm does not answer", "Slurm answers again",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_connection_lost_during_the_survey_is_opened_again(cluster: Cluster) -> None:
    cluster.knob("sinfo-sleeps")
    process = cluster.begin({"first": GOOD}, QUICK)
    wait_until(lambda: num_calls(cluster, "sinfo") > 0, 40)
    cluster.knob("sinfo-sleeps", "")
    cluster.server.cut()
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert "medweave: hpc: Slurm answers again" in ended.stderr


@pytest.mark.slow
def test_ctrl_c_while_the_survey_waits_ends_at_once(cluster: Cluster) -> None:
    cluster.knob("sinfo-fails", FOREVER)
    process = cluster.begin({"first": GOOD})
    process.wait_for_line("medweave: hpc: Slurm does not answer; the run waits for it (")
    ended = interrupted(process, within_s=5)
    assert "Traceback" not in ended.stderr
    assert cluster.submitted == []


@pytest.mark.slow
def test_the_survey_ends_after_half_an_hour_without_an_answer(cluster: Cluster) -> None:
    cluster.knob("sinfo-fails", FOREVER)
    ended = cluster.go({"first": GOOD}, QUICK + "deadlines.GIVE_UP_AFTER_S = 1.0\n")
    assert ended.exit_code == 1
    assert "deployments.hpc: Slurm does not respond on 127.0.0.1" in ended.stderr
    assert "seen:     no answer for half an hour: sinfo: error: Unable to contact slurm controller" in ended.stderr


@pytest.mark.slow
def test_another_error_of_the_survey_ends_the_run_at_once(cluster: Cluster) -> None:
    cluster.knob("sinfo-says", "Protocol authentication error")
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    assert num_calls(cluster, "sinfo") == 1
    assert "seen:     sinfo: error: Protocol authentication error" in ended.stderr
    assert "does not answer" not in ended.stderr


@pytest.mark.slow
def test_the_submission_ends_after_half_an_hour_without_an_answer(cluster: Cluster) -> None:
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    cluster.config = {}
    ended = cluster.go({"first": GOOD}, QUICK + "deadlines.GIVE_UP_AFTER_S = 1.0\n")
    assert ended.exit_code == 1
    assert "Slurm has not answered for half an hour; nothing was submitted for /first/0: " in ended.stderr
    assert "Unable to contact slurm controller" in ended.stderr
    assert "may still run" not in ended.stderr


@pytest.mark.slow
def test_the_final_state_waits_for_the_controller(cluster: Cluster) -> None:
    # Regression: after 180 s a completed job counted as lost.
    cluster.knob("no-accounting")
    cluster.knob("scontrol-fails", FOREVER)
    process = cluster.begin({"first": GOOD}, NOTICED + "job.END_KNOWN_S = 0.5\n")
    wait_until(lambda: num_calls(cluster, "scontrol") > 8, 40)
    answers_again(cluster)
    ended = process.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert_notified_once(ended)


@pytest.mark.slow
def test_half_an_hour_without_an_answer_after_the_end_is_reported(cluster: Cluster) -> None:
    cluster.knob("no-accounting")
    cluster.knob("scontrol-fails", FOREVER)
    ended = cluster.go({"first": GOOD}, QUICK + "deadlines.GIVE_UP_AFTER_S = 1.0\n")
    assert ended.exit_code == 1
    assert "Slurm has not answered for half an hour; job 100 may still run: " in ended.stderr


@pytest.mark.slow
def test_accounting_alone_reports_the_end(cluster: Cluster) -> None:
    cluster.knob("scontrol-fails", FOREVER)
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize(
    ("refusal", "is_unanswered", "is_not_sent"),
    [
        ("sbatch: error: Unable to contact slurm controller (connect failure)", True, True),
        ("sbatch: error: Unable to contact slurm controller (send failure)", True, False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True, False),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", False, False),
        ("", False, False),
    ],
)
def test_a_job_that_did_not_reach_the_controller_is_not_queued(
    refusal: str, is_unanswered: bool, is_not_sent: bool
) -> None:
    assert (messages.is_unanswered(refusal), messages.is_not_sent(refusal)) == (is_unanswered, is_not_sent)


def test_queries_become_rare_without_answers_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, notices = [1000.0], list[str]()
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now[0])
    waiting, pauses = ResponseDeadline("Slurm", notices.append), []

    def ask_on() -> None:
        while True:
            waiting.no_answer("lost")
            pauses.append(waiting.pause_s)
            now[0] += waiting.pause_s

    with pytest.raises(SiteUnresponsive, match="lost"):
        ask_on()
    assert (pauses[0], pauses[-1]) == (2.0, 30.0)
    assert now[0] - 1000 == pytest.approx(1800, abs=31)
    assert notices == ["Slurm does not answer; the job stays submitted (lost)"]
    waiting.answered()
    waiting.no_answer("again")
    assert notices[1:] == ["Slurm answers again"]


def test_a_query_is_repeated_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SHORTEST_PAUSE_S", 0.001)
    tries = []

    async def ask() -> str:
        tries.append(1)
        if len(tries) < 20:
            raise TimeoutError
        return "answer"

    assert asyncio.run(retry_until_answered(ask, ResponseDeadline("Slurm", tries.append))) == "answer"
    assert len(tries) == 20


def test_other_exceptions_are_raised() -> None:
    tries = []

    async def ask() -> str:
        tries.append(1)
        raise KeyError("internal error")

    with pytest.raises(KeyError):
        asyncio.run(retry_until_answered(ask, ResponseDeadline("Slurm", tries.append), failures=(TimeoutError,)))
    assert len(tries) == 1


def test_a_submission_whose_files_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # The login node answers, Slurm too, and there is no job: an output folder that only root may make, say.
    monkeypatch.setattr(deadlines, "SHORTEST_PAUSE_S", 0.001)
    monkeypatch.setattr(submission, "LOOK_PAUSE_S", 0.001)

    async def ask(line: str) -> str:
        return f"squeue 0\n{END}" if "squeue" in line else f"code \n{END}"

    process = submission.submit(
        ask,
        ["sbatch"],
        SlurmJobFiles("/other.slurm-aa"),
        {},
        "key",
        rate=submission.SubmissionRate(),
        deadline=ResponseDeadline("Slurm", print),
        note_sent=lambda _: None,
    )
    with pytest.raises(submission.SubmissionLost, match="its files could not be written there"):
        asyncio.run(process)
