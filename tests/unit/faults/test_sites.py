"""How the fault campaign reads sacct and the states of pods, without our connectors."""

from __future__ import annotations

from typing import Any

import support.testbed  # the testbed's own modules are found through it
from faults.pod_site import Seen, story
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
    assert (first.asked_mib, first.peak_mib) == (100.0, 401.2)
    assert (second.state, second.end, second.peak_mib) == ("CANCELLED", None, None)
    assert first.word == "FAILED 0:9 on n1"
    assert read_sacct("") == []
    assert read_sacct("sacct: error: no connection\n") == []


def test_a_confined_node_leaves_memory_to_the_kernel() -> None:
    usual = "ClusterName=t\nTaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill\nTaskProlog=/x\n"
    assert confined_conf(usual) == "ClusterName=t\nTaskPlugin=task/cgroup\nTaskProlog=/x\n"


def seen(at: float, change: str = "MODIFIED", *, uid: str = "u", **pod: Any) -> Seen:
    metadata = {"name": "w-1", "uid": uid} | pod.pop("metadata", {})
    return Seen(at=at, change=change, pod={"metadata": metadata, "status": {"phase": "Running"} | pod})


def test_a_pod_that_lives() -> None:
    told = story(
        [seen(1, "ADDED", phase="Pending"), seen(2), seen(3, uid="another", metadata={"deletionTimestamp": "x"})], "u"
    )
    assert (told.word, told.changed_at, told.restarts) == ("pod Running", None, 0)
    assert story([], "u").word == "pod unknown"


def test_a_pod_that_was_deleted() -> None:
    told = story([seen(1), seen(2, metadata={"deletionTimestamp": "x"}), seen(3, "DELETED")], "u")
    assert (told.deleted, told.evicted, told.disruption, told.changed_at) == (True, "", "", 2)


def test_the_reason_of_a_pods_end_or_of_its_containers() -> None:
    killed = [{"name": "worker", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
    told = story([seen(1), seen(2, containerStatuses=killed), seen(3, metadata={"deletionTimestamp": "x"})], "u")
    assert (told.reason, told.changed_at, told.word) == ("OOMKilled", 2, "pod Running OOMKilled deleted")
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": killed}
    assert story([seen(1), seen(2, **late)], "u").reason == "DeadlineExceeded"
    for code, word in ((0, "Completed"), (3, "Error")):
        ended = [{"name": "worker", "state": {"terminated": {"reason": word, "exitCode": code}}}]
        assert story([seen(1, containerStatuses=ended)], "u").reason == ""


def test_an_eviction_by_the_api_and_one_by_the_kubelet() -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    told = story([seen(1), seen(2, conditions=[target]), seen(3, metadata={"deletionTimestamp": "x"})], "u")
    assert (told.disruption, told.evicted, told.changed_at) == ("EvictionByEvictionAPI", "", 2)
    failed = {"phase": "Failed", "reason": "Evicted", "message": "Usage of EmptyDir volume exceeds the limit"}
    told = story([seen(1), seen(2, **failed), seen(3, "DELETED", **failed)], "u")
    assert told.evicted == "Usage of EmptyDir volume exceeds the limit"
    assert told.changed_at == 2
    assert "Evicted: Usage" in told.word


def test_a_start_that_a_killed_controller_had_not_saved_is_the_schedulers() -> None:
    log = (
        "slurmctld: Recovered JobId=205 Assoc=4\n"
        "slurmctld: error: Registered PENDING JobId=205 StepId=205.batch on node n1\n"
        "slurmctld: error: Registered PENDING JobId=2051 StepId=2051.batch on node n2\n"
        "slurmctld: sched: Allocate JobId=205 NodeList=n1 #CPUs=1 Partition=normal\n"
    )
    assert read_replaced(log, {"205"}) == 1
    assert read_replaced(log, {"20"}) == 0
