"""What the user reads of a Job that does not start, or does not do well. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.kubernetes.job_script import ScriptEnd
from medweave_connectors.sites.kubernetes.job_site import JobSite
from medweave_connectors.sites.kubernetes.job_states import JobState, Told
from medweave_connectors.sites.pods.api.cluster import Refused
from medweave_connectors.sites.pods.errors import DeploymentRefused
from medweave_connectors.sites.pods.exec.commands import Counters, verdict
from medweave_connectors.sites.pods.startup.deadlines import End
from medweave_connectors.sites.pods.startup.messages import tell_events, tell_pods
from medweave_connectors.sites.pods.startup.pod import Event

UNKNOWN_CODE = 75  # "may succeed when run again"


def not_taken(error: Refused, site: JobSite, step: str) -> DeploymentRefused:
    """Of a Job that the cluster refuses."""
    return DeploymentRefused(
        f"deployments.{site.deployment}.config.{'namespace' if error.status == 403 else 'mode'}: "
        f"the cluster does not take the Job of {step}.",
        seen=str(error),
        expected=f"a namespace '{site.cluster.namespace}' in which this account may list, create and delete Jobs",
        do="ask its administrator for that right or more quota, or leave `mode: job` out",
    )


def never_started(
    end: End, told: Told, site: JobSite, *, step: str, job_name: str, reason: str, events: Sequence[Event]
) -> DeploymentRefused:
    """Of a Job whose pod does not run.

    Args:
        reason: why, where there is no pod.
    """
    pods = [told.pod] if told.pod else []
    key, what = {
        End.NEVER: (site.template, "its pod cannot start"),
        End.WAITED: ("pendingTimeout", f"its pod could not start within {site.pending_timeout_s:.0f} s"),
        End.LATE: ("timeout", f"its pod did not run after {site.timeout_s:.0f} s"),
    }[end]
    lines = [*(tell_pods(pods) if pods else [reason]), *tell_events(events, pods)]
    return DeploymentRefused(
        f"deployments.{site.deployment}.config.{key}: {what} ({step}, Job {job_name}).",
        seen="\n".join(lines),
        expected=f"a pod that starts in namespace '{site.cluster.namespace}', with what the step asks for",
        do="look at what the cluster says above; correct the pod that is the template, the step's requirements, or the time",
    )


def failure(told: Told, end: ScriptEnd | None, limit_s: int | None, *, place: str) -> tuple[int, str]:
    """The exit code, and the site's part of the cause."""
    if told.kind is FailureKind.TIMEOUT:
        return UNKNOWN_CODE, f"the time limit of {limit_s} s was reached; the step was ended."
    if told.state is JobState.COMPLETED:
        return UNKNOWN_CODE, f"its pod ended well, but in {place} nothing is seen of its files: do they share a volume?"
    code = told.exit_code or (end.exit_code if end else 0) or UNKNOWN_CODE
    if told.kind is FailureKind.OUT_OF_MEMORY:
        return code, told.word and f"out of memory: the container was killed at its memory limit. {told.word}"
    if told.kind is FailureKind.STEP_FAILED:
        return code, verdict(code, Counters(oom_kills=0), end.counters if end else Counters())
    return UNKNOWN_CODE, told.word
