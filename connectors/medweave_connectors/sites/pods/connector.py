"""Steps in pods: the common part of `medweave.kubernetes`, `medweave.helm` and `medweave.compss`.

Not derived from StreamFlow's Kubernetes connectors: their listing and judging of pods, copies and commands would all have to be
replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import Any

from kubernetes_asyncio.client import CoreV1Api
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.scheduling import AvailableLocation

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.host import job_processes
from medweave_connectors.host.errors import CommandFailed
from medweave_connectors.jobs import job_requests, run_abort
from medweave_connectors.jobs.node_group import node_environment
from medweave_connectors.jobs.remote_environment import file_name, shell_line, step_variables
from medweave_connectors.jobs.retries.attempt_script import SIGNAL_LEAD_S
from medweave_connectors.jobs.retries.policy import STANDING, FailureKind, Table, read_table
from medweave_connectors.jobs.worker_environment import RemoteWorker
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.pods.api.access import connect
from medweave_connectors.sites.pods.api.api_client import find_kubeconfig
from medweave_connectors.sites.pods.api.errors import DeploymentRefused
from medweave_connectors.sites.pods.attempts import PodAttempts
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun
from medweave_connectors.sites.pods.exec.commands import PodStep
from medweave_connectors.sites.pods.exec.containers import BUFFER_BYTES, ContainerConnector
from medweave_connectors.sites.pods.exec.member import Member
from medweave_connectors.sites.pods.exec.pod_group import PodGroup
from medweave_connectors.sites.pods.objects.pod import Pod, pod_facts, size_of
from medweave_connectors.sites.pods.objects.pod_states import PodState, describe, judge
from medweave_connectors.sites.pods.objects.workloads import Workload
from medweave_connectors.sites.pods.startup.deadlines import judge_start
from medweave_connectors.sites.pods.startup.messages import describe_waiting
from medweave_connectors.sites.pods.startup.readiness import RunIsEnding
from medweave_connectors.transfer.manifest import remote_scan

NO_PODS_S = 60.0
SETTLE_S = 3.0
RENDEZVOUS_PORT = 29500


def streams_of(stdin: int | str | None, stdout: int | str, stderr: int | str) -> dict[str, str | None]:
    """Return the files of a step's streams, relative to its output folder.

    StreamFlow passes the file of stdout when the tool names none for stderr: progress must not be written to it.
    """
    own = None if stderr == stdout else file_name(stderr)
    return {"stdin": file_name(stdin), "stdout": file_name(stdout), "stderr": own}


class PodsConnector(ContainerConnector):
    """Connector to pods of one namespace; every container is a location for one job."""

    TABLE: Table = STANDING
    COPIES_FILES = False  # before another attempt, those of a pod to its others: see `before_again`
    CHECKED_AT_START = True  # the pods start while the first steps run elsewhere, so errors appear at once

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        *,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        kubeContext: str | None = None,
        inCluster: bool = False,
        timeout: int = 300,
        pendingTimeout: int = 300,
        transferBufferSize: int = BUFFER_BYTES,
        reactions: Mapping[str, Mapping[str, Any]] | None = None,
        signalLeadTime: int = SIGNAL_LEAD_S,
    ) -> None:
        super().__init__(deployment_name, config_dir, transferBufferSize)
        folder = Path(config_dir)
        self.folder = folder.parent if folder.is_file() else folder
        self.namespace = namespace or ""
        self.kubeconfig, self.kube_context, self.in_cluster = find_kubeconfig(kubeconfig), kubeContext, inCluster
        self.timeout_s, self.pending_timeout_s = timeout, pendingTimeout
        self.table, self.signal_lead_s = read_table(reactions or {}, self.TABLE), signalLeadTime
        self.workloads: list[Workload] = []
        self._clients: list[Any] = []
        self._groups: set[PodGroup] = set()
        self._writers = remote_scan.OutputWriters()
        self._closing = False
        self._no_pods_since: float | None = None
        self._reported_reasons = ""

    # ---- implemented by the deployments

    @abstractmethod
    async def bring_up(self) -> None:
        """Create the pods and wait until they are ready; remove them if this fails."""

    @abstractmethod
    async def find(self) -> None:
        """Read the properties of existing pods."""

    @abstractmethod
    async def take_down(self) -> None:
        """Remove what `bring_up` created."""

    @abstractmethod
    def containers(self) -> list[str]:
        """Return the names of the containers that a step can be bound to; empty if they are unknown until the pods exist."""

    @abstractmethod
    async def remove_left(self, gone: GoneRun) -> Cleaned:
        """Remove what a run with a dead driver left of this deployment, without creating pods."""

    # ---- StreamFlow's life cycle

    async def deploy(self, external: bool) -> None:
        """Connect to the cluster and create or find the pods.

        Raises:
            DeploymentRefused: the cluster denies access, or a pod cannot start.
        """
        try:
            with run_abort.aborting():
                await self._connect()
                await (self.find() if external else self.bring_up())
        except (RunIsEnding, asyncio.CancelledError) as error:
            await self._disconnect()
            # The engine waits for the end of this before it closes anything, and tasks that wait for the pods are cancelled.
            if isinstance(error, asyncio.CancelledError) and not run_abort.run_is_ending():
                raise
        except BaseException:
            await self._disconnect()
            raise

    async def undeploy(self, external: bool) -> None:
        """End running commands, remove the pods, and disconnect."""
        self._closing = True
        try:
            await asyncio.gather(
                *(group.end("INT") for group in self._groups), *([] if external else [self.take_down()])
            )
            deadline = time.monotonic() + SETTLE_S
            while self._groups and time.monotonic() < deadline:  # `run` reads the last lines and records them
                await asyncio.sleep(0.02)
        finally:
            await super().undeploy(external)
            await self._disconnect()

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[None]:
        """Connect to the cluster without creating pods.

        Raises:
            DeploymentRefused: the cluster denies access.
        """
        await self._connect()
        try:
            yield
        finally:
            await super().undeploy(True)
            await self._disconnect()

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """Return the containers of ready pods that have the service's name; without a service, the only container.

        Raises:
            DeploymentRefused: no such container, or no ready pod for too long.
        """
        if run_abort.run_is_ending():
            raise asyncio.CancelledError
        container = self.container_of(service, self.containers())
        pods = await self.pods()
        ready = [pod for pod in pods if judge(pod)[0] == PodState.READY and pod.container(container)]
        self._check_ready_pods(pods, ready)
        return {
            f"{pod.name}:{container}": AvailableLocation(
                name=f"{pod.name}:{container}",
                deployment=self.deployment_name,
                hostname=pod.ip,
                service=service,
                slots=1,
            )
            for pod in ready
        }

    async def sizes(self, service: str | None) -> dict[str, job_requests.LocationSize]:
        """Return the most that a job can have in its location: the limits of the container."""
        container = self.container_of(service, self.containers())
        containers = {f"{pod.name}:{container}": pod.container(container) for pod in await self.pods()}
        return {place: size_of(spec) for place, spec in containers.items() if spec is not None}

    def most_locations(self, service: str | None) -> int | None:
        """Return the number of locations of a service when all pods are ready; None if only the cluster decides it."""
        container = self.container_of(service, self.containers())
        counts = [workload.replicas for workload in self.workloads if container in workload.containers]
        return sum(counts) if counts and all(workload.kind != "DaemonSet" for workload in self.workloads) else None

    def container_of(self, service: str | None, known: Sequence[str]) -> str:
        """Return the container that a service names.

        Raises:
            DeploymentRefused: no container has the name, or there are several and no service says which.
        """
        if service is not None and (service in known or not known):
            return service
        if service is None and len(known) == 1:
            return known[0]
        raise DeploymentRefused(
            f"a binding to deployment '{self.deployment_name}' does not name a container.",
            seen=f"service: {service}" if service else "no service",
            expected=f"the name of a container of its pods: {', '.join(known) or 'none is known'}",
            do="write it as `service` next to `deployment` in the binding",
        )

    # ---- commands

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
        """Run a command; a job with retries by the policy. Return the cause of a failure in the step's words, and the exit code.

        Raises:
            TimeLimitExceeded: the job took longer than its ToolTimeLimit; it has ended.
            JobEndedBySite: its pod, or the connection to it, was lost.
            PodLost: the pod of another command was.
            CommandFailed: another command failed, and the caller does not get its exit code.
        """
        if job_name is None or workdir is None:
            text, code = await self.utility(location, command, environment, workdir, timeout)
            if code and not capture_output:
                raise CommandFailed(command, location.name, (text, code))
            return (text, code) if capture_output else None
        streams = streams_of(stdin, stdout, stderr)
        self.has_outputs(location, workdir)
        variables = step_variables(location.environment, environment or {})
        step = PodStep(
            name=job_name,
            words=command,
            environment=variables,
            output_directory=workdir,
            streams=streams,
            limit_s=timeout,
        )
        return await PodAttempts(self, step, location, groups=self._groups, closing=lambda: self._closing).run()

    def has_outputs(self, location: ExecutionLocation, workdir: str) -> None:
        """Store in which of its locations a job writes its outputs."""
        self._writers.note(workdir, location.name)

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """Return what runs a job's command: the container's image."""
        pod = await self.pod_at(location.name)
        container = pod.container(location.name.partition(":")[2])
        return RemoteWorker(facts={"image": container.image if container else ""})

    async def utility(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """Run a short command of the engine. A search for outputs covers only a job's first place."""
        if self._writers.are_elsewhere(command, location.name):
            return remote_scan.empty_answer(), 0
        return await super().utility(location, command, environment, workdir, timeout)

    def places_of(self, job_name: str, location: ExecutionLocation) -> list[str]:
        """Return where the nodes of a job run: one place, or with the gang hint all locations allocated to the job."""
        return job_requests.locations_of(job_name, location.name)

    async def members(
        self,
        job_name: str,
        location: ExecutionLocation,
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> list[Member]:
        """Return the node group members of a job, in its places."""
        places = self.places_of(job_name, location)
        gang = len(places) > 1
        pods = await asyncio.gather(*(self.pod_at(place) for place in places))
        rendezvous = f"{pods[0].ip}:{RENDEZVOUS_PORT}"  # not every pod has a name that others can look up
        members = []
        for rank, (place, pod) in enumerate(zip(places, pods, strict=True)):
            own = node_environment(node_rank=rank, num_nodes=len(places), rendezvous=rendezvous) if gang else {}
            container = place.partition(":")[2]
            members.append(self.member(job_name, rank, pod, container, command, variables | own, workdir, streams))
        return members

    def member(
        self,
        job_name: str,
        rank: int,
        pod: Pod,
        container: str,
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> Member:
        """Return the member for one node of a job."""
        key = secrets.token_hex(8)
        line = shell_line(command, environment=variables | {job_processes.KEY: key}, workdir=workdir, **streams)
        output = JobOutput(job_name)
        return Member(rank=rank, pod=pod, container=container, variables=variables, line=line, key=key, output=output)

    def site_facts(self, members: Sequence[Member]) -> dict[str, Any]:
        """Return the facts about the pods of a job for the event log."""
        return {
            "namespace": self.namespace,
            "pods": [pod_facts(member.pod, member.container) for member in members],
        }

    async def after_attempt(self, job_name: str, location: ExecutionLocation) -> None:
        """Hook after a job's command has ended in its places, and before it starts there again."""

    async def before_retry(
        self, job_name: str, location: ExecutionLocation, folder: str, checkpoint_folder: str
    ) -> None:
        """Hook before a job's command starts again in its output folder; `checkpoint_folder` in it, if any, is preserved."""

    async def watched(self) -> tuple[str, FailureKind]:
        """Return why another dependency of a job is lost, and the kind of that loss; an empty reason if none is lost."""
        return "", FailureKind.UNKNOWN

    # ---- inside

    def _check_ready_pods(self, pods: Sequence[Pod], ready: Sequence[Pod]) -> None:
        # StreamFlow repeats the call and would wait for ever: a restarting pod gets a minute, a waiting pod gets the time that it
        # gets at the start.
        if ready:
            self._no_pods_since = None
            return
        now = time.monotonic()
        if self._no_pods_since is None:
            self._no_pods_since, self._reported_reasons = now, ""
        states = {pod.name: judge_start(pod, ()) for pod in pods}
        reasons = describe_waiting(states)
        limit_s = self.pending_timeout_s if reasons else NO_PODS_S
        if now - self._no_pods_since >= limit_s:
            raise DeploymentRefused(
                f"deployments.{self.deployment_name}{'.config.pendingTimeout' if reasons else ''}: "
                f"it has had no ready pod for {limit_s:.0f} s.",
                seen="\n".join(describe(pod) for pod in pods) or f"no pods with {' or '.join(self.selectors())}",
                expected=f"ready pods in namespace '{self.namespace}'",
                do="check `kubectl describe pod`, and run again",
            )
        if reasons and reasons != self._reported_reasons and (run := current()) is not None:
            self._reported_reasons = reasons
            run.deployment_notice(self.deployment_name, f"no pod is ready; waits for up to {limit_s:.0f} s: {reasons}")

    async def _connect(self) -> None:
        self._clients, self.cluster = await connect(
            self.deployment_name,
            kubeconfig=self.kubeconfig,
            context=self.kube_context,
            in_cluster=self.in_cluster,
            namespace=self.namespace,
        )
        self.namespace = self.cluster.namespace
        self.websocket = CoreV1Api(api_client=self._clients[1])

    async def _disconnect(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()
