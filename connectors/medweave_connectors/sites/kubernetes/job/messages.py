"""Messages about a Job that does not start, or that fails. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.kubernetes.job.client import JobSite
from medweave_connectors.sites.kubernetes.job.script import ScriptEnd
from medweave_connectors.sites.kubernetes.job.states import JobStatus, KubernetesJobState
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.exec.commands import Counters, explain_failure
from medweave_connectors.sites.pods.objects.pod import ClusterEvent
from medweave_connectors.sites.pods.startup.deadlines import WaitEnd
from medweave_connectors.sites.pods.startup.messages import describe_events, describe_pods

UNKNOWN_CODE = 75  # "may succeed when run again"


def rejected_error(error: ApiServerError, site: JobSite, step: str) -> DeploymentRefused:
    """Return the error for a Job that the cluster rejects."""
    return DeploymentRefused(
        f"deployments.{site.deployment}.config.{'namespace' if error.status == 403 else 'mode'}: "
        f"the cluster rejects the Job of {step}.",
        seen=str(error),
        expected=f"a namespace '{site.cluster.namespace}' in which this account may list, create and delete Jobs",
        do="ask its administrator for that right or more quota, or remove `mode: job`",
    )


def never_started_error(
    end: WaitEnd,
    status: JobStatus,
    site: JobSite,
    *,
    step: str,
    job_name: str,
    reason: str,
    events: Sequence[ClusterEvent],
) -> DeploymentRefused:
    """Return the error for a Job whose pod does not start.

    Args:
        reason: the cause, if there is no pod.
    """
    pods = [status.pod] if status.pod else []
    key, what = {
        WaitEnd.NEVER: (site.template, "its pod cannot start"),
        WaitEnd.WAITED: ("pendingTimeout", f"its pod could not start within {site.pending_timeout_s:.0f} s"),
        WaitEnd.LATE: ("timeout", f"its pod did not run after {site.timeout_s:.0f} s"),
    }[end]
    lines = [*(describe_pods(pods) if pods else [reason]), *describe_events(events, pods)]
    return DeploymentRefused(
        f"deployments.{site.deployment}.config.{key}: {what} ({step}, Job {job_name}).",
        seen="\n".join(lines),
        expected=f"a pod that starts in namespace '{site.cluster.namespace}', with the resources that the step requests",
        do="read the messages of the cluster above; correct the pod that is the template, the step's requirements, or the time",
    )


def describe_failure(status: JobStatus, end: ScriptEnd | None, limit_s: int | None, *, place: str) -> tuple[int, str]:
    """Return the exit code, and the site's part of the cause."""
    if status.kind is FailureKind.TIMEOUT:
        return UNKNOWN_CODE, f"the time limit of {limit_s} s was reached; the step was ended."
    if status.state is KubernetesJobState.COMPLETED:
        return UNKNOWN_CODE, f"its pod succeeded, but its files are not visible in {place}: do they share a volume?"
    code = status.exit_code or (end.exit_code if end else 0) or UNKNOWN_CODE
    if status.kind is FailureKind.OUT_OF_MEMORY:
        return code, status.word and f"out of memory: the container was killed at its memory limit. {status.word}"
    if status.kind is FailureKind.STEP_FAILED:
        return code, explain_failure(code, Counters(oom_kills=0), end.counters if end else Counters())
    return UNKNOWN_CODE, status.word
