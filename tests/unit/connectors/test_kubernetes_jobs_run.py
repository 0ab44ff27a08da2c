"""`mode: job` in runs of the engine: one Job per command, over the small API server. The real cluster's are in tests/hybrid."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine import Run, run, start, wait_until
from support.fake_cluster import NEVER_AGAIN
from support.job_server import JobServer, job_cluster, standing_pod
from support.small_cluster import PROGRESS, failure, write

GOOD = "echo {} > run_report.json; echo $POD_NAME > result.txt"
MODE = "selector: app=w, mode: job"
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "3 Insufficient cpu."}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with job_cluster(tmp_path) as serving:
        yield serving


def begin(folder: Path, script: str, *, config: str = MODE, preload: str = "") -> Run:
    """A run whose job works already."""
    write(folder, {"works": PROGRESS + script}, config=config)
    if preload:
        (folder / "preload.py").write_text(preload)
    going = start(folder, preload=folder / "preload.py" if preload else None)
    going.wait_for_line("case 1/2")
    return going


def clean(server: JobServer) -> bool:
    wait_until(lambda: not server.jobs and not server.pods_of_jobs(), 5)
    return not server.jobs and not server.pods_of_jobs()


@pytest.mark.slow
def test_each_command_has_a_pod_of_its_own(tmp_path: Path, server: JobServer) -> None:
    asks = {"requirements": {"ResourceRequirement": {"coresMin": 2, "ramMin": 700}}}
    write(tmp_path, {"first": (PROGRESS + GOOD, asks), "second": GOOD}, config=MODE)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    names = {job["metadata"]["name"]: job for job in server.made}
    assert sorted(name.rpartition("-")[0] for name in names) == ["first-0", "second-0"]
    assert (tmp_path / "results" / "result.txt").read_text().rpartition("-")[0] in names
    assert (ended.record / "reports" / "first" / "run_report.json").read_text() == "{}\n"
    assert "case 1/2: x" in ended.stderr
    (first,) = (job for name, job in names.items() if name.startswith("first"))
    assert first["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "700Mi"}
    site = ended.of_type("job.ended")[0]["data"]["site"]
    assert site["kubernetes_job"] in names
    assert site["pods"][0]["pod"] == f"{site['kubernetes_job']}-0"
    assert {event["location"] for event in ended.of_type("job.scheduled")} == {"w-0:worker"}
    assert clean(server)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        ({"reason": "Evicted", "message": 'Usage of EmptyDir volume "x" exceeds "1Mi"'}, "Preempted", "exceeds"),
        ({"ended": "OOMKilled"}, "OutOfMemory", "out of memory: the container was killed at its memory limit."),
        ({}, "StepFailed", "killed by SIGKILL"),
    ],
    ids=["emptyDir", "oom", "kill"],
)
def test_what_becomes_of_a_jobs_pod(
    tmp_path: Path, server: JobServer, status: dict[str, Any], kind: str, words: str
) -> None:
    going = begin(tmp_path, "exec sleep 60", config=f"{MODE}, reactions: {json.dumps(NEVER_AGAIN)}")
    (pod,) = server.pods_of_jobs()
    server.kill(pod, **status)
    ended = going.wait()
    assert ended.exit_code == 1
    assert failure(ended)["site"]["failure"] == kind, ended.stderr
    assert words in ended.stderr
    assert len(server.made) == 1
    assert clean(server)


@pytest.mark.slow
def test_a_pod_that_somebody_deletes(tmp_path: Path, server: JobServer) -> None:
    going = begin(tmp_path, "exec sleep 60")
    (pod,) = server.pods_of_jobs()
    server.take_away(pod)
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Cancelled"
    assert f"pod {pod} is gone" in ended.stderr or f"{pod}: gone, is being deleted" in ended.stderr
    assert clean(server)


@pytest.mark.slow
def test_an_evicted_pod_is_replaced_and_finds_a_clean_folder(tmp_path: Path, server: JobServer) -> None:
    script = (
        f"ls > {tmp_path}/seen; touch half; [ -e {tmp_path}/again ] && {{ sleep 0.5; {GOOD}; exit; }}; exec sleep 60"
    )
    going = begin(tmp_path, script)
    (pod,) = server.pods_of_jobs()
    (tmp_path / "again").touch()
    server.take_away(pod, "EvictionByEvictionAPI")
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "seen").read_text() == ""
    assert (tmp_path / "results" / "result.txt").read_text().endswith("-1\n"), "the second pod's"
    assert "its pod was disrupted; Kubernetes replaces it" in ended.stderr
    assert len(server.made) == 1


@pytest.mark.slow
def test_an_exit_code_of_the_steps_own_is_not_tried_again(tmp_path: Path, server: JobServer) -> None:
    write(tmp_path, {"bad": "echo x >> ../tries; echo 'medweave-step v: no such case.' >&2; exit 65"}, config=MODE)
    ended = run(tmp_path)
    assert (failure(ended)["site"]["failure"], failure(ended)["exit_code"]) == ("StepFailed", 65)
    assert "first cause: bad on pods, exit code 65, bad data" in ended.stderr
    assert "medweave-step v: no such case." in ended.stderr
    assert [path.read_text() for path in tmp_path.rglob("tries")] == ["x\n"]


@pytest.mark.slow
def test_a_deadline(tmp_path: Path, server: JobServer) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 1}}}
    write(tmp_path, {"sleeper": ("sleep 60", limit)}, config=MODE)
    ended = run(tmp_path)
    assert failure(ended)["site"]["failure"] == "Timeout"
    assert "the time limit of 1 s was reached" in ended.stderr
    assert clean(server)


@pytest.mark.slow
def test_a_job_that_somebody_deletes(tmp_path: Path, server: JobServer) -> None:
    going = begin(tmp_path, "exec sleep 60")
    server.jobs.clear()
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Cancelled"
    assert "it was deleted" in ended.stderr


@pytest.mark.slow
def test_a_job_goes_on_while_the_api_server_does_not_answer(tmp_path: Path, server: JobServer) -> None:
    preload = "from medweave_connectors.host import deadlines\ndeadlines.NOTICE_AFTER_S = 0.5\n"
    going = begin(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; {GOOD}", preload=preload)
    server.refuse["GET", "/jobs"] = 503, "etcdserver: request timed out"
    going.wait_for_line("Kubernetes does not answer")
    (tmp_path / "go").touch()
    server.refuse.clear()
    ended = going.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert len(server.made) == 1
    assert ended.stderr.count("note: Kubernetes does not answer; the job stays submitted (etcdserver: ") == 1, (
        ended.stderr
    )
    assert ended.stderr.count("note: Kubernetes answers again") == 1, ended.stderr


@pytest.mark.slow
def test_a_job_is_lost_after_half_an_hour_without_an_answer_of_the_api_server(
    tmp_path: Path, server: JobServer
) -> None:
    preload = "from medweave_connectors.host import deadlines\ndeadlines.GIVE_UP_AFTER_S = 1.0\n"
    going = begin(tmp_path, "exec sleep 60", preload=preload)
    server.refuse["GET", "/jobs"] = 503, "etcdserver: request timed out"
    ended = going.wait(60)
    assert ended.exit_code == 1
    assert "Kubernetes has not answered for half an hour: etcdserver: " in ended.stderr, ended.stderr


@pytest.mark.slow
def test_a_pod_without_room_is_told_and_refused_at_pending_timeout(tmp_path: Path, server: JobServer) -> None:
    server.pending_status = {"conditions": [NO_ROOM], "containerStatuses": []}
    write(tmp_path, {"first": GOOD}, config=f"{MODE}, pendingTimeout: 2")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert (
        "deployments.pods.config.pendingTimeout: its pod could not start within 2 s (/first/0, Job first-0-"
        in ended.stderr
    )
    notices = [event["data"]["text"] for event in ended.of_type("notice")]
    assert [text for text in notices if "waits" in text] == ["waits for up to 2 s: Unschedulable: 3 Insufficient cpu."]
    assert failure(ended)["site"]["failure"] == "SubmitRejected"
    assert clean(server)


@pytest.mark.slow
def test_the_end_of_a_wait_is_reported(tmp_path: Path, server: JobServer) -> None:
    server.pending_status = {"conditions": [NO_ROOM], "containerStatuses": []}
    write(tmp_path, {"first": f"sleep 1; {GOOD}"}, config=f"{MODE}, pendingTimeout: 30")
    going = start(tmp_path)
    going.wait_for_line("waits for up to 30 s: Unschedulable")
    server.pending_status = None
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    notices = [event["data"]["text"] for event in ended.of_type("notice")]
    assert notices[-2:] == ["waits for up to 30 s: Unschedulable: 3 Insufficient cpu.", "runs now"]


@pytest.mark.slow
def test_jobs_that_wait_ask_for_events_together(tmp_path: Path, server: JobServer) -> None:
    server.pending_status = {"conditions": [NO_ROOM], "containerStatuses": []}
    write(tmp_path, dict.fromkeys(("a", "b", "c", "d"), GOOD), config=f"{MODE}, pendingTimeout: 3")
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert ended.stderr.count("waits for up to 3 s: Unschedulable: 3 Insufficient cpu.") == 4
    # Each job looks ten times a second, and so would ask 30 times.
    assert server.lists_of_events <= 15, "one in 0.4 s, for all four"


@pytest.mark.slow
def test_ctrl_c_leaves_no_job(tmp_path: Path, server: JobServer) -> None:
    going = begin(tmp_path, "trap '' INT; while :; do sleep 0.1; done")
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait()
    assert time.monotonic() - before < 20
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    assert not server.jobs
    assert not server.pods_of_jobs()


@pytest.mark.slow
def test_a_new_run_ends_what_a_killed_driver_left(tmp_path: Path, server: JobServer) -> None:
    going = begin(tmp_path, "exec sleep 60")
    going.signal(signal.SIGKILL)
    going.wait()
    (left,) = server.jobs
    again = tmp_path / "again"
    again.mkdir()
    server.write_kubeconfig(again / "kubeconfig")
    write(again, {"works": GOOD}, config=MODE)
    ended = run(again)
    assert ended.exit_code == 0, ended.stderr
    assert f"removing Job {left}, left by run" in ended.stderr
    assert clean(server)


@pytest.mark.slow
def test_an_answer_that_is_lost_makes_no_second_job(tmp_path: Path, server: JobServer) -> None:
    made = server.refuse_after_making = [503]
    write(tmp_path, {"first": GOOD}, config=MODE)
    ended = run(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert not made
    assert len(server.made) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "status", "config", "message"),
    [
        ("GET", 403, "config.mode", 'jobs.batch is forbidden: User "u" cannot list resource "jobs"'),
        ("POST", 403, "config.namespace", "jobs.batch is forbidden: exceeded quota: count/jobs.batch=2"),
        ("POST", 422, "config.mode", 'Job.batch "x" is invalid: spec.template.spec'),
    ],
)
def test_a_cluster_that_takes_no_jobs(
    tmp_path: Path, server: JobServer, method: str, status: int, config: str, message: str
) -> None:
    server.refuse[(method, "/jobs")] = status, message
    write(tmp_path, {"first": GOOD}, config=MODE)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert f"deployments.pods.{config}: " in ended.stderr
    assert message in ended.stderr


@pytest.mark.slow
def test_pods_that_share_nothing_are_refused_at_the_start(tmp_path: Path, server: JobServer) -> None:
    server.pods.clear()
    server.add(standing_pod(shared=False))
    write(tmp_path, {"first": GOOD}, config=MODE)
    ended = run(tmp_path)
    assert (
        "deployments.pods.config.selector: with `mode: job`, files must be on a volume that the pods of all Jobs mount."
        in ended.stderr
    )
    assert not server.made


@pytest.mark.slow
def test_a_workdir_beside_the_claim_is_refused(tmp_path: Path, server: JobServer) -> None:
    server.pods["w-0"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = "/elsewhere"
    write(tmp_path, {"first": GOOD}, config=MODE)
    ended = run(tmp_path)
    assert "deployments.pods.workdir: with `mode: job`" in ended.stderr
    assert "is on no claim" in ended.stderr
    assert not server.made


def test_a_gang_is_refused(tmp_path: Path, server: JobServer) -> None:
    gang = {"hints": {"urn:medweave:cwl#Gang": {}}}
    server.add(standing_pod("w-1"))
    write(tmp_path, {"train": (GOOD, gang)}, config=MODE, target=", locations: 2")
    assert "locations: 2, and pods has 1" in run(tmp_path).stderr


def test_a_key_without_its_mode_is_not_ignored(tmp_path: Path, server: JobServer) -> None:
    write(tmp_path, {"first": GOOD}, config="selector: app=w, maxConcurrentJobs: 4")
    assert "deployments.pods.config.maxConcurrentJobs: its pods cannot be used." in run(tmp_path).stderr


@pytest.mark.slow
def test_so_many_jobs_at_a_time(tmp_path: Path, server: JobServer) -> None:
    script = f"echo + >> {tmp_path}/log; sleep 0.5; echo - >> {tmp_path}/log; {GOOD}"
    write(tmp_path, dict.fromkeys(("a", "b", "c", "d"), script), config=f"{MODE}, maxConcurrentJobs: 2")
    assert run(tmp_path).exit_code == 0
    most = at_once = 0
    for sign in (tmp_path / "log").read_text().split():
        at_once += 1 if sign == "+" else -1
        most = max(most, at_once)
    assert most == 2
