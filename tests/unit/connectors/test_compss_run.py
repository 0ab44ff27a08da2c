"""Engine `compss` of `medweave.compss` in real runs of the real engine; helm, the API server and COMPSs are small fakes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave_connectors.host.job_processes import KEY
from support.api_server import ApiServer
from support.engine import start
from support.helm_runs import FAKES, GANG, GOOD, PROGRESS, WORKLOAD, go, two_workers, with_helm, write


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with two_workers(tmp_path) as serving:
        yield serving


def compss_pods(tmp_path: Path, server: ApiServer, runcompss: str) -> None:
    """Pods with fakes of the programs of a COMPSs image; all workers accept the login."""
    manifest = WORKLOAD.format(part="worker", replicas=2) + WORKLOAD.format(part="master", replicas=1)
    (tmp_path / "chart" / "manifest.yaml").write_text(manifest)
    user = tmp_path / "COMPSs" / "Runtime" / "scripts" / "user"
    programs = tmp_path / "programs"
    (programs / "jre" / "bin").mkdir(parents=True)
    user.mkdir(parents=True)
    scripts = {user / "runcompss": runcompss, programs / "ssh": "exit 0", programs / "jre" / "bin" / "java": "exit 0"}
    for path, script in scripts.items():
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    server.environment = {
        "PATH": f"{programs}:{programs}/jre/bin:{user}:{FAKES}:{os.environ['PATH']}",
        "COMPSS_HOME": str(tmp_path / "COMPSs"),
        "POD_PYTHON": sys.executable,
        "POD_SSH_PORT": "2222",
    }


def as_step(tmp_path: Path) -> None:
    """Makes the tool a `medweave-step` command, as only that can be a COMPSs application."""
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    document["steps"]["train"]["run"]["baseCommand"] = ["medweave-step", "train-distributed"]
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))


# The runtime's Java process has left the group of runcompss and its environment, and takes seconds to end after it (here one: the
# connectors' own times are shorter, too). Until then the exec stream is open, and the API server sends no exit code.
JAVA = f"setsid env -u {KEY} sh -c 'while kill -0 '$$'; do sleep 0.1; done 2>&1; sleep 1' &\n"
WAITS = "while :; do sleep 0.1; done"

RUNCOMPSS = r"""
mkdir -p "$HOME/.COMPSs/application.py_01"; echo "[API] done" > "$HOME/.COMPSs/application.py_01/runtime.log"
echo "$POD_NAME $MEDWEAVE_ENGINE" > result.txt
for word; do echo "$word" >> result.txt; done
echo JAVA_HOME=$JAVA_HOME >> result.txt
for word; do case $word in --project=*|--resources=*) cat "${word#*=}" >> result.txt;; esac; done
"""


@pytest.mark.slow
def test_compss_runs_the_step_on_the_master(tmp_path: Path, server: ApiServer) -> None:
    compss_pods(tmp_path, server, RUNCOMPSS)
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: compss")
    as_step(tmp_path)
    ended = go(tmp_path)
    assert ended.exit_code == 0, ended.stderr
    text = (tmp_path / "results" / "result.txt").read_text()
    assert text.startswith("r-master-0 compss\n--lang=python\n")
    assert "--master_name=r-master-0.r-pods\n" in text
    assert "medweave_steps/compss/application.py\ntrain-distributed\n" in text
    assert f"JAVA_HOME={tmp_path}/programs/jre\n" in text
    assert re.findall(r'ComputeNode Name="([^"]+)"', text) == ["r-worker-0.r-pods", "r-worker-1.r-pods"] * 2
    site = ended.of_type("job.ended")[0]["data"]["site"]
    assert [pod["container"] for pod in site["pods"]] == ["master", "worker", "worker"]
    assert site["engine"] == "compss"
    logs = list((ended.record / "logs" / "train").rglob("runtime.log"))
    assert [log.read_text() for log in logs] == ["[API] done\n"]
    assert server.releases == {}


@pytest.mark.slow
def test_compss_ends_when_a_worker_is_lost(tmp_path: Path, server: ApiServer) -> None:
    # The runtime itself was seen to wait for minutes, or for ever.
    compss_pods(tmp_path, server, JAVA + PROGRESS + f"echo $$ > {tmp_path}/pid; {WAITS}")
    stops = "engine: compss, reactions: {Cancelled: {do: stop}}"
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config=stops)
    as_step(tmp_path)
    going = start(tmp_path, environment=with_helm())
    going.wait_for_line("case 1/2")
    before = time.monotonic()
    server.remove("r-worker-1")
    ended = going.wait()
    assert time.monotonic() - before < 60
    assert "COMPSs worker lost: pod r-worker-1 is gone" in ended.stderr
    assert "its files are in" not in ended.stderr, "they went with the release"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert not server.releases


PORTS_TAKEN = (
    "[ERRMGR]  -  WARNING: There was an exception when initiating worker r-worker-0.r-pods [TIMEOUT]: "
    "Could not start the NIO worker on resource r-worker-0.r-pods"
)


@pytest.mark.slow
@pytest.mark.parametrize("failed_first", [True, False])
def test_a_worker_that_compss_cannot_start_ends_the_attempt_with_that_cause(
    tmp_path: Path, server: ApiServer, failed_first: bool
) -> None:
    # The runtime was seen to hang after that line until `stepTimeout`.
    once = f"[ -e {tmp_path}/tried ] && {{ echo 1 > result.txt; exit 0; }}; touch {tmp_path}/tried\n"
    hangs = f"echo '{PORTS_TAKEN}' >&2; {WAITS}"
    compss_pods(tmp_path, server, JAVA + (once if failed_first else "") + hangs)
    reaction = "{NodeFail: {wait: 0}}" if failed_first else "{NodeFail: {do: stop}}"
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config=f"engine: compss, reactions: {reaction}")
    as_step(tmp_path)
    ended = go(tmp_path)
    assert ended.exit_code == (0 if failed_first else 1), ended.stderr
    assert "COMPSs did not start its runtime on r-worker-0.r-pods" in ended.stderr
    assert "does not answer" not in ended.stderr


@pytest.mark.slow
def test_compss_has_a_deadline_of_its_own(tmp_path: Path, server: ApiServer) -> None:
    compss_pods(tmp_path, server, "while :; do sleep 0.1; done")
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: compss, stepTimeout: 2")
    as_step(tmp_path)
    ended = go(tmp_path)
    assert "the time limit of 2 s was reached" in ended.stderr


@pytest.mark.slow
def test_compss_is_refused_where_it_is_not_installed(tmp_path: Path, server: ApiServer) -> None:
    compss_pods(tmp_path, server, "exit 0")
    (tmp_path / "COMPSs" / "Runtime" / "scripts" / "user" / "runcompss").unlink()
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: compss")
    as_step(tmp_path)
    ended = go(tmp_path)
    assert "deployments.cluster.config.engine" in ended.stderr
    assert "has no runcompss on the PATH" in ended.stderr


@pytest.mark.slow
def test_workers_that_cannot_be_reached_are_named(tmp_path: Path, server: ApiServer) -> None:
    compss_pods(tmp_path, server, "exit 0")
    (tmp_path / "programs" / "ssh").write_text("#!/bin/sh\necho 'Host key verification failed.' >&2; exit 255\n")
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: compss")
    as_step(tmp_path)
    ended = go(tmp_path)
    assert "r-worker-0.r-pods: Host key verification failed." in ended.stderr


@pytest.mark.slow
def test_another_command_is_no_compss_application(tmp_path: Path, server: ApiServer) -> None:
    compss_pods(tmp_path, server, "exit 0")
    write(tmp_path, {"train": (GOOD, GANG)}, kind="medweave.compss", config="engine: compss")
    ended = go(tmp_path)
    assert "/train/0 cannot be run as a COMPSs application." in ended.stderr


SAVES = {"hints": {**GANG["hints"], "urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
# The attribute is replaced, not the object: the pods' end is awaited through the connector.
KEEPS = (
    '[ -z "$MEDWEAVE_RESUME_FROM" ] || { cp "$MEDWEAVE_RESUME_FROM/round" result.txt; exit 0; }\n'
    "mkdir -p saved; echo 7 > saved/round\n" + PROGRESS + "while :; do sleep 0.1; done"
)
AGAIN = "timeout: 60, reactions: {Cancelled: {wait: 0}}"


def replaced(server: ApiServer, name: str) -> None:
    """Return the pod with which the StatefulSet replaces a lost one."""
    pod = server.pods[name]
    server.remove(name)
    server.add({**pod, "metadata": {**pod["metadata"], "uid": f"uid-of-another-{name}"}})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["compss", "ddp"])
def test_a_step_goes_on_from_its_checkpoint_with_the_pod_that_takes_the_place_of_a_lost_one(
    tmp_path: Path, server: ApiServer, engine: str
) -> None:
    if engine == "compss":
        compss_pods(tmp_path, server, JAVA + KEEPS)
    write(tmp_path, {"train": (KEEPS, SAVES)}, kind="medweave.compss", config=f"engine: {engine}, {AGAIN}")
    if engine == "compss":
        as_step(tmp_path)
    going = start(tmp_path, environment=with_helm())
    going.wait_for_line("case 1/2")
    replaced(server, "r-worker-1")
    ended = going.wait(120)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text() == "7\n"
    (reaction,) = [event["data"] for event in ended.of_type("job.reaction")]
    expected = {"failure": "Cancelled", "again": True, "from_checkpoint": True}
    assert reaction.items() >= expected.items()
    uids = [[pod["uid"] for pod in event["data"]["site"]["pods"]] for event in ended.of_type("job.ended")]
    assert [uid[-1] for uid in uids] == ["uid-r-worker-1", "uid-of-another-r-worker-1"]
    assert not server.releases


@pytest.mark.slow
def test_a_pod_that_nothing_replaces_is_told_after_the_time_that_pods_get(tmp_path: Path, server: ApiServer) -> None:
    config = "engine: ddp, timeout: 1, pendingTimeout: 2, reactions: {Cancelled: {wait: 0}}"
    write(tmp_path, {"train": (KEEPS, SAVES)}, kind="medweave.compss", config=config)
    going = start(tmp_path, environment=with_helm())
    going.wait_for_line("case 1/2")
    server.remove("r-worker-1")
    ended = going.wait(120)
    assert ended.exit_code == 1
    assert "no other attempt after 2 s without all pods of the cluster: r-worker-1: gone" in ended.stderr
    assert not server.releases
