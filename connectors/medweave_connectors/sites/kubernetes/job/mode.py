"""`mode: job` of a deployment: its standing pods have the files, and every command runs in the pod of a Job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.jobs.remote_environment import fetch_reports
from medweave_connectors.jobs.retries.policy import Table
from medweave_connectors.jobs.retries.submitted import SubmittedAttempts
from medweave_connectors.runlog import console, current
from medweave_connectors.sites.kubernetes.job import reattach
from medweave_connectors.sites.kubernetes.job.client import JobCluster, JobSite
from medweave_connectors.sites.kubernetes.job.lifecycle import KubernetesJob
from medweave_connectors.sites.kubernetes.job.manifest import SUBMISSION
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.exec.commands import PodStep
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.volumes import describe_location, storage_at

SHARED = ("claim", "nfs")  # volumes that a pod on any node can mount
SWEEPS = 3  # repetitions, for Jobs that change while they are read


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
        """Check that the pods share a volume, and end Jobs of dead drivers that no step of this run can re-attach to.

        Raises:
            DeploymentRefused: they share no volume with others, or the account may not work with Jobs.
        """
        mounts = [mount for pod in pods for mounted in pod.mounts.values() for mount in mounted]
        if not any(mount.storage is not None and mount.storage[0] in SHARED for mount in mounts):
            raise self._needs_claim(f"config.{self._template}", "no container of its pods mounts a claim")
        try:
            await self._sweep(lambda: reattach.reusable_keys(self._deployment))
        except ApiServerError as error:
            raise DeploymentRefused(
                f"deployments.{self._deployment}.config.mode: this account may not work with Jobs.",
                seen=str(error),
                expected=f"the right to list, create and delete jobs.batch in namespace '{self._connector.namespace}'",
                do="ask the administrator of the namespace for it, or remove `mode: job`",
            ) from error

    async def run(self, step: PodStep, location: ExecutionLocation) -> tuple[str, int]:
        """Run a command as a Job, with retries by the policy; return the cause of a failure and the exit code.

        Raises:
            DeploymentRefused: its output folder is on no shared volume, or as `KubernetesJob.run`.
            TimeLimitExceeded, JobEndedBySite, SiteUnreachable: as `KubernetesJob.run`.
        """
        pod, container = await self._connector.pod_at(location.name), location.name.partition(":")[2]
        storage = storage_at(pod, container, step.output_directory)
        if storage is None or storage[0] not in SHARED:
            raise self._needs_claim("workdir", f"{step.output_directory} in {location.name} is on no claim")

        async def ask(line: str) -> tuple[str, int]:
            answer: tuple[str, int] = await self._connector.alone(location, [line])
            return answer

        async def fetch() -> Path | None:
            return await fetch_reports(self._connector, location, step.output_directory, step.name)

        site = JobSite(
            deployment=self._deployment,
            template=self._template,
            place=location.name,
            kept_at=describe_location(
                self._deployment, pod, container, step.output_directory, self._connector.removed_claims()
            ),
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
        # A separate task: it removes its Job even if the engine's task is cancelled.
        task = asyncio.ensure_future(job.run())
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._live = {job for job in self._live if not job.over}

    async def end(self) -> None:
        """End all Jobs, and wait until their pods are gone."""
        self._closing = True
        if self._open:
            await asyncio.wait(self._open)
        # Cancelling all tasks of a run cancels those that remove Jobs, too.
        await asyncio.gather(*(job.remove() for job in self._live if not job.over))
        await self._end_orphans()

    async def _sweep(self, excluded: Callable[[], set[str]]) -> None:
        """End the Jobs of dead drivers, except those with these keys.

        Raises:
            ApiServerError: the API server did not answer, or the account may not work with Jobs.
        """
        for _ in range(SWEEPS):
            orphans = await self._orphans_except(excluded())
            for job in orphans:
                metadata = job["metadata"]
                if await self._jobs.remove_unchanged(job):
                    run = metadata["labels"].get(owner.RUN, "?")
                    console.say(f"medweave: {self._deployment}: removing Job {metadata['name']}, left by run {run}")
                    await reattach.end_job(self._jobs, self._deployment, metadata["name"], _key(job))
            if not orphans:
                return

    async def _orphans_except(self, excluded: set[str]) -> list[dict[str, Any]]:
        return [job for job in await self._jobs.orphans() if _key(job) not in excluded]

    async def _end_orphans(self) -> None:
        """After a success, end the Jobs that no step re-attached to; otherwise name them, since a resumed run may need them."""
        run = current()
        try:
            if run is not None and run.engine_verdict == "completed" and run.signal_number is None:
                await self._sweep(reattach.attended_keys)
                return
            known = reattach.reusable_keys(self._deployment) - reattach.attended_keys()
            for job in (candidate for candidate in await self._jobs.orphans() if _key(candidate) in known):
                name, earlier = job["metadata"]["name"], job["metadata"]["labels"].get(owner.RUN, "?")
                console.say(
                    f"medweave: {self._deployment}: Job {name}, left by run {earlier}, is available to a resumed run"
                )
        except ApiServerError as error:
            console.say(f"medweave: {self._deployment}: Jobs of earlier runs could not be listed: {error}")

    def _needs_claim(self, key: str, seen: str) -> DeploymentRefused:
        return DeploymentRefused(
            f"deployments.{self._deployment}.{key}: with `mode: job`, files must be on a volume that the pods of all Jobs mount.",
            seen=seen,
            expected="a persistentVolumeClaim (ReadWriteMany) mounted at the deployment's `workdir`, or above it",
            do="mount one in the pods of this deployment, and make `workdir` a folder on it; or remove `mode: job`",
        )


class JobAttempts(SubmittedAttempts[KubernetesJob]):
    """A step's command as a sequence of Jobs."""

    def __init__(
        self,
        step: PodStep,
        site: JobSite,
        table: Table,
        submit: Callable[[KubernetesJob], Awaitable[tuple[str, int]]],
    ) -> None:
        super().__init__(step.name, table, site.closing, output_directory=step.output_directory, submit=submit)
        self._step, self._site = step, site

    def new_job(self, *, home: str, was_empty: bool) -> KubernetesJob:
        """Return the Job of the next attempt, not submitted yet."""
        return KubernetesJob(self._step, self._site, home=home, was_empty=was_empty)


def _key(job: Mapping[str, Any]) -> str:
    return str(job["metadata"]["labels"].get(SUBMISSION, ""))
