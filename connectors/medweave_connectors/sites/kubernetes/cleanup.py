"""What a run that has ended has left of a `medweave.kubernetes`: Jobs, the objects of its files, and its folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medweave_connectors.sites.kubernetes.job_client import JobCluster
from medweave_connectors.sites.kubernetes.job_object import SUBMISSION
from medweave_connectors.sites.kubernetes.objects import Objects, title
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun, pods_with, remove_folders, until_gone
from medweave_connectors.sites.pods.startup import volumes
from medweave_connectors.sites.pods.startup.pod import Pod, parse_pod
from medweave_connectors.sites.pods.startup.workloads import pod_templates, selectors, workloads


async def remove_left(connector: Any, gone: GoneRun) -> Cleaned:
    """Removes it. The Jobs go first: they write into the folders, which a pod of the deployment removes while it stands.

    Args:
        connector: the deployment's, which is connected.

    Raises:
        Refused: the API server does not answer, or does not allow it.
        DeploymentRefused: a file cannot be read, or a container is not named.
        PodLost: a pod was lost while it removed a folder.
    """
    cleaned = Cleaned()
    if connector.mode == "job" and not await _end_jobs(connector, gone, cleaned):
        return cleaned  # they may still write
    manifests = connector.read_files()
    objects = Objects(connector.cluster)
    own = [each for each in reversed(manifests) if gone.made(await objects.labels(each))]
    await remove_folders(connector, gone, await _pods(connector, manifests), cleaned, pods_go=bool(own))
    cleaned.stays += [why for folder in cleaned.unreached if (why := _why_it_stays(connector, folder, manifests))]
    for document in own:
        if await objects.delete(document, is_own=gone.made):
            cleaned.removed.append(title(document))
    alive = await until_gone(connector.cluster, [gone.selector], is_own=lambda pod: gone.made(pod.labels))
    cleaned.stays += [f"pod {name}" for name in alive]
    return cleaned


async def _end_jobs(connector: Any, gone: GoneRun, cleaned: Cleaned) -> bool:
    """Whether all Jobs of the run have ended, with their pods."""
    jobs = JobCluster(connector.cluster, connector.deployment_name)
    found = await jobs.all()
    for metadata in (each["metadata"] for each in found if _goes_on(each, gone)):
        run = metadata["labels"].get(owner.RUN)
        cleaned.stays.append(f"Job {metadata['name']}, which works in the run's folder: run {run} goes on with it")
    if cleaned.stays:
        return False
    own = [each["metadata"] for each in found if gone.made(each["metadata"]["labels"]) or _was_made_by(each, gone)]
    keys = [metadata["labels"].get(SUBMISSION, "") for metadata in own]
    for metadata, key in zip(own, keys, strict=True):
        await jobs.remove(metadata["name"], key)
    cleaned.stays += [
        f"pod {name}" for name in await until_gone(connector.cluster, [f"{SUBMISSION}={key}" for key in keys])
    ]
    cleaned.removed += [f"Job {metadata['name']}" for metadata in own]
    return not cleaned.stays


def _was_made_by(job: Mapping[str, Any], gone: GoneRun) -> bool:
    """Its pods keep the labels of the run that has made it, whoever has taken it over."""
    return gone.made(job["spec"]["template"]["metadata"]["labels"])


def _goes_on(job: Mapping[str, Any], gone: GoneRun) -> bool:
    """Whether another driver, which lives, has taken a Job of the run over."""
    labels = job["metadata"]["labels"]
    return _was_made_by(job, gone) and not gone.made(labels) and owner.owner(labels) != "ended"


async def _pods(connector: Any, manifests: Sequence[Mapping[str, Any]]) -> list[Pod]:
    """The pods of the deployment, also those that another run has made of the same files; not those of Jobs."""
    wanted = [connector.selector] if connector.selector is not None else selectors(workloads(manifests))
    return await pods_with(connector.cluster, [f"{each},!{SUBMISSION}" for each in wanted])


def _why_it_stays(connector: Any, folder: str, manifests: Sequence[Mapping[str, Any]]) -> str:
    """Why a folder may be there that no pod could reach; empty for one that has gone with its pods, or with their claim."""
    if not connector.files:
        return f"{folder}: there is no ready pod {connector.selector}, which sees it"
    made = {each["metadata"]["name"] for each in manifests if each["kind"] == "PersistentVolumeClaim"}
    for spec in pod_templates(manifests):
        pod = parse_pod({"metadata": {"name": ""}, "spec": spec})
        for storage in (volumes.storage_at(pod, container, folder) for container in pod.mounts):
            if storage is not None and not (storage[0] == "claim" and storage[1] in made):
                volume = " ".join(part for part in storage[:3] if part)
                return f"{folder} on {volume}: there is no ready pod of {', '.join(connector.files)}, which sees it"
    return ""
