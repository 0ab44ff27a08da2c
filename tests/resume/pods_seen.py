"""The pods of a campaign's releases, as the API server tells them while drivers are killed and others go on.

An event log says what a driver knew. Whether two releases stood side by side, each ready to do the same step, only the API
server knows.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

INSTANCE = "app.kubernetes.io/instance"
ROUND_S = 30  # of one watch; another one follows


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the API server said of a pod.

    Attributes:
        release: it belongs to.
        stands: it is ready for a step, and nobody has asked for its end.
    """

    pod: str
    release: str
    stands: bool


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The releases of one case.

    Attributes:
        releases: that had pods, one after the other.
        doubled: how often a pod became ready while one of another release stood, or more than the replicas did.
    """

    releases: tuple[str, ...]
    doubled: int


def judged(told: Iterable[Told], deployment: str, *, replicas: int) -> Judged:
    """What a case's pods were; pure.

    Args:
        told: in the order in which the API server said it.
        deployment: whose releases are meant; their names are its own with a token.
    """
    is_own = re.compile(rf"{re.escape(deployment)}-[0-9a-f]{{6}}")
    standing, doubled, releases = dict[str, str](), 0, dict[str, None]()
    for each in told:
        if is_own.fullmatch(each.release) is None:
            continue
        releases[each.release] = None
        if not each.stands:
            standing.pop(each.pod, None)
        elif each.pod not in standing:
            standing[each.pod] = each.release
            others = {release for release in standing.values() if release != each.release}
            own = sum(release == each.release for release in standing.values())
            doubled += bool(others) or own > replicas
    return Judged(releases=tuple(releases), doubled=doubled)


@dataclass
class PodsSeen:
    """Watches a namespace, for a `with`.

    Attributes:
        told: all that was said so far.
    """

    kubeconfig: Path
    namespace: str
    told: list[Told] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pods = client.CoreV1Api(config.new_client_from_config(str(self.kubeconfig)))
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PodsSeen:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stops.set()
        self._thread.join(2 * ROUND_S)

    def so_far(self) -> tuple[Told, ...]:
        """All that was said.

        Raises:
            RuntimeError: nobody watches any more.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the API server is not watched any more: see the thread's own words above")
        return tuple(self.told)

    def _watch(self) -> None:
        version = ""
        while not self._stops.is_set():
            try:
                version = version or self._listed()
                for each in self._events(version):
                    version = each
                    if self._stops.is_set():
                        return
            except ApiException as error:
                if error.status != 410:  # the version is too old: what is there now is listed again
                    raise
                version = ""

    def _listed(self) -> str:
        found = self._pods.list_namespaced_pod(self.namespace)
        self.told += [_told(pod) for pod in found.items]
        return str(found.metadata.resource_version)

    def _events(self, version: str) -> Iterator[str]:
        stream = watch.Watch().stream(
            self._pods.list_namespaced_pod, self.namespace, resource_version=version, timeout_seconds=ROUND_S
        )
        for event in stream:
            told = _told(event["object"])
            self.told.append(
                Told(pod=told.pod, release=told.release, stands=False) if event["type"] == "DELETED" else told
            )
            yield str(event["object"].metadata.resource_version)


def _told(pod: client.V1Pod) -> Told:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or [])
    return Told(
        pod=pod.metadata.name,
        release=(pod.metadata.labels or {}).get(INSTANCE, ""),
        stands=ready and pod.metadata.deletion_timestamp is None,
    )
