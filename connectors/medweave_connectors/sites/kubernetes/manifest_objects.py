"""Objects of manifest files: server-side apply and deletion."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient

MANAGER, CLAIM = "medweave", "PersistentVolumeClaim"
GONE_S = 30.0


def add_labels(document: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of the object with the labels, which its pod template gets too."""
    marked = copy.deepcopy(dict(document))
    _label(marked, labels)
    template = (marked.get("spec") or {}).get("template") if isinstance(marked.get("spec"), Mapping) else None
    if isinstance(template, dict):
        _label(template, labels)
    return marked


def title(document: Mapping[str, Any]) -> str:
    """Return kind and name for messages: `Deployment segment`."""
    return f"{document['kind']} {document['metadata']['name']}"


class ManifestObjects:
    """Client for the objects of one namespace, of any kind that the API server serves."""

    def __init__(self, cluster: NamespaceClient) -> None:
        self._cluster = cluster
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}

    async def labels(self, document: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the labels of an object; None if it does not exist."""
        metadata = await self._metadata(document)
        return None if metadata is None else dict(metadata.get("labels") or {})

    async def apply(self, document: Mapping[str, Any]) -> None:
        """Apply the object on the server side: create or update it.

        Raises:
            ApiServerError: the API server does not accept it.
        """
        await self._cluster.request(
            "PATCH",
            await self._path(document),
            query={"fieldManager": MANAGER, "force": "true"},
            body=document,
            content_type="application/apply-patch+yaml",
        )

    async def delete(self, document: Mapping[str, Any], *, is_own: Callable[[Mapping[str, str]], bool]) -> bool:
        """Delete an object and its dependents; a missing object is no error.

        Args:
            is_own: whether an object with such labels may be deleted.

        Returns:
            False if the object has another owner; it is not deleted.
        """
        metadata = await self._metadata(document)
        if metadata is None:
            return True
        if not is_own(metadata.get("labels") or {}):
            return False
        # Only the object whose labels were read, not a later one of the same name.
        body = {"preconditions": {"uid": metadata["uid"]}} if "uid" in metadata else None
        try:
            query = {"propagationPolicy": "Background"}
            await self._cluster.request("DELETE", await self._path(document), query=query, body=body)
        except ApiServerError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    async def replace(self, document: Mapping[str, Any]) -> None:
        """Delete the object of an earlier run, and apply the new one once the old one is gone.

        An unchanged claim is not deleted: it has the outputs of finished steps, and Jobs may work there.
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
        except ApiServerError as error:
            if error.status != 422:  # another size or class: the existing claim is immutable
                raise
            return False
        return True

    async def _metadata(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            return dict((await self._cluster.request("GET", await self._path(document)))["metadata"])
        except ApiServerError as error:
            if error.status == 404:
                return None
            raise

    async def _path(self, document: Mapping[str, Any]) -> str:
        version, kind = document["apiVersion"], document["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            served = await self._cluster.request("GET", base)
            self._kinds[version] = {
                resource["kind"]: (resource["name"], resource["namespaced"])
                for resource in served.get("resources", [])
                if "/" not in resource["name"]
            }
        if kind not in self._kinds[version]:
            raise ApiServerError(404, f"the cluster serves no {kind} of {version}")
        plural, namespaced = self._kinds[version][kind]
        namespace = f"/namespaces/{self._cluster.namespace}" if namespaced else ""
        return f"{base}{namespace}/{plural}/{document['metadata']['name']}"


def _label(document: dict[str, Any], labels: Mapping[str, str]) -> None:
    metadata = document.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
