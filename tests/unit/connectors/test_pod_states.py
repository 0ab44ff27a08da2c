"""Pods in the API server's JSON (v1.34): their states, and the storage of their mounts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod, parse_pod, quantity
from medweave_connectors.sites.pods.objects.pod_states import PodState, describe, describe_loss, judge
from medweave_connectors.sites.pods.objects.volumes import describe_location, one_per_storage
from medweave_connectors.sites.pods.startup.messages import describe_events, describe_pods
from support.api_server import NODE_MISSED

RUNNING: dict[str, Any] = {
    "metadata": {"name": "w-0", "namespace": "tenant-a", "uid": "u-1", "labels": {"app": "w"}},
    "spec": {
        "nodeName": "node-1",
        "hostname": "w-0",
        "subdomain": "w-pods",
        "containers": [
            {
                "name": "worker",
                "resources": {"limits": {"cpu": "500m", "memory": "2Gi"}},
                "volumeMounts": [
                    {"name": "work", "mountPath": "/work"},
                    {"name": "cohort", "mountPath": "/work/cohort", "subPath": "lung"},
                ],
            }
        ],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "cohort", "persistentVolumeClaim": {"claimName": "cohort"}},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.88.0.7",
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": "True"},
            {"type": "DisruptionTarget", "status": "False"},
            {"type": "Ready", "status": "True"},
        ],
        "containerStatuses": [{"name": "worker", "ready": True, "restartCount": 0, "state": {"running": {}}}],
    },
}


def pod(name: str = "w-0", **changes: Any) -> Pod:
    """The running pod with another name, and with keys of its status replaced."""
    document = copy.deepcopy(RUNNING)
    document["metadata"]["name"] = document["spec"]["hostname"] = name
    document["metadata"] |= changes.pop("metadata", {})
    document["spec"] |= changes.pop("spec", {})
    document["status"] |= changes
    return parse_pod(document)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    statuses = [{"name": "worker", "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]
    return {
        "phase": "Pending",
        "containerStatuses": statuses,
        "conditions": [{"type": "PodScheduled", "status": "True"}],
    }


def test_a_pod_is_read_from_its_json() -> None:
    subject = pod()
    assert (subject.address, subject.ip, subject.node) == ("w-0.w-pods", "10.88.0.7", "node-1")
    worker = subject.container("worker")
    assert worker is not None
    assert (worker.cores, worker.memory_mib) == (0.5, 2048)
    assert subject.container("master") is None
    assert pod(spec={"hostname": "", "subdomain": ""}).address == "10.88.0.7"


def test_pods_of_a_statefulset_are_sorted_by_number() -> None:
    names = [w.name for w in sorted((pod(f"w-{n}") for n in (10, 2, 0)), key=lambda w: w.order)]
    assert names == ["w-0", "w-2", "w-10"]


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), ("2", 2), ("1.5", 1.5), ("2Gi", 2**31), ("1e3", 1000)])
def test_quantities(text: str, number: float) -> None:
    assert quantity(text) == number


def test_only_the_condition_ready_decides() -> None:
    # Fault K1 of the engine: it wants every condition to be True, and DisruptionTarget is False in a healthy pod.
    assert judge(pod()) == (PodState.READY, "")


NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu."}


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, PodState.GONE, "Evicted"),
        ({"phase": "Succeeded"}, PodState.GONE, "ended"),
        ({"metadata": {"deletionTimestamp": "2026-11-21T10:00:00Z"}}, PodState.GONE, "deleted"),
        (waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/x:1"'), PodState.STUCK, "nowhere/x:1"),
        (waiting("ContainerCreating"), PodState.STARTING, "ContainerCreating"),
        ({"phase": "Somewhat"}, PodState.UNKNOWN, "Somewhat"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [],
                "conditions": [NO_ROOM],
            },
            PodState.UNSCHEDULABLE,
            "Insufficient cpu",
        ),
        (
            {"conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "[worker]"}]},
            PodState.STARTING,
            "ContainersNotReady",
        ),
    ],
)  # fmt: skip
def test_each_state_has_its_reason(changes: dict[str, Any], state: PodState, words: str) -> None:
    subject = pod(**changes)
    assert judge(subject)[0] == state
    assert words in judge(subject)[1]
    assert describe(subject).startswith(f"w-0: {state}")


def test_a_crash_loop_tells_how_the_container_ended() -> None:
    status = waiting("CrashLoopBackOff")["containerStatuses"][0] | {
        "lastState": {"terminated": {"reason": "Error", "exitCode": 78, "message": "no COMPSs here\n"}},
        "restartCount": 2,
    }
    assert (
        "container worker ends as soon as it starts, with Error, exit code 78"
        in judge(pod(containerStatuses=[status]))[1]
    )


def restarted(reason: str, code: int) -> Pod:
    status = {
        "name": "worker",
        "restartCount": 1,
        "state": {"running": {}},
        "lastState": {"terminated": {"reason": reason, "exitCode": code}},
    }
    return pod(containerStatuses=[status])


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (None, "w-0 is gone"),
        (pod(metadata={"uid": "u-2"}), "replaced"),
        (pod(metadata={"deletionTimestamp": "2026-11-21T10:00:00Z"}), "being deleted"),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted: low on memory"),
        (restarted("OOMKilled", 137), "restarted after OOMKilled, exit code 137"),
        (pod(conditions=NODE_MISSED), "pod w-0: its node node-1 does not answer"),
    ],
)
def test_a_loss_is_described(now: Pod | None, words: str) -> None:
    assert words in describe_loss(pod(), now, "worker")


def test_what_is_no_loss() -> None:
    assert describe_loss(pod(), pod(), "worker") == ""
    slow = pod(conditions=[{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}])
    assert describe_loss(pod(), slow, "worker") == "", "a probe that is late under load is no loss"
    unsaid = pod(conditions=[{"type": "ContainersReady", "status": "False"}, {"type": "Ready", "status": "False"}])
    assert describe_loss(pod(), unsaid, "worker") == "", "its containers say why"


def test_a_missed_node_is_told_of_a_pod_that_is_waited_for() -> None:
    assert judge(pod(conditions=NODE_MISSED)) == (PodState.STARTING, "its node node-1 does not answer")


def places(*pods: Pod) -> list[tuple[Pod, str]]:
    return [(pod, "worker") for pod in pods]


def names(chosen: list[tuple[Pod, str]]) -> list[str]:
    return [chosen_pod.name for chosen_pod, _ in chosen]


def test_equal_names_of_volumes_are_not_equal_volumes() -> None:
    # Fault K4 of the engine: it compares names, and so leaves all pods but one without the data.
    assert names(one_per_storage(places(pod("w-0"), pod("w-1")), "/work/job/in")) == ["w-0", "w-1"]


def test_pods_that_share_a_claim_get_one_copy() -> None:
    both = places(pod("w-0"), pod("w-1"))
    assert names(one_per_storage(both, "/work/cohort/case")) == ["w-0"]
    assert names(one_per_storage(both, "/work/cohort/case", first="w-1")) == ["w-1"], "the source has it already"


@pytest.mark.parametrize(
    ("path", "removed", "expected"),
    [
        ("/work/job", None, "here:w-0:worker:/work/job"),
        ("/work/job", frozenset[str](), ""),
        ("/work/cohort/job", frozenset({"cohort"}), ""),
        ("/work/cohort/job", frozenset({"another"}), "here:claim cohort:/work/cohort/job"),
    ],
)
def test_files_are_said_to_be_kept_where_they_are_after_the_run(
    path: str, removed: frozenset[str] | None, expected: str
) -> None:
    assert describe_location("here", pod("w-0"), "worker", path, removed) == expected


def test_a_mount_is_a_folder_and_no_prefix_of_a_name() -> None:
    # Fault K4: `/work/cohort` matched `/work/cohort-2`.
    assert names(one_per_storage(places(pod("w-0"), pod("w-1")), "/work/cohort-2")) == ["w-0", "w-1"]


def test_a_pod_without_mounts() -> None:
    # Fault K4: TypeError.
    bare = copy.deepcopy(RUNNING["spec"]["containers"])
    del bare[0]["volumeMounts"]
    assert names(one_per_storage(places(pod("w-0", spec={"containers": bare}), pod("w-1")), "/tmp/x")) == ["w-0", "w-1"]


def test_folders_of_a_node_are_shared_on_that_node_only() -> None:
    volumes = [{"name": "work", "hostPath": {"path": "/data"}}, {"name": "cohort", "emptyDir": {}}]
    here, too = pod("w-0", spec={"volumes": volumes}), pod("w-1", spec={"volumes": volumes})
    there = pod("w-2", spec={"volumes": volumes, "nodeName": "node-2"})
    assert names(one_per_storage(places(here, too, there), "/work/x")) == ["w-0", "w-2"]


def test_pods_with_one_reason_are_told_in_one_line() -> None:
    crashed = waiting("CrashLoopBackOff")["containerStatuses"][0] | {
        "lastState": {
            "terminated": {"reason": "Error", "exitCode": 78, "message": "pod w-0: no COMPSs here.\n  do: mount it\n"}
        },
    }
    other = copy.deepcopy(crashed)
    other["lastState"]["terminated"]["message"] = "pod w-1: no COMPSs here.\n  do: mount it\n"
    subject = describe_pods(
        [pod("w-0", containerStatuses=[crashed]), pod("w-1", containerStatuses=[other]), pod("w-2")]
    )
    assert subject == [
        "w-0, w-1: stuck, CrashLoopBackOff: container worker ends as soon as it starts, with Error, exit code 78",
        "  pod …: no COMPSs here.",
        "    do: mount it",
        "w-2: ready",
    ]
    assert describe_pods([]) == ["no pods"]


def test_events_are_told_once_and_only_where_they_add_something() -> None:
    refused = 'pods "w-5d9-{}" is forbidden: exceeded quota: small'
    events = [
        ClusterEvent("w-5d9", "FailedCreate", refused.format("abc")),
        ClusterEvent("w-5d9", "FailedCreate", refused.format("xyz")),
        ClusterEvent("w-0", "Scheduled", "Successfully assigned a/w-0 to node-1"),
        ClusterEvent("w-0", "Failed", 'Back-off pulling image "nowhere/x:1"'),
    ]
    pods = [pod("w-0", **waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/x:1"'))]
    assert describe_events(events, pods) == ['FailedCreate: pods "…" is forbidden: exceeded quota: small']
