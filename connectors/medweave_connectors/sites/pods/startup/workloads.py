"""What a chart or a manifest asks the cluster for: which pods are expected, and by which labels they are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow

_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that has pods.

    Attributes:
        replicas: pods it wants; 1 for a DaemonSet, whose number only the cluster knows.
        selector: labels of its pods, as the API server takes them: `app=x,part=worker`.
        containers: names of the containers of each pod.
    """

    kind: str
    name: str
    replicas: int
    selector: str
    containers: tuple[str, ...]

    def path(self, namespace: str) -> str:
        """Where the API server has it."""
        base = "/api/v1" if self.kind in ("Pod", "ReplicationController") else "/apis/apps/v1"
        return f"{base}/namespaces/{namespace}/{self.kind.lower()}s/{self.name}"


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream; lists are opened, empty documents left out.

    Raises:
        ValueError: it is no YAML, or a document is no Kubernetes object.
    """
    try:
        found = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error
    opened: list[dict[str, Any]] = []
    for each in found:
        if not isinstance(each, Mapping) or "kind" not in each or "apiVersion" not in each:
            raise ValueError("a document has no apiVersion or kind")
        opened.extend(each.get("items") or [] if each["kind"] == "List" else [dict(each)])
    return opened


def claims(objects: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the volume claims among the objects."""
    return frozenset(each["metadata"]["name"] for each in objects if each["kind"] == "PersistentVolumeClaim")


def workloads(objects: Iterable[Mapping[str, Any]]) -> list[Workload]:
    """The objects that have pods, in their order."""
    return [_workload(each) for each in objects if each["kind"] in _KINDS]


def container_names(found: Iterable[Workload]) -> list[str]:
    """Names of the containers that steps can be bound to, each once, in their order."""
    return list(dict.fromkeys(name for workload in found for name in workload.containers))


def selectors(found: Iterable[Workload]) -> Iterator[str]:
    """Each selector once."""
    yield from dict.fromkeys(workload.selector for workload in found)


def pod_templates(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The `spec` of the pods of each object that has pods."""
    return [_pod_spec(each) for each in objects if each["kind"] in _KINDS]


def _pod_spec(document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
    return spec


def _workload(document: Mapping[str, Any]) -> Workload:
    spec = document["spec"]
    if document["kind"] == "Pod":
        labels = document["metadata"].get("labels") or {}
    else:
        wanted = spec.get("selector") or {}
        labels = wanted.get("matchLabels", wanted if document["kind"] == "ReplicationController" else {})
    return Workload(
        kind=document["kind"],
        name=document["metadata"]["name"],
        replicas=int(spec.get("replicas", 1)) if document["kind"] != "DaemonSet" else 1,
        selector=",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        containers=tuple(container["name"] for container in _pod_spec(document)["containers"]),
    )
