"""`medweave clean`: traces of a killed run at a site, over real ssh, with a fake of Slurm."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.runs.clean import CleanTarget, clean_targets, file_of_run, remove_scratch
from medweave_connectors.runlog.event_log import EventLog
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import LOG_FILE, read_run
from medweave_core.runlog.run_ownership import RECORD_MARK
from support.engine import Run, wait_until
from support.fake_cluster import Cluster, fake_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as started:
        yield started


@pytest.fixture
def running(cluster: Cluster) -> Run:
    """A run whose job is running."""
    run = cluster.begin({"first": "sleep 120"})
    wait_until(lambda: cluster.word() == "RUNNING", 60)
    return run


@pytest.mark.slow
def test_traces_of_a_killed_run_are_removed_and_its_log_stays(
    cluster: Cluster, running: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    running.signal(signal.SIGKILL)
    running.wait()
    folder = running.record
    stranger = cluster.folder / "site" / "stranger"
    stranger.mkdir()
    assert main(["clean", str(folder)]) == 0
    output = capsys.readouterr().out
    assert f"login: 1 jobs canceled, {cluster.folder}/site/{folder.name} removed" in output
    assert cluster.word() == "CANCELLED"
    assert list((cluster.folder / "site").iterdir()) == [stranger]
    assert sorted(path.name for path in folder.iterdir()) == [RECORD_MARK, "events.jsonl"]
    assert sorted(path.name for path in cluster.folder.glob(".medweave*")) == []
    assert main(["clean", str(folder)]) == 0, "a second call finds nothing"


@pytest.mark.slow
def test_a_running_run_is_not_cleaned(cluster: Cluster, running: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(running.record)]) == 65
    assert f"seen:     driver process {running.process.pid}" in capsys.readouterr().err
    assert cluster.word() == "RUNNING"
    running.signal(signal.SIGINT)
    running.wait()


@pytest.mark.slow
def test_a_run_with_a_re_attached_job_is_not_cleaned(
    cluster: Cluster, running: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    running.signal(signal.SIGKILL)
    running.wait()
    folder = running.record
    (cluster.folder / "stderr.txt").unlink()
    second = cluster.begin({"first": "sleep 120"})
    second.wait_for_line("re-attached to Slurm job 100")
    assert main(["clean", str(folder)]) == 75
    assert "seen:     re-attached jobs: /first/0\n" in capsys.readouterr().err
    assert cluster.word() == "RUNNING"
    assert (cluster.folder / "site" / folder.name).is_dir()
    second.signal(signal.SIGINT)
    second.wait()
    assert main(["clean", str(folder)]) == 0


@pytest.mark.slow
def test_a_site_that_cannot_be_reached_is_not_called_clean(
    cluster: Cluster, running: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    running.signal(signal.SIGKILL)
    running.wait()
    cluster.server.stop()
    assert main(["clean", str(running.record)]) == 75
    captured = capsys.readouterr()
    assert "some files or jobs could not be removed" in captured.err
    assert "removed" not in captured.out
    assert (running.record / "work").is_dir()


def test_targets_are_the_machines_that_jobs_use() -> None:
    document = {
        "workflows": {
            "lung": {
                "bindings": [
                    {"step": "/", "target": {"deployment": "hpc", "workdir": "/fast"}},
                    {"port": "/in", "target": {"deployment": "hpc", "workdir": "/data"}},
                ]
            }
        },
        "deployments": {
            "login": {"type": "medweave.ssh", "workdir": "/scratch"},
            "hpc": {"type": "medweave.slurm", "wraps": "login"},
            "pods": {"type": "medweave.helm", "workdir": "/work"},
            "here": {"type": "medweave.local"},
        },
    }
    assert clean_targets(document) == [CleanTarget(deployment="login", workdirs=("/fast", "/scratch"), clusters=("",))]


def test_each_host_of_a_deployment_is_a_target() -> None:
    hosts = {"type": "medweave.ssh", "workdir": "/work", "config": {"nodes": ["ws-1", "ws-2"], "username": "me"}}
    targets = clean_targets({"deployments": {"hosts": hosts}})
    assert [(target.name, target.workdirs) for target in targets] == [
        ("hosts ws-1", ("/work",)),
        ("hosts ws-2", ("/work",)),
    ]
    assert [target.alone(hosts)["config"] for target in targets] == [
        {"nodes": ["ws-1"], "username": "me"},
        {"nodes": ["ws-2"], "username": "me"},
    ]


@pytest.mark.slow
def test_a_run_that_was_started_with_another_file_needs_that_file(cluster: Cluster, running: Run) -> None:
    running.signal(signal.SIGKILL)
    running.wait()
    record = read_run(running.record)
    usual = cluster.folder / "streamflow.yml"
    assert file_of_run(record, None) == usual
    (usual.parent / str(record.facts["workflow_file"])).unlink()
    with pytest.raises(UserInputError, match="started with another file") as caught:
        file_of_run(record, None)
    assert "--file" in caught.value.do
    assert file_of_run(record, usual) == usual


def test_scratch_of_a_run_with_a_chosen_id_and_no_token_stays_and_repeating_is_not_advised(tmp_path: Path) -> None:
    scratch = tmp_path / "results" / "work"
    scratch.mkdir(parents=True)
    log = EventLog(tmp_path / "results" / LOG_FILE, "results")
    log.append("run.started", data={"workflow": "lung"})
    log.close()
    with pytest.raises(UserInputError, match="it may belong to another run") as refused:
        remove_scratch(read_run(tmp_path / "results"))
    assert "by hand" in refused.value.do
    assert scratch.exists()
