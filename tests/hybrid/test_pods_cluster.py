"""`medweave.helm` and `medweave.compss` on a real cluster, with the charts of the repository."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave.cli import main
from support.cwl_files import ROOT
from support.engine import Run
from support.helm_release import TESTBED, Tenant
from support.pod_runs import BASE_IMAGE, GANG, PROGRESS, begin, environment, give_input, go, write
from support.testbed import call

GOOD = "echo {} > run_report.json; hostname > result.txt"
INSTALLATION = "stand-in-runtime"
SMALL = {
    "requests": {"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    "limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "2Gi"},
}
RUNTIME = r"""#!/usr/bin/env python3
# Stands in for runcompss as far as a master sees it: reads the XML, starts something on each worker over ssh as COMPSs does,
# and runs the application. What COMPSs itself does is tested where it is installed.
import os, subprocess, sys
from xml.etree import ElementTree
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word[:30])
application = next(n for n, word in enumerate(sys.argv) if n and not word.startswith("--"))
project = ElementTree.parse(options["project"]).getroot()
resources = ElementTree.parse(options["resources"]).getroot()
names = [node.get("Name") for node in project.iter("ComputeNode")]
assert names == [node.get("Name") for node in resources.iter("ComputeNode")]
hosts = []
for node, offer in zip(project.iter("ComputeNode"), resources.iter("ComputeNode")):
    command = ["ssh", "-o", "StrictHostKeyChecking=no", "-p", offer.findtext(".//SpawnerPort"), node.get("Name")]
    script = f"mkdir -p {node.findtext('WorkingDir')} && test -d {node.findtext('InstallDir')} && hostname"
    hosts.append(subprocess.run([*command, script], check=True, capture_output=True, text=True).stdout.strip())
os.makedirs(os.environ["HOME"] + "/.COMPSs/app_01")
open(os.environ["HOME"] + "/.COMPSs/app_01/runtime.log", "w").write("stand-in\n")
print("[(0) API] - Starting the stand-in with", hosts, flush=True)
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
if verb == "again" and not os.path.exists("/tmp/tried"):
    open("/tmp/tried", "w").close()
    sys.exit(75)
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


def releases(tenant: Tenant) -> list[str]:
    """Releases that bear medweave's labels and this test's deployment."""
    found = tenant.get("secrets", "owner=helm,medweave.dev/deployment=pods")
    return sorted({each["metadata"]["labels"]["name"] for each in found})


def image() -> dict[str, Any]:
    repository, _, tag = BASE_IMAGE.rpartition(":")
    return {"repository": repository, "tag": tag, "pullPolicy": "Never"}


def ddp(replicas: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "image": image(),
        "python": "/usr/bin/python3",
        "requiredModules": ["json"],
        "worker": {"replicas": replicas, "resources": SMALL},
        "master": {"resources": SMALL},
        "terminationGracePeriodSeconds": 10,
        **more,
    }


def prepare(
    folder: Path, tools: dict[str, Any], *, engine: str = "ddp", values: dict[str, Any] | None = None, **more: Any
) -> None:
    config = {
        "chart": os.path.relpath(ROOT / "helm" / "compss-cluster", folder),
        "engine": engine,
        "timeout": 120,
        **more,
    }
    write(folder, tools, kind="medweave.compss", config=config | {"values": values or ddp()})


def failure(ended: Run) -> dict[str, Any]:
    (job,) = [event["data"] for event in ended.of_type("job.ended") if event["data"]["state"] == "failed"]
    return dict(job)


MEET = r"""
import os, socket, sys, time
data = open(sys.argv[1] + "/case.txt").read()
rank, nodes = int(os.environ["MEDWEAVE_NODE_RANK"]), int(os.environ["MEDWEAVE_NUM_NODES"])
host, port = os.environ["MEDWEAVE_RENDEZVOUS"].rsplit(":", 1)
mine = f"{socket.gethostname()} {os.environ['MEDWEAVE_ENGINE']} {data}"
if rank == 0:
    with socket.create_server(("", int(port))) as server:
        told = [mine]
        while len(told) < nodes:
            peer, _ = server.accept()
            told.append(peer.recv(100).decode())
    open("result.txt", "w").write("\n".join(sorted(told)))
else:
    for _ in range(300):
        try:
            with socket.create_connection((host, int(port)), timeout=5) as peer:
                peer.sendall(mine.encode())
            break
        except OSError:
            time.sleep(0.1)
"""


def test_ddp_reaches_all_workers_each_with_the_data(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (f"cat > meet.py <<'END'\n{MEET}\nEND\nexec python3 meet.py \"$1\"", GANG)})
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "case.txt").write_text("lung")
    give_input(tmp_path, "train", {"class": "Directory", "path": "cohort"})
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    lines = (tmp_path / "results" / "result.txt").read_text().splitlines()
    assert [re.sub(r"^\S+-worker-(\d)", r"\1", line) for line in lines] == ["0 ddp lung", "1 ddp lung"]
    assert not releases(tenant)


def test_two_steps_after_one_another_on_the_cluster(tmp_path: Path, tenant: Tenant) -> None:
    """What the first step wrote is on one pod only, and the second one needs it on all."""
    reads = 'grep -q made "$1" || exit 65; [ "$MEDWEAVE_NODE_RANK" = 0 ] || exit 0; cp "$1" result.txt'
    prepare(tmp_path, {"makes": ("echo made > result.txt", {}), "reads": (reads, GANG)})
    document = json.loads((tmp_path / "tiny.cwl").read_text())
    document["steps"]["reads"]["in"]["data"] = "makes/result"
    document["steps"]["reads"]["run"]["inputs"]["data"] = {"type": "File", "inputBinding": {"position": 1}}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document))
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr


def with_environment(**more: Any) -> dict[str, Any]:
    """Values for pods with the worker environment of the testbed, at its own path."""
    folder = str(TESTBED / "environment")
    volumes = {"environment": (folder, "medweave-environment"), **more}
    return ddp(
        python=f"{folder}/bin/python",
        requiredModules=["medweave_steps"],
        extraVolumes=[
            {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            for name, (_, claim) in volumes.items()
        ],
        extraVolumeMounts=[{"name": name, "mountPath": path, "readOnly": True} for name, (path, _) in volumes.items()],
    )


TORCH = """
import os, socket
import torch.distributed as dist
rank, nodes = int(os.environ["MEDWEAVE_NODE_RANK"]), int(os.environ["MEDWEAVE_NUM_NODES"])
dist.init_process_group("gloo", init_method="tcp://" + os.environ["MEDWEAVE_RENDEZVOUS"], rank=rank, world_size=nodes)
names = [None] * nodes
dist.all_gather_object(names, socket.gethostname())
if rank == 0:
    open("result.txt", "w").write(" ".join(names))
dist.destroy_process_group()
"""


def test_torch_meets_over_the_workers(tmp_path: Path, tenant: Tenant) -> None:
    script = f"cat > meet.py <<'END'\n{TORCH}\nEND\nexec python meet.py"
    prepare(tmp_path, {"train": (script, GANG)}, values=with_environment())
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    names = (tmp_path / "results" / "result.txt").read_text().split()
    assert [re.sub(r".*-worker-", "", name) for name in names] == ["0", "1"]


def worker(tenant: Tenant, number: int) -> str:
    (found,) = [
        each["metadata"]["name"]
        for each in tenant.get("pods", "")
        if each["metadata"]["name"].endswith(f"-worker-{number}") and each["metadata"]["name"].startswith("pods-")
    ]
    return str(found)


def test_a_deleted_worker_ends_the_gang(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (PROGRESS + "trap '' TERM; while :; do sleep 1; done", GANG)})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    lost = worker(tenant, 1)
    before = time.monotonic()
    tenant.call("kubectl", "delete", "pod", lost, "--wait=false", "--grace-period=1")
    ended = going.wait(120)
    assert time.monotonic() - before < 60
    assert re.search(rf"node 1 of 2 \({lost}:worker\) failed first\. pod {lost}", ended.stderr), ended.stderr
    assert failure(ended)["exit_code"] == 75
    assert not releases(tenant)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: str(each.name))
def test_a_signal_takes_the_release_down_within_20_s(tmp_path: Path, tenant: Tenant, number: signal.Signals) -> None:
    prepare(tmp_path, {"train": (PROGRESS + "while :; do sleep 1; done", GANG)})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    before = time.monotonic()
    going.signal(number)
    ended = going.wait()
    assert time.monotonic() - before < 20
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    assert not releases(tenant)
    assert not [each for each in tenant.get("statefulsets", "") if each["metadata"]["name"].startswith("pods-")]


def test_what_a_killed_driver_left_is_removed(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (PROGRESS + "while :; do sleep 1; done", GANG)})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    going.signal(signal.SIGKILL)
    going.wait()
    (left,) = releases(tenant)
    again = tmp_path / "again"
    again.mkdir()
    prepare(again, {"plain": GOOD})
    ended = go(again, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert f"removing release {left}" in ended.stderr
    assert not releases(tenant)


def test_medweave_clean_uninstalls_what_a_killed_driver_left(
    tmp_path: Path, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, {"train": (PROGRESS + "while :; do sleep 1; done", GANG)})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    going.signal(signal.SIGKILL)
    going.wait()
    (left,) = releases(tenant)
    for name, value in environment(tenant).items():
        monkeypatch.setenv(name, value)
    assert main(["clean", str(going.record)]) == 0
    assert f"pods: release {left} removed" in capsys.readouterr().out
    assert not releases(tenant)
    kinds = "statefulsets,pods,services,configmaps,secrets,persistentvolumeclaims"
    assert not tenant.get(kinds, f"app.kubernetes.io/instance={left}")


def test_a_value_of_the_wrong_type_is_told_with_its_key(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (GOOD, GANG)}, values=ddp() | {"worker": {"replicas": "two"}})
    before = time.monotonic()
    ended = go(tmp_path, tenant)
    assert time.monotonic() - before < 15
    assert "deployments.pods.config.values" in ended.stderr
    assert "replicas" in ended.stderr
    assert not releases(tenant)


def test_an_engine_that_is_not_there_is_told_and_undone(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (GOOD, GANG)}, engine="compss", pendingTimeout=8)
    ended = go(tmp_path, tenant)
    assert "there is no COMPSs runtime" in ended.stderr
    assert not releases(tenant)


def test_a_kubeconfig_that_is_refused_is_told(tmp_path: Path, tenant: Tenant) -> None:
    document = json.loads(tenant.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "no"
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    prepare(tmp_path, {"train": (GOOD, GANG)}, kubeconfig="kubeconfig")
    ended = go(tmp_path, tenant)
    assert "deployments.pods.config.kubeconfig" in ended.stderr


# ---- engine compss, with a stand-in for the runtime


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
    assert re.fullmatch(r"pods-\w+-master-0", host)
    assert engine == "compss"
    assert [re.sub(r".*-worker-", "", each) for each in workers.split(",")] == ["0", "1"]
    assert words[0] == "where"
    assert "round 1/2" in ended.stderr
    logs = list((ended.record / "logs" / "train").rglob("runtime.log"))
    assert [each.read_text() for each in logs] == ["stand-in\n"]
    assert not releases(tenant)


def test_compss_ends_when_a_worker_dies(tmp_path: Path, tenant: Tenant, installation: dict[str, Any]) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation)
    as_step(tmp_path, "sleep")
    going = begin(tmp_path, tenant)
    going.wait_for_line("round 1/2", 120)
    lost = worker(tenant, 1)
    before = time.monotonic()
    tenant.call("kubectl", "delete", "pod", lost, "--wait=false", "--grace-period=1")
    ended = going.wait(120)
    assert time.monotonic() - before < 60
    assert f"COMPSs worker lost: pod {lost}" in ended.stderr
    assert not releases(tenant)


def test_the_exit_code_of_a_compss_application(tmp_path: Path, tenant: Tenant, installation: dict[str, Any]) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation)
    as_step(tmp_path, "fail")
    ended = go(tmp_path, tenant)
    assert failure(ended)["exit_code"] == 65
    assert "medweave-step fail: no such cohort." in ended.stderr


def decisions(ended: Run) -> list[tuple[str, bool]]:
    return [(event["data"]["failure"], event["data"]["again"]) for event in ended.of_type("job.reaction")]


AT_ONCE = {"StepFailed": {"wait": 0}}


def test_a_compss_application_that_asks_for_another_try_gets_it(
    tmp_path: Path, tenant: Tenant, installation: dict[str, Any]
) -> None:
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=installation, reactions=AT_ONCE)
    as_step(tmp_path, "again")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("StepFailed", True)]


def test_a_gang_whose_rank_asks_for_another_try_starts_again_in_all_its_pods(tmp_path: Path, tenant: Tenant) -> None:
    script = (
        '[ ! -e half ] || exit 65; touch half; [ -e /tmp/tried ] || { touch /tmp/tried; exit "$((75 * MEDWEAVE_NODE_RANK))"; }; '
        "touch result.txt"
    )
    prepare(tmp_path, {"train": (script, GANG)}, reactions=AT_ONCE)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("StepFailed", True)]
    assert [len(event["data"]["site"]["pods"]) for event in ended.of_type("job.ended")] == [2, 2]


def test_a_helm_release_gives_one_place_per_pod(tmp_path: Path, tenant: Tenant) -> None:
    config = {
        "chart": os.path.relpath(ROOT / "helm" / "compss-cluster", tmp_path),
        "timeout": 120,
        "values": ddp() | {"engine": "ddp"},
    }
    write(tmp_path, dict.fromkeys(("a", "b", "c"), GOOD), kind="medweave.helm", config=config)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert len({event["location"] for event in ended.of_type("job.scheduled")}) == 2
    assert not releases(tenant)


def test_compss_itself(tmp_path: Path, tenant: Tenant) -> None:
    """With a real installation: its claim is made by the testbed from COMPSS_HOME, as `make hybrid` does."""
    if not os.environ.get("COMPSS_HOME"):
        pytest.skip("no COMPSs runtime: COMPSS_HOME is not set")
    made = call("volume", "medweave-compss", os.environ["COMPSS_HOME"])
    assert made.returncode == 0, made.stderr
    values = with_environment(compss=("/opt/COMPSs", "medweave-compss"))
    prepare(tmp_path, {"train": ("", GANG)}, engine="compss", values=values)
    as_step(tmp_path, "train-distributed")
    ended = go(tmp_path, tenant)
    # Without options the verb refuses its command line: the runtime has started it, and has passed its exit code on.
    assert failure(ended)["exit_code"] == 2, ended.stderr
    assert list((ended.record / "logs" / "train").rglob("runtime.log"))
