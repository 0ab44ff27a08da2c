"""Each failure of a job in a pod has its kind in the event log, and the cluster's own words; runs over the small API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.api_server import NODE_MISSED, ApiServer
from support.engine import run, start
from support.small_cluster import PROGRESS, failure, small_cluster, write

# Prints the counters of a container as the kernel would; the number of kills is in a file.
SED = """#!/bin/sh
case "$2" in
*/memory.events|*/memory.oom_control) echo "medweave-pod $2 oom_kill $(cat {kills})" ;;
*/memory.max|*/memory.limit_in_bytes) echo "medweave-pod $2 67108864" ;;
esac
"""
BYE = {"metadata": {"deletionTimestamp": "2026-11-22T10:00:00Z"}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with small_cluster(tmp_path) as serving:
        yield serving


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def ended_container(reason: str) -> dict[str, Any]:
    last = {"terminated": {"reason": reason, "exitCode": 137}}
    return {"containerStatuses": [{"name": "worker", "restartCount": 1, "state": {"running": {}}, "lastState": last}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {
                "status": {
                    "phase": "Failed",
                    "reason": "Evicted",
                    "message": 'Usage of EmptyDir volume "work" exceeds "1Mi"',
                }
            },
            "Preempted",
            'Evicted: Usage of EmptyDir volume "work" exceeds "1Mi"',
        ),
        (
            BYE | {"status": condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")},
            "Preempted",
            "is being deleted (EvictionByEvictionAPI: Eviction API: evicting)",
        ),
        (
            BYE
            | {"status": condition("DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting")},
            "NodeFail",
            "is being deleted (DeletionByTaintManager: Taint manager: deleting)",
        ),
        ({"status": {"conditions": NODE_MISSED}}, "NodeFail", "seen:     pod w-"),
        (BYE, "Cancelled", "is being deleted"),
        (
            {"status": ended_container("OOMKilled")},
            "OutOfMemory",
            "worker was restarted after OOMKilled, exit code 137",
        ),
    ],
    ids=["emptyDir", "eviction-api", "taint", "node", "deleted", "container-oom"],
)
def test_what_becomes_of_a_pod_under_a_job(
    tmp_path: Path, server: ApiServer, change: dict[str, dict[str, Any]], kind: str, words: str
) -> None:
    write(tmp_path, {"sleeper": PROGRESS + "exec sleep 60"})
    going = start(tmp_path)
    going.wait_for_line("case 1/2")
    for pod in server.pods.values():
        for part, keys in change.items():
            pod[part] |= keys
    ended = going.wait()
    assert ended.exit_code == 1
    assert (failure(ended)["site"]["failure"], failure(ended)["exit_code"]) == (kind, 75)
    assert words in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("exit_code", [137, 1])
def test_a_process_without_memory_in_a_pod_that_stays(tmp_path: Path, server: ApiServer, exit_code: int) -> None:
    # The pod's status shows nothing of it: the process was started by exec.
    kills = tmp_path / "kills"
    kills.write_text("3\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sed").write_text(SED.format(kills=kills))
    (tmp_path / "bin" / "sed").chmod(0o755)
    server.environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    write(tmp_path, {"grows": f"echo 5 > {kills}; exit {exit_code}"})
    ended = run(tmp_path)
    assert (failure(ended)["site"]["failure"], failure(ended)["exit_code"]) == ("OutOfMemory", exit_code)
    assert "out of memory: 2 of its processes were killed at the container's memory limit of 64 MiB." in ended.stderr


@pytest.mark.slow
def test_a_time_limit(tmp_path: Path, server: ApiServer) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 1}}}
    write(tmp_path, {"sleeper": ("sleep 60", limit)})
    assert failure(run(tmp_path))["site"]["failure"] == "Timeout"


@pytest.mark.slow
def test_an_exit_code_of_the_steps_own(tmp_path: Path, server: ApiServer) -> None:
    write(tmp_path, {"bad": "exit 65"})
    job = failure(run(tmp_path))
    assert (job["site"]["failure"], job["exit_code"]) == ("StepFailed", 65)
    assert job["site"]["pods"][0]["node"] == "node-1"
