"""The Jobs of a deployment at the API server: made once, looked at by one question for all, and removed with their pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from medweave_connectors.sites.kubernetes.job_object import DEPLOYMENT, SUBMISSION
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.cluster import Cluster, Refused, read_pod
from medweave_connectors.sites.pods.api.events import Events
from medweave_connectors.sites.pods.startup.pod import Pod

LOOK_S = 1.0
MAKE_S, MAKE_PAUSE_S = 30.0, 1.0  # a server that is busy or is started again
SURE_S = 3.0  # for its first second a server knows nobody's rights
GRACE_S = 4.0  # between TERM and KILL where nobody needs the work any more

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is there of a deployment's Jobs.

    Attributes:
        asked: moment of the question, s on the monotonic clock.
        jobs: by submission.
        pods: by submission, oldest first.
    """

    asked: float = -LOOK_S
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: Mapping[str, list[Pod]] = field(default_factory=dict)


class JobCluster:
    """Jobs of one deployment, of this run.

    Attributes:
        events: what the cluster tells of them and of their pods.
    """

    def __init__(self, cluster: Cluster, deployment: str) -> None:
        self._cluster, self._deployment = cluster, deployment
        self.events = Events(cluster)
        self._seen, self._looking = Seen(), asyncio.Lock()
        self._adopted: list[str] = []
        self._jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{cluster.namespace}/pods"

    async def standing(self, name: str) -> dict[str, Any]:
        """A pod as the API server has it."""
        return await self._cluster.request("GET", f"{self._pods}/{name}")

    async def make(self, document: Mapping[str, Any]) -> str:
        """Makes a Job; its uid. Its name is its own, so that an answer which was lost is no second one.

        Raises:
            Refused: the server does not want it, or has not answered for a while; then it may be there.
        """

        async def once() -> dict[str, Any]:
            try:
                return await self._cluster.request("POST", self._jobs, body=document)
            except Refused as error:
                if error.status != 409:
                    raise
            found, _ = await self.found(document["metadata"]["name"], _key(document))
            return found or {}

        return str((await _insisting(once)).get("metadata", {}).get("uid", ""))

    async def found(self, name: str, key: str) -> tuple[dict[str, Any] | None, list[Pod]]:
        """A Job, whosesoever it is, and its pods; None where there is none of that name.

        Raises:
            Refused: nobody answered; nothing is known then.
        """
        of_key = f"{SUBMISSION}={key}"
        jobs, pods = await asyncio.gather(self._list(self._jobs, of_key), self._list(self._pods, of_key))
        return next((each for each in jobs if each["metadata"]["name"] == name), None), _by_key(pods).get(key, [])

    async def adopt(self, name: str, key: str, *, uid: str) -> None:
        """Makes a Job of a driver that is gone this driver's, whose `look` sees it from then on.

        Args:
            uid: with another one it is another Job; empty where it is not known.

        Raises:
            Refused: there is no such Job, this account may not change it, or nobody has answered for a while.
        """
        metadata = {"labels": owner.labels()} | ({"uid": uid} if uid else {})
        await _insisting(
            lambda: self._cluster.request(
                "PATCH",
                f"{self._jobs}/{name}",
                body={"metadata": metadata},
                content_type="application/merge-patch+json",
            )
        )
        self._adopted.append(key)

    async def look(self) -> Seen:
        """What is there, as of a second ago at most.

        Raises:
            Refused: nobody answered; nothing is known then.
        """
        async with self._looking:
            asked = time.monotonic()
            if asked - self._seen.asked >= LOOK_S:
                mine = f"{DEPLOYMENT}={owner.label(self._deployment)},{owner.RUN}={owner.labels()[owner.RUN]}"
                jobs, pods, more = await asyncio.gather(
                    self._list(self._jobs, mine), self._list(self._pods, mine), self._pods_of_adopted()
                )
                pods += more
                self._seen = Seen(asked=asked, jobs={_key(each): each for each in jobs}, pods=_by_key(pods))
            return self._seen

    async def left(self) -> list[dict[str, Any]]:
        """Jobs of this deployment that drivers of this machine have left which run no more."""
        return [each for each in await self.all() if owner.owner(each["metadata"].get("labels")) == "ended"]

    async def all(self) -> list[dict[str, Any]]:
        """Jobs of this deployment, whosesoever they are."""
        return await self._list(self._jobs, f"{DEPLOYMENT}={owner.label(self._deployment)}")

    async def remove_unchanged(self, document: Mapping[str, Any]) -> bool:
        """Asks for the end of a Job, if it still is as it was seen; another driver may go on with it meanwhile.

        Raises:
            Refused: nobody answered, or the account may not delete Jobs.
        """
        metadata = document["metadata"]
        as_seen = {key: metadata[key] for key in ("uid", "resourceVersion") if key in metadata}
        try:
            await self._delete(
                f"{self._jobs}/{metadata['name']}", {"propagationPolicy": "Background"}, body={"preconditions": as_seen}
            )
        except Refused as error:
            if error.status != 409:
                raise
            return False
        return True

    async def remove(self, name: str, key: str) -> list[Pod]:
        """Asks for the end of a Job and of its pods; those that are still there.

        Raises:
            Refused: nobody answered, or the account may not delete Jobs.
        """
        await self._delete(f"{self._jobs}/{name}", {"propagationPolicy": "Background"})
        pods = [read_pod(each) for each in await self._list(self._pods, f"{SUBMISSION}={key}")]
        for pod in pods:
            # Without it they get the whole grace of their own.
            await self._delete(f"{self._pods}/{pod.name}", {"gracePeriodSeconds": f"{GRACE_S:.0f}"}, must=False)
        return pods

    async def _delete(
        self, path: str, query: Mapping[str, str], *, must: bool = True, body: Mapping[str, Any] | None = None
    ) -> None:
        try:
            await self._cluster.request("DELETE", path, query=query, body=body)
        except Refused as error:
            if error.status != 404 and (must or error.status != 403):
                raise

    async def _pods_of_adopted(self) -> list[dict[str, Any]]:
        """They have the labels of the run that made their Jobs."""
        return await self._list(self._pods, f"{SUBMISSION} in ({','.join(self._adopted)})") if self._adopted else []

    async def _list(self, path: str, selector: str) -> list[dict[str, Any]]:
        return list((await self._cluster.request("GET", path, query={"labelSelector": selector})).get("items") or [])


async def _insisting(send: Callable[[], Awaitable[T]]) -> T:
    """The answer to a request that may be sent again, while the server is busy or is started."""
    began = time.monotonic()
    while True:
        try:
            return await send()
        except Refused as error:
            patience_s = SURE_S if error.status in (401, 403) else MAKE_S
            if not error.may_pass or time.monotonic() - began > patience_s:
                raise
        await asyncio.sleep(MAKE_PAUSE_S)


def _key(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("labels") or {}).get(SUBMISSION, ""))


def _by_key(documents: list[dict[str, Any]]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for each in sorted(documents, key=lambda each: str(each["metadata"].get("creationTimestamp", ""))):
        found.setdefault(_key(each), []).append(read_pod(each))
    return found
