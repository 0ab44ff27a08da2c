"""The Job of one step: built from a pod that stands, and from what the step asks for. Pure."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from typing import Any

from medweave_connectors.jobs.job_requests import JobRequest
from medweave_connectors.sites.pods import owner

DEPLOYMENT, SUBMISSION, JOB = "medweave.dev/deployment", "medweave.dev/submission", "medweave.dev/job"
WORK = "medweave.dev/work"  # digest of what is computed, by which another driver knows it again
TTL_S = (
    3 * 24 * 3600
)  # of one whose driver is gone, for the next one; a driver removes its own when it has read their end
DISRUPTIONS = 3  # so often a pod that was taken away is replaced
_GPU = "nvidia.com/gpu"
_TMP = "medweave-tmp"
# What a pod that works once has of one that stands. Its node, its name and what admissions have added are its own.
_OF_POD = (
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
)
_OF_CONTAINER = ("name", "image", "imagePullPolicy", "env", "envFrom", "securityContext", "volumeMounts")
_TOKEN_VOLUME = "kube-api-access-"  # the admission that made it makes another one


def job_name(name: str, token: str) -> str:
    """`segment-0-3-1f2e3d4c`, of the engine's name of a job: a name for the Job, 63 characters at most."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{stem[: 62 - len(token)].rstrip('-') or 'job'}-{token}"


def labels(deployment: str, token: str) -> dict[str, str]:
    """Labels of a Job and of its pods: whose they are, and of which submission."""
    return owner.labels() | {DEPLOYMENT: owner.label(deployment), SUBMISSION: token}


def build_job(
    standing: Mapping[str, Any],
    container: str,
    script: str,
    *,
    name: str,
    own_labels: Mapping[str, str],
    job: str,
    request: JobRequest,
    limit_s: int | None,
) -> dict[str, Any]:
    """The Job.

    A pod that is taken away (evicted, pushed out, its node drained) is replaced; an exit code of the command's own is the end.

    Args:
        standing: a pod of the deployment, as the API server has it.
        container: name of the container of it that the command runs in.
        job: the engine's name of the job.
        limit_s: longest time of a pod on its node, s; None for none.
    """
    spec = {key: copy.deepcopy(value) for key, value in standing["spec"].items() if key in _OF_POD}
    (found,) = (each for each in standing["spec"]["containers"] if each["name"] == container)
    works = {key: copy.deepcopy(value) for key, value in found.items() if key in _OF_CONTAINER}
    works["command"] = [
        "sh",
        "-c",
        script.replace("$", "$$"),
    ]  # Kubernetes takes `$$` for `$`, and `$(NAME)` for a variable
    works["resources"] = _resources(found.get("resources") or {}, request)
    works["terminationMessagePolicy"] = "FallbackToLogsOnError"
    works["securityContext"] = _secured(works.get("securityContext") or {})
    mounts = [each for each in works.get("volumeMounts") or [] if not each["name"].startswith(_TOKEN_VOLUME)]
    used = {each["name"] for each in mounts}
    volumes = [copy.deepcopy(each) for each in standing["spec"].get("volumes") or [] if each["name"] in used]
    if not any(each["mountPath"].rstrip("/") == "/tmp" for each in mounts):
        mounts.append({"name": _TMP, "mountPath": "/tmp"})
        volumes.append({"name": _TMP, "emptyDir": {}})
    works["volumeMounts"] = mounts
    spec |= {"restartPolicy": "Never", "containers": [works], "volumes": volumes}
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = (
            limit_s  # of the pod, not of the Job: a wait for a node is none of the step's time
        )
    told = {JOB: job}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(own_labels), "annotations": told},
        "spec": {
            "ttlSecondsAfterFinished": TTL_S,
            "backoffLimit": DISRUPTIONS,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": container, "operator": "NotIn", "values": [0]},
                    },
                ]
            },
            "template": {"metadata": {"labels": dict(own_labels), "annotations": told}, "spec": spec},
        },
    }


def _resources(template: Mapping[str, Any], request: JobRequest) -> dict[str, Any]:
    """What the step asks for; of the template only what the CWL has no words for (`ephemeral-storage`)."""
    asked = {"cpu": f"{request.cores:g}", "memory": f"{math.ceil(request.memory_mib)}Mi"}
    own = {
        side: {
            name: value for name, value in (template.get(side) or {}).items() if name not in asked and "/" not in name
        }
        for side in ("requests", "limits")
    }
    device = next((name for name in template.get("limits") or {} if name.endswith("/gpu")), _GPU)
    gpus = {device: str(request.hints.gpus_min)} if request.hints.gpus_min else {}
    return {"requests": own["requests"] | asked, "limits": own["limits"] | asked | gpus}


def _secured(given: Mapping[str, Any]) -> dict[str, Any]:
    usual = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return usual | dict(given) | {"runAsNonRoot": True, "readOnlyRootFilesystem": True}
