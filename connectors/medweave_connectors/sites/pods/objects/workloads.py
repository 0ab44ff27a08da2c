"""Workloads of a chart or manifest: expected pods, their labels and containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow

_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Kubernetes object that creates pods.

    Attributes:
        replicas: number of pods; 1 for a DaemonSet, whose number the cluster decides.
        selector: labels of its pods, in the syntax of the API server: `app=x,part=worker`.
        containers: names of the containers of each pod.
    """

    kind: str
    name: str
    replicas: int
    selector: str
    containers: tuple[str, ...]

    def path(self, namespace: str) -> str:
        """Return its path at the API server."""
        base = "/api/v1" if self.kind in ("Pod", "ReplicationController") else "/apis/apps/v1"
        return f"{base}/namespaces/{namespace}/{self.kind.lower()}s/{self.name}"


def parse_documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML stream; lists are flattened, empty documents dropped.

    Raises:
        ValueError: the text is no YAML, or a document is no Kubernetes object.
    """
    try:
        objects = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error
    opened: list[dict[str, Any]] = []
    for document in objects:
        if not isinstance(document, Mapping) or "kind" not in document or "apiVersion" not in document:
            raise ValueError("a document has no apiVersion or kind")
        opened.extend(document.get("items") or [] if document["kind"] == "List" else [dict(document)])
    return opened


def claim_names(objects: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the volume claims among the objects."""
    return frozenset(object["metadata"]["name"] for object in objects if object["kind"] == "PersistentVolumeClaim")


def find_workloads(objects: Iterable[Mapping[str, Any]]) -> list[Workload]:
    """Return the objects that create pods, in their order."""
    return [_workload(object) for object in objects if object["kind"] in _KINDS]


def container_names(workloads_of_site: Iterable[Workload]) -> list[str]:
    """Return the names of the containers that steps can be bound to, without duplicates, in their order."""
    return list(dict.fromkeys(name for workload in workloads_of_site for name in workload.containers))


def selectors(workloads_of_site: Iterable[Workload]) -> Iterator[str]:
    """Yield the selectors without duplicates."""
    yield from dict.fromkeys(workload.selector for workload in workloads_of_site)


def pod_templates(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pod specifications of all objects that create pods."""
    return [_pod_spec(object) for object in objects if object["kind"] in _KINDS]


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
