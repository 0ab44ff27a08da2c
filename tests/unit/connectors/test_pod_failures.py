"""The kind of a failure in pods, in the words that all sites share."""

from __future__ import annotations

from typing import Any

import pytest

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.pods.exec.commands import Counters
from medweave_connectors.sites.pods.exec.member import Member, build_outcome
from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from medweave_connectors.sites.pods.objects.pod_states import describe, describe_loss, loss_kind
from support.api_server import NODE_MISSED, pod_document


def pod(**changes: Any) -> Pod:
    document = pod_document("w-0")
    document["metadata"] |= changes.pop("metadata", {})
    document["status"] |= changes
    return parse_pod(document)


def disrupted(reason: str) -> Pod:
    """A pod that is being deleted for this reason."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "it must go"}
    return pod(metadata={"deletionTimestamp": "2026-11-21T10:00:00Z"}, conditions=[target])


def restarted(reason: str) -> Pod:
    ended = {"terminated": {"reason": reason, "exitCode": 137}}
    return pod(containerStatuses=[{"name": "worker", "restartCount": 1, "state": {"running": {}}, "lastState": ended}])


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (None, FailureKind.CANCELLED),
        (pod(metadata={"uid": "another"}), FailureKind.CANCELLED),
        (pod(metadata={"deletionTimestamp": "2026-11-21T10:00:00Z"}), FailureKind.CANCELLED),
        (disrupted("EvictionByEvictionAPI"), FailureKind.PREEMPTED),
        (disrupted("DeletionByTaintManager"), FailureKind.NODE_FAIL),
        (disrupted("SomethingNew"), FailureKind.CANCELLED),
        (pod(phase="Failed", reason="Evicted", message="Usage of EmptyDir volume"), FailureKind.PREEMPTED),
        (pod(phase="Failed", reason="NodeShutdown"), FailureKind.NODE_FAIL),
        (pod(phase="Failed", reason="SomethingNew"), FailureKind.UNKNOWN),
        (pod(conditions=NODE_MISSED), FailureKind.NODE_FAIL),
        (restarted("OOMKilled"), FailureKind.OUT_OF_MEMORY),
        (restarted("Error"), FailureKind.UNKNOWN),
    ],
)
def test_each_loss_has_a_kind(now: Pod | None, kind: FailureKind) -> None:
    assert describe_loss(pod(), now, "worker")
    assert loss_kind(pod(), now, "worker") == kind


def test_the_reason_of_a_deletion_is_reported() -> None:
    line = describe(disrupted("EvictionByEvictionAPI"))
    assert line == "w-0: gone, is being deleted (EvictionByEvictionAPI: it must go)"


def member(exit_code: int | None, *, oom_kills: int | None = None) -> Member:
    return Member(
        rank=0,
        pod=pod(),
        container="worker",
        variables={},
        line="",
        key="k",
        output=JobOutput("/first/0"),
        before=Counters(oom_kills=None if oom_kills is None else 1),
        after=Counters(oom_kills=None if oom_kills is None else 1 + oom_kills),
        exit_code=exit_code,
    )


def failure(member: Member, limit_s: int | None = None) -> object:
    facts = {"seconds": 1.0, "kept_at": "", "reports": None, "site": {"namespace": "n"}}
    site = build_outcome([member], member, limit_s=limit_s, **facts).site  # type: ignore[arg-type]
    assert site["namespace"] == "n"
    return site.get("failure")


def test_an_outcome_tells_the_kind_of_a_failure() -> None:
    assert failure(member(0)) is None
    assert failure(member(65)) == "StepFailed"
    assert failure(member(137, oom_kills=0)) == "StepFailed"
    assert failure(member(137)) == "StepFailed", "a counter that cannot be read is no evidence"
    assert failure(member(1, oom_kills=2)) == "OutOfMemory"
    assert failure(member(143), limit_s=3) == "Timeout"
    assert failure(member(None)) == "Unknown"


def test_a_lost_pod_counts_before_the_exit_code() -> None:
    lost = member(137)
    assert lost.look_at(disrupted("EvictionByEvictionAPI"))
    assert failure(lost) == "Preempted"
    well = member(65)
    assert not well.look_at(pod())
    assert failure(well) == "StepFailed"
