"""Re-attach: a driver is killed and a new one starts; the running job is found again, and none is submitted twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, wait_until
from support.fake_cluster import Cluster, fake_cluster

REATTACHED = "re-attached to Slurm job 100 of an earlier driver"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as started:
        yield started


def tool(cluster: Cluster, script: str = "") -> dict[str, Any]:
    """Return a step that reads a file, waits for a signal file, and writes the content."""
    data = cluster.folder / "data.txt"
    if not data.exists():
        data.write_text("seen")
    go = cluster.folder / "go"
    inputs = {"data": {"type": "File", "default": {"class": "File", "path": str(data)}, "inputBinding": {}}}
    wait = (
        f'echo begun >> {cluster.folder}/begun; while [ ! -e {go} ]; do sleep 0.1; done; {script} cat "$1" > result.txt'
    )
    return {"first": (wait, {"inputs": inputs})}


def killed(cluster: Cluster, tools: dict[str, Any], preload: str = "") -> None:
    """A run whose driver is killed as soon as its job has begun."""
    process = cluster.begin(tools, preload)
    if not preload:
        wait_until((cluster.folder / "begun").exists, 60)
        assert (cluster.folder / "begun").exists(), process.stderr
        process.signal(signal.SIGKILL)
    process.wait()
    assert process.exit_code == -signal.SIGKILL, process.stderr
    (cluster.folder / "stderr.txt").unlink()


def result(cluster: Cluster, ended: Run) -> str:
    assert ended.exit_code == 0, ended.stderr
    return (cluster.folder / "results" / "result.txt").read_text()


def runs(cluster: Cluster) -> list[list[dict[str, Any]]]:
    """The events of all runs, the oldest first."""
    logs = sorted((cluster.folder / "runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


@pytest.mark.slow
def test_a_running_job_is_reattached(cluster: Cluster) -> None:
    killed(cluster, tool(cluster))
    second = cluster.begin(tool(cluster))
    second.wait_for_line(REATTACHED)
    (cluster.folder / "go").touch()
    assert result(cluster, second.wait(60)) == "seen"
    assert len(cluster.submitted) == 1
    assert (cluster.folder / "begun").read_text() == "begun\n"
    assert not [event for event in runs(cluster)[0] if event["type"] == "run.ended"]
    assert {event["run_id"] for event in runs(cluster)[0]} != {event["run_id"] for event in runs(cluster)[1]}


@pytest.mark.slow
def test_a_completed_job_is_not_repeated(cluster: Cluster) -> None:
    killed(cluster, tool(cluster))
    (cluster.folder / "go").touch()
    wait_until(lambda: cluster.word() == "COMPLETED")
    assert result(cluster, cluster.go(tool(cluster))) == "seen"
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_failed_job_is_submitted_again(cluster: Cluster) -> None:
    killed(cluster, tool(cluster, "[ -e again ] || exit 3;"))
    (cluster.folder / "go").touch()
    wait_until(lambda: cluster.word() == "FAILED")
    (cluster.folder / "begun").unlink()
    ended = cluster.go(tool(cluster, "[ -e again ] || exit 3;"))
    assert ended.exit_code == 1
    assert len(cluster.submitted) == 2
    assert REATTACHED not in ended.stderr


@pytest.mark.slow
def test_a_query_about_an_earlier_job_is_repeated_until_the_site_answers(cluster: Cluster) -> None:
    # Seven questions were the end of it; and where only the controller was silent, a job that had failed was taken over.
    cluster.knob("no-accounting")
    killed(cluster, tool(cluster, "[ -e again ] || exit 3;"))
    (cluster.folder / "go").touch()
    wait_until(lambda: cluster.word() == "FAILED")
    cluster.knob("scontrol-fails", 8)
    process = cluster.begin(
        tool(cluster, "[ -e again ] || exit 3;"),
        "from medweave_connectors.host import deadlines\ndeadlines.SHORTEST_PAUSE_S, deadlines.NOTICE_AFTER_S = 0.2, 0.5\n",
    )
    ended = process.wait(60)
    assert (ended.exit_code, REATTACHED in ended.stderr) == (1, False), ended.stderr
    assert len(cluster.submitted) == 2
    assert ended.stderr.count("note: Slurm does not answer") == ended.stderr.count("note: Slurm answers again") == 1


@pytest.mark.slow
def test_a_job_that_may_be_requeued_ends_only_by_the_controller(cluster: Cluster) -> None:
    # Regression: accounting had the end of the first start, the controller did not answer, and a second job was submitted.
    killed(cluster, tool(cluster))
    word = cluster.folder / "slurm" / "jobs" / "100" / "word"
    word.write_text("PREEMPTED")
    cluster.knob("scontrol-fails", 3)
    process = cluster.begin(
        tool(cluster), "from medweave_connectors.host import deadlines\ndeadlines.SHORTEST_PAUSE_S = 0.5\n"
    )
    wait_until(lambda: (cluster.folder / "slurm" / "scontrol-fails").read_text() == "0", 60)
    word.write_text("RUNNING")
    process.wait_for_line(REATTACHED)
    (cluster.folder / "go").touch()
    assert result(cluster, process.wait(60)) == "seen"
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_job_over_other_data_is_not_reattached(cluster: Cluster) -> None:
    killed(cluster, tool(cluster))
    (cluster.folder / "data.txt").write_text("new!")  # as long as before
    (cluster.folder / "go").touch()
    assert result(cluster, cluster.go(tool(cluster))) == "new!"
    assert len(cluster.submitted) == 2


@pytest.mark.slow
def test_a_driver_that_is_killed_three_times_has_one_job(cluster: Cluster) -> None:
    killed(cluster, tool(cluster))
    for _ in range(2):
        process = cluster.begin(tool(cluster))
        process.wait_for_line(REATTACHED)
        process.signal(signal.SIGKILL)
        process.wait()
        (cluster.folder / "stderr.txt").unlink()
    last = cluster.begin(tool(cluster))
    last.wait_for_line(REATTACHED)
    (cluster.folder / "go").touch()
    assert result(cluster, last.wait(60)) == "seen"
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_driver_that_is_killed_before_sbatch_answers(cluster: Cluster) -> None:
    cluster.knob("sbatch-sleeps", 2.5)
    killed(cluster, tool(cluster))
    (cluster.folder / "go").touch()
    assert result(cluster, cluster.go(tool(cluster))) == "seen"
    assert len(cluster.submitted) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_at_the_submission(cluster: Cluster, moment: str) -> None:
    before, after = ("os.kill(os.getpid(), 9)", "") if moment == "before" else ("", "os.kill(os.getpid(), 9)")
    preload = f"""
import os
from medweave_connectors.sites.slurm import submission
usual = submission.submit
async def submit(*arguments, **keys):
    {before or "pass"}
    await usual(*arguments, **keys)
    {after or "pass"}
submission.submit = submit
"""
    (cluster.folder / "go").touch()
    killed(cluster, tool(cluster), preload)
    assert result(cluster, cluster.go(tool(cluster))) == "seen"
    assert len(cluster.submitted) == 1


@pytest.mark.slow
def test_a_run_canceled_by_its_user_leaves_no_job_to_reattach(cluster: Cluster) -> None:
    process = cluster.begin(tool(cluster))
    wait_until((cluster.folder / "begun").exists, 60)
    process.signal(signal.SIGINT)
    process.wait()
    (cluster.folder / "go").touch()
    assert result(cluster, cluster.go(tool(cluster))) == "seen"
    assert len(cluster.submitted) == 2
