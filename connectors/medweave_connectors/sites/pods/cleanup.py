"""Cleanup of a dead run in a cluster: its folders are removed through running pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.job_processes import kill_lines
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.namespace_client import NamespaceClient
from medweave_connectors.sites.pods.objects import volumes
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, judge
from medweave_connectors.transfer.store.folder_commands import folder_of, remove_traces
from medweave_core.runlog.run_ownership import RunOwner

GONE_S, PAUSE_S = 90.0, 0.3  # the default grace period of a pod is 30 s


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRun:
    """A run whose driver is gone.

    Attributes:
        pid: of its driver.
        has_folders: neither the run nor an earlier `medweave clean` has removed them.
        places: (service, workdir) of the steps that are bound to the deployment.
    """

    owner: RunOwner
    pid: int
    has_folders: bool
    places: Sequence[tuple[str | None, str]]

    @property
    def selector(self) -> str:
        """Return the label selector of all objects that the run created."""
        return f"{owner.RUN}={owner.label(self.owner.run_id)}"

    def made(self, labels: Mapping[str, str] | None) -> bool:
        """Return whether labels belong to the run; the run ids of two machines may be equal."""
        return owner.is_of(labels or {}, self.owner, pid=self.pid)


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """Result of a cleanup, for messages.

    Attributes:
        stays: what could not be removed, and why.
        unreached: folders that no running pod mounts.
    """

    removed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)


async def remove_folders(
    connector: Any, gone: GoneRun, pods: Sequence[Pod], cleaned: Cleaned, *, pods_go: bool
) -> None:
    """Kill commands in the folders of a run, and remove the folders, once for all pods that share a volume.

    Args:
        connector: the deployment's, which is connected.
        pods: of the deployment, of any owner.
        cleaned: result, which this function extends.
        pods_go: the pods are about to be removed together with their private volumes.
    """
    ready = [pod for pod in pods if judge(pod)[0] == PodState.READY]
    names = list(dict.fromkeys(container.name for pod in ready for container in pod.containers))
    for service, workdir in dict.fromkeys(gone.places):
        folder = folder_of(workdir, gone.owner.run_id)
        container = connector.container_of(service, names) if names else ""
        standing = [pod for pod in ready if pod.container(container)]
        reaching = [pod for pod in standing if not pods_go or volumes.storage_at(pod, container, folder) is not None]
        for pod in reaching:
            await connector.alone(_location(connector, pod, container), [build_kill_command(folder)])
        for pod, _ in volumes.one_per_storage([(pod, container) for pod in reaching], folder):
            location = _location(connector, pod, container)
            output, code = await connector.alone(location, [remove_traces(workdir, gone.owner)])
            if code:
                cleaned.stays.append(f"{folder} in {location.name}: {output.strip() or f'exit code {code}'}")
            elif folder not in cleaned.removed:
                cleaned.removed.append(folder)
        if gone.has_folders and not standing:
            cleaned.unreached.append(folder)


def _location(connector: Any, pod: Pod, container: str) -> ExecutionLocation:
    return ExecutionLocation(name=f"{pod.name}:{container}", deployment=connector.deployment_name)


def build_kill_command(folder: str) -> str:
    """Return a shell line that kills the commands in a container that work in the folder of a run.

    Such commands have variables (HOME, TMPDIR) with paths in it. A killed driver leaves commands of `exec` running.
    """
    return f"{{ {kill_lines(f'={folder}/')}; }} 2> /dev/null; :"


async def list_pods(cluster: NamespaceClient, selectors: Sequence[str]) -> list[Pod]:
    """Return the pods that match one of the selectors.

    Raises:
        ApiServerError: the API server did not answer.
    """
    groups = await asyncio.gather(*(cluster.pods(selector) for selector in selectors))
    return list({pod.uid: pod for group in groups for pod in group}.values())


async def wait_until_gone(
    cluster: NamespaceClient,
    selectors: Sequence[str],
    *,
    is_own: Callable[[Pod], bool] = lambda pod: True,
    within_s: float = GONE_S,
) -> list[str]:
    """Wait until no pod matches the selectors; return the names of pods that still exist at the deadline.

    Args:
        is_own: false for pods of other owners with the same labels.

    Raises:
        ApiServerError: the API server did not answer.
    """
    deadline = time.monotonic() + within_s
    while True:
        names = [pod.name for pod in await list_pods(cluster, selectors) if is_own(pod)]
        if not names or time.monotonic() > deadline:
            return names
        await asyncio.sleep(PAUSE_S)
