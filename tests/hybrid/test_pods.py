"""`medweave.kubernetes` on a real cluster: real pods, a real kubelet, a tenant's own account."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine import Run
from support.helm_release import Tenant, until
from support.pod_runs import GANG, PROGRESS, begin, failure, give_input, go, pods_of, write

NAME = "pods-test"
GOOD = "echo {} > run_report.json; mkdir report; echo x > report/x.svg; hostname > result.txt"


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended(
        "kubectl", "delete", "deployment,statefulset", "-l", f"app={NAME}", "--ignore-not-found", "--wait=false"
    )
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", f"statefulset/{NAME}", "--ignore-not-found", "--wait=false")


def prepare(folder: Path, tools: dict[str, Any], *, locations: int = 1, timeout: int = 60, **pods: Any) -> None:
    (folder / "pods.yaml").write_text(yaml.safe_dump(pods_of(NAME, **pods)))
    config = {"files": ["pods.yaml"], "timeout": timeout, "pendingTimeout": 8}
    write(folder, tools, kind="medweave.kubernetes", config=config, target={"locations": locations})


def remaining_objects(tenant: Tenant) -> list[str]:
    return [
        item["metadata"]["name"]
        for item in tenant.get("deployments,statefulsets", "")
        if NAME in item["metadata"]["name"]
    ]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_steps_run_in_pods_that_live_as_long_as_the_run(tmp_path: Path, tenant: Tenant, kind: str) -> None:
    # Fault K6 of the engine: it breaks on StatefulSets.
    prepare(tmp_path, dict.fromkeys(("a", "b", "c"), PROGRESS + GOOD), kind=kind)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    places = {event["location"] for event in ended.of_type("job.scheduled")}
    assert len(places) == 2, "two pods, one job at a time in each"
    assert all(place.startswith(NAME) and place.endswith(":worker") for place in places)
    assert (ended.record / "reports" / "a" / "run_report.json").read_text() == "{}\n"
    assert (ended.record / "reports" / "a" / "report" / "x.svg").is_file()
    outcome = ended.of_type("job.ended")[0]["data"]
    assert outcome["cpu_seconds"] >= 0
    assert "case 1/2" in ended.stderr
    assert not remaining_objects(tenant)


def test_files_and_folders_arrive_whole(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"copies": 'mkdir -p out && cp -rL "$1"/. out/ && tar cf result.txt -C out .'})
    data = tmp_path / "my data"
    (data / "sub folder").mkdir(parents=True)
    blocks = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(2**15))
    (data / "big.bin").write_bytes(blocks * 16)  # 16 MiB
    (data / "sub folder" / "ü ' \" $x.txt").write_text("x")
    give_input(tmp_path, "copies", {"class": "Directory", "path": "my data"})
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    with tarfile.open(tmp_path / "results" / "result.txt") as archive:
        big = archive.extractfile("./big.bin")
        assert big is not None
        assert hashlib.sha256(big.read()).digest() == hashlib.sha256(blocks * 16).digest()
        assert "./sub folder/ü ' \" $x.txt" in archive.getnames()


def test_out_of_memory_is_distinguished_from_a_kill(tmp_path: Path, tenant: Tenant) -> None:
    greedy = 'python3 -c "x = bytearray(10**9)" && touch result.txt'
    prepare(tmp_path, {"greedy": greedy}, replicas=1, memory="96Mi")
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 1
    assert failure(ended)["exit_code"] == 137
    assert re.search(
        r"out of memory: \d+ of its processes were killed at the container's memory limit of 96 MiB", ended.stderr
    )


def test_step_that_killed_itself_gets_no_more_memory(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"suicide": "kill -9 $$"}, replicas=1)
    ended = go(tmp_path, tenant)
    assert failure(ended)["exit_code"] == 137
    assert "the container counts no kill for memory" in ended.stderr


def test_message_of_the_step_comes_first(tmp_path: Path, tenant: Tenant) -> None:
    message = "medweave-step v: case-1 cannot be used.\\n  do:       send it again\\n"
    prepare(tmp_path, {"bad": f"echo noise >&2; printf '{message}' >&2; exit 65"}, replicas=1)
    ended = go(tmp_path, tenant)
    assert failure(ended)["exit_code"] == 65
    assert "medweave-step v: case-1 cannot be used.\n  do:       send it again\n" in ended.stderr


def pod_of_the_job(run: Run) -> str:
    return str(run.of_type("job.scheduled")[0]["location"]).partition(":")[0]


def test_deleted_pod_is_reported_as_deleted(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"sleeper": PROGRESS + "sleep 120"}, replicas=1)
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 60)
    pod = pod_of_the_job(going)
    before = time.monotonic()
    tenant.call("kubectl", "delete", "pod", pod, "--wait=false")
    ended = going.wait()
    assert time.monotonic() - before < 60
    assert re.search(rf"pod {pod} is (gone|being deleted)", ended.stderr), ended.stderr
    assert failure(ended)["exit_code"] == 75


def test_ctrl_c_leaves_nothing_within_20_s(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"sleeper": PROGRESS + "trap '' INT; while :; do sleep 1; done"}, replicas=1)
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 60)
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait()
    assert time.monotonic() - before < 20
    assert not remaining_objects(tenant)
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"


def test_ctrl_c_ends_the_processes_of_pods_that_stay(tmp_path: Path, tenant: Tenant) -> None:
    tenant.call("kubectl", "apply", "-f", "-", stdin=json.dumps(pods_of(NAME, replicas=1)))
    until(lambda: [p for p in tenant.get("pods", f"app={NAME}") if ready(p)], limit_s=60, what="the pod")
    tools = {"sleeper": PROGRESS + "setsid sh -c \"trap '' TERM; sleep 1234\" & wait"}
    write(tmp_path, tools, kind="medweave.kubernetes", config={"selector": f"app={NAME}"})
    going = begin(tmp_path, tenant)
    going.wait_for_line("case 1/2", 60)
    pod = pod_of_the_job(going)
    assert "sleep 1234" in tenant.within(pod, "ps -eo args").stdout
    going.signal(signal.SIGINT)
    going.wait()
    assert "sleep 1234" not in tenant.within(pod, "ps -eo args").stdout
    assert remaining_objects(tenant) == [NAME], "what others made stays"


def ready(pod: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", [])
    )


def test_a_time_limit_ends_the_processes(tmp_path: Path, tenant: Tenant) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 3}}}
    prepare(tmp_path, {"sleeper": ("sleep 120", limit)}, replicas=1)
    before = time.monotonic()
    ended = go(tmp_path, tenant)
    assert "the time limit of 3 s was reached" in ended.stderr
    assert time.monotonic() - before < 45


def test_a_namespace_without_rights_is_refused_at_once(tmp_path: Path, tenant: Tenant) -> None:
    config = {"selector": "app=x", "namespace": "tenant-b"}
    write(tmp_path, {"first": GOOD}, kind="medweave.kubernetes", config=config)
    before = time.monotonic()
    ended = go(tmp_path, tenant)
    assert time.monotonic() - before < 15
    assert "deployments.pods.config.namespace" in ended.stderr
    assert "cannot list resource" in ended.stderr


def test_a_gang_over_pods(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"train": (MEET, GANG)}, kind="StatefulSet", locations=2)
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert sorted((tmp_path / "results" / "result.txt").read_text().split()) == [f"{NAME}-0", f"{NAME}-1"]


MEET = r"""
cat > meet.py <<'END'
import os, socket, time
rank, nodes = int(os.environ["MEDWEAVE_NODE_RANK"]), int(os.environ["MEDWEAVE_NUM_NODES"])
host, port = os.environ["MEDWEAVE_RENDEZVOUS"].rsplit(":", 1)
me = socket.gethostname()
if rank == 0:
    with socket.create_server(("", int(port))) as server:
        names = [me]
        while len(names) < nodes:
            peer, _ = server.accept()
            names.append(peer.recv(100).decode())
    open("result.txt", "w").write("\n".join(names))
else:
    for _ in range(300):
        try:
            with socket.create_connection((host, int(port)), timeout=5) as peer:
                peer.sendall(me.encode())
            break
        except OSError:
            time.sleep(0.1)
END
exec python3 meet.py
"""


def test_one_killed_node_ends_the_gang(tmp_path: Path, tenant: Tenant) -> None:
    script = (
        PROGRESS
        + 'if [ "$MEDWEAVE_NODE_RANK" = 1 ]; then sleep 5; kill -9 $$; fi; trap "" TERM; while :; do sleep 1; done'
    )
    prepare(tmp_path, {"train": (script, GANG)}, kind="StatefulSet", locations=2)
    before = time.monotonic()
    ended = go(tmp_path, tenant)
    assert time.monotonic() - before < 5 + 60
    assert re.search(rf"node 1 of 2 \({NAME}-\d:worker\) failed first\. killed by SIGKILL", ended.stderr), ended.stderr
    assert failure(ended)["exit_code"] == 137


def test_leftovers_of_a_killed_driver_are_replaced(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"sleeper": PROGRESS + "sleep 300"}, replicas=1)
    first = begin(tmp_path, tenant)
    first.wait_for_line("case 1/2", 60)
    first.signal(signal.SIGKILL)
    first.wait()
    assert remaining_objects(tenant) == [NAME]
    again = tmp_path / "again"
    again.mkdir()
    prepare(again, {"first": GOOD}, replicas=1)
    ended = go(again, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert not remaining_objects(tenant)
