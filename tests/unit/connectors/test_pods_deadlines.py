"""Whether a pod may still start, and how long that is waited for: the real server's words (v1.34), and a clock."""

from __future__ import annotations

from typing import Any

import pytest

from medweave_connectors.sites.pods.objects.pod import ClusterEvent, Pod, parse_pod
from medweave_connectors.sites.pods.startup.deadlines import (
    NEVER_S,
    StartState,
    WaitEnd,
    WaitTimes,
    judge_missing_pods,
    judge_start,
)
from medweave_connectors.sites.pods.startup.messages import describe_waiting
from support.api_server import pod_document

IMAGE = "registry.hospital.test/segment:9"
NOT_FOUND = f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": {IMAGE}: not found'
BUSY = f'failed to pull image "{IMAGE}": unexpected status from HEAD request: 503 Service Unavailable'
SILENT = f'failed to pull image "{IMAGE}": dial tcp 10.1.2.3:443: connect: connection refused'
NO_RIGHT = f'failed to pull image "{IMAGE}": failed to authorize: unexpected status: 401 Unauthorized'
NO_ROOM = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}
NO_VOLUME = NO_ROOM | {"message": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."}
SCALE_UP = ClusterEvent("w-0", "TriggeredScaleUp", "pod triggered scale-up: [{gpu 0->1 (max: 4)}]", "e-1")
LIMITS = {"timeout_s": 100.0, "pending_timeout_s": 30.0}


def pod(**status: Any) -> Pod:
    document = pod_document("w-0")
    document["spec"]["volumes"] = [{"name": "work", "persistentVolumeClaim": {"claimName": "scratch"}}]
    document["status"] |= {"phase": "Pending", "conditions": []} | status
    return parse_pod(document)


def waiting(reason: str, message: str = "", **state: Any) -> Pod:
    container = {"name": "worker", "image": IMAGE, "restartCount": 0}
    return pod(
        containerStatuses=[container | {"state": {"waiting": {"reason": reason, "message": message}}} | state],
        conditions=[{"type": "PodScheduled", "status": "True"}],
    )


def back_off(cause: str = "") -> Pod:
    return waiting(
        "ImagePullBackOff", f'Back-off pulling image "{IMAGE}"' + (f": ErrImagePull: {cause}" if cause else "")
    )


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (parse_pod(pod_document("w-0")), StartState.READY, ""),
        (waiting("ContainerCreating"), StartState.STARTING, "ContainerCreating"),
        (waiting("InvalidImageName", "couldn't parse image"), StartState.NEVER, "couldn't parse image"),
        (
            waiting("ErrImageNeverPull", "not present with pull policy of Never"),
            StartState.NEVER,
            "pull policy of Never",
        ),
        (waiting("CreateContainerConfigError", 'secret "key" not found'), StartState.NEVER, 'secret "key" not found'),
        (waiting("ErrImagePull", NOT_FOUND), StartState.NEVER, ": not found"),
        (back_off(NOT_FOUND), StartState.NEVER, ": not found"),
        (waiting("ErrImagePull", NO_RIGHT), StartState.NEVER, "401 Unauthorized"),
        (waiting("ErrImagePull", BUSY), StartState.WAITING, "503 Service Unavailable"),
        (back_off(BUSY), StartState.WAITING, "503 Service Unavailable"),
        (waiting("ErrImagePull", SILENT), StartState.WAITING, "connection refused"),
        (back_off(), StartState.WAITING, "Back-off pulling image"),
        (pod(conditions=[NO_ROOM]), StartState.WAITING, "3 Insufficient cpu"),
        (pod(conditions=[NO_ROOM | {"reason": "SchedulingGated", "message": "gated"}]), StartState.WAITING, "gated"),
        (pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPU"), StartState.NEVER, "no GPU"),
    ],
)
def test_what_can_be_hoped_of_a_pod(found: Pod, expected: StartState, words: str) -> None:
    state, why = judge_start(found, [])
    assert state is expected
    assert words in why


def test_the_name_of_an_image_is_no_answer_of_the_registry() -> None:
    container = {"name": "worker", "restartCount": 0, "image": "host/denied:404"}
    state = {"waiting": {"reason": "ErrImagePull", "message": 'pull image "host/denied:404": 502 Bad Gateway'}}
    assert judge_start(pod(containerStatuses=[container | {"state": state}]), [])[0] is StartState.WAITING


def test_a_try_and_the_pause_after_it_have_one_reason() -> None:
    assert judge_start(waiting("ErrImagePull", BUSY), []) == judge_start(back_off(BUSY), [])


def test_an_older_kubelet_says_in_the_event_why_an_image_does_not_come() -> None:
    gone = ClusterEvent("w-0", "Failed", f'Failed to pull image "{IMAGE}": {NOT_FOUND}')
    assert judge_start(back_off(), [gone])[0] is StartState.NEVER
    assert (
        judge_start(back_off(), [gone, ClusterEvent("w-0", "Failed", f'Failed to pull image "{IMAGE}": {BUSY}')])[0]
        is StartState.WAITING
    )
    assert judge_start(back_off(), [gone._replace(name="w-1")])[0] is StartState.WAITING, "another pod's"


def test_a_crash_loop_is_told_with_its_last_words() -> None:
    ended = {"terminated": {"reason": "Error", "exitCode": 78, "message": "no COMPSs here.\n  do: mount it\n"}}
    state, why = judge_start(waiting("CrashLoopBackOff", lastState=ended), [])
    assert state is StartState.WAITING
    assert why.endswith("with Error, exit code 78: no COMPSs here. do: mount it")


@pytest.mark.parametrize(("restarts", "expected"), [(0, StartState.STARTING), (1, StartState.WAITING)])
def test_a_container_that_has_ended_again_crashes_before_the_kubelet_reports_it(
    restarts: int, expected: StartState
) -> None:
    # Seen with v1.34: for 10 s the state is `terminated`, and only then `waiting` with CrashLoopBackOff.
    ended = {"terminated": {"reason": "Error", "exitCode": 78, "message": "no COMPSs here.\n"}}
    container = {"name": "worker", "image": IMAGE, "restartCount": restarts, "state": ended}
    state, why = judge_start(pod(phase="Running", containerStatuses=[container]), [])
    assert state is expected
    assert why.endswith("with Error, exit code 78: no COMPSs here.") == (restarts > 0)


def test_an_init_container_that_did_well_at_its_second_start_is_done() -> None:
    done = {"name": "fetch", "restartCount": 1, "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    document = pod_document("w-0")
    document["spec"]["initContainers"] = [{"name": "fetch"}]
    document["status"] |= {"phase": "Pending", "conditions": [], "initContainerStatuses": [done]}
    assert judge_start(parse_pod(document), [])[0] is StartState.STARTING


def test_a_claim_that_is_not_bound_is_told_with_its_own_event() -> None:
    why = ClusterEvent("scratch", "ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found')
    prospect = judge_start(pod(conditions=[NO_VOLUME]), [why, why._replace(name="another", text="x")])
    assert prospect[0] is StartState.WAITING
    assert "unbound immediate PersistentVolumeClaims" in prospect[1]
    assert prospect[1].endswith('; ProvisioningFailed: storageclass.storage.k8s.io "fast" not found')


def test_a_volume_that_cannot_be_mounted_is_told_while_the_pod_says_nothing() -> None:
    event = ClusterEvent(
        "w-0", "FailedMount", 'MountVolume.SetUp failed for volume "work" : mount failed: exit status 32'
    )
    assert judge_start(waiting("ContainerCreating"), [event]) == (
        StartState.WAITING,
        f"ContainerCreating (container worker); FailedMount: {event.text}",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'pods "w-0" is forbidden: exceeded quota: small, requested: cpu=4, used: cpu=0, limited: cpu=2',
            StartState.NEVER,
        ),
        (
            'pods "w-0" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation',
            StartState.NEVER,
        ),
        ('admission webhook "policy.hospital.test" denied the request: no label', StartState.NEVER),
        ('Pod "w-0" is invalid: spec.containers[0].image: Required value', StartState.NEVER),
        ('Internal error occurred: failed calling webhook "policy": connect: connection refused', StartState.WAITING),
    ],
)
def test_pods_that_a_cluster_does_not_make(text: str, expected: StartState) -> None:
    events = [ClusterEvent("w-7d4f", "FailedCreate", text), ClusterEvent("words", "FailedCreate", "of another")]
    assert judge_missing_pods("w", events) == (expected, f"FailedCreate: {text}")
    assert judge_missing_pods("w", events[1:]) == (StartState.STARTING, "")


def looks(*observations: tuple[float, StartState, list[ClusterEvent]]) -> WaitEnd | None:
    """Return why the wait is over after observations of one pod: time, state, events."""
    waited = WaitTimes()
    for now_s, state, events in observations:
        waited = waited.after(now_s, {"w-0": (state, "")}, events)
    return waited.end(**LIMITS)


def test_what_can_never_start_is_looked_at_twice() -> None:
    assert looks((0, StartState.NEVER, [])) is None
    assert looks((0, StartState.NEVER, []), (NEVER_S, StartState.NEVER, [])) is WaitEnd.NEVER
    assert looks((0, StartState.NEVER, []), (1, StartState.STARTING, []), (NEVER_S, StartState.NEVER, [])) is None


def test_a_wait_ends_at_pending_timeout() -> None:
    assert looks((0, StartState.WAITING, []), (29, StartState.WAITING, [])) is None
    assert looks((0, StartState.WAITING, []), (30, StartState.WAITING, [])) is WaitEnd.WAITED


def test_a_crash_loop_that_runs_now_and_then_waits_all_the_same() -> None:
    flapping = [(float(n), StartState.STARTING if n % 5 == 0 else StartState.WAITING, []) for n in range(40)]
    assert looks(*flapping) is WaitEnd.WAITED


def test_the_time_of_waiting_is_none_of_the_start() -> None:
    assert looks((0, StartState.WAITING, []), (20, StartState.WAITING, []), (119, StartState.STARTING, [])) is None
    assert (
        looks((0, StartState.WAITING, []), (20, StartState.WAITING, []), (121, StartState.STARTING, [])) is WaitEnd.LATE
    )


def test_a_scale_up_gives_the_whole_time_again_once() -> None:
    waits = StartState.WAITING
    assert looks((0, waits, []), (29, waits, [SCALE_UP]), (58, waits, [SCALE_UP])) is None
    assert looks((0, waits, []), (29, waits, [SCALE_UP]), (59, waits, [SCALE_UP])) is WaitEnd.WAITED
    nominated = ClusterEvent("w-0", "Nominated", "Pod should schedule on: nodeclaim/gpu-x", "e-2")
    assert (
        looks((0, waits, []), (29, waits, [SCALE_UP]), (58, waits, [SCALE_UP, nominated]), (87, waits, [nominated]))
        is None
    )
    assert (
        looks((0, waits, []), (30, waits, [ClusterEvent("w-0", "NotTriggerScaleUp", "none fits", "e-3")]))
        is WaitEnd.WAITED
    )


def test_reasons_are_told_once_with_all_who_have_them() -> None:
    crashed, waits = "BackOff: pod {} crashes", StartState.WAITING
    states = {
        "w-0": (waits, crashed.format("w-0")),
        "w-1": (waits, crashed.format("w-1")),
        "w-2": (waits, "Unschedulable: no room"),
        "w-3": (StartState.STARTING, "Pending"),
    }
    assert describe_waiting(states) == "w-0, w-1: BackOff: pod … crashes; w-2: Unschedulable: no room"
    assert describe_waiting({"w-3": states["w-3"]}) == ""
