"""The Jobs of a deployment at the API server: made once, looked at by one question for all, and removed with their pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave_connectors.kubernetes.job_object import DEPLOYMENT, SUBMISSION
from medweave_connectors.pods import owner
from medweave_connectors.pods.cluster import Cluster, Refused
from medweave_connectors.pods.events import Events
from medweave_connectors.pods.pod import Pod, parse_pod

LOOK_S = 1.0
MAKE_S, MAKE_PAUSE_S = 30.0, 1.0  # a server that is busy or is started again
SURE_S = 3.0  # for its first second a server knows nobody's rights
GRACE_S = 4.0  # between TERM and KILL where nobody needs the work any more


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
        self._jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{cluster.namespace}/pods"

    async def standing(self, name: str) -> dict[str, Any]:
        """A pod as the API server has it."""
        return await self._cluster.request("GET", f"{self._pods}/{name}")

    async def make(self, document: Mapping[str, Any]) -> None:
        """Makes a Job. Its name is its own, so that an answer which was lost is no second one.

        Raises:
            Refused: the server does not want it, or has not answered for a while; then it may be there.
        """
        began = time.monotonic()
        while True:
            try:
                await self._cluster.request("POST", self._jobs, body=document)
                return
            except Refused as error:
                if error.status == 409:
                    return
                patience_s = SURE_S if error.status in (401, 403) else MAKE_S
                if not error.may_pass or time.monotonic() - began > patience_s:
                    raise
            await asyncio.sleep(MAKE_PAUSE_S)

    async def look(self) -> Seen:
        """What is there, as of a second ago at most.

        Raises:
            Refused: nobody answered; nothing is known then.
        """
        async with self._looking:
            asked = time.monotonic()
            if asked - self._seen.asked >= LOOK_S:
                mine = f"{DEPLOYMENT}={owner.label(self._deployment)},{owner.RUN}={owner.labels()[owner.RUN]}"
                jobs, pods = await asyncio.gather(self._list(self._jobs, mine), self._list(self._pods, mine))
                self._seen = Seen(asked=asked, jobs={_key(each): each for each in jobs}, pods=_by_key(pods))
            return self._seen

    async def left(self) -> list[dict[str, Any]]:
        """Jobs of this deployment that drivers of this machine have left which run no more."""
        found = await self._list(self._jobs, f"{DEPLOYMENT}={owner.label(self._deployment)}")
        return [each for each in found if owner.owner(each["metadata"].get("labels")) == "ended"]

    async def with_labels(self, selector: str) -> list[dict[str, Any]]:
        """Jobs of this deployment with further labels."""
        return await self._list(self._jobs, f"{DEPLOYMENT}={owner.label(self._deployment)},{selector}")

    async def remove(self, name: str, key: str) -> list[Pod]:
        """Asks for the end of a Job and of its pods; those that are still there.

        Raises:
            Refused: nobody answered, or the account may not delete Jobs.
        """
        await self._delete(f"{self._jobs}/{name}", {"propagationPolicy": "Background"})
        pods = [parse_pod(each) for each in await self._list(self._pods, f"{SUBMISSION}={key}")]
        for pod in pods:
            # Without it they get the whole grace of their own.
            await self._delete(f"{self._pods}/{pod.name}", {"gracePeriodSeconds": f"{GRACE_S:.0f}"}, must=False)
        return pods

    async def _delete(self, path: str, query: Mapping[str, str], *, must: bool = True) -> None:
        try:
            await self._cluster.request("DELETE", path, query=query)
        except Refused as error:
            if error.status != 404 and (must or error.status != 403):
                raise

    async def _list(self, path: str, selector: str) -> list[dict[str, Any]]:
        return list((await self._cluster.request("GET", path, query={"labelSelector": selector})).get("items") or [])


def _key(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("labels") or {}).get(SUBMISSION, ""))


def _by_key(documents: list[dict[str, Any]]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for each in sorted(documents, key=lambda each: str(each["metadata"].get("creationTimestamp", ""))):
        found.setdefault(_key(each), []).append(parse_pod(each))
    return found
