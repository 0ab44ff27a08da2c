"""Volumes that pods share at a path, so that a copy is made once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from medweave_connectors.sites.pods.objects.pod import Pod


def storage_at(pod: Pod, container: str, path: str) -> tuple[str, ...] | None:
    """Return the identity of the storage at a path of a container; None if no other pod can mount it."""
    parts = PurePosixPath(path).parts
    storage: tuple[str, ...] | None = None
    depth = 0
    for mount in pod.mounts.get(container, ()):
        mounted = PurePosixPath(mount.path).parts
        if parts[: len(mounted)] == mounted and len(mounted) > depth:
            storage, depth = mount.storage, len(mounted)
    return None if storage is None else (*storage, *parts[depth:])


def describe_location(
    deployment: str, pod: Pod, container: str, path: str, removed_claims: Collection[str] | None
) -> str:
    """Return where the files at a path are after the run, for messages; empty if they are removed with the pod.

    Args:
        removed_claims: volume claims that the run removes at its end, together with the pod; None if the pod is not removed.
    """
    if removed_claims is None:
        return f"{deployment}:{pod.name}:{container}:{path}"
    storage = storage_at(pod, container, path)
    if storage is None or (storage[0] == "claim" and storage[1] in removed_claims):
        return ""
    return f"{deployment}:{' '.join(storage[:2])}:{path}"


def one_per_storage(places: Sequence[tuple[Pod, str]], path: str, *, first: str = "") -> list[tuple[Pod, str]]:
    """Return the places to write to so that all of them have the path: one per storage.

    Args:
        places: pairs of a pod and the name of a container.
        first: name of the pod that is preferred among those that share a volume (the source already has the files).
    """
    chosen: dict[tuple[str, ...], tuple[Pod, str]] = {}
    for pod, container in places:
        storage = storage_at(pod, container, path)
        key = ("private", pod.name, container) if storage is None else storage
        if key not in chosen or pod.name == first:
            chosen[key] = (pod, container)
    return list(chosen.values())
