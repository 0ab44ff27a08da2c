"""Pods, containers and events of the API server, reduced to the fields that medweave uses. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from medweave_connectors.jobs.job_requests import LocationSize
from medweave_core.untrusted_text import plain, plain_line

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of a pod.

    Attributes:
        waiting, waiting_message: why it has not started (`ImagePullBackOff`), and the kubelet's message; empty if it runs.
            A container that ended again after a restart counts as waiting: the kubelet reports that 10 s late.
        started: when it was started, if it runs (RFC 3339); empty otherwise.
        probed: a probe decides whether it is ready.
        restarts: number of restarts by the kubelet.
        ended, ended_code: reason and exit code of its last end (`OOMKilled`, 137); empty and None if it never ended.
        termination_message: of its last end.
        cores: its CPU limit, else its request; None where it has neither.
        memory_mib: its memory limit, MiB; None where it has none.
        cpu_limit: its CPU limit alone, cores; None where it has none.
        devices: number of its extended resources (`nvidia.com/gpu`), all together; infinite with a resource claim, which has
            no number.
        image: of the container, by digest where the kubelet reports it.
    """

    name: str
    image: str = ""
    waiting: str = ""
    waiting_message: str = ""
    started: str = ""
    probed: bool = False
    restarts: int = 0
    ended: str = ""
    ended_code: int | None = None
    termination_message: str = ""
    cores: float | None = None
    memory_mib: float | None = None
    cpu_limit: float | None = None
    devices: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume where a container sees it.

    Attributes:
        path: in the container.
        storage: identity of the volume; equal for two pods that share it, and None if no other pod can mount it.
    """

    path: str
    storage: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod.

    Attributes:
        uid: another pod of the same name has another one.
        phase, reason, message: the pod's own (`Failed`, `Evicted`, `The node was low on resource: memory. …`).
        deleting: its deletion was requested.
        conditions: type to (status, reason, message).
        hostname, subdomain: stable name from a StatefulSet with a headless Service; empty otherwise.
        mounts: by name of container.
        claims: names of the volume claims that it uses.
    """

    name: str
    namespace: str
    uid: str
    ip: str
    node: str
    phase: str
    reason: str
    message: str
    deleting: bool
    conditions: Mapping[str, tuple[str, str, str]]
    hostname: str
    subdomain: str
    labels: Mapping[str, str]
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    mounts: Mapping[str, tuple[Mount, ...]]
    claims: tuple[str, ...]

    @property
    def address(self) -> str:
        """Return the address for other pods of the namespace: its stable name, else its IP address."""
        return f"{self.hostname}.{self.subdomain}" if self.hostname and self.subdomain else self.ip

    @property
    def order(self) -> tuple[str, int, str]:
        """Return the sort key: pods of a StatefulSet by their number (`w-2` before `w-10`), others by name."""
        stem, _, number = self.name.rpartition("-")
        return (stem, int(number), "") if number.isdecimal() and len(number) < 10 else (self.name, -1, self.name)

    def container(self, name: str) -> Container | None:
        """Return the container of that name; None if the pod has none."""
        return next((container for container in self.containers if container.name == name), None)


class ClusterEvent(NamedTuple):
    """Event of a Kubernetes object.

    Attributes:
        name: of the object.
        reason: one word, `FailedMount`.
        id: unique; a repeated event keeps it.
    """

    name: str
    reason: str
    text: str
    id: str = ""


def pod_facts(pod: Pod, container: str) -> dict[str, str]:
    """Return the facts about a pod that ran a command, for the event log."""
    spec = pod.container(container)
    return {
        "pod": pod.name,
        "uid": pod.uid,
        "node": pod.node,
        "container": container,
        "image": spec.image if spec else "",
    }


def size_of(container: Container) -> LocationSize:
    """Return the most that a job can have in a container."""
    return LocationSize(
        cores=math.inf if container.cpu_limit is None else container.cpu_limit,
        memory_mib=math.inf if container.memory_mib is None else container.memory_mib,
        gpus=container.devices,
    )


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """Return the pod in a JSON document, as `kubectl get pod -o json` prints it."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or []}
    node = spec.get("nodeName", "")
    return Pod(
        name=metadata["name"],
        namespace=metadata.get("namespace", "default"),
        uid=metadata.get("uid", ""),
        ip=status.get("podIP", ""),
        node=node,
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=plain_line(status.get("message") or ""),
        deleting=metadata.get("deletionTimestamp") is not None,
        conditions={
            condition["type"]: (
                condition["status"],
                condition.get("reason") or "",
                plain_line(condition.get("message") or ""),
            )
            for condition in status.get("conditions") or []
        },
        hostname=spec.get("hostname", ""),
        subdomain=spec.get("subdomain", ""),
        labels=metadata.get("labels") or {},
        containers=_containers(spec["containers"], status.get("containerStatuses")),
        init_containers=_containers(spec.get("initContainers") or [], status.get("initContainerStatuses"), init=True),
        mounts={
            container["name"]: tuple(
                Mount(path=mount["mountPath"], storage=_storage(volumes.get(mount["name"], {}), mount, node))
                for mount in container.get("volumeMounts") or []
            )
            for container in spec["containers"]
        },
        claims=tuple(
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if "persistentVolumeClaim" in volume
        ),
    )


def _containers(
    specs: Iterable[Mapping[str, Any]], statuses: Iterable[Mapping[str, Any]] | None, *, init: bool = False
) -> tuple[Container, ...]:
    by_name = {status["name"]: status for status in statuses or []}
    return tuple(_container(spec, by_name.get(spec["name"], {}), init=init) for spec in specs)


def _container(spec: Mapping[str, Any], status: Mapping[str, Any], *, init: bool) -> Container:
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    down = state.get("terminated")
    if down and status.get("restartCount", 0) and not (init and down.get("exitCode") == 0):
        waiting = {"reason": "CrashLoopBackOff"}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    resources = spec.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    cpu, memory = limits.get("cpu") or requests.get("cpu"), limits.get("memory")
    return Container(
        name=spec["name"],
        image=status.get("imageID") or status.get("image") or spec.get("image", ""),
        waiting=waiting.get("reason", ""),
        waiting_message=plain_line(waiting.get("message") or ""),
        started=(state.get("running") or {}).get("startedAt", ""),
        probed="readinessProbe" in spec or "startupProbe" in spec,
        restarts=status.get("restartCount", 0),
        ended=ended.get("reason", ""),
        ended_code=ended.get("exitCode"),
        termination_message=plain(ended.get("message") or "").strip(),
        cores=None if cpu is None else quantity(cpu),
        memory_mib=None if memory is None else quantity(memory) / 2**20,
        cpu_limit=None if limits.get("cpu") is None else quantity(limits["cpu"]),
        devices=math.inf
        if resources.get("claims")
        else sum(quantity(number) for name, number in limits.items() if "/" in name),
    )


def quantity(text: str | int | float) -> float:
    """Return a Kubernetes quantity as a number: `500m` is 0.5, `2Gi` is 2147483648.

    Raises:
        ValueError: it is no quantity.
    """
    word = str(text)
    if word.endswith("m"):
        return float(word[:-1]) / 1000
    for suffix, factor in _BINARY.items():
        if word.endswith(suffix):
            return float(word.removesuffix(suffix)) * factor
    return float(word)


def _storage(volume: Mapping[str, Any], mount: Mapping[str, Any], node: str) -> tuple[str, ...] | None:
    # Volumes are compared by their source: an emptyDir of the same name in two pods is two folders.
    below = mount.get("subPath", "")
    if claim := volume.get("persistentVolumeClaim"):
        return "claim", claim["claimName"], below
    if folder := volume.get("hostPath"):
        return "node", node, folder["path"], below
    if share := volume.get("nfs"):
        return "nfs", share["server"], share["path"], below
    return None
