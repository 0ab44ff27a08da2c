"""Trial pods: sleeping pods with the settings of a run's pods, removed after the check with their policies."""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

PREFIX = "medweave-doctor-"
_LABELS = {"app.kubernetes.io/managed-by": "medweave-doctor"}
_POD_KEYS = (
    "imagePullSecrets",
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "securityContext",
    "runtimeClassName",
)
_CONTAINER_KEYS = ("image", "imagePullPolicy", "securityContext", "resources")
_WORKLOADS = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ())


@contextlib.contextmanager
def trial(
    api: client.ApiClient,
    namespace: str,
    pod: Mapping[str, Any],
    limit_s: float,
    policies: Sequence[Mapping[str, Any]] = (),
) -> Iterator[str]:
    """Create a pod for the block and yield its name. It may not have started yet.

    Args:
        limit_s: time limit of one answer of the API server.
        policies: NetworkPolicies for the pod.

    Raises:
        ApiException: the pod or a policy is refused.
    """
    pods, networks, name = client.CoreV1Api(api), client.NetworkingV1Api(api), pod["metadata"]["name"]
    created = pods.create_namespaced_pod(namespace, pod, _request_timeout=limit_s)
    try:
        for policy in policies:
            body = policy_of(policy, name, created.metadata.uid)
            networks.create_namespaced_network_policy(namespace, body, _request_timeout=limit_s)
        yield name
    finally:
        for policy in policies:
            policy_name = policy_of(policy, name, created.metadata.uid)["metadata"]["name"]
            with contextlib.suppress(ApiException):  # it does not exist, or is deleted with its pod
                networks.delete_namespaced_network_policy(policy_name, namespace, _request_timeout=limit_s)
        pods.delete_namespaced_pod(name, namespace, grace_period_seconds=0, _request_timeout=limit_s)


# ---- pure


def new_name() -> str:
    """Return a name for a trial pod, and for the release for which objects are rendered."""
    return PREFIX + secrets.token_hex(4)


def templates(objects: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the pod templates of workloads, and single pods: each with `metadata` and `spec`."""
    for item in objects:
        for path in _WORKLOADS:
            at: Any = item
            for key in path:
                at = at.get(key) if isinstance(at, dict) else None
            if isinstance(at, dict) and "containers" in (at.get("spec") or {}):
                yield at
                break


def pod_of(
    name: str, container: Mapping[str, Any], spec: Mapping[str, Any], *, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a sleeping pod with the settings of a run's pod.

    Args:
        labels: labels of the run's pod if NetworkPolicies shall apply; no Service selects the trial pod.
    """
    copied = {key: container[key] for key in _CONTAINER_KEYS if key in container}
    # Never ready: else a Service of a running workflow would select it.
    never_ready = {"readinessGates": [{"conditionType": "medweave.dev/trial"}]} if labels else {}
    return {
        "metadata": {"name": name, "labels": {**(labels or {}), **_LABELS}},
        "spec": {key: spec[key] for key in _POD_KEYS if key in spec}
        | never_ready
        | {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": 300,  # in case the driver dies before it removes the pod
            "containers": [{"name": "image", "command": ["sleep", "280"], **copied}],
        },
    }


def with_claim(
    pod: dict[str, Any], container: Mapping[str, Any], spec: Mapping[str, Any], workdir: str, bound: Collection[str]
) -> dict[str, Any]:
    """Return the pod with the volume claim of its workdir, so that it sees the files of a run's pods.

    Args:
        bound: names of bound claims; an unbound one is skipped, since a trial pod would bind it for good.
    """
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or []}
    nearest: Mapping[str, Any] = {}
    for mount in container.get("volumeMounts") or []:
        is_above = posixpath.commonpath([workdir, mount["mountPath"]]) == posixpath.normpath(mount["mountPath"])
        if is_above and len(mount["mountPath"]) > len(nearest.get("mountPath", "")):
            nearest = mount
    volume = volumes.get(nearest.get("name"), {})
    if (volume.get("persistentVolumeClaim") or {}).get("claimName") in bound:
        pod["spec"]["volumes"] = [volume]
        pod["spec"]["containers"][0]["volumeMounts"] = [dict(nearest)]
    return pod


def policy_of(policy: Mapping[str, Any], pod: str, uid: str) -> dict[str, Any]:
    """Return a copy of a NetworkPolicy under another name, deleted with its pod.

    Args:
        pod: name of the pod that owns it.
        uid: uid of that pod.
    """
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    name = f"{pod}-{policy['metadata']['name']}"[:253]
    return {
        "apiVersion": policy["apiVersion"],
        "kind": policy["kind"],
        "metadata": {"name": name, "labels": _LABELS, "ownerReferences": [owner]},
        "spec": policy["spec"],
    }
