"""Which pods see the same files at a path, so that a copy is made once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from medweave_connectors.sites.pods.startup.pod import Pod


def storage_at(pod: Pod, container: str, path: str) -> tuple[str, ...] | None:
    """What lies behind a path of a container; None where no other pod can see the same files."""
    parts = PurePosixPath(path).parts
    found: tuple[str, ...] | None = None
    depth = 0
    for mount in pod.mounts.get(container, ()):
        mounted = PurePosixPath(mount.path).parts
        if parts[: len(mounted)] == mounted and len(mounted) > depth:
            found, depth = mount.storage, len(mounted)
    return None if found is None else (*found, *parts[depth:])


def kept_at(deployment: str, pod: Pod, container: str, path: str, removed_claims: Collection[str] | None) -> str:
    """Return where the files at a path are after the run, for people; empty where they are removed with the pod.

    Args:
        removed_claims: volume claims that the run removes at its end, together with the pod; None where the pod stays.
    """
    if removed_claims is None:
        return f"{deployment}:{pod.name}:{container}:{path}"
    storage = storage_at(pod, container, path)
    if storage is None or (storage[0] == "claim" and storage[1] in removed_claims):
        return ""
    return f"{deployment}:{' '.join(storage[:2])}:{path}"


def distinct(places: Sequence[tuple[Pod, str]], path: str, *, first: str = "") -> list[tuple[Pod, str]]:
    """The places to write to so that all of them have the path: one for each storage.

    Args:
        places: pods, each with the name of a container.
        first: name of a pod that is kept if it is among those that share (the source has its files already).
    """
    chosen: dict[tuple[str, ...], tuple[Pod, str]] = {}
    for pod, container in places:
        storage = storage_at(pod, container, path)
        key = ("private", pod.name, container) if storage is None else storage
        if key not in chosen or pod.name == first:
            chosen[key] = (pod, container)
    return list(chosen.values())
