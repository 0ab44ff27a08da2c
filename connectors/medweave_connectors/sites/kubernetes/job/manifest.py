"""The Job object of one step, built from a standing pod and the step's requests. Pure."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from typing import Any

from medweave_connectors.jobs.job_requests import JobRequest
from medweave_connectors.sites.pods import owner

DEPLOYMENT, SUBMISSION, JOB = "medweave.dev/deployment", "medweave.dev/submission", "medweave.dev/job"
WORK = "medweave.dev/work"  # digest of the computation, by which another driver recognizes the Job
TTL_S = 3 * 24 * 3600  # for re-attaching after a driver died; a live driver deletes its Jobs once it has read their end
DISRUPTIONS = 3  # how often Kubernetes replaces a disrupted pod
_GPU = "nvidia.com/gpu"
_TMP = "medweave-tmp"
# Keys that the pod of a Job copies from the standing pod. Its node, its name and what admission plugins add differ.
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
_TOKEN_VOLUME = "kube-api-access-"  # the admission plugin adds a new one


def build_job_name(name: str, token: str) -> str:
    """Return the Job's name for the engine's job name: `segment-0-3-1f2e3d4c`, at most 63 characters."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{stem[: 62 - len(token)].rstrip('-') or 'job'}-{token}"


def build_labels(deployment: str, token: str) -> dict[str, str]:
    """Return the labels of a Job and of its pods: owner, deployment and submission."""
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
    """Return the Job object.

    Kubernetes replaces a disrupted pod (evicted, preempted, drained node); an exit code of the command ends the Job.

    Args:
        standing: a pod of the deployment, as the API server has it.
        container: name of the container of it that the command runs in.
        job: the engine's name of the job.
        limit_s: longest time of a pod on its node, s; None for none.
    """
    spec = {key: copy.deepcopy(value) for key, value in standing["spec"].items() if key in _OF_POD}
    (template,) = (candidate for candidate in standing["spec"]["containers"] if candidate["name"] == container)
    works = {key: copy.deepcopy(value) for key, value in template.items() if key in _OF_CONTAINER}
    works["command"] = [
        "sh",
        "-c",
        script.replace("$", "$$"),
    ]  # Kubernetes takes `$$` for `$`, and `$(NAME)` for a variable
    works["resources"] = _resources(template.get("resources") or {}, request)
    works["terminationMessagePolicy"] = "FallbackToLogsOnError"
    works["securityContext"] = _secured(works.get("securityContext") or {})
    mounts = [mount for mount in works.get("volumeMounts") or [] if not mount["name"].startswith(_TOKEN_VOLUME)]
    used = {mount["name"] for mount in mounts}
    volumes = [copy.deepcopy(volume) for volume in standing["spec"].get("volumes") or [] if volume["name"] in used]
    if not any(mount["mountPath"].rstrip("/") == "/tmp" for mount in mounts):
        mounts.append({"name": _TMP, "mountPath": "/tmp"})
        volumes.append({"name": _TMP, "emptyDir": {}})
    works["volumeMounts"] = mounts
    spec |= {"restartPolicy": "Never", "containers": [works], "volumes": volumes}
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = limit_s  # of the pod, not of the Job: waiting for a node does not count
    annotations = {JOB: job}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": dict(own_labels), "annotations": annotations},
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
            "template": {"metadata": {"labels": dict(own_labels), "annotations": annotations}, "spec": spec},
        },
    }


def _resources(template: Mapping[str, Any], request: JobRequest) -> dict[str, Any]:
    """Return the step's requests, and from the template only what CWL cannot express (`ephemeral-storage`)."""
    requested = {"cpu": f"{request.cores:g}", "memory": f"{math.ceil(request.memory_mib)}Mi"}
    own = {
        side: {
            name: value
            for name, value in (template.get(side) or {}).items()
            if name not in requested and "/" not in name
        }
        for side in ("requests", "limits")
    }
    device = next((name for name in template.get("limits") or {} if name.endswith("/gpu")), _GPU)
    gpus = {device: str(request.hints.gpus_min)} if request.hints.gpus_min else {}
    return {"requests": own["requests"] | requested, "limits": own["limits"] | requested | gpus}


def _secured(template: Mapping[str, Any]) -> dict[str, Any]:
    usual = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return usual | dict(template) | {"runAsNonRoot": True, "readOnlyRootFilesystem": True}
