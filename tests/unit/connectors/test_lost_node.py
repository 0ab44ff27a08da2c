"""Nodes that the cluster misses, in runs over the small API server: it says so as the real one does (`NODE_MISSED`)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.api_server import NODE_MISSED, ApiServer
from support.engine import Run, start, wait_until
from support.fake_cluster import NEVER_AGAIN
from support.job_server import JobServer, job_cluster
from support.small_cluster import PROGRESS, failure, small_cluster, write

SOON = """
from medweave_connectors.sites.kubernetes.job import lifecycle as job
from medweave_connectors.sites.pods import attempts
from medweave_connectors.sites.pods.exec import containers, pod_group
pod_group.BACK_S = 1.0
attempts.NODE_S = pod_group.NODE_S = {node_s}
containers.LOOK_S = 0.5
job.LOST_NODE_S = {lost_node_s}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with small_cluster(tmp_path) as serving:
        yield serving


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[JobServer]:
    with job_cluster(tmp_path) as serving:
        yield serving


def begin(folder: Path, script: str, *, node_s: float = 20.0, lost_node_s: float = 1.5, **config: Any) -> Run:
    """A run whose step works already, and whose driver waits for shorter than usual.

    Args:
        node_s: longest wait for what the cluster reports of a pod that is not reached, s.
        lost_node_s: the node of a Job is lost after so long, s.
    """
    write(folder, {"works": PROGRESS + script}, **config)
    going = start_soon(folder, node_s=node_s, lost_node_s=lost_node_s)
    going.wait_for_line("case 1/2")
    return going


def start_soon(folder: Path, *, node_s: float = 20.0, lost_node_s: float = 1.5) -> Run:
    (folder / "soon.py").write_text(SOON.format(node_s=node_s, lost_node_s=lost_node_s))
    return start(folder, preload=folder / "soon.py")


def miss(server: ApiServer) -> None:
    """The cluster misses the node of all its pods."""
    for pod in server.pods.values():
        pod["status"]["conditions"] = NODE_MISSED


def lose(server: ApiServer) -> None:
    """The kubelet is killed: it breaks all connections, and no other can be made."""
    server.refuse[("GET", "/exec")] = (500, "error dialing backend: connection refused")
    for name in list(server.pods):
        server.cut(name)


@pytest.mark.slow
def test_a_broken_connection_and_a_missed_node_are_one_cause(tmp_path: Path, server: ApiServer) -> None:
    going = begin(tmp_path, "exec sleep 60")
    lose(server)
    going.wait_for_line("is unreachable; waits for up to 20 s for the cluster's report")
    miss(server)
    ended = going.wait()
    assert ended.exit_code == 1
    assert failure(ended)["site"]["failure"] == "NodeFail"
    (pod,) = failure(ended)["site"]["pods"]
    assert f"node node-1 is lost, and with it the processes of pod {pod['pod']}." in ended.stderr
    assert f"  seen:     pod {pod['pod']}: its node node-1 does not answer\n" in ended.stderr
    assert "  do:       run again; inform the operators of the cluster if it happens again\n" in ended.stderr


@pytest.mark.slow
def test_a_node_that_nobody_misses_is_not_called_lost(tmp_path: Path, server: ApiServer) -> None:
    going = begin(tmp_path, "exec sleep 60", node_s=1.5)
    lose(server)
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Unknown"
    assert "broke before the command had ended" in ended.stderr


@pytest.mark.slow
def test_a_pod_that_is_reached_again_is_not_waited_for(tmp_path: Path, server: ApiServer) -> None:
    going = begin(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    lose(server)
    going.wait_for_line("is unreachable; waits")
    server.refuse.clear()
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "Unknown"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "it was ended there"


@pytest.mark.slow
def test_a_command_of_the_engine_does_not_wait_for_a_missed_node(tmp_path: Path, server: ApiServer) -> None:
    # A node without power breaks no connection; such a command waited for 600 s.
    (tmp_path / "bin").mkdir()
    hangs = tmp_path / "bin" / "mkdir"
    hangs.write_text(f"#!/bin/sh\ntouch {tmp_path}/hangs; exec sleep 60\n")
    hangs.chmod(0o755)
    server.environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    write(tmp_path, {"works": "true"})
    going = start_soon(tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "hangs").exists():
        assert time.monotonic() < deadline, going.stderr
        time.sleep(0.1)
    before = time.monotonic()
    miss(server)
    ended = going.wait()
    assert time.monotonic() - before < 15
    assert ended.exit_code == 1
    assert "its pod is gone, or its node does not answer" in ended.stderr


@pytest.mark.slow
def test_a_job_whose_node_is_missed_for_long_has_failed(tmp_path: Path, jobs: JobServer) -> None:
    config = f"selector: app=w, mode: job, reactions: {json.dumps(NEVER_AGAIN)}"
    going = begin(tmp_path, "exec sleep 60", config=config)
    (pod,) = jobs.pods_of_jobs()
    miss(jobs)
    ended = going.wait()
    assert failure(ended)["site"]["failure"] == "NodeFail", ended.stderr
    assert f"node node-1 is lost, and with it the processes of pod {pod}." in ended.stderr
    assert not jobs.jobs


@pytest.mark.slow
def test_a_job_whose_node_comes_back_goes_on(tmp_path: Path, jobs: JobServer) -> None:
    lost_node_s = 3.0
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo x > result.txt"
    going = begin(tmp_path, script, lost_node_s=lost_node_s, config="selector: app=w, mode: job")
    (pod,) = jobs.pods_of_jobs()
    before = jobs.lists_of_pods
    jobs.pods[pod]["status"]["conditions"] = NODE_MISSED
    wait_until(lambda: jobs.lists_of_pods >= before + 3)  # the driver has seen it
    jobs.pods[pod]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    time.sleep(lost_node_s)
    (tmp_path / "go").touch()
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert len(jobs.made) == 1


@pytest.mark.slow
def test_a_job_of_a_lost_node_is_made_again(tmp_path: Path, jobs: JobServer) -> None:
    config = 'selector: app=w, mode: job, reactions: {"NodeFail": {"wait": 0}}'
    going = begin(
        tmp_path, f"[ -e {tmp_path}/again ] && {{ echo x > result.txt; exit; }}; exec sleep 60", config=config
    )
    (pod,) = jobs.pods_of_jobs()
    (tmp_path / "again").touch()
    jobs.pods[pod]["status"]["conditions"] = NODE_MISSED
    ended = going.wait()
    assert ended.exit_code == 0, ended.stderr
    assert [event["data"]["failure"] for event in ended.of_type("job.reaction")] == ["NodeFail"]
    assert len(jobs.made) == 2
