"""Watch the pods of a campaign's releases at the API server while drivers are killed and runs are resumed.

An event log has only what its driver knew. Only the API server knows whether pods of two releases were ready at the same time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

INSTANCE = "app.kubernetes.io/instance"
ROUND_S = 30  # duration of one watch; the next one follows


@dataclass(frozen=True, kw_only=True)
class PodState:
    """A state of a pod from the API server.

    Attributes:
        release: name of its release.
        is_ready: whether it is ready and not being deleted.
    """

    pod: str
    release: str
    is_ready: bool


@dataclass(frozen=True, kw_only=True)
class ReleaseCount:
    """The releases of one case.

    Attributes:
        releases: names of the releases with pods, in their order.
        doubled: how often a pod became ready while one of another release was ready, or beyond the replicas.
    """

    releases: tuple[str, ...]
    doubled: int


def judge_releases(states: Iterable[PodState], deployment: str, *, replicas: int) -> ReleaseCount:
    """Return the releases of a case and the number of doubled pods.

    Args:
        states: states in the order of the API server.
        deployment: name of the deployment; its releases are named by it and a token.
    """
    is_own = re.compile(rf"{re.escape(deployment)}-[0-9a-f]{{6}}")
    ready, doubled, releases = dict[str, str](), 0, dict[str, None]()
    for state in states:
        if is_own.fullmatch(state.release) is None:
            continue
        releases[state.release] = None
        if not state.is_ready:
            ready.pop(state.pod, None)
        elif state.pod not in ready:
            ready[state.pod] = state.release
            others = {release for release in ready.values() if release != state.release}
            own = sum(release == state.release for release in ready.values())
            doubled += bool(others) or own > replicas
    return ReleaseCount(releases=tuple(releases), doubled=doubled)


@dataclass
class PodWatch:
    """A watch of a namespace, as a context.

    Attributes:
        states: all states so far.
    """

    kubeconfig: Path
    namespace: str
    states: list[PodState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pods = client.CoreV1Api(config.new_client_from_config(str(self.kubeconfig)))
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PodWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stops.set()
        self._thread.join(2 * ROUND_S)

    def so_far(self) -> tuple[PodState, ...]:
        """Return all states so far.

        Raises:
            RuntimeError: the watch has ended.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the watch of the API server has ended: see the thread's error above")
        return tuple(self.states)

    def _watch(self) -> None:
        version = ""
        while not self._stops.is_set():
            try:
                version = version or self._list_pods()
                for latest in self._events(version):
                    version = latest
                    if self._stops.is_set():
                        return
            except ApiException as error:
                if error.status != 410:  # the version is too old: list the current pods again
                    raise
                version = ""

    def _list_pods(self) -> str:
        listed = self._pods.list_namespaced_pod(self.namespace)
        self.states += [_state(pod) for pod in listed.items]
        return str(listed.metadata.resource_version)

    def _events(self, version: str) -> Iterator[str]:
        stream = watch.Watch().stream(
            self._pods.list_namespaced_pod, self.namespace, resource_version=version, timeout_seconds=ROUND_S
        )
        for event in stream:
            state = _state(event["object"])
            self.states.append(replace(state, is_ready=False) if event["type"] == "DELETED" else state)
            yield str(event["object"].metadata.resource_version)


def _state(pod: client.V1Pod) -> PodState:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or [])
    return PodState(
        pod=pod.metadata.name,
        release=(pod.metadata.labels or {}).get(INSTANCE, ""),
        is_ready=ready and pod.metadata.deletion_timestamp is None,
    )
