"""`medweave.kubernetes`: steps in existing pods, or in pods of manifest files that exist as long as the run."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from functools import partial
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.scheduling import AvailableLocation

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.remote_environment import step_variables
from medweave_connectors.jobs.retries.policy import STANDING, read_table
from medweave_connectors.jobs.worker_environment import RemoteWorker
from medweave_connectors.runlog import console
from medweave_connectors.sites.kubernetes import cleanup
from medweave_connectors.sites.kubernetes.job.manifest import SUBMISSION
from medweave_connectors.sites.kubernetes.job.mode import JobMode
from medweave_connectors.sites.kubernetes.manifest_objects import ManifestObjects, add_labels, title
from medweave_connectors.sites.pods import owner
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, retry_while_starting
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun
from medweave_connectors.sites.pods.connector import PodsConnector, streams_of
from medweave_connectors.sites.pods.exec.commands import PodStep
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.workloads import (
    claim_names,
    container_names,
    find_workloads,
    parse_documents,
    selectors,
)
from medweave_connectors.sites.pods.startup.readiness import Readiness

MAX_JOBS = 32
EXEC_KINDS = [kind for kind, row in STANDING.items() if row.do != "stop"]
UNDO_S = 30.0  # an API server that is started again answers after some seconds


class MedweaveKubernetesConnector(PodsConnector):
    """Connector that applies manifests and deletes them again, or selects existing pods by label."""

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        files: Sequence[str] | None = None,
        selector: str | None = None,
        mode: Literal["exec", "job"] = "exec",
        maxConcurrentJobs: int | None = None,
        reactions: Mapping[str, Mapping[str, Any]] | None = None,
        **access: Any,
    ) -> None:
        super().__init__(deployment_name, config_dir, reactions=reactions, **access)
        if mode == "job":
            self.table = read_table(reactions or {})
        self._reactions = list(reactions or {})
        self.mode, self.max_concurrent_jobs = mode, maxConcurrentJobs
        self._jobs: JobMode | None = None
        self.files, self.selector = list(files or []), selector
        self._applied: list[dict[str, Any]] = []
        self._container_names: list[str] = []

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of the deployment's `config`."""
        return package_files(__package__).joinpath("schema.json").read_text("utf-8")

    async def bring_up(self) -> None:
        """Apply the files and wait for their pods; without files, find existing pods.

        Raises:
            DeploymentRefused: a file or an object is refused, or a pod cannot start; the applied objects are deleted.
        """
        if not self.files:
            await self.find()
            return
        self._check_keys()
        started = time.monotonic()
        manifests = self.read_files()
        self.workloads = find_workloads(manifests)
        if not self.workloads:
            raise self._refused("files", "no workload in the files", "an object that has pods", "add one")
        try:
            for document in manifests:
                await self._apply(add_labels(document, owner.labels()))
            pods = await Readiness(
                self.deployment_name,
                self.cluster,
                self.workloads,
                timeout_s=self.timeout_s,
                pending_timeout_s=self.pending_timeout_s,
                key_of=lambda image: "files",
            ).wait()
            await self._begin_jobs(pods)
        except BaseException:
            # In a separate task: the current one may be being cancelled.
            await asyncio.shield(asyncio.ensure_future(self.take_down()))
            raise
        seconds = time.monotonic() - started
        console.say(f"medweave: {self.deployment_name}: {len(pods)} pods ready after {seconds:.0f} s")

    async def find(self) -> None:
        """Read the containers of existing pods.

        Raises:
            DeploymentRefused: the config has no selector, or no pod matches it.
        """
        self._check_keys()
        if self.selector is None:
            raise self._refused(
                "selector",
                "neither files nor selector, or `external: true` without selector",
                "the labels of existing pods (`app=segment`), or files with pods to create",
                "write one of them",
            )
        pods = await self.pods()
        if not pods:
            raise self._refused(
                "selector",
                f"no pods with {self.selector} in namespace '{self.namespace}'",
                "pods that exist",
                "correct the labels or the namespace",
            )
        self._container_names = list(dict.fromkeys(container.name for pod in pods for container in pod.containers))
        await self._begin_jobs(pods)

    def removed_claims(self) -> frozenset[str] | None:
        """Return the claims among the applied objects, which are deleted at the end of the run; None if nothing was applied."""
        return claim_names(self._applied) if self._applied else None

    async def take_down(self) -> None:
        """Delete the applied objects in reverse order; retry for `UNDO_S` if the API server does not answer."""
        objects, deadline = ManifestObjects(self.cluster), time.monotonic() + UNDO_S
        while self._applied:
            document = self._applied.pop()
            try:
                if not await retry_while_starting(
                    partial(objects.delete, document, is_own=lambda labels: owner.owner(labels) == "me"),
                    limit_s=deadline - time.monotonic(),
                ):
                    console.say(
                        f"medweave: {self.deployment_name}: {title(document)} does not belong to this run; it is not removed"
                    )
            except ApiServerError as error:
                console.say(
                    f"medweave: {self.deployment_name}: {title(document)} could not be deleted: {error}\n"
                    f"  do:       kubectl delete {document['kind'].lower()} {document['metadata']['name']} "
                    f"--namespace {self.namespace}"
                )

    async def remove_left(self, gone: GoneRun) -> Cleaned:
        """Remove what a dead run left, as `cleanup.remove_left`."""
        return await cleanup.remove_left(self, gone)

    def selectors(self) -> list[str]:
        """Return the label selectors of the deployment's pods."""
        # The run's label excludes pods of other owners with the same labels; pods of Jobs are no locations.
        mine = f"{owner.RUN}={owner.labels()[owner.RUN]}"
        selectors_of_pods = [self.selector] if self.selector is not None else [
            f"{selector},{mine}" if selector else mine for selector in selectors(self.workloads)
        ]  # fmt: skip
        return (
            selectors_of_pods
            if self.mode == "exec"
            else [f"{selector},!{SUBMISSION}" for selector in selectors_of_pods]
        )

    def containers(self) -> list[str]:
        """Return the names of the deployment's containers."""
        return container_names(self.workloads) or self._container_names

    # ---- one pod per job

    async def undeploy(self, external: bool) -> None:
        """End the Jobs while the pods with their files still exist; then undeploy as usual."""
        if self._jobs is not None:
            await self._jobs.end()
            self._jobs = None  # a second call has no connection to the cluster any more
        await super().undeploy(external)

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """Return the containers of the ready pods; with `mode: job` the places that hold the files, each for many jobs."""
        locations = await super().get_available_locations(service)
        if self.mode == "job":
            for available in locations.values():
                available.slots = -(-(self.max_concurrent_jobs or MAX_JOBS) // len(locations))
        return locations

    async def sizes(self, service: str | None) -> dict[str, job_requests.LocationSize]:
        """Return the most that a job can have; with `mode: job` a pod gets what the job requests."""
        return {} if self.mode == "job" else await super().sizes(service)

    def most_locations(self, service: str | None) -> int | None:
        """Return the number of locations that a job can have: one with `mode: job`."""
        return 1 if self.mode == "job" else super().most_locations(service)

    @with_cache_lookup
    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,
        job_name: str | None = None,
    ) -> tuple[str, int] | None:
        """Run a command; with `mode: job` submit one Job per step, with the same retry policy and errors."""
        if self._jobs is None or job_name is None or workdir is None:
            return await super().run(
                location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name
            )
        step = PodStep(
            name=job_name,
            words=command,
            environment=step_variables(location.environment, environment or {}),
            output_directory=workdir,
            streams=streams_of(stdin, stdout, stderr),
            limit_s=timeout,
        )
        return await self._jobs.run(step, location)

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """Return the worker as in standing pods; with `mode: job` the pod with the files does not compute."""
        return dataclasses.replace(await super().worker_of(location, job_name), computes=self.mode == "exec")

    # ---- inside

    def _check_keys(self) -> None:
        if self.mode == "exec" and self.max_concurrent_jobs is not None:
            raise self._refused(
                "maxConcurrentJobs",
                f"maxConcurrentJobs: {self.max_concurrent_jobs}, and no `mode: job`",
                "`mode: job`; without it each container has one job at a time",
                "write `mode: job`, or remove maxConcurrentJobs",
            )
        fixed = [kind for kind in self._reactions if self.mode == "exec" and kind not in EXEC_KINDS]
        if fixed:
            raise self._refused(
                f"reactions.{fixed[0]}",
                f"{fixed[0]}, and no `mode: job`",
                f"in standing pods, {' or '.join(EXEC_KINDS)}; a retry after another kind needs another pod",
                "remove it, or write `mode: job`",
            )

    async def _begin_jobs(self, pods: Sequence[Pod]) -> None:
        if self.mode == "job":
            self._jobs = JobMode(self)
            await self._jobs.begin(pods)

    def read_files(self) -> list[dict[str, Any]]:
        """Return the Kubernetes objects of the files.

        Raises:
            DeploymentRefused: a file cannot be read, or contains something else.
        """
        objects = []
        for file in self.files:
            try:
                objects += parse_documents(Path(file).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise self._refused("files", f"{file}: {error}", "Kubernetes objects in YAML", "correct it") from error
        return objects

    async def _apply(self, document: dict[str, Any]) -> None:
        objects = ManifestObjects(self.cluster)
        try:
            whose = owner.owner(await objects.labels(document))
            if whose in ("stranger", "running", "elsewhere"):
                raise self._refused(
                    "files",
                    f"{title(document)} exists in namespace '{self.namespace}' and has another owner ({whose})",
                    "unused names, or names of objects of an ended run",
                    "give it another name, or use it as it is through `selector`",
                )
            self._applied.append(document)
            await (objects.replace if whose == "ended" else objects.apply)(document)
        except ApiServerError as error:
            if 400 <= error.status < 500 and document in self._applied:
                self._applied.remove(document)  # nothing was made
            raise self._refused(
                "namespace" if error.status == 403 else "files",
                f"{title(document)}: {error}",
                f"an object that namespace '{self.namespace}' accepts from this account",
                "correct the file, or ask the administrator of the namespace",
            ) from error

    def _refused(self, key: str, seen: str, expected: str, do: str) -> DeploymentRefused:
        what = f"deployments.{self.deployment_name}.config.{key}: its pods cannot be used."
        return DeploymentRefused(what, seen=seen, expected=expected, do=do)
