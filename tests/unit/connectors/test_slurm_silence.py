"""A Slurm that does not answer, at the first look, at the submission or after the end: it is asked again, and nothing follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.sites.slurm import deadlines, messages, submission
from medweave_connectors.sites.slurm.commands import END
from medweave_connectors.sites.slurm.deadlines import Patience, SiteSilent, until_answered
from medweave_connectors.sites.slurm.script import JobFiles
from support.engine import Run, wait_until
from support.fake_cluster import Cluster, fake_cluster, interrupted

GOOD = "echo {} > run_report.json; echo done > result.txt"
FOREVER = "always"
QUICK = "from medweave_connectors.sites.slurm import job, patience\npatience.SHORTEST_PAUSE_S = 0.05\n"
NOTICED = QUICK + "patience.SILENCE_NOTICE_S = 0.5\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        yield made


def asked(cluster: Cluster, program: str) -> int:
    path = cluster.folder / "slurm" / "asked"
    return path.read_text().split().count(program) if path.exists() else 0


def answers_again(cluster: Cluster) -> None:
    for program in ("sbatch", "squeue", "scontrol"):
        cluster.knob(f"{program}-fails", 0)


def assert_told_once(ended: Run) -> None:
    assert ended.stderr.count("note: Slurm does not answer; the job is not given up (") == 1, ended.stderr
    assert ended.stderr.count("note: Slurm answers again") == 1, ended.stderr


@pytest.mark.slow
def test_a_controller_that_is_away_at_the_submission_is_waited_for(cluster: Cluster) -> None:
    # The step failed after 40 s, and its driver said that jobs may still run.
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    going = cluster.begin({"first": GOOD}, NOTICED)
    wait_until(lambda: asked(cluster, "squeue") > 12, 40)
    answers_again(cluster)
    ended = going.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 1
    assert_told_once(ended)


@pytest.mark.slow
def test_ctrl_c_during_the_wait_ends_at_once_and_speaks_of_no_job(cluster: Cluster) -> None:
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    going = cluster.begin({"first": GOOD})
    wait_until(lambda: asked(cluster, "squeue") > 0, 40)
    ended = interrupted(going, within_s=5)
    assert "may still run" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_controller_that_is_away_at_the_first_look_is_waited_for(cluster: Cluster) -> None:
    # The run ended at once: "no Slurm that answers".
    cluster.knob("sinfo-fails", 3)
    ended = cluster.go({"first": GOOD}, QUICK)
    assert ended.exit_code == 0, ended.stderr
    assert asked(cluster, "sinfo") == 4
    assert len(cluster.submitted) == 1
    begun = "medweave: hpc: Slurm does not answer; the run waits for it (sinfo: error: Unable to contact slurm"
    assert ended.stderr.count(begun) == 1, ended.stderr
    assert ended.stderr.count("medweave: hpc: Slurm answers again") == 1
    assert [event["data"]["text"].partition(";")[0] for event in ended.of_type("notice") if not event["job"]] == [
        "Slurm does not answer", "Slurm answers again",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_link_that_is_cut_during_the_first_look_is_made_again(cluster: Cluster) -> None:
    cluster.knob("sinfo-sleeps")
    going = cluster.begin({"first": GOOD}, QUICK)
    wait_until(lambda: asked(cluster, "sinfo") > 0, 40)
    cluster.knob("sinfo-sleeps", "")
    cluster.server.cut()
    ended = going.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert "medweave: hpc: Slurm answers again" in ended.stderr


@pytest.mark.slow
def test_ctrl_c_while_the_first_look_waits_ends_at_once(cluster: Cluster) -> None:
    cluster.knob("sinfo-fails", FOREVER)
    going = cluster.begin({"first": GOOD})
    going.wait_for_line("medweave: hpc: Slurm does not answer; the run waits for it (")
    ended = interrupted(going, within_s=5)
    assert "Traceback" not in ended.stderr
    assert cluster.submitted == []


@pytest.mark.slow
def test_half_an_hour_of_silence_at_the_first_look_is_the_end_of_it(cluster: Cluster) -> None:
    cluster.knob("sinfo-fails", FOREVER)
    ended = cluster.go({"first": GOOD}, QUICK + "patience.SILENCE_END_S = 1.0\n")
    assert ended.exit_code == 1
    assert "deployments.hpc: no Slurm that answers on 127.0.0.1" in ended.stderr
    assert "seen:     no answer for half an hour: sinfo: error: Unable to contact slurm controller" in ended.stderr


@pytest.mark.slow
def test_what_is_no_silence_at_the_first_look_ends_the_run_at_once(cluster: Cluster) -> None:
    cluster.knob("sinfo-says", "Protocol authentication error")
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 1
    assert asked(cluster, "sinfo") == 1
    assert "seen:     sinfo: error: Protocol authentication error" in ended.stderr
    assert "does not answer" not in ended.stderr


@pytest.mark.slow
def test_half_an_hour_of_silence_at_the_submission_is_the_end_of_it(cluster: Cluster) -> None:
    cluster.knob("sbatch-fails", FOREVER)
    cluster.knob("squeue-fails", FOREVER)
    cluster.config = {}
    ended = cluster.go({"first": GOOD}, QUICK + "patience.SILENCE_END_S = 1.0\n")
    assert ended.exit_code == 1
    assert "Slurm has not answered for half an hour; nothing was submitted of /first/0: " in ended.stderr
    assert "Unable to contact slurm controller" in ended.stderr
    assert "may still run" not in ended.stderr


@pytest.mark.slow
def test_a_controller_that_is_away_after_the_end_is_waited_for(cluster: Cluster) -> None:
    # After 180 s a good job was lost: nobody knew how it had ended.
    cluster.knob("no-accounting")
    cluster.knob("scontrol-fails", FOREVER)
    going = cluster.begin({"first": GOOD}, NOTICED + "job.END_KNOWN_S = 0.5\n")
    wait_until(lambda: asked(cluster, "scontrol") > 8, 40)
    answers_again(cluster)
    ended = going.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert_told_once(ended)


@pytest.mark.slow
def test_half_an_hour_of_silence_after_the_end_is_told_as_such(cluster: Cluster) -> None:
    cluster.knob("no-accounting")
    cluster.knob("scontrol-fails", FOREVER)
    ended = cluster.go({"first": GOOD}, QUICK + "patience.SILENCE_END_S = 1.0\n")
    assert ended.exit_code == 1
    assert "Slurm has not answered for half an hour; job 100 may still run: " in ended.stderr


@pytest.mark.slow
def test_accounting_alone_knows_the_end(cluster: Cluster) -> None:
    cluster.knob("scontrol-fails", FOREVER)
    ended = cluster.go({"first": GOOD})
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize(
    ("refusal", "unanswered", "never_heard"),
    [
        ("sbatch: error: Unable to contact slurm controller (connect failure)", True, True),
        ("sbatch: error: Unable to contact slurm controller (send failure)", True, False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True, False),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", False, False),
        ("", False, False),
    ],
)
def test_where_the_controller_was_not_reached_there_is_no_job(
    refusal: str, unanswered: bool, never_heard: bool
) -> None:
    assert (messages.unanswered(refusal), messages.never_heard(refusal)) == (unanswered, never_heard)


def test_questions_become_rare_in_a_long_silence_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [1000.0], list[str]()
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now[0])
    waiting, pauses = Patience(told.append), []

    def ask_on() -> None:
        while True:
            waiting.silent("lost")
            pauses.append(waiting.pause_s)
            now[0] += waiting.pause_s

    with pytest.raises(SiteSilent, match="lost"):
        ask_on()
    assert (pauses[0], pauses[-1]) == (2.0, 30.0)
    assert now[0] - 1000 == pytest.approx(1800, abs=31)
    assert told == ["Slurm does not answer; the job is not given up (lost)"]
    waiting.answered()
    waiting.silent("again")
    assert told[1:] == ["Slurm answers again"]


def test_a_question_is_asked_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "SHORTEST_PAUSE_S", 0.001)
    tries = []

    async def ask() -> str:
        tries.append(1)
        if len(tries) < 20:
            raise TimeoutError
        return "answer"

    assert asyncio.run(until_answered(ask, Patience(tries.append))) == "answer"
    assert len(tries) == 20


def test_what_is_no_silence_is_raised() -> None:
    tries = []

    async def ask() -> str:
        tries.append(1)
        raise KeyError("a fault of ours")

    with pytest.raises(KeyError):
        asyncio.run(until_answered(ask, Patience(tries.append), silences=(TimeoutError,)))
    assert len(tries) == 1


def test_a_submission_whose_files_cannot_be_written_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    # The login node answers, Slurm too, and there is no job: an output folder that only root may make, say.
    monkeypatch.setattr(deadlines, "SHORTEST_PAUSE_S", 0.001)
    monkeypatch.setattr(submission, "LOOK_PAUSE_S", 0.001)

    async def ask(line: str) -> str:
        return f"squeue 0\n{END}" if "squeue" in line else f"code \n{END}"

    going = submission.submit(
        ask, ["sbatch"], JobFiles("/other.slurm-aa"), {}, "key", patience=Patience(print), may_have_it=lambda _: None
    )
    with pytest.raises(submission.NotTaken, match="its files could not be written there"):
        asyncio.run(going)
