"""The Jobs of a deployment at the API server: created once, listed with one request for all, and deleted with their pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_connectors.host.deadlines import ResponseDeadline
from medweave_connectors.sites.kubernetes.job.manifest import DEPLOYMENT, SUBMISSION
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.namespace_client import (
    ApiServerError,
    EventCache,
    NamespaceClient,
    read_pod,
    retry_while_starting,
)
from medweave_connectors.sites.pods.objects.pod import Pod

LOOK_S = 1.0
MAKE_S, REFUSED_S = 30.0, 3.0  # for a server that is busy or restarting, and for one that refuses the account
LONGEST_PAUSE_S = 2.0  # while the server does not answer
GRACE_S = 4.0  # between TERM and KILL of a Job that is not needed any more


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """Jobs and pods of a deployment at one moment.

    Attributes:
        requested_s: moment of the request, s on the monotonic clock.
        jobs: by submission.
        pods: by submission, oldest first.
    """

    requested_s: float = -LOOK_S
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: Mapping[str, list[Pod]] = field(default_factory=dict)


class JobCluster:
    """Client for the Jobs of one deployment and run.

    Attributes:
        events: of the Jobs and of their pods.
    """

    def __init__(self, cluster: NamespaceClient, deployment: str) -> None:
        self._cluster, self._deployment = cluster, deployment
        self.events = EventCache(cluster)
        self._seen, self._looking = JobSnapshot(), asyncio.Lock()
        self._adopted: list[str] = []
        self._jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{cluster.namespace}/pods"

    async def template_pod(self, name: str) -> dict[str, Any]:
        """Return the JSON of the standing pod that is the template of Jobs."""
        return await self._cluster.request("GET", f"{self._pods}/{name}")

    async def create(self, document: Mapping[str, Any]) -> str:
        """Create a Job and return its uid. The name is unique, so that a retried request cannot create a second Job.

        Raises:
            ApiServerError: the server refuses it, or has not answered for `MAKE_S`; then the Job may exist.
        """

        async def once() -> dict[str, Any]:
            try:
                return await self._cluster.request("POST", self._jobs, body=document)
            except ApiServerError as error:
                if error.status != 409:
                    raise
            existing, _ = await self.find(document["metadata"]["name"], _key(document))
            return existing or {}

        return str(
            (await retry_while_starting(once, limit_s=MAKE_S, refused_s=REFUSED_S)).get("metadata", {}).get("uid", "")
        )

    async def find(self, name: str, key: str) -> tuple[dict[str, Any] | None, list[Pod]]:
        """Return a Job of any owner and its pods; None if no Job has the name.

        Raises:
            ApiServerError: the API server did not answer; the state is unknown.
        """
        of_key = f"{SUBMISSION}={key}"
        jobs, pods = await asyncio.gather(self._list(self._jobs, of_key), self._list(self._pods, of_key))
        return next((candidate for candidate in jobs if candidate["metadata"]["name"] == name), None), _by_key(
            pods
        ).get(key, [])

    async def adopt(self, name: str, key: str, *, uid: str) -> None:
        """Re-attach to a Job of a dead driver: label it as this driver's, so that `look` returns it from now on.

        Args:
            uid: of the Job, which must match; empty if unknown.

        Raises:
            ApiServerError: there is no such Job, this account may not change it, or the API server has not answered for `MAKE_S`.
        """
        metadata = {"labels": owner.labels()} | ({"uid": uid} if uid else {})
        await retry_while_starting(
            lambda: self._cluster.request(
                "PATCH",
                f"{self._jobs}/{name}",
                body={"metadata": metadata},
                content_type="application/merge-patch+json",
            ),
            limit_s=MAKE_S,
            refused_s=REFUSED_S,
        )
        self._adopted.append(key)

    async def look(self) -> JobSnapshot:
        """Return the Jobs of this run and their pods, at most `LOOK_S` old.

        Raises:
            ApiServerError: the API server did not answer; the state is unknown.
        """
        async with self._looking:
            requested_s = time.monotonic()
            if requested_s - self._seen.requested_s >= LOOK_S:
                mine = f"{DEPLOYMENT}={owner.label(self._deployment)},{owner.RUN}={owner.labels()[owner.RUN]}"
                jobs, pods, more = await asyncio.gather(
                    self._list(self._jobs, mine), self._list(self._pods, mine), self._pods_of_adopted()
                )
                pods += more
                self._seen = JobSnapshot(
                    requested_s=requested_s, jobs={_key(job): job for job in jobs}, pods=_by_key(pods)
                )
            return self._seen

    async def orphans(self) -> list[dict[str, Any]]:
        """Return the Jobs of this deployment whose drivers, on this machine, are dead."""
        return [job for job in await self.all() if owner.owner(job["metadata"].get("labels")) == "ended"]

    async def all(self) -> list[dict[str, Any]]:
        """Return the Jobs of this deployment, of any owner."""
        return await self._list(self._jobs, f"{DEPLOYMENT}={owner.label(self._deployment)}")

    async def remove_unchanged(self, document: Mapping[str, Any]) -> bool:
        """Delete a Job unless it has changed since it was read: another driver may have re-attached to it. Return True if deleted.

        Raises:
            ApiServerError: the API server did not answer, or the account may not delete Jobs.
        """
        metadata = document["metadata"]
        as_seen = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
        try:
            await self._delete(
                f"{self._jobs}/{metadata['name']}", {"propagationPolicy": "Background"}, body={"preconditions": as_seen}
            )
        except ApiServerError as error:
            if error.status != 409:
                raise
            return False
        return True

    async def remove(self, name: str, key: str) -> list[Pod]:
        """Delete a Job and its pods; return the pods that still exist.

        Raises:
            ApiServerError: the API server did not answer, or the account may not delete Jobs.
        """
        await self._delete(f"{self._jobs}/{name}", {"propagationPolicy": "Background"})
        pods = [read_pod(pod_document) for pod_document in await self._list(self._pods, f"{SUBMISSION}={key}")]
        for pod in pods:
            # Otherwise the grace period of the pod's specification applies.
            await self._delete(f"{self._pods}/{pod.name}", {"gracePeriodSeconds": f"{GRACE_S:.0f}"}, must=False)
        return pods

    async def _delete(
        self, path: str, query: Mapping[str, str], *, must: bool = True, body: Mapping[str, Any] | None = None
    ) -> None:
        try:
            await self._cluster.request("DELETE", path, query=query, body=body)
        except ApiServerError as error:
            if error.status != 404 and (must or error.status != 403):
                raise

    async def _pods_of_adopted(self) -> list[dict[str, Any]]:
        """Return the pods of re-attached Jobs, which have the labels of the run that created them."""
        return await self._list(self._pods, f"{SUBMISSION} in ({','.join(self._adopted)})") if self._adopted else []

    async def _list(self, path: str, selector: str) -> list[dict[str, Any]]:
        return list((await self._cluster.request("GET", path, query={"labelSelector": selector})).get("items") or [])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSite:
    """The location of a job and the callbacks of its connector.

    Attributes:
        template: key of the deployment's config that describes the standing pod, which is the template.
        place: `pod:container` of the standing pod.
        kept_at: where its files are after the run, for messages; empty if they are removed.
        signal_lead_s: how long before its time limit a step with a checkpoint folder gets USR1, s.
        ask: runs a shell line in the standing pod and returns its output and exit code.
        fetch_reports: returns a folder with copies of the reports, or None.
        closing: true once the run is being ended.
    """

    deployment: str
    template: str
    place: str
    kept_at: str
    cluster: NamespaceClient
    jobs: JobCluster
    timeout_s: float
    pending_timeout_s: float
    signal_lead_s: int
    ask: Callable[[str], Awaitable[tuple[str, int]]]
    fetch_reports: Callable[[], Awaitable[Path | None]]
    closing: Callable[[], bool]

    @property
    def container(self) -> str:
        """Return the name of the container in the standing pod, and in the Jobs' pods."""
        return self.place.partition(":")[2]


def response_deadline(notice: Callable[[str], None]) -> ResponseDeadline:
    """Return the deadline of an API server that does not answer about a Job; `notice` gets sentences for the user."""
    return ResponseDeadline("Kubernetes", notice, longest_pause_s=LONGEST_PAUSE_S)


def _key(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("labels") or {}).get(SUBMISSION, ""))


def _by_key(documents: list[dict[str, Any]]) -> dict[str, list[Pod]]:
    pods_by_key: dict[str, list[Pod]] = {}
    for document in sorted(documents, key=lambda document: str(document["metadata"].get("creationTimestamp", ""))):
        pods_by_key.setdefault(_key(document), []).append(read_pod(document))
    return pods_by_key
