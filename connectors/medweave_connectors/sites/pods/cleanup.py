"""What a run that has ended may have left in a cluster, and its folders there, removed through pods that still stand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.job_processes import kill_lines
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.cluster import Cluster
from medweave_connectors.sites.pods.startup import volumes
from medweave_connectors.sites.pods.startup.pod import Pod
from medweave_connectors.sites.pods.startup.states import PodState, judge
from medweave_connectors.transfer.store.folder_commands import folder_of, remove_traces
from medweave_core.runlog.run_ownership import RunOwner

GONE_S, PAUSE_S = 90.0, 0.3  # the grace of a pod is 30 s where nobody says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRun:
    """A run whose driver is gone.

    Attributes:
        pid: of its driver.
        has_folders: nobody has removed them yet, neither the run nor an earlier `medweave clean`.
        places: (service, workdir) of the steps that are bound to the deployment.
    """

    owner: RunOwner
    pid: int
    has_folders: bool
    places: Sequence[tuple[str | None, str]]

    @property
    def selector(self) -> str:
        """The label of all that it has made."""
        return f"{owner.RUN}={owner.label(self.owner.run_id)}"

    def made(self, labels: Mapping[str, str] | None) -> bool:
        """Whether something is its own: the names of runs need not differ between machines."""
        return owner.is_of(labels or {}, self.owner, pid=self.pid)


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """What became of it, for people.

    Attributes:
        stays: what could not be removed, and why.
        unreached: folders that no pod sees.
    """

    removed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)


async def remove_folders(
    connector: Any, gone: GoneRun, pods: Sequence[Pod], cleaned: Cleaned, *, pods_go: bool
) -> None:
    """Removes the folders of a run, once for all pods that see the same one, and ends what still works in them.

    Args:
        connector: the deployment's, which is connected.
        pods: of the deployment, whosesoever they are.
        cleaned: gets what became of each.
        pods_go: the pods are about to be removed, and what only one of them sees goes with it.
    """
    ready = [pod for pod in pods if judge(pod)[0] == PodState.READY]
    names = list(dict.fromkeys(each.name for pod in ready for each in pod.containers))
    for service, workdir in dict.fromkeys(gone.places):
        folder = folder_of(workdir, gone.owner.run_id)
        container = connector.container_of(service, names) if names else ""
        standing = [pod for pod in ready if pod.container(container)]
        kept = [pod for pod in standing if not pods_go or volumes.storage_at(pod, container, folder) is not None]
        for pod in kept:
            await connector.alone(_location(connector, pod, container), [end_commands(folder)])
        for pod, _ in volumes.distinct([(pod, container) for pod in kept], folder):
            location = _location(connector, pod, container)
            said, code = await connector.alone(location, [remove_traces(workdir, gone.owner)])
            if code:
                cleaned.stays.append(f"{folder} in {location.name}: {said.strip() or f'exit code {code}'}")
            elif folder not in cleaned.removed:
                cleaned.removed.append(folder)
        if gone.has_folders and not standing:
            cleaned.unreached.append(folder)


def _location(connector: Any, pod: Pod, container: str) -> ExecutionLocation:
    return ExecutionLocation(name=f"{pod.name}:{container}", deployment=connector.deployment_name)


def end_commands(folder: str) -> str:
    """A shell line that kills the commands in a container that work in the folder of a run.

    Their variables (HOME, TMPDIR) name folders in it. A driver that is killed leaves commands of `exec` behind.
    """
    return f"{{ {kill_lines(f'={folder}/')}; }} 2> /dev/null; :"


async def pods_with(cluster: Cluster, selectors: Sequence[str]) -> list[Pod]:
    """The pods that have the labels of one of these.

    Raises:
        Refused: nobody answered.
    """
    found = await asyncio.gather(*(cluster.pods(selector) for selector in selectors))
    return list({pod.uid: pod for group in found for pod in group}.values())


async def until_gone(
    cluster: Cluster,
    selectors: Sequence[str],
    *,
    is_own: Callable[[Pod], bool] = lambda pod: True,
    within_s: float = GONE_S,
) -> list[str]:
    """Waits for the end of all pods with these labels; the names of those that are still there.

    Args:
        is_own: false for pods that have the labels by chance.

    Raises:
        Refused: nobody answered.
    """
    deadline = time.monotonic() + within_s
    while True:
        names = [pod.name for pod in await pods_with(cluster, selectors) if is_own(pod)]
        if not names or time.monotonic() > deadline:
            return names
        await asyncio.sleep(PAUSE_S)
