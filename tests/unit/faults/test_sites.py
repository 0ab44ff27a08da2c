"""Reading sacct and the states of pods in the fault campaign, without our connectors."""

from __future__ import annotations

from typing import Any

import support.testbed  # makes the testbed's modules importable
from faults.pod_site import PodState, history
from faults.slurm_site import confined_conf, read_replaced, read_sacct

assert support.testbed

# sacct of Slurm 22.05 on the testbed, SLURM_TIME_FORMAT=%s.
SACCT = """\
12|medweave.memory-1-x|FAILED|0:9|1763794000|n1|100M|
12.batch|batch|FAILED|0:9|1763794000|n1||401.20M
13|medweave.memory-1-x|CANCELLED by 0|0:0|Unknown|None assigned|100M|
"""


def test_sacct_gives_a_row_per_job_with_the_memory_of_its_steps() -> None:
    first, second = read_sacct(SACCT)
    assert (first.job_id, first.state, first.exit_code, first.end) == ("12", "FAILED", "0:9", 1763794000.0)
    assert (first.requested_mib, first.peak_mib) == (100.0, 401.2)
    assert (second.state, second.end, second.peak_mib) == ("CANCELLED", None, None)
    assert first.summary == "FAILED 0:9 on n1"
    assert read_sacct("") == []
    assert read_sacct("sacct: error: no connection\n") == []


def test_a_confined_node_limits_memory_by_control_groups() -> None:
    usual = "ClusterName=t\nTaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill\nTaskProlog=/x\n"
    assert confined_conf(usual) == "ClusterName=t\nTaskPlugin=task/cgroup\nTaskProlog=/x\n"


def state(at: float, change: str = "MODIFIED", *, uid: str = "u", **fields: Any) -> PodState:
    metadata = {"name": "w-1", "uid": uid} | fields.pop("metadata", {})
    return PodState(at=at, change=change, pod={"metadata": metadata, "status": {"phase": "Running"} | fields})


def test_a_running_pod() -> None:
    pod = history(
        [state(1, "ADDED", phase="Pending"), state(2), state(3, uid="another", metadata={"deletionTimestamp": "x"})],
        "u",
    )
    assert (pod.summary, pod.changed_at, pod.restarts) == ("pod Running", None, 0)
    assert history([], "u").summary == "pod unknown"


def test_a_pod_that_was_deleted() -> None:
    pod = history([state(1), state(2, metadata={"deletionTimestamp": "x"}), state(3, "DELETED")], "u")
    assert (pod.deleted, pod.evicted, pod.disruption, pod.changed_at) == (True, "", "", 2)


def test_the_reason_of_a_pods_end_or_of_its_containers() -> None:
    killed = [{"name": "worker", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    pod = history([state(1), state(2, containerStatuses=killed), state(3, metadata={"deletionTimestamp": "x"})], "u")
    assert (pod.reason, pod.changed_at, pod.summary) == ("OOMKilled", 2, "pod Running OOMKilled deleted")
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": killed}
    assert history([state(1), state(2, **late)], "u").reason == "DeadlineExceeded"
    for code, word in ((0, "Completed"), (3, "Error")):
        ended = [{"name": "worker", "state": {"terminated": {"reason": word, "exitCode": code}}}]
        assert history([state(1, containerStatuses=ended)], "u").reason == ""


def test_an_eviction_by_the_api_and_one_by_the_kubelet() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    pod = history([state(1), state(2, conditions=[target]), state(3, metadata={"deletionTimestamp": "x"})], "u")
    assert (pod.disruption, pod.evicted, pod.changed_at) == ("EvictionByEvictionAPI", "", 2)
    failed = {"phase": "Failed", "reason": "Evicted", "message": "Usage of EmptyDir volume exceeds the limit"}
    pod = history([state(1), state(2, **failed), state(3, "DELETED", **failed)], "u")
    assert pod.evicted == "Usage of EmptyDir volume exceeds the limit"
    assert pod.changed_at == 2
    assert "Evicted: Usage" in pod.summary


def test_a_restart_by_a_controller_that_had_not_saved_its_state_is_counted() -> None:
    log = (
        "slurmctld: Recovered JobId=205 Assoc=4\n"
        "slurmctld: error: Registered PENDING JobId=205 StepId=205.batch on node n1\n"
        "slurmctld: error: Registered PENDING JobId=2051 StepId=2051.batch on node n2\n"
        "slurmctld: sched: Allocate JobId=205 NodeList=n1 #CPUs=1 Partition=normal\n"
    )
    assert read_replaced(log, {"205"}) == 1
    assert read_replaced(log, {"20"}) == 0
