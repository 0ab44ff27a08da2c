"""A driver with `mode: job` is killed; a new one re-attaches to its Job, or ends it, and none is submitted twice."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.cleanup import clean
from medweave_connectors.sites.pods import owner
from medweave_core.runlog.run_ownership import owner_of
from support.api_server import NAMESPACE
from support.engine import Run, start, wait_until
from support.job_server import JobServer, job_cluster, standing_pod
from support.small_cluster import DEPLOYMENT, write

MODE = "selector: app=w, mode: job"
REATTACHED = "re-attached to Job works-0-"
RUNS_AGAIN = "is ended, and the step runs again: "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with job_cluster(tmp_path) as serving:
        yield serving
        for name in serving.pods_of_jobs():
            serving.take_away(name)
        wait_until(lambda: not serving.pods_of_jobs(), 5)


def tool(folder: Path, script: str = "") -> dict[str, Any]:
    """Return a step that reads a file, waits for another file, and writes its content."""
    data = folder / "data.txt"
    if not data.exists():
        data.write_text("seen")
    inputs = {"data": {"type": "File", "default": {"class": "File", "path": str(data)}, "inputBinding": {}}}
    wait = (
        f'echo begun >> {folder}/begun; while [ ! -e {folder}/go ]; do sleep 0.1; done; {script} cat "$1" > result.txt'
    )
    return {"works": (wait, {"inputs": inputs})}


def begin(folder: Path, tools: dict[str, Any] | None = None, preload: str = "", config: str = MODE) -> Run:
    write(folder, tools or tool(folder), config=config)
    if preload:
        (folder / "preload.py").write_text(preload)
    return start(folder, preload=folder / "preload.py" if preload else None)


def killed(folder: Path, tools: dict[str, Any] | None = None, preload: str = "") -> None:
    """A run whose driver is killed as soon as its Job works."""
    going = begin(folder, tools, preload)
    if not preload:
        wait_until((folder / "begun").exists, 60)
        assert (folder / "begun").exists(), going.stderr
        going.signal(signal.SIGKILL)
    going.wait()
    assert going.exit_code == -signal.SIGKILL, going.stderr
    (folder / "stderr.txt").unlink()


def go(folder: Path, tools: dict[str, Any] | None = None) -> Run:
    return begin(folder, tools).wait(90)


def condition(server: JobServer, job: str) -> str:
    conditions = server.jobs[job]["status"].get("conditions") or [{"type": ""}]
    return str(conditions[0]["type"])


def ended(server: JobServer, kind: str) -> None:
    (job,) = server.jobs
    wait_until(lambda: condition(server, job) == kind)
    assert condition(server, job) == kind


def result(folder: Path, run: Run) -> str:
    assert run.exit_code == 0, run.stderr
    return (folder / "results" / "result.txt").read_text()


def assert_clean(server: JobServer) -> None:
    wait_until(lambda: not server.jobs and not server.pods_of_jobs(), 5)
    assert not server.jobs
    assert not server.pods_of_jobs()


@pytest.mark.slow
def test_a_job_that_runs_is_gone_on_with(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    second = begin(tmp_path)
    second.wait_for_line(REATTACHED)
    (job,) = server.jobs.values()
    wait_until(lambda: owner.owner(job["metadata"]["labels"]) == "running", 5)
    assert owner.owner(job["metadata"]["labels"]) == "running", "whoever looks at it sees the driver that lives"
    (tmp_path / "go").touch()
    assert result(tmp_path, second.wait(60)) == "seen"
    assert len(server.made) == 1
    assert (tmp_path / "begun").read_text() == "begun\n"
    assert "removing Job" not in second.stderr
    assert_clean(server)


@pytest.mark.slow
def test_a_job_that_ended_well_meanwhile_is_not_repeated(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (tmp_path / "go").touch()
    ended(server, "Complete")
    assert result(tmp_path, go(tmp_path)) == "seen"
    assert len(server.made) == 1
    assert_clean(server)


@pytest.mark.slow
def test_a_job_that_failed_meanwhile_is_made_anew(tmp_path: Path, server: JobServer) -> None:
    fails = tool(tmp_path, f"[ -e {tmp_path}/again ] || exit 3;")
    killed(tmp_path, fails)
    (tmp_path / "go").touch()
    ended(server, "Failed")
    (tmp_path / "again").touch()
    again = go(tmp_path, fails)
    assert result(tmp_path, again) == "seen"
    assert f"{RUNS_AGAIN}it has failed (exit code 3)" in again.stderr
    assert len(server.made) == 2
    assert_clean(server)


@pytest.mark.slow
def test_a_job_over_other_data_is_ended_before_another_is_made(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (tmp_path / "data.txt").write_text("new!")  # as long as before
    again = begin(tmp_path)
    again.wait_for_line(f"{RUNS_AGAIN}its inputs differ")
    wait_until(lambda: len(server.made) == 2)
    assert len(server.pods_of_jobs()) == 1
    (tmp_path / "go").touch()
    assert result(tmp_path, again.wait(60)) == "new!"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("image", "its command, image or place differs"),
        ("tag", "its command, image or place differs"),
        ("work", "it was changed"),
        ("uid", "it is another Job of that name"),
        ("folder", "its inputs differ, or its folders are missing"),
        ("patch", "this account may not patch Jobs (jobs.batch is forbidden)"),
    ],
)
def test_a_job_that_is_in_doubt_is_done_anew(tmp_path: Path, server: JobServer, change: str, why: str) -> None:
    killed(tmp_path)
    (job,) = server.jobs.values()
    standing = server.pods["w-0"]
    if change == "image":
        standing["spec"]["containers"][0]["image"] = "y"
    elif change == "tag":  # the same name, and the kubelet reports another digest
        standing["status"]["containerStatuses"][0]["imageID"] = "x@sha256:1"
    elif change == "work":
        job["metadata"]["annotations"]["medweave.dev/work"] = "0"
    elif change == "uid":
        job["metadata"]["uid"] = "another"
    elif change == "folder":
        (folder,) = (tmp_path / "in-pods").glob("*/*.job-*")
        folder.rename(f"{folder}.gone")
    else:
        server.refuse[("PATCH", "/jobs/")] = 403, "jobs.batch is forbidden"
    (tmp_path / "go").touch()
    again = go(tmp_path)
    assert result(tmp_path, again) == "seen"
    assert f"{RUNS_AGAIN}{why}" in again.stderr
    assert REATTACHED not in again.stderr
    assert len(server.made) == 2
    assert_clean(server)


@pytest.mark.slow
def test_a_job_that_is_gone_is_done_anew(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (job,) = server.jobs
    server.take_away(server.pods_of_jobs()[0])
    server.jobs.clear()
    (tmp_path / "go").touch()
    again = go(tmp_path)
    assert result(tmp_path, again) == "seen"
    assert f"note: Job {job} of run" in again.stderr
    assert "is gone; the step runs again" in again.stderr
    assert len(server.made) == 2


@pytest.mark.slow
def test_a_driver_that_is_killed_three_times_has_one_job(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    for _ in range(2):
        going = begin(tmp_path)
        going.wait_for_line(REATTACHED)
        going.signal(signal.SIGKILL)
        going.wait()
        (tmp_path / "stderr.txt").unlink()
    last = begin(tmp_path)
    last.wait_for_line(REATTACHED)
    (tmp_path / "go").touch()
    assert result(tmp_path, last.wait(60)) == "seen"
    assert len(server.made) == 1
    assert_clean(server)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_that_is_killed_when_it_makes_a_job(tmp_path: Path, server: JobServer, moment: str) -> None:
    before, after = ("os.kill(os.getpid(), 9)", "") if moment == "before" else ("", "os.kill(os.getpid(), 9)")
    preload = f"""
import os
from medweave_connectors.sites.kubernetes.job.client import JobCluster
usual = JobCluster.create
async def make(*arguments):
    {before or "pass"}
    await usual(*arguments)
    {after or "pass"}
JobCluster.create = make
"""
    (tmp_path / "go").touch()
    killed(tmp_path, preload=preload)
    again = go(tmp_path)
    assert result(tmp_path, again) == "seen"
    assert (REATTACHED in again.stderr) == (moment == "after")
    assert len(server.made) == 1


@pytest.mark.slow
def test_a_driver_that_is_killed_while_it_takes_a_job_over(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    preload = """
import os
from medweave_connectors.sites.kubernetes.job.client import JobCluster
async def adopt(*arguments, **keys):
    os.kill(os.getpid(), 9)
JobCluster.adopt = adopt
"""
    killed(tmp_path, preload=preload)
    last = begin(tmp_path)
    last.wait_for_line(REATTACHED)
    (tmp_path / "go").touch()
    assert result(tmp_path, last.wait(60)) == "seen"
    assert len(server.made) == 1


@pytest.mark.slow
def test_an_api_server_that_is_silent_is_asked_until_it_answers(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    silent = "PATCH", "/jobs/"
    server.refuse[silent] = 503, "etcdserver: request timed out"
    preload = "from medweave_connectors.sites.kubernetes.job import client\nclient.MAKE_S = 0.1\n"
    again = begin(tmp_path, preload=preload)
    again.wait_for_line("medweave: run ")
    wait_until(
        lambda: server.refusals[silent] >= 8, 60
    )  # before that, one adoption fails after its two or three attempts
    assert server.refusals[silent] >= 8, again.stderr
    assert REATTACHED not in again.stderr
    server.refuse.clear()
    again.wait_for_line(REATTACHED)
    (tmp_path / "go").touch()
    assert result(tmp_path, again.wait(60)) == "seen"
    assert len(server.made) == 1


@pytest.mark.slow
def test_a_job_that_no_step_has_asked_for_goes_with_a_success(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (left,) = server.jobs
    other = begin(tmp_path, {"other": f"while [ ! -e {tmp_path}/on ]; do sleep 0.1; done; echo x > result.txt"})
    wait_until(lambda: len(server.made) == 2, 60)
    assert left in server.jobs
    (tmp_path / "on").touch()
    assert other.wait(60).exit_code == 0, other.stderr
    assert f"removing Job {left}, left by run" in other.stderr
    assert_clean(server)


@pytest.mark.slow
def test_a_job_that_no_step_has_asked_for_outlives_a_failure_and_is_named(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (left,) = server.jobs
    failed = go(tmp_path, {"other": "exit 65"})
    assert failed.exit_code == 1
    assert f"Job {left}, left by run" in failed.stderr
    assert list(server.jobs) == [left]
    (tmp_path / "stderr.txt").unlink()
    again = begin(tmp_path)
    again.wait_for_line(REATTACHED)
    (tmp_path / "go").touch()
    assert result(tmp_path, again.wait(60)) == "seen"


@pytest.mark.slow
def test_a_job_of_another_workflow_is_ended_at_once(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (left,) = server.jobs
    write(tmp_path, {"works": "echo x > result.txt"}, config=MODE)
    file = tmp_path / "streamflow.yml"
    file.write_text(file.read_text().replace("workflows: {tiny:", "workflows: {other:"))
    other = start(tmp_path)
    other.wait_for_line(f"removing Job {left}, left by run")
    assert other.wait(60).exit_code == 0, other.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_job_that_was_taken_over(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    going = begin(tmp_path)
    going.wait_for_line(REATTACHED)
    going.signal(signal.SIGINT)
    going.wait()
    assert not server.jobs
    assert not server.pods_of_jobs()


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "scratch"}, "spec": {}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "expected"),
    [({}, ["PATCH", "DELETE"]), ({"deletionTimestamp": "2026-11-22T10:00:00Z"}, ["DELETE", "PATCH", "DELETE"])],
    ids=["there", "going"],
)
def test_a_claim_of_a_killed_run_is_kept(
    tmp_path: Path, server: JobServer, state: dict[str, str], expected: list[str]
) -> None:
    # It was deleted, with all that steps had finished; while a Job used it, no new pod could start.
    (tmp_path / "pods.yaml").write_text(f"{DEPLOYMENT}---\n{json.dumps(CLAIM)}\n")
    labels = owner.labels() | {owner.DRIVER: re.sub(r"_\d+-", "_999999999-", owner.labels()[owner.DRIVER])}
    path = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/scratch"
    server.objects[path] = CLAIM | {"metadata": {"name": "scratch", "labels": labels} | state}
    methods: list[str] = []

    def note(method: str, document: dict[str, Any]) -> None:
        if document["kind"] == "PersistentVolumeClaim":
            methods.append(method)
        elif method == "PATCH":
            server.add(standing_pod("segment-1"))
            server.pods["segment-1"]["metadata"]["labels"] = document["spec"]["template"]["metadata"]["labels"]

    server.on_apply = lambda document: note("PATCH", document)
    server.on_delete = lambda document: note("DELETE", document)
    write(tmp_path, {"first": "echo x > result.txt"}, config="files: [pods.yaml], mode: job")
    ended = start(tmp_path).wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert methods == expected


def cleaned(folder: Path, run: Path) -> dict[str, dict[str, list[str]]]:
    first = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    config = {"kubeconfig": str(folder / "kubeconfig"), "selector": "app=w", "mode": "job"}
    place = {"name": "pods", "type": "medweave.kubernetes", "config": config, "places": [(None, f"{folder}/in-pods")]}
    options = {
        "run_id": run.name,
        "token": owner_of(run, run.name).token,
        "pid": first["data"]["pid"],
        "has_folders": True,
        "file": str(folder / "streamflow.yml"),
    }
    return asyncio.run(clean(options | {"deployments": [place]}))


@pytest.mark.slow
def test_clean_leaves_a_run_alone_whose_job_another_one_goes_on_with(tmp_path: Path, server: JobServer) -> None:
    killed(tmp_path)
    (first,) = (tmp_path / "runs").glob("[!.]*")
    going = begin(tmp_path)
    going.wait_for_line(REATTACHED)
    (second,) = set((tmp_path / "runs").glob("[!.]*")) - {first}
    (left,) = server.jobs
    report = cleaned(tmp_path, first)
    assert report["removed"]["pods"] == []
    assert (
        f"Job {left}, which works in the run's folder: run {second.name} has re-attached to it"
        in report["stays"]["pods"]
    )
    assert (tmp_path / "in-pods" / first.name).is_dir()
    going.signal(signal.SIGKILL)
    going.wait()
    report = cleaned(tmp_path, first)
    assert f"Job {left}" in report["removed"]["pods"], report
    assert_clean(server)
    assert not (tmp_path / "in-pods" / first.name).exists()
