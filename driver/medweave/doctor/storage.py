"""Checks of volume claims that pods name, and of the storage classes of claims that a run creates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from medweave.doctor.hop_result import Health, HopResult
from medweave.doctor.trial_pods import templates

_KIND = "PersistentVolumeClaim"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class StorageChecks:
    """Checks of the claims and storage classes of one deployment.

    Args:
        place: name of the deployment.
        objects: objects that a run creates.
        limit_s: time limit of one answer.
    """

    def __init__(
        self, place: str, api: client.ApiClient, namespace: str, objects: Sequence[Mapping[str, Any]], limit_s: float
    ) -> None:
        self._place, self._api, self._namespace, self._objects = place, api, namespace, objects
        self._limit_s = limit_s

    def claims(self) -> Iterator[HopResult]:
        """Yield the hops of claims that must exist before a run."""
        created = {item["metadata"]["name"] for item in self._objects if item["kind"] == _KIND}
        for name in sorted(set(claims_of(self._objects)) - created):
            yield self._claim(name)

    def classes(self) -> Iterator[HopResult]:
        """Yield the hops of the storage classes of claims that a run creates, each once."""
        needed = dict.fromkeys(classes_of(self._objects))
        if not needed:
            return
        try:
            listed = client.StorageV1Api(self._api).list_storage_class(_request_timeout=self._limit_s)
        except ApiException as error:
            if error.status != 403:
                raise
            names = ", ".join(name or "the default" for name in needed)
            seen = f"{names}: unknown, because listing storage classes is not permitted"
            yield self._hop(
                "storage", Health.WARNING, seen, "ask the cluster's administrator whether the storage class exists"
            )
            return
        existing = {item.metadata.name: item.metadata.annotations or {} for item in listed.items}
        default = next((name for name, notes in existing.items() if notes.get(_DEFAULT) == "true"), "")
        for name in needed:
            if name in existing:
                yield self._hop("storage", Health.OK, f"storage class {name} exists")
            elif name is None and default:
                yield self._hop("storage", Health.OK, f"default storage class: {default}")
            elif name == "":
                seen = "no storage class: the volume must exist before the run"
                yield self._hop("storage", Health.OK, seen)
            else:
                known = ", ".join(existing) or "none"
                seen = (
                    f"no such storage class: {name}"
                    if name
                    else "a claim names no storage class, and the cluster has no default"
                )
                yield self._hop("storage", Health.FAULT, seen, f"choose an existing storage class: {known}")

    def bound(self) -> set[str]:
        """Return the names of the claims that are bound."""
        listed = client.CoreV1Api(self._api).list_namespaced_persistent_volume_claim(
            self._namespace, _request_timeout=self._limit_s
        )
        return {item.metadata.name for item in listed.items if item.status.phase == "Bound"}

    def _claim(self, name: str) -> HopResult:
        try:
            claim = client.CoreV1Api(self._api).read_namespaced_persistent_volume_claim(
                name, self._namespace, _request_timeout=self._limit_s
            )
        except ApiException as error:
            if error.status != 404:
                do = (
                    "ask the namespace's administrator for the permission to get persistentvolumeclaims, or "
                    "whether the claim is bound"
                )
                return self._hop("claim", Health.UNKNOWN, f"{name}: {error.status} {error.reason}", do)
            do = f"create the claim in namespace {self._namespace}, or correct the values"
            return self._hop("claim", Health.FAULT, f"no such claim: {name}", do)
        room = (claim.status.capacity or {}).get("storage", "?")
        seen = f"{name}: {claim.status.phase}, {room}, storage class {claim.spec.storage_class_name or 'none'}"
        if claim.status.phase == "Bound":
            return self._hop("claim", Health.OK, seen)
        do = "the claim may be bound when its first pod starts; if it stays unbound: kubectl describe pvc"
        return self._hop("claim", Health.WARNING, seen, do)

    def _hop(self, name: str, health: Health, seen: str, do: str = "") -> HopResult:
        return HopResult(place=self._place, name=name, health=health, seen=seen, do=do)


# ---- pure


def claims_of(objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of the claims that the pods of some objects use."""
    for template in templates(objects):
        for volume in template["spec"].get("volumes") or []:
            if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                yield claim


def classes_of(objects: Sequence[Mapping[str, Any]]) -> Iterator[str | None]:
    """Yield storage classes of claims that objects create: None for the default, an empty name for an existing volume."""
    for item in objects:
        spec = item.get("spec") or {}
        claims = (
            [spec] if item["kind"] == _KIND else [claim["spec"] for claim in spec.get("volumeClaimTemplates") or []]
        )
        for claim in claims:
            if not claim.get("volumeName"):
                yield claim.get("storageClassName")
