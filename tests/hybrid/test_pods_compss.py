"""Engine compss of `medweave.compss` on a real cluster: with a fake runtime, and with the real runtime where it is installed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from support import continued
from support.compss_cluster import (
    AT_ONCE,
    DEPLOYMENT,
    NEVER,
    ddp,
    prepare,
    releases,
    with_environment,
    without_worker,
    worker,
)
from support.helm_release import Tenant
from support.pod_runs import GANG, begin, decisions, failure, give_input, go
from support.testbed import call

INSTALLATION = "fake-runtime"
RUNTIME = r"""#!/usr/bin/env python3
# Replaces runcompss for a master: reads the XML, starts something on each worker over ssh as COMPSs does,
# and runs the application. What COMPSs itself does is tested where it is installed.
import os, subprocess, sys
from xml.etree import ElementTree
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word[:30])
application = next(n for n, word in enumerate(sys.argv) if n and not word.startswith("--"))
project = ElementTree.parse(options["project"]).getroot()
resources = ElementTree.parse(options["resources"]).getroot()
names = [node.get("Name") for node in project.iter("ComputeNode")]
assert names == [node.get("Name") for node in resources.iter("ComputeNode")]
folder = sys.argv[-1]  # every worker has the step's inputs
sees = f" && test -e {folder}/case.txt" if folder.startswith("/") else ""
hosts = []
for node, offer in zip(project.iter("ComputeNode"), resources.iter("ComputeNode")):
    command = ["ssh", "-o", "StrictHostKeyChecking=no", "-p", offer.findtext(".//SpawnerPort"), node.get("Name")]
    script = f"mkdir -p {node.findtext('WorkingDir')} && test -d {node.findtext('InstallDir')}{sees} && hostname"
    hosts.append(subprocess.run([*command, script], check=True, capture_output=True, text=True).stdout.strip())
os.makedirs(os.environ["HOME"] + "/.COMPSs/app_01")
open(os.environ["HOME"] + "/.COMPSs/app_01/runtime.log", "w").write("fake\n")
print("[(0) API] - Starting the fake runtime with", hosts, flush=True)
os.environ["WORKERS"] = ",".join(hosts)
sys.exit(subprocess.run([options["python_interpreter"], *sys.argv[application:]]).returncode)
"""
# What `medweave-step` is in these pods: a package of that name with a verb that says where it ran.
STEPS = """
import os, socket, sys, time
verb = sys.argv[1]
print('medweave-progress {"unit":"round","done":1,"total":2,"detail":"x"}', file=sys.stderr, flush=True)
if verb == "sleep":
    time.sleep(600)
if verb == "hang":
    print("[ERRMGR]  -  Error detected. Shutting down COMPSs", file=sys.stderr, flush=True)
    time.sleep(600)
if verb == "again" and not os.path.exists("/tmp/tried"):
    open("/tmp/tried", "w").close()
    sys.exit(75)
if verb == "keep":
    saved = os.environ.get("MEDWEAVE_RESUME_FROM")
    if saved is None:
        os.mkdir("saved")
        open("saved/round", "w").write("7")
        print('medweave-progress {"unit":"round","done":2,"total":2,"detail":"stored"}', file=sys.stderr, flush=True)
        time.sleep(600)
    verb = open(saved + "/round").read()
if verb == "fail":
    print("medweave-step fail: no such cohort.", file=sys.stderr)
    sys.exit(65)
with open("result.txt", "w") as result:
    print(socket.gethostname(), os.environ["MEDWEAVE_ENGINE"], os.environ.get("WORKERS"), *sys.argv[1:], file=result)
"""


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    for name in releases(tenant):
        tenant.ended("helm", "uninstall", name, "--ignore-not-found")


def test_missing_engine_is_reported_and_the_release_removed(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": ("touch result.txt", GANG)}, engine="compss", pendingTimeout=8)
    ended = go(tmp_path, tenant)
    assert "there is no COMPSs runtime" in ended.stderr
    assert not releases(tenant)


@pytest.fixture
def installation(tenant: Tenant) -> Iterator[dict[str, Any]]:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INSTALLATION},
        "data": {"runcompss": RUNTIME, "main": STEPS, "init": "", "step": "#!/bin/sh\nexit 1\n"},
    }
    tenant.call("kubectl", "apply", "--filename", "-", stdin=json.dumps(config))
    paths = {
        "runcompss": "Runtime/scripts/user/runcompss",
        "main": "site/medweave_steps/compss/application.py",
        "init": "site/medweave_steps/__init__.py",
        "step": "Runtime/scripts/user/medweave-step",
    }
    items = [{"key": key, "path": path} for key, path in paths.items()]
    volume = {"name": "compss", "configMap": {"name": INSTALLATION, "defaultMode": 0o555, "items": items}}
    mounts = [
        {"name": "compss", "mountPath": "/opt/COMPSs", "readOnly": True},
        # Where Debian's Python looks for packages.
        {"name": "compss", "mountPath": "/usr/local/lib/python3.11/dist-packages", "subPath": "site", "readOnly": True},
    ]
    yield ddp(extraVolumes=[volume], extraVolumeMounts=mounts)
    tenant.call("kubectl", "delete", "configmap", INSTALLATION)


def as_step(folder: Path, verb: str) -> None:
    document = json.loads((folder / "tiny.cwl").read_text())
    document["steps"]["train"]["run"]["baseCommand"] = ["medweave-step", verb]
    (folder / "tiny.cwl").write_text(json.dumps(document))


def test_compss_starts_the_application_on_the_master(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation)
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "case.txt").write_text("lung")
    give_input(tmp_path, "train", {"class": "Directory", "path": "cohort"})
    as_step(tmp_path, "where")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    host, engine, workers, *words = (tmp_path / "results" / "result.txt").read_text().split()
    assert re.fullmatch(rf"{DEPLOYMENT}-\w+-master-0", host)
    assert engine == "compss"
    assert [re.sub(r".*-worker-", "", host) for host in workers.split(",")] == ["0", "1"]
    assert words[0] == "where"
    assert "round 1/2" in ended.stderr
    logs = list((ended.record / "logs" / "train").rglob("runtime.log"))
    assert [log.read_text() for log in logs] == ["fake\n"]
    assert not releases(tenant)


@pytest.mark.long
def test_compss_ends_when_a_worker_dies_where_the_file_wants_no_other_attempt(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation, reactions=NEVER)
    as_step(tmp_path, "sleep")
    going = begin(tmp_path, tenant)
    going.wait_for_line("round 1/2", 120)
    lost = worker(tenant, 1)
    ended = without_worker(going, tenant, lost)
    assert f"COMPSs worker lost: pod {lost}" in ended.stderr
    assert not releases(tenant)


def test_compss_resumes_from_its_checkpoint_with_the_replacement_of_a_lost_worker(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    saves = {"hints": {**GANG["hints"], "urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
    prepare(
        tmp_path, {"train": ("", saves)}, engine="compss", values=installation, reactions={"Cancelled": {"wait": 0}}
    )
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "case.txt").write_text("lung")
    give_input(tmp_path, "train", {"class": "Directory", "path": "cohort"})
    as_step(tmp_path, "keep")
    going = begin(tmp_path, tenant)
    going.wait_for_line("round 2/2", 120)
    tenant.call("kubectl", "delete", "pod", worker(tenant, 1), "--wait=false", "--grace-period=1")
    ended = going.wait(240)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("Cancelled", True)]
    host, _, workers, *_ = (tmp_path / "results" / "result.txt").read_text().split()
    assert re.fullmatch(rf"{DEPLOYMENT}-\w+-master-0", host)
    assert [re.sub(r".*-worker-", "", host) for host in workers.split(",")] == ["0", "1"]
    uids = [[pod["uid"] for pod in event["data"]["site"]["pods"]] for event in ended.of_type("job.ended")]
    assert [uid[:2] for uid in uids] == [uids[0][:2]] * 2, "master and worker 0 are the same pods"
    assert uids[0][2] != uids[1][2]
    assert not releases(tenant)


@pytest.mark.long
def test_runtime_that_hangs_in_its_shutdown_is_terminated(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    stops = {"StepFailed": {"do": "stop"}}
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation, reactions=stops)
    as_step(tmp_path, "hang")
    ended = go(tmp_path, tenant)
    assert "COMPSs shuts down: it detected an error; it had not ended 60 s later" in ended.stderr
    assert not releases(tenant)


def test_the_exit_code_of_a_compss_application(tmp_path: Path, tenant: Tenant, installation: dict[str, Any]) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation)
    as_step(tmp_path, "fail")
    ended = go(tmp_path, tenant)
    assert failure(ended)["exit_code"] == 65
    assert "medweave-step fail: no such cohort." in ended.stderr


def test_compss_application_that_requests_a_retry_is_retried(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation, reactions=AT_ONCE)
    as_step(tmp_path, "again")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("StepFailed", True)]


def test_compss_itself(tmp_path: Path, tenant: Tenant) -> None:
    """With a real installation: its claim is made by the testbed from COMPSS_HOME, as `make hybrid` does."""
    if not os.environ.get("COMPSS_HOME"):
        pytest.skip("no COMPSs runtime: COMPSS_HOME is not set")
    made = call("volume", "medweave-compss", os.environ["COMPSS_HOME"])
    assert made.returncode == 0, made.stderr
    values = with_environment(compss=("/opt/COMPSs", "medweave-compss"))
    words = [
        "--output",
        "model",
        "--training-log",
        "log",
        "--run-report",
        "report.json",
        *continued.ROUNDS,
        "--rounds",
        "2",
        # The results of a round are inputs of the next round's task.
        "--checkpoint-folder",
        "checkpoints",
    ]
    words += ["--training-set", "$(inputs.data.path)/data", "--trained-model", "$(inputs.data.path)/parent"]
    tool = {
        **GANG,
        "arguments": [*words, "--num-threads", "1"],
        "outputs": {"result": {"type": "File", "outputBinding": {"glob": "model/models/model.safetensors"}}},
    }
    prepare(tmp_path, {"train": ("", tool)}, engine="compss", values=values)
    continued.folder_to_continue(tmp_path / "input")
    give_input(tmp_path, "train", {"class": "Directory", "path": "input"})
    as_step(tmp_path, "train-distributed")
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    del document["steps"]["train"]["run"]["inputs"]["data"]["inputBinding"]
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert list((ended.record / "logs" / "train").rglob("runtime.log"))
    assert main(continued.words(tmp_path, "--rounds", "2", data=tmp_path / "input")) == 0
    in_order = (tmp_path / "model" / "models" / "model.safetensors").read_bytes()
    assert (tmp_path / "results" / "model.safetensors").read_bytes() == in_order
