"""`mode: job` of a deployment: its pods hold the files, and each command runs in a pod of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.kubernetes import reattach
from medweave_connectors.sites.kubernetes.attempts import JobAttempts
from medweave_connectors.sites.kubernetes.job import KubernetesJob
from medweave_connectors.sites.kubernetes.job_client import JobCluster
from medweave_connectors.sites.kubernetes.job_object import SUBMISSION
from medweave_connectors.sites.kubernetes.job_site import JobSite
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.cluster import Refused
from medweave_connectors.sites.pods.errors import DeploymentRefused
from medweave_connectors.sites.pods.exec.step import Step
from medweave_connectors.sites.pods.startup.pod import Pod
from medweave_connectors.sites.pods.startup.volumes import kept_at, storage_at

SHARED = ("claim", "nfs")  # what a pod on any node can mount
SWEEPS = 3  # a Job that changes while it is looked at is looked at again


class JobMode:
    """The Jobs of one deployment.

    Args:
        connector: the deployment's connector; its pods are up.
    """

    def __init__(self, connector: Any) -> None:
        self._connector, self._deployment = connector, connector.deployment_name
        self._jobs = JobCluster(connector.cluster, self._deployment)
        self._open: set[asyncio.Task[tuple[str, int]]] = set()
        self._live: set[KubernetesJob] = set()
        self._closing = False
        self._template = "files" if connector.files else "selector"

    async def begin(self, pods: Sequence[Pod]) -> None:
        """Looks whether the pods can be what they must be, and ends what killed drivers have left and nobody goes on with.

        Raises:
            DeploymentRefused: they share no volume with others, or the account may not work with Jobs.
        """
        mounts = [mount for pod in pods for each in pod.mounts.values() for mount in each]
        if not any(mount.storage is not None and mount.storage[0] in SHARED for mount in mounts):
            raise self._no_claim(f"config.{self._template}", "no container of its pods mounts a claim")
        try:
            await self._sweep(lambda: reattach.may_go_on(self._deployment))
        except Refused as error:
            raise DeploymentRefused(
                f"deployments.{self._deployment}.config.mode: this account may not work with Jobs.",
                seen=str(error),
                expected=f"the right to list, create and delete jobs.batch in namespace '{self._connector.namespace}'",
                do="ask the administrator of the namespace for it, or leave `mode: job` out",
            ) from error

    async def run(self, step: Step, location: ExecutionLocation) -> tuple[str, int]:
        """Runs a command as a Job, again where the table says so: the cause of a failure, and the exit code.

        Raises:
            DeploymentRefused: its output folder is on no shared volume, or as `KubernetesJob.run`.
            TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as `KubernetesJob.run`.
        """
        pod, container = await self._connector.pod_at(location.name), location.name.partition(":")[2]
        storage = storage_at(pod, container, step.output_directory)
        if storage is None or storage[0] not in SHARED:
            raise self._no_claim("workdir", f"{step.output_directory} in {location.name} is on no claim")

        async def ask(line: str) -> tuple[str, int]:
            told: tuple[str, int] = await self._connector.alone(location, [line])
            return told

        async def fetch() -> Path | None:
            return await fetch_reports(self._connector, location, step.output_directory, step.name)

        site = JobSite(
            deployment=self._deployment,
            template=self._template,
            place=location.name,
            kept_at=kept_at(self._deployment, pod, container, step.output_directory, self._connector.removed_claims()),
            cluster=self._connector.cluster,
            jobs=self._jobs,
            timeout_s=self._connector.timeout_s,
            pending_timeout_s=self._connector.pending_timeout_s,
            signal_lead_s=self._connector.signal_lead_s,
            ask=ask,
            fetch_reports=fetch,
            closing=lambda: self._closing,
        )
        return await JobAttempts(step, site, self._connector.table, self._submit).run()

    async def _submit(self, job: KubernetesJob) -> tuple[str, int]:
        self._live.add(job)
        # A task of its own: it removes its Job whatever becomes of the engine's task.
        task = asyncio.ensure_future(job.run())
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._live = {each for each in self._live if not each.over}

    async def end(self) -> None:
        """Ends all Jobs, and waits until their pods have gone."""
        self._closing = True
        if self._open:
            await asyncio.wait(self._open)
        # Whoever cancels all tasks of a run cancels those that remove Jobs, too.
        await asyncio.gather(*(each.remove() for each in self._live if not each.over))
        await self._end_what_nobody_wanted()

    async def _sweep(self, spared: Callable[[], set[str]]) -> None:
        """Ends the Jobs that drivers have left which run no more, but those with these keys.

        Raises:
            Refused: nobody answered, or the account may not work with Jobs.
        """
        for _ in range(SWEEPS):
            left = await self._left_but(spared())
            for job in left:
                metadata = job["metadata"]
                if await self._jobs.remove_unchanged(job):
                    run = metadata["labels"].get(owner.RUN, "?")
                    console.say(f"medweave: {self._deployment}: removing Job {metadata['name']}, left by run {run}")
                    await reattach.end(self._jobs, self._deployment, metadata["name"], _key(job))
            if not left:
                return

    async def _left_but(self, spared: set[str]) -> list[dict[str, Any]]:
        return [each for each in await self._jobs.left() if _key(each) not in spared]

    async def _end_what_nobody_wanted(self) -> None:
        """After a success, the Jobs that no step has gone on with; else another run may do it, and they are named."""
        run = current()
        try:
            if run is not None and run.engine_verdict == "completed" and run.signal_number is None:
                await self._sweep(reattach.in_hands)
                return
            known = reattach.may_go_on(self._deployment) - reattach.in_hands()
            for job in (each for each in await self._jobs.left() if _key(each) in known):
                name, earlier = job["metadata"]["name"], job["metadata"]["labels"].get(owner.RUN, "?")
                console.say(
                    f"medweave: {self._deployment}: Job {name}, left by run {earlier}, is there for a run that goes on"
                )
        except Refused as error:
            console.say(f"medweave: {self._deployment}: Jobs that earlier runs have left were not looked for: {error}")

    def _no_claim(self, key: str, seen: str) -> DeploymentRefused:
        return DeploymentRefused(
            f"deployments.{self._deployment}.{key}: with `mode: job`, files are where the pods of all Jobs see them.",
            seen=seen,
            expected="a persistentVolumeClaim (ReadWriteMany) mounted at the deployment's `workdir`, or above it",
            do="mount one in the pods of this deployment, and make `workdir` a folder on it; or leave `mode: job` out",
        )


def _key(job: Mapping[str, Any]) -> str:
    return str(job["metadata"]["labels"].get(SUBMISSION, ""))
