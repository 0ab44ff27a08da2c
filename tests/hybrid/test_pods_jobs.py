"""`mode: job` on a real cluster: real Jobs, a real kubelet, a tenant's own account, and what ends their pods before their time."""

from __future__ import annotations

import datetime
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.engine import Run
from support.helm_release import Tenant, until
from support.pod_runs import PROGRESS, begin, failure, go, pods_on_claim, write
from support.testbed import pod_document, priority_class, sites, unique

NAME, GPU = "jobs-test", "nvidia.com/gpu"
GOOD = "echo {} > run_report.json; echo x > /tmp/x; hostname > result.txt"


@pytest.fixture(autouse=True)
def clean(tenant: Tenant) -> Iterator[None]:
    yield
    tenant.ended("kubectl", "delete", f"deployment/{NAME}", "--ignore-not-found", "--wait=false")
    tenant.ended("kubectl", "delete", "jobs", "--selector=medweave.dev/deployment=pods", "--wait=false")


def prepare(
    folder: Path, tools: dict[str, Any], *, timeout: int = 60, spec: dict[str, Any] | None = None, **config: Any
) -> None:
    """Write a run whose long-running pod has these keys in its `spec`, and whose deployment has those of `config`."""
    document = pods_on_claim(NAME, replicas=1)
    document["spec"]["template"]["spec"] |= spec or {}
    (folder / "pods.yaml").write_text(yaml.safe_dump(document))
    settings = {"files": ["pods.yaml"], "mode": "job", "timeout": timeout, **config}
    write(folder, tools, kind="medweave.kubernetes", config=settings)


def remaining_objects(tenant: Tenant) -> list[str]:
    """Return the existing Jobs and their pods."""
    objects = tenant.get("jobs,pods", "medweave.dev/submission")
    return [document["metadata"]["name"] for document in objects]


def assert_nothing_left(tenant: Tenant) -> None:
    """Assert that no Job and no working pod is left; objects of ended pods may take a moment to vanish."""
    objects = tenant.get("jobs,pods", "medweave.dev/submission")
    assert not [
        document
        for document in objects
        if document["kind"] == "Job" or document["status"]["phase"] in ("Pending", "Running")
    ]
    until(lambda: not remaining_objects(tenant), limit_s=20, what="the end of all Jobs and their pods")


def pod_of(tenant: Tenant) -> str:
    (objects,) = tenant.get("pods", "medweave.dev/submission")
    return str(objects["metadata"]["name"])


def working(
    folder: Path, tenant: Tenant, script: str = "exec sleep 600", asks: dict[str, Any] | None = None, **config: Any
) -> Run:
    """Start a run and wait until its job works; return the run."""
    prepare(folder, {"works": (PROGRESS + script, asks or {})}, **config)
    going = begin(folder, tenant)
    going.wait_for_line("case 1/2", 120)
    return going


def test_each_command_has_its_own_pod_with_the_requested_resources(tmp_path: Path, tenant: Tenant) -> None:
    asks = {"requirements": {"ResourceRequirement": {"coresMin": 1, "ramMin": 150}}}
    shows = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2> /dev/null > limit; "
    refused = "touch /x 2> /dev/null && exit 9; [ $(id -u) != 0 ] || exit 8; "
    prepare(
        tmp_path,
        {"a": (PROGRESS + refused + shows + "cat limit; " + GOOD + "; cat limit >> result.txt", asks), "b": GOOD},
    )
    ended = go(tmp_path, tenant)
    assert ended.exit_code == 0, ended.stderr
    sites_of = {event["job"]: event["data"]["site"] for event in ended.of_type("job.ended")}
    pods = {site["pods"][0]["pod"] for site in sites_of.values()}
    assert len(pods) == 2
    assert all(re.fullmatch(r"[ab]-0-[0-9a-f]{8}-\w+", pod) for pod in pods), pods
    assert len({event["location"] for event in ended.of_type("job.scheduled")}) == 1, "one pod holds the files"
    texts = [path.read_text().split() for path in (tmp_path / "results").glob("result*.txt")]
    assert {text[0] for text in texts} <= pods
    assert str(150 * 2**20) in {word for text in texts for word in text}
    assert (ended.record / "reports" / "a" / "run_report.json").read_text() == "{}\n"
    assert "case 1/2" in ended.stderr
    assert_nothing_left(tenant)


def test_a_step_without_memory(tmp_path: Path, tenant: Tenant) -> None:
    asks = {"requirements": {"ResourceRequirement": {"ramMin": 100}}}
    greedy = 'python3 -c "x = bytearray(10**9)" && touch result.txt'
    prepare(tmp_path, {"greedy": (greedy, asks)}, reactions={"OutOfMemory": {"do": "stop"}})
    ended = go(tmp_path, tenant)
    assert (failure(ended)["site"]["failure"], failure(ended)["exit_code"]) == ("OutOfMemory", 137), ended.stderr
    assert "out of memory" in ended.stderr
    assert_nothing_left(tenant)


def test_step_exit_code_is_final(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"bad": "echo 'medweave-step v: no such case.' >&2; exit 65"})
    ended = go(tmp_path, tenant)
    assert (failure(ended)["site"]["failure"], failure(ended)["exit_code"]) == ("StepFailed", 65), ended.stderr
    assert "medweave-step v: no such case." in ended.stderr
    assert "disrupted" not in ended.stderr


def test_a_deadline(tmp_path: Path, tenant: Tenant) -> None:
    limit = {"requirements": {"ToolTimeLimit": {"timelimit": 5}}}
    prepare(tmp_path, {"sleeper": ("sleep 600", limit)})
    ended = go(tmp_path, tenant)
    assert failure(ended)["site"]["failure"] == "Timeout", ended.stderr
    assert "the time limit of 5 s was reached" in ended.stderr
    assert_nothing_left(tenant)


def test_a_deleted_pod(tmp_path: Path, tenant: Tenant) -> None:
    going = working(tmp_path, tenant)
    pod = pod_of(tenant)
    tenant.call("kubectl", "delete", "pod", pod, "--wait=false")
    ended = going.wait(120)
    assert failure(ended)["site"]["failure"] == "Cancelled", ended.stderr
    assert pod in ended.stderr
    assert_nothing_left(tenant)


def test_an_evicted_pod_is_replaced_and_finds_a_clean_folder(tmp_path: Path, tenant: Tenant) -> None:
    second = "ls > ../seen; cp ../seen result.txt; hostname >> result.txt; exit"
    script = f"[ -e ../again ] && {{ {second}; }}; touch half ../again; sleep 600"
    going = working(tmp_path, tenant, script)
    pod = pod_of(tenant)
    until(
        lambda: "again" in tenant.within(standing(tenant), "find /work -name again").stdout,
        limit_s=30,
        what="its first start",
    )
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": tenant.namespace}}
    path = f"/api/v1/namespaces/{tenant.namespace}/pods/{pod}/eviction"
    created = sites().admin("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    assert created.returncode == 0, created.stderr
    ended = going.wait(180)
    assert ended.exit_code == 0, ended.stderr
    (winner,) = (tmp_path / "results" / "result.txt").read_text().split()
    assert winner != pod
    assert "its pod was disrupted; Kubernetes replaces it" in ended.stderr
    assert_nothing_left(tenant)


def standing(tenant: Tenant) -> str:
    (objects,) = tenant.get("pods", f"app={NAME}")
    return str(objects["metadata"]["name"])


def test_run_folder_is_private_and_removed_after_a_success(tmp_path: Path, tenant: Tenant) -> None:
    going = working(tmp_path, tenant, "until [ -e goes ]; do sleep 0.2; done; hostname > result.txt")
    folder, pod = f"/work/{going.record.name}", standing(tenant)
    listed = "find /work -maxdepth 1 -printf '%m %p\\n'"
    assert f"700 {folder}" in tenant.within(pod, listed).stdout.splitlines()
    done = tenant.within(pod, f"find {folder} -type d -exec touch '{{}}/goes' ';'")
    assert done.returncode == 0, done.stderr
    ended = going.wait(120)
    assert ended.exit_code == 0, ended.stderr
    with sites().pod(
        tenant.namespace, pod_document(unique("looks"), "sleep 60", claims={"medweave-data": ("/work", True)})
    ) as looks:
        left_there = tenant.within(looks, listed)
    assert "/work" in left_there.stdout, left_there.stderr
    assert folder not in left_there.stdout


def test_the_standing_pod_and_the_jobs_have_the_priority_of_the_file(tmp_path: Path, tenant: Tenant) -> None:
    name = unique("priority")
    with sites().made(priority_class(name)):
        going = working(tmp_path, tenant, spec={"priorityClassName": name})
        objects = [*tenant.get("pods", f"app={NAME}"), *tenant.get("pods", "medweave.dev/submission")]
        going.signal(signal.SIGINT)
        going.wait()
    assert [(pod["spec"]["priorityClassName"], pod["spec"]["priority"]) for pod in objects] == [(name, 1)] * 2


@pytest.fixture
def two_gpus() -> Iterator[None]:
    """Make the node report two GPUs, which the scheduler counts; nothing uses them."""
    admin = sites().admin
    node = admin("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}").stdout

    def set_gpus(number: str | None) -> None:
        has = {GPU: number}
        patch = json.dumps({"status": {"capacity": has, "allocatable": has}})
        patched = admin("patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)
        assert patched.returncode == 0, patched.stderr

    set_gpus("2")
    yield
    set_gpus(None)


def gpus(number: int) -> dict[str, Any]:
    return {"hints": {"urn:medweave:cwl#GPURequest": {"gpusMin": number}}}


@pytest.mark.usefixtures("two_gpus")
def test_job_gets_the_requested_gpus(tmp_path: Path, tenant: Tenant) -> None:
    going = working(tmp_path, tenant, "sleep 3; hostname > result.txt", gpus(1))
    (pod,) = tenant.get("pods", "medweave.dev/submission")
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"][GPU] == "1"
    ended = going.wait(60)
    assert ended.exit_code == 0, ended.stderr
    assert_nothing_left(tenant)


@pytest.mark.usefixtures("two_gpus")
def test_more_gpus_than_a_node_has_are_reported(tmp_path: Path, tenant: Tenant) -> None:
    prepare(tmp_path, {"first": (GOOD, gpus(3))}, pendingTimeout=8)
    ended = go(tmp_path, tenant)
    assert "deployments.pods.config.pendingTimeout: its pod could not start within 8 s (/first/0" in ended.stderr
    notice = next(event for event in ended.of_type("notice") if f"Insufficient {GPU}" in event["data"]["text"])
    (placed,) = ended.of_type("job.scheduled")
    reported_s = (moment(notice) - moment(placed)).total_seconds()
    assert reported_s < 10, f"reported after {reported_s:.1f} s"
    print(f"reported after {reported_s:.1f} s")
    assert_nothing_left(tenant)


def moment(event: dict[str, Any]) -> datetime.datetime:
    return datetime.datetime.fromisoformat(event["time"])


def test_a_job_that_no_node_has_room_for(tmp_path: Path, tenant: Tenant) -> None:
    asks = {"requirements": {"ResourceRequirement": {"coresMin": 500}}}
    prepare(tmp_path, {"first": (GOOD, asks)}, pendingTimeout=8)
    ended = go(tmp_path, tenant)
    assert "deployments.pods.config.pendingTimeout: its pod could not start within 8 s (/first/0" in ended.stderr
    assert any("Insufficient cpu" in event["data"]["text"] for event in ended.of_type("notice"))
    assert_nothing_left(tenant)


def test_ctrl_c_leaves_nothing_within_20_s(tmp_path: Path, tenant: Tenant) -> None:
    going = working(tmp_path, tenant, "trap '' INT; while :; do sleep 1; done")
    before = time.monotonic()
    going.signal(signal.SIGINT)
    ended = going.wait(60)
    assert time.monotonic() - before < 20
    assert ended.of_type("run.ended")[0]["data"]["state"] == "cancelled"
    assert_nothing_left(tenant)


def test_job_of_a_killed_driver_is_canceled_and_not_doubled(tmp_path: Path, tenant: Tenant) -> None:
    going = working(tmp_path, tenant)
    going.signal(signal.SIGKILL)
    going.wait()
    old = remaining_objects(tenant)
    assert len(old) == 2, "a Job and its pod"
    again = tmp_path / "again"
    again.mkdir()
    prepare(again, {"works": GOOD})
    ended = go(again, tenant)
    assert ended.exit_code == 0, ended.stderr
    assert re.search(r"removing Job works-0-[0-9a-f]{8}, left by run", ended.stderr)
    assert_nothing_left(tenant)


def test_job_of_a_killed_driver_is_re_attached(tmp_path: Path, tenant: Tenant) -> None:
    starts = (
        "echo + >> ../starts; until [ -e ../go ]; do sleep 0.2; done; cp ../starts result.txt; hostname >> result.txt"
    )
    going = working(tmp_path, tenant, starts)
    (job,) = tenant.get("jobs", "medweave.dev/submission")
    pod, folder = pod_of(tenant), f"/work/{going.record.name}"
    going.signal(signal.SIGKILL)
    going.wait()
    (tmp_path / "stderr.txt").unlink()
    second = begin(tmp_path, tenant)
    second.wait_for_line(f"re-attached to Job {job['metadata']['name']}", 120)
    (same,) = tenant.get("jobs", "medweave.dev/submission")
    assert same["metadata"]["uid"] == job["metadata"]["uid"]
    assert same["metadata"]["labels"]["medweave.dev/run"] != job["metadata"]["labels"]["medweave.dev/run"]
    assert pod_of(tenant) == pod
    done = tenant.within(standing(tenant), f"find {folder} -name starts -execdir touch go ';'")
    assert done.returncode == 0, done.stderr
    ended = second.wait(120)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "results" / "result.txt").read_text().split() == ["+", pod]
    assert_nothing_left(tenant)
    assert "removing Job" not in ended.stderr
