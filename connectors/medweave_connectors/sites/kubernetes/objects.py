"""Objects of manifest files, applied on the server's side and deleted again."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.cluster import Cluster, Refused

MANAGER, CLAIM = "medweave", "PersistentVolumeClaim"
GONE_S = 30.0


def labelled(document: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """A copy of the object that has the labels, also on the pods it makes."""
    marked = copy.deepcopy(dict(document))
    _label(marked, labels)
    template = (marked.get("spec") or {}).get("template") if isinstance(marked.get("spec"), Mapping) else None
    if isinstance(template, dict):
        _label(template, labels)
    return marked


def title(document: Mapping[str, Any]) -> str:
    """`Deployment segment`, for messages."""
    return f"{document['kind']} {document['metadata']['name']}"


class Objects:
    """The objects of one namespace, of any kind that the API server serves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    async def labels(self, document: Mapping[str, Any]) -> dict[str, str] | None:
        """The labels of an object that exists; None if it does not."""
        found = await self._metadata(document)
        return None if found is None else dict(found.get("labels") or {})

    async def apply(self, document: Mapping[str, Any]) -> None:
        """Makes the object, or makes it as it should be.

        Raises:
            Refused: the API server does not accept it.
        """
        await self._cluster.request(
            "PATCH",
            await self._path(document),
            query={"fieldManager": MANAGER, "force": "true"},
            body=document,
            content_type="application/apply-patch+yaml",
        )

    async def delete(self, document: Mapping[str, Any], *, is_own: Callable[[Mapping[str, str]], bool]) -> bool:
        """Delete an object with all that it created; one that is gone already is no error.

        Args:
            is_own: whether an object with such labels may be deleted.

        Returns:
            False where an object of that name is somebody else's, which stays.
        """
        found = await self._metadata(document)
        if found is None:
            return True
        if not is_own(found.get("labels") or {}):
            return False
        # Of the object that was looked at, and no other of its name.
        body = {"preconditions": {"uid": found["uid"]}} if "uid" in found else None
        try:
            query = {"propagationPolicy": "Background"}
            await self._cluster.request("DELETE", await self._path(document), query=query, body=body)
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    async def replace(self, document: Mapping[str, Any]) -> None:
        """Deletes what an earlier run left, and applies the object once that is gone.

        A claim is kept where it can be: on it lies what steps have finished, and Jobs may work there.
        """
        if document["kind"] == CLAIM and await self._is_kept(document):
            return
        await self.delete(document, is_own=lambda labels: owner.owner(labels) == "ended")
        deadline = time.monotonic() + GONE_S
        while await self.labels(document) is not None and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        await self.apply(document)

    async def _is_kept(self, document: Mapping[str, Any]) -> bool:
        if "deletionTimestamp" in (await self._metadata(document) or {}):
            return False
        try:
            await self.apply(document)
        except Refused as error:
            if error.status != 422:  # of another size or class: what is there cannot be changed
                raise
            return False
        return True

    async def _metadata(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            return dict((await self._cluster.request("GET", await self._path(document)))["metadata"])
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def _path(self, document: Mapping[str, Any]) -> str:
        version, kind = document["apiVersion"], document["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            served = await self._cluster.request("GET", base)
            self._kinds[version] = {
                each["kind"]: (each["name"], each["namespaced"])
                for each in served.get("resources", [])
                if "/" not in each["name"]
            }
        if kind not in self._kinds[version]:
            raise Refused(404, f"the cluster serves no {kind} of {version}")
        plural, namespaced = self._kinds[version][kind]
        namespace = f"/namespaces/{self._cluster.namespace}" if namespaced else ""
        return f"{base}{namespace}/{plural}/{document['metadata']['name']}"


def _label(document: dict[str, Any], labels: Mapping[str, str]) -> None:
    metadata = document.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
