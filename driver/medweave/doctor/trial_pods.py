"""Pods that do nothing, under the rules of those that a run would start; they are removed, and so is what came with them."""

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
_KEPT = ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName", "securityContext", "runtimeClassName")
_OWN = ("image", "imagePullPolicy", "securityContext", "resources")
_WORKLOADS = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"), ())


@contextlib.contextmanager
def trial(
    api: client.ApiClient,
    namespace: str,
    pod: Mapping[str, Any],
    limit_s: float,
    policies: Sequence[Mapping[str, Any]] = (),
) -> Iterator[str]:
    """A pod, for the block; its name. It may not have started yet.

    Args:
        limit_s: for one answer of the API server.
        policies: NetworkPolicies that hold for it.

    Raises:
        ApiException: one of them is refused.
    """
    pods, networks, name = client.CoreV1Api(api), client.NetworkingV1Api(api), pod["metadata"]["name"]
    made = pods.create_namespaced_pod(namespace, pod, _request_timeout=limit_s)
    try:
        for policy in policies:
            body = policy_of(policy, name, made.metadata.uid)
            networks.create_namespaced_network_policy(namespace, body, _request_timeout=limit_s)
        yield name
    finally:
        for policy in policies:
            own = policy_of(policy, name, made.metadata.uid)["metadata"]["name"]
            with contextlib.suppress(ApiException):  # it is not there, or goes with the pod that owns it
                networks.delete_namespaced_network_policy(own, namespace, _request_timeout=limit_s)
        pods.delete_namespaced_pod(name, namespace, grace_period_seconds=0, _request_timeout=limit_s)


# ---- pure


def new_name() -> str:
    """Of a trial, and of the release that its objects are rendered for."""
    return PREFIX + secrets.token_hex(4)


def templates(objects: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The pod templates of workloads, and pods that stand alone: each with `metadata` and `spec`."""
    for each in objects:
        for path in _WORKLOADS:
            at: Any = each
            for key in path:
                at = at.get(key) if isinstance(at, dict) else None
            if isinstance(at, dict) and "containers" in (at.get("spec") or {}):
                yield at
                break


def pod_of(
    name: str, container: Mapping[str, Any], spec: Mapping[str, Any], *, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A pod that does nothing for a while, under the rules of the pod that it stands for.

    Args:
        labels: of the pod that it stands for, where NetworkPolicies shall hold; no Service sends anything to it.
    """
    own = {key: container[key] for key in _OWN if key in container}
    # Never ready: else a Service of a run that goes on would take it for one of its own.
    aside = {"readinessGates": [{"conditionType": "medweave.dev/trial"}]} if labels else {}
    return {
        "metadata": {"name": name, "labels": {**(labels or {}), **_LABELS}},
        "spec": {key: spec[key] for key in _KEPT if key in spec}
        | aside
        | {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": 300,  # should the driver die before it removes it
            "containers": [{"name": "image", "command": ["sleep", "280"], **own}],
        },
    }


def with_claim(
    pod: dict[str, Any], container: Mapping[str, Any], spec: Mapping[str, Any], workdir: str, bound: Collection[str]
) -> dict[str, Any]:
    """The same pod with the claim on which its workdir lies, so that it sees the files that a run's pods would see.

    Args:
        bound: names of claims that are there; what is not bound yet would be bound by a trial, and stay so.
    """
    volumes = {each["name"]: each for each in spec.get("volumes") or []}
    found: Mapping[str, Any] = {}
    for mount in container.get("volumeMounts") or []:
        is_above = posixpath.commonpath([workdir, mount["mountPath"]]) == posixpath.normpath(mount["mountPath"])
        if is_above and len(mount["mountPath"]) > len(found.get("mountPath", "")):
            found = mount
    volume = volumes.get(found.get("name"), {})
    if (volume.get("persistentVolumeClaim") or {}).get("claimName") in bound:
        pod["spec"]["volumes"] = [volume]
        pod["spec"]["containers"][0]["volumeMounts"] = [dict(found)]
    return pod


def policy_of(policy: Mapping[str, Any], pod: str, uid: str) -> dict[str, Any]:
    """A NetworkPolicy under a name of the trial's own; it goes with the pod.

    Args:
        pod: name of the pod that it belongs to.
        uid: of that pod.
    """
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
    name = f"{pod}-{policy['metadata']['name']}"[:253]
    return {
        "apiVersion": policy["apiVersion"],
        "kind": policy["kind"],
        "metadata": {"name": name, "labels": _LABELS, "ownerReferences": [owner]},
        "spec": policy["spec"],
    }
