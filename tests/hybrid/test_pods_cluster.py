"""`medweave.helm` and `medweave.compss` on a real cluster, with the charts of the repository; engine compss has its own file."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.compss_cluster import (
    AT_ONCE,
    CHART,
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
from support.pod_runs import GANG, PROGRESS, begin, decisions, environment, failure, give_input, go, write

GOOD = "echo {} > run_report.json; hostname > result.txt"


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    for name in releases(tenant):
        tenant.ended("helm", "uninstall", name, "--ignore-not-found")


MEET = r"""
import os, socket, sys, time
data = open(sys.argv[1] + "/case.txt").read()
rank, nodes = int(os.environ["MEDWEAVE_NODE_RANK"]), int(os.environ["MEDWEAVE_NUM_NODES"])
host, port = os.environ["MEDWEAVE_RENDEZVOUS"].rsplit(":", 1)
mine = f"{socket.gethostname()} {os.environ['MEDWEAVE_ENGINE']} {data}"
if rank == 0:
    with socket.create_server(("", int(port))) as server:
        numbers = [mine]
        while len(numbers) < nodes:
            peer, _ = server.accept()
            numbers.append(peer.recv(100).decode())
    open("result.txt", "w").write("\n".join(sorted(numbers)))
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


@pytest.mark.long
def test_torch_distributed_connects_over_the_workers(tmp_path: Path, tenant: Tenant) -> None:
    script = f"cat > meet.py <<'END'\n{TORCH}\nEND\nexec python meet.py"
    prepare(tmp_path, {"train": (script, GANG)}, values=with_environment())
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    names = (tmp_path / "results" / "result.txt").read_text().split()
    assert [re.sub(r".*-worker-", "", name) for name in names] == ["0", "1"]


@pytest.mark.long
def test_a_deleted_worker_ends_the_gang_where_the_file_wants_no_other_attempt(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (PROGRESS + "trap '' TERM; while :; do sleep 1; done", GANG)}, reactions=NEVER)
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 120)
    lost = worker(tenant, 1)
    ended = without_worker(going, tenant, lost)
    assert re.search(rf"node 1 of 2 \({lost}:worker\) failed first\. pod {lost}", ended.stderr), ended.stderr
    assert failure(ended)["exit_code"] == 75
    assert not releases(tenant)


# On the first attempt it waits until its pods are deleted; if worker 0 has the checkpoint, it ends normally.
ONCE_LOST = (
    "[ $MEDWEAVE_NODE_RANK = 0 ] || { sleep 15; exit 0; }; "
    f"if [ -e /tmp/seen ]; then {GOOD}; else touch /tmp/seen; {PROGRESS} sleep 600; fi"
)


@pytest.mark.long
def test_a_deleted_worker_is_replaced_where_the_file_has_a_failure_manager(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (ONCE_LOST, GANG)}, reactions=NEVER)
    with (tmp_path / "streamflow.yml").open("a") as file:
        file.write("failureManager: {type: rollback, config: {max_retries: 2, retry_delay: 0}}\n")
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 240)
    tenant.call("kubectl", "delete", "pod", worker(tenant, 1), "--wait=false", "--grace-period=1")
    ended = going.wait(120)
    assert ended.exit_code == 0, ended.stderr
    ends = [(event["data"]["attempt"], event["data"]["state"]) for event in ended.of_type("job.ended")]
    assert ends == [(1, "failed"), (2, "completed")]
    assert not releases(tenant)


# Node 0 stays in its pod, and waits until pods are deleted; after the checkpoint, every node must see it, and the data.
KEEPS = (
    'cat "$1/case.txt" > seen || exit 65; '
    '[ -z "$MEDWEAVE_RESUME_FROM" ] || { cp "$MEDWEAVE_RESUME_FROM/round" result.txt; exit; }; '
    "[ $MEDWEAVE_NODE_RANK != 0 ] || { mkdir saved; echo 7 > saved/round; " + PROGRESS + "}; sleep 600"
)


# Node 1 writes a file next to its output folder, and the replacement of worker 0 finds it.
KEEPS_NOTHING = (
    'cat "$1/case.txt" > result.txt || exit 65; [ ! -e ../again ] || exit 0; '
    "[ $MEDWEAVE_NODE_RANK = 0 ] || touch ../again; [ $MEDWEAVE_NODE_RANK != 0 ] || { sleep 5; "
    + PROGRESS
    + "}; sleep 600"
)


@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.long)])
def test_gang_continues_with_the_replacement_of_a_lost_worker(tmp_path: Path, tenant: Tenant, number: int) -> None:
    """Every pod has its own files. Worker 0 has the checkpoint; if that pod is lost, the group starts from the beginning."""
    script = KEEPS if number else KEEPS_NOTHING
    saves = {"hints": {**GANG["hints"], "urn:medweave:cwl#Checkpoint": {"folder": "saved"}}}
    prepare(tmp_path, {"train": (script, saves)}, reactions={"Cancelled": {"wait": 0}})
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort" / "case.txt").write_text("lung")
    give_input(tmp_path, "train", {"class": "Directory", "path": "cohort"})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 240)
    tenant.call("kubectl", "delete", "pod", worker(tenant, number), "--wait=false", "--grace-period=1")
    ended = going.wait(240)
    assert ended.exit_code == 0, ended.stderr
    assert decisions(ended) == [("Cancelled", True)]
    assert [event["data"]["from_checkpoint"] for event in ended.of_type("job.reaction")] == [number == 1]
    assert (tmp_path / "results" / "result.txt").read_text() == ("7\n" if number else "lung")
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
    assert not [
        owner for owner in tenant.get("statefulsets", "") if owner["metadata"]["name"].startswith(f"{DEPLOYMENT}-")
    ]


def test_leftovers_of_a_killed_driver_are_removed(tmp_path: Path, tenant: Tenant) -> None:
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


def test_medweave_clean_uninstalls_leftovers_of_a_killed_driver(
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
    assert f"{DEPLOYMENT}: release {left} removed" in capsys.readouterr().out
    assert not releases(tenant)
    kinds = "statefulsets,pods,services,configmaps,secrets,persistentvolumeclaims"
    assert not tenant.get(kinds, f"app.kubernetes.io/instance={left}")


def test_value_of_the_wrong_type_is_reported_with_its_key(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (GOOD, GANG)}, values=ddp() | {"worker": {"replicas": "two"}})
    before = time.monotonic()
    ended = go(tmp_path, tenant)
    assert time.monotonic() - before < 15
    assert f"deployments.{DEPLOYMENT}.config.values" in ended.stderr
    assert "replicas" in ended.stderr
    assert not releases(tenant)


def test_a_refused_kubeconfig_is_an_error(tmp_path: Path, tenant: Tenant) -> None:
    document = json.loads(tenant.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "no"
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    prepare(tmp_path, {"train": (GOOD, GANG)}, kubeconfig="kubeconfig")
    ended = go(tmp_path, tenant)
    assert f"deployments.{DEPLOYMENT}.config.kubeconfig" in ended.stderr


def test_gang_whose_rank_requests_a_retry_restarts_in_all_pods(tmp_path: Path, tenant: Tenant) -> None:
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
        "chart": os.path.relpath(CHART, tmp_path),
        "timeout": 120,
        "values": ddp() | {"engine": "ddp"},
    }
    write(tmp_path, dict.fromkeys(("a", "b", "c"), GOOD), kind="medweave.helm", config=config, deployment=DEPLOYMENT)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert len({event["location"] for event in ended.of_type("job.scheduled")}) == 2
    assert not releases(tenant)


def test_a_release_that_is_taken_away_while_its_pods_are_waited_for(tmp_path: Path, tenant: Tenant) -> None:
    values = ddp()
    values["worker"] = {**values["worker"], "nodeSelector": {"example.org/kind": "none"}}
    prepare(tmp_path, {"train": (GOOD, GANG)}, values=values, pendingTimeout=120)
    going = begin(tmp_path, tenant)
    going.wait_for_line("Unschedulable")
    (name,) = releases(tenant)
    tenant.call("helm", "uninstall", name)
    before = time.monotonic()
    ended = going.wait()
    reported_s = time.monotonic() - before
    assert f"StatefulSet {name}-worker was deleted while medweave waited for its pods" in ended.stderr, ended.stderr
    assert reported_s < 10, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")
    assert not releases(tenant)
