"""Cleanup of a `medweave.kubernetes` deployment after a dead run: Jobs, applied objects and folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medweave_connectors.sites.kubernetes.job.client import JobCluster
from medweave_connectors.sites.kubernetes.job.manifest import SUBMISSION
from medweave_connectors.sites.kubernetes.manifest_objects import ManifestObjects, title
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun, list_pods, remove_folders, wait_until_gone
from medweave_connectors.sites.pods.objects import volumes
from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from medweave_connectors.sites.pods.objects.workloads import find_workloads, pod_templates, selectors


async def remove_left(connector: Any, gone: GoneRun) -> Cleaned:
    """Remove the Jobs, folders and objects of the run. Jobs go first, because they write into the folders.

    Args:
        connector: the deployment's, which is connected.

    Raises:
        ApiServerError: the API server does not answer, or does not allow it.
        DeploymentRefused: a file cannot be read, or a container is not named.
        PodLost: a pod was lost while it removed a folder.
    """
    cleaned = Cleaned()
    if connector.mode == "job" and not await _end_jobs(connector, gone, cleaned):
        return cleaned  # they may still write
    manifests = connector.read_files()
    objects = ManifestObjects(connector.cluster)
    own = [manifest for manifest in reversed(manifests) if gone.made(await objects.labels(manifest))]
    await remove_folders(connector, gone, await _pods(connector, manifests), cleaned, pods_go=bool(own))
    cleaned.stays += [
        why for folder in cleaned.unreached if (why := _reason_for_remaining(connector, folder, manifests))
    ]
    for document in own:
        if await objects.delete(document, is_own=gone.made):
            cleaned.removed.append(title(document))
    alive = await wait_until_gone(connector.cluster, [gone.selector], is_own=lambda pod: gone.made(pod.labels))
    cleaned.stays += [f"pod {name}" for name in alive]
    return cleaned


async def _end_jobs(connector: Any, gone: GoneRun, cleaned: Cleaned) -> bool:
    """End all Jobs of the run; return True once they and their pods have ended."""
    jobs = JobCluster(connector.cluster, connector.deployment_name)
    jobs_of_deployment = await jobs.all()
    for metadata in (job["metadata"] for job in jobs_of_deployment if _is_adopted_elsewhere(job, gone)):
        run = metadata["labels"].get(owner.RUN)
        cleaned.stays.append(
            f"Job {metadata['name']}, which works in the run's folder: run {run} has re-attached to it"
        )
    if cleaned.stays:
        return False
    own = [
        job["metadata"]
        for job in jobs_of_deployment
        if gone.made(job["metadata"]["labels"]) or _is_submitted_by(job, gone)
    ]
    keys = [metadata["labels"].get(SUBMISSION, "") for metadata in own]
    for metadata, key in zip(own, keys, strict=True):
        await jobs.remove(metadata["name"], key)
    cleaned.stays += [
        f"pod {name}" for name in await wait_until_gone(connector.cluster, [f"{SUBMISSION}={key}" for key in keys])
    ]
    cleaned.removed += [f"Job {metadata['name']}" for metadata in own]
    return not cleaned.stays


def _is_submitted_by(job: Mapping[str, Any], gone: GoneRun) -> bool:
    """Return whether the run submitted the Job: its pods keep that run's labels when another run re-attaches."""
    return gone.made(job["spec"]["template"]["metadata"]["labels"])


def _is_adopted_elsewhere(job: Mapping[str, Any], gone: GoneRun) -> bool:
    """Return whether another, live driver has re-attached to a Job of the run."""
    labels = job["metadata"]["labels"]
    return _is_submitted_by(job, gone) and not gone.made(labels) and owner.owner(labels) != "ended"


async def _pods(connector: Any, manifests: Sequence[Mapping[str, Any]]) -> list[Pod]:
    """Return the pods of the deployment, including those that another run created from the same files, without those of Jobs."""
    label_selectors = [connector.selector] if connector.selector is not None else selectors(find_workloads(manifests))
    return await list_pods(connector.cluster, [f"{selector},!{SUBMISSION}" for selector in label_selectors])


def _reason_for_remaining(connector: Any, folder: str, manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return why an unreachable folder may still exist; empty if it was removed with its pods or their claim."""
    if not connector.files:
        return f"{folder}: no ready pod with {connector.selector} mounts it"
    made = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "PersistentVolumeClaim"}
    for spec in pod_templates(manifests):
        pod = parse_pod({"metadata": {"name": ""}, "spec": spec})
        for storage in (volumes.storage_at(pod, container, folder) for container in pod.mounts):
            if storage is not None and not (storage[0] == "claim" and storage[1] in made):
                volume = " ".join(part for part in storage[:3] if part)
                return f"{folder} on {volume}: no ready pod of {', '.join(connector.files)} mounts it"
    return ""
