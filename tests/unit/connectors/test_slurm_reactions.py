"""Runs of the real engine over a fake Slurm: retries after a failed job, in the outputs, the event log and the messages."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_core.runlog.history import read_run
from support.engine import Run, wait_until
from support.fake_cluster import Cluster, fake_cluster, interrupted

AT_ONCE = {kind: {"wait": 0} for kind in ("Preempted", "NodeFail", "StepFailed")}
# Counts its starts in a file that no start removes.
COUNTED = "echo x >> {folder}/starts; starts=$(wc -l < {folder}/starts); "
HALF_THEN_DONE = (
    COUNTED
    + "[ ! -e half.txt ] || exit 65; [ $starts -gt 1 ] || {{ echo half > half.txt; {end}; }}; echo done > result.txt"
)
SAVES = {"hints": {"urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as made:
        made.config = {"reactions": AT_ONCE}
        yield made


def script(cluster: Cluster, text: str, **words: str) -> str:
    return text.format(folder=cluster.folder, **words)


def reactions(ended: Run) -> list[dict[str, Any]]:
    return [dict(event["data"]) for event in ended.of_type("job.reaction")]


def memory(submitted: str) -> str:
    match = re.search(r"--mem=(\S+)", submitted)
    assert match is not None
    return match[1]


@pytest.mark.slow
@pytest.mark.parametrize(("word", "kind"), [("PREEMPTED", "Preempted"), ("NODE_FAIL", "NodeFail")])
def test_a_job_that_the_site_ended_is_retried_in_a_clean_folder(cluster: Cluster, word: str, kind: str) -> None:
    cluster.knob("end-word", f"{word} -")
    ended = cluster.go({"first": script(cluster, HALF_THEN_DONE, end="exit 0")})
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 2
    attempts = [(job["data"]["attempt"], job["data"]["state"]) for job in ended.of_type("job.ended")]
    assert attempts == [(1, "failed"), (2, "completed")]
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["again"], reaction["attempt"]) == (kind, True, 1)
    assert [job["data"]["attempt"] for job in ended.of_type("job.started")] == [1, 2]
    assert re.search(rf"first +note: {kind}: attempt 2$", ended.stderr, re.MULTILINE)
    assert (cluster.folder / "results" / "result.txt").read_text() == "done\n"
    run = read_run(ended.record)
    assert [(job.attempt, job.state) for job in run.jobs] == [(1, "failed"), (2, "completed")]
    assert run.failures() == []
    assert ("first", f"{kind}: attempt 2") in run.notices
    # The first attempt left only its output lines.
    assert not list((cluster.folder / "site").rglob("half.txt"))


@pytest.mark.slow
def test_a_job_without_memory_gets_more_until_the_largest_node(cluster: Cluster) -> None:
    cluster.knob("end-word", "OUT_OF_MEMORY")
    keys = {"requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 4000}}}
    ended = cluster.go({"first": ("echo half > result.txt", keys)})
    assert ended.exit_code == 1
    assert [memory(words) for words in cluster.submitted] == ["4000M", "6000M", "8000M"]
    *again, last = reactions(ended)
    assert [reaction["memory_mib"] for reaction in again] == [6000, 8000]
    assert not last["again"]
    assert "not retried: it had 8000 MiB, and 8000 MiB is the limit" in ended.stderr
    (end,) = ended.of_type("run.ended")
    assert (end["data"]["state"], end["data"]["first_cause"]) == ("failed", "/first/0")
    assert ended.stderr.count("ran out of memory (8000 MiB on each node)") == 1
    assert not (cluster.folder / "results" / "result.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("code", "submitted"), [(65, 1), (70, 1), (1, 1), (75, 3)])
def test_a_failed_step(cluster: Cluster, code: int, submitted: int) -> None:
    ended = cluster.go({"first": f"exit {code}"})
    assert ended.exit_code == 1
    assert len(cluster.submitted) == submitted
    assert len(ended.of_type("job.ended")) == submitted
    assert [reaction["failure"] for reaction in reactions(ended)] == ["StepFailed"] * submitted
    assert ended.of_type("job.ended")[-1]["data"]["site"]["failure"] == "StepFailed"


@pytest.mark.slow
def test_a_canceled_job_is_not_retried(cluster: Cluster) -> None:
    cluster.knob("end-word", "CANCELLED")
    assert cluster.go({"first": "echo done > result.txt"}).exit_code == 1
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_job_that_is_lost_is_not_submitted_again(cluster: Cluster) -> None:
    process = cluster.begin(
        {"first": 'echo \'medweave-progress {"unit":"case","done":1,"total":2}\' >&2; sleep 30'},
        "import medweave_connectors.sites.slurm.job as job; job.END_KNOWN_S = 1.0",
    )
    process.wait_for_line("case 1/2")
    cluster.knob("forget", "all")
    ended = process.wait(60)
    cluster.knob("forget", "")
    assert ended.exit_code == 1
    assert len(cluster.submitted) == 1
    assert reactions(ended)[0]["failure"] == "Unknown"


@pytest.mark.slow
def test_a_training_continues_past_its_time_limit(cluster: Cluster) -> None:
    # It counts to 45, ten a second, and saves on the signal; each job has 4 s, and gets the signal after half of them.
    cluster.knob("time-limit", "4")
    step = (
        'at=0; [ -z "$MEDWEAVE_RESUME_FROM" ] || at=$(cat "$MEDWEAVE_RESUME_FROM/at"); echo from $at >> {folder}/starts; '
        "trap 'mkdir -p saved; echo $at > saved/part; mv saved/part saved/at' USR1; "
        "while [ $at -lt 45 ]; do sleep 0.1 & wait $!; at=$((at+1)); done; echo $at > result.txt"
    )
    ended = cluster.go({"first": (script(cluster, step), SAVES)})
    assert ended.exit_code == 0, ended.stderr
    starts = [int(line.split()[1]) for line in (cluster.folder / "starts").read_text().splitlines()]
    assert len(starts) == len(cluster.submitted) > 1
    assert starts[0] == 0
    assert starts == sorted(set(starts)), "each attempt continues from the last checkpoint"
    assert all(reaction["from_checkpoint"] for reaction in reactions(ended))
    assert "Timeout: attempt 2 from its newest checkpoint" in ended.stderr
    assert (cluster.folder / "results" / "result.txt").read_text() == "45\n"
    assert all("--signal=B:USR1@" in words for words in cluster.submitted)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, SAVES])
def test_a_time_limit_without_a_new_checkpoint_is_not_retried(cluster: Cluster, keys: dict[str, Any]) -> None:
    cluster.knob("time-limit", "1")
    ended = cluster.begin(
        {"first": ("trap : USR1; echo half > result.txt; while :; do sleep 0.1; done", keys)},
        "import medweave_connectors.jobs.retries.attempts as attempts; attempts.LOOK_PAUSE_S = 0.1",
    ).wait(90)
    assert ended.exit_code == 1
    assert len(cluster.submitted) == 1
    (reaction,) = reactions(ended)
    assert (reaction["failure"], reaction["again"]) == ("Timeout", False)
    assert "hit its time limit" in ended.stderr


@pytest.mark.slow
def test_staged_files_exist_in_each_attempt(cluster: Cluster) -> None:
    cluster.knob("end-word", "PREEMPTED -")
    staged = {"entryname": "staged.txt", "entry": "as the workflow made it", "writable": True}
    keys = {"requirements": {"InitialWorkDirRequirement": {"listing": [staged]}}}
    ended = cluster.go({"first": ("cp staged.txt result.txt; echo spoilt > staged.txt", keys)})
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 2
    assert (cluster.folder / "results" / "result.txt").read_text() == "as the workflow made it"


@pytest.mark.slow
def test_a_job_refused_for_now(cluster: Cluster) -> None:
    cluster.config = {"reactions": {"SubmitRejected": {"do": "again", "wait": 0}}}
    cluster.knob("sbatch-refuses", 1)
    ended = cluster.go({"first": "echo done > result.txt"})
    assert ended.exit_code == 0, ended.stderr
    assert reactions(ended)[0]["failure"] == "SubmitRejected"
    assert "Job violates accounting/QOS policy" in ended.stderr
    assert "first cause" not in ended.stderr


@pytest.mark.slow
def test_a_reattached_job_that_fails_is_retried_in_a_clean_folder(cluster: Cluster) -> None:
    cluster.knob("end-word", "PREEMPTED -")
    wait = f"while [ ! -e {cluster.folder}/go ]; do sleep 0.1; done; exit 0"
    tools = {"first": script(cluster, HALF_THEN_DONE, end=wait)}
    first = cluster.begin(tools)
    wait_until((cluster.folder / "starts").exists, 30)
    first.signal(signal.SIGKILL)
    first.wait()
    (cluster.folder / "stderr.txt").unlink()
    second = cluster.begin(tools)
    second.wait_for_line("re-attached to Slurm job 100")
    (cluster.folder / "go").touch()
    second.wait()
    assert second.exit_code == 0, second.stderr
    assert len(cluster.submitted) == 2
    assert "note: Preempted: attempt 2" in second.stderr
    assert (cluster.folder / "results" / "result.txt").read_text() == "done\n"


@pytest.mark.slow
def test_the_end_of_the_run_ends_the_wait_for_a_retry(cluster: Cluster) -> None:
    cluster.config = {"reactions": {"Preempted": {"wait": 600}}}
    cluster.knob("end-word", "PREEMPTED")
    process = cluster.begin({"first": "true"})
    process.wait_for_line("attempt 2 in 600 s")
    ended = interrupted(process, within_s=20)
    assert len(cluster.submitted) == 1
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"


@pytest.mark.slow
def test_other_jobs_of_a_scatter_do_not_wait_for_a_retry(cluster: Cluster) -> None:
    cluster.knob("end-word", "PREEMPTED -")
    ended = cluster.go({"first": "echo done > result.txt", "second": "echo done > result.txt"})
    assert ended.exit_code == 0, ended.stderr
    assert len(cluster.submitted) == 3
