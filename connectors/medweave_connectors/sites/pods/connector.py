"""Steps in pods: what `medweave.kubernetes`, `medweave.helm` and `medweave.compss` have in common.

Not derived from StreamFlow's own Kubernetes connectors: in those, how pods are listed, judged, copied to and run in all had to be
replaced, and nothing but the names was left.
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
from medweave_connectors.sites.pods.api.api_client import kubeconfig_path
from medweave_connectors.sites.pods.attempts import PodAttempts
from medweave_connectors.sites.pods.cleanup import Cleaned, GoneRun
from medweave_connectors.sites.pods.errors import DeploymentRefused
from medweave_connectors.sites.pods.exec.containers import BUFFER_BYTES, PodPlaces
from medweave_connectors.sites.pods.exec.group import Group, Member
from medweave_connectors.sites.pods.exec.step import Step
from medweave_connectors.sites.pods.startup.deadlines import hope
from medweave_connectors.sites.pods.startup.messages import tell_waiting
from medweave_connectors.sites.pods.startup.pod import Pod, pod_facts, size_of
from medweave_connectors.sites.pods.startup.readiness import RunIsEnding
from medweave_connectors.sites.pods.startup.states import PodState, describe, judge
from medweave_connectors.sites.pods.startup.workloads import Workload
from medweave_connectors.transfer.manifest import remote_scan

NO_PODS_S = 60.0
SETTLE_S = 3.0
RENDEZVOUS_PORT = 29500


def streams_of(stdin: int | str | None, stdout: int | str, stderr: int | str) -> dict[str, str | None]:
    """The files of a step's streams, relative to its output folder.

    StreamFlow passes the file of stdout when the tool names none for stderr: progress must not end in there.
    """
    own = None if stderr == stdout else file_name(stderr)
    return {"stdin": file_name(stdin), "stdout": file_name(stdout), "stderr": own}


class PodsConnector(PodPlaces):
    """Pods of one namespace, each container a place for one job."""

    TABLE: Table = STANDING
    GIVES_FILES = False  # before another attempt, those of a pod to its others: see `before_again`
    CHECKED_AT_START = True  # the pods come up while the first steps run elsewhere, and what is wrong shows at once

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
        self.kubeconfig, self.kube_context, self.in_cluster = kubeconfig_path(kubeconfig), kubeContext, inCluster
        self.timeout_s, self.pending_timeout_s = timeout, pendingTimeout
        self.table, self.signal_lead_s = read_table(reactions or {}, self.TABLE), signalLeadTime
        self.workloads: list[Workload] = []
        self._clients: list[Any] = []
        self._groups: set[Group] = set()
        self._writers: dict[str, str] = {}
        self._closing = False
        self._no_pods_since: float | None = None
        self._told_reasons = ""

    # ---- what the deployments differ in

    @abstractmethod
    async def bring_up(self) -> None:
        """Makes the pods and waits until they are ready; nothing of it is left when this fails."""

    @abstractmethod
    async def find(self) -> None:
        """Learns about pods that others have made."""

    @abstractmethod
    async def take_down(self) -> None:
        """Removes what `bring_up` made."""

    @abstractmethod
    def containers(self) -> list[str]:
        """Names of the containers that a step can be bound to; empty where they are not known before the pods are."""

    @abstractmethod
    async def remove_left(self, gone: GoneRun) -> Cleaned:
        """Removes what a run whose driver is gone has left of this deployment; nothing is brought up."""

    # ---- StreamFlow's life cycle

    async def deploy(self, external: bool) -> None:
        """Reaches the cluster and brings the pods up.

        Raises:
            DeploymentRefused: the cluster does not let us in, or a pod cannot start.
        """
        try:
            with run_abort.aborting():
                await self._connect()
                await (self.find() if external else self.bring_up())
        except (RunIsEnding, asyncio.CancelledError) as error:
            await self._disconnect()
            # The engine waits for the end of this before it closes anything, and what waits for the pods is cancelled.
            if isinstance(error, asyncio.CancelledError) and not run_abort.run_is_ending():
                raise
        except BaseException:
            await self._disconnect()
            raise

    async def undeploy(self, external: bool) -> None:
        """Ends what still runs while it removes the pods, and hangs up."""
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
        """The cluster can be asked, and nothing is brought up.

        Raises:
            DeploymentRefused: the cluster does not let us in.
        """
        await self._connect()
        try:
            yield
        finally:
            await super().undeploy(True)
            await self._disconnect()

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """The containers of the ready pods that bear the service's name; without one, the only container.

        Raises:
            DeploymentRefused: there is no such container, or for a while there has been no ready pod.
        """
        if run_abort.run_is_ending():
            raise asyncio.CancelledError
        container = self.container_of(service, self.containers())
        pods = await self.pods()
        ready = [pod for pod in pods if judge(pod)[0] == PodState.READY and pod.container(container)]
        self._refuse_without_pods(pods, ready)
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
        """The most that a job can have in each location: the limits of its container."""
        container = self.container_of(service, self.containers())
        found = {f"{pod.name}:{container}": pod.container(container) for pod in await self.pods()}
        return {place: size_of(each) for place, each in found.items() if each is not None}

    def most_locations(self, service: str | None) -> int | None:
        """How many locations a service has when all is well; None where only the cluster knows."""
        container = self.container_of(service, self.containers())
        counts = [each.replicas for each in self.workloads if container in each.containers]
        return sum(counts) if counts and all(each.kind != "DaemonSet" for each in self.workloads) else None

    def container_of(self, service: str | None, known: Sequence[str]) -> str:
        """The container that a service names.

        Raises:
            DeploymentRefused: no container has the name, or there are several and no service says which.
        """
        if service is not None and (service in known or not known):
            return service
        if service is None and len(known) == 1:
            return known[0]
        raise DeploymentRefused(
            f"a binding to deployment '{self.deployment_name}' does not say which container it means.",
            seen=f"service: {service}" if service else "no service",
            expected=f"the name of a container of its pods: {', '.join(known) or 'none is known'}",
            do="write it as `service` beside the deployment",
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
        """Runs a command. For a job: again where the table says so; returns the cause of a failure in the step's own words, and the
        exit code.

        Raises:
            TimeLimitExceeded: the job took longer than its ToolTimeLimit; it has ended.
            JobEndedBySite: its pod, or the way to it, was lost.
            PodLost: the pod of another command was.
            CommandFailed: another command failed whose exit code nobody looks at.
        """
        if job_name is None or workdir is None:
            text, code = await self.utility(location, command, environment, workdir, timeout)
            if code and not capture_output:
                raise CommandFailed(command, location.name, (text, code))
            return (text, code) if capture_output else None
        streams = streams_of(stdin, stdout, stderr)
        self.has_outputs(location, workdir)
        variables = step_variables(location.environment, environment or {})
        step = Step(
            name=job_name,
            words=command,
            environment=variables,
            output_directory=workdir,
            streams=streams,
            limit_s=timeout,
        )
        return await PodAttempts(self, step, location, groups=self._groups, closing=lambda: self._closing).run()

    def has_outputs(self, location: ExecutionLocation, workdir: str) -> None:
        """The outputs of a job lie, or will, in this place of those that it was given."""
        self._writers[workdir] = location.name

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """What runs a job's command there: the container's image."""
        pod = await self.pod_at(location.name)
        found = pod.container(location.name.partition(":")[2])
        return RemoteWorker(facts={"image": found.image if found else ""})

    async def utility(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """A short command of the engine's. Its search for outputs finds those of a job's first place only.

        The engine searches every place of a job, and takes what places on a shared volume all see for that many outputs.
        """
        if searched := remote_scan.searched_folder(command):
            writer = next((at for folder, at in self._writers.items() if searched.startswith(folder)), location.name)
            if writer != location.name:
                return remote_scan.empty_answer(), 0
        return await super().utility(location, command, environment, workdir, timeout)

    def places_of(self, job_name: str, location: ExecutionLocation) -> list[str]:
        """Where the nodes of a job run: one place, or with the gang hint each location that the job was given."""
        request = job_requests.request_of(job_name)
        gang = request is not None and request.hints.gang and len(request.locations) > 1
        return list(request.locations) if request is not None and gang else [location.name]

    async def members(
        self,
        job_name: str,
        location: ExecutionLocation,
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> list[Member]:
        """The nodes of a job, in its places."""
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
        """One node's command."""
        key = secrets.token_hex(8)
        line = shell_line(command, environment=variables | {job_processes.KEY: key}, workdir=workdir, **streams)
        output = JobOutput(job_name)
        return Member(rank=rank, pod=pod, container=container, variables=variables, line=line, key=key, output=output)

    def site_facts(self, members: Sequence[Member]) -> dict[str, Any]:
        """What the event log keeps about the pods of a job."""
        return {
            "namespace": self.namespace,
            "pods": [pod_facts(member.pod, member.container) for member in members],
        }

    async def after_attempt(self, job_name: str, location: ExecutionLocation) -> None:
        """Called when a job's command has ended in its places, and before it begins there again."""

    async def before_again(
        self, job_name: str, location: ExecutionLocation, folder: str, checkpoint_folder: str
    ) -> None:
        """Called before a job's command begins again in its output folder, in which `checkpoint_folder`, if any, outlives it."""

    async def watched(self) -> tuple[str, FailureKind]:
        """Why something else that a job needs is lost, and the kind of that loss; empty while it is not."""
        return "", FailureKind.UNKNOWN

    # ---- inside

    def _refuse_without_pods(self, pods: Sequence[Pod], ready: Sequence[Pod]) -> None:
        # StreamFlow asks again, and would wait for ever: a pod that is started anew gets a minute, one that waits for something
        # the time that it gets at the start.
        if ready:
            self._no_pods_since = None
            return
        now = time.monotonic()
        if self._no_pods_since is None:
            self._no_pods_since, self._told_reasons = now, ""
        hopes = {pod.name: hope(pod, ()) for pod in pods}
        reasons = tell_waiting(hopes)
        limit_s = self.pending_timeout_s if reasons else NO_PODS_S
        if now - self._no_pods_since >= limit_s:
            raise DeploymentRefused(
                f"deployments.{self.deployment_name}{'.config.pendingTimeout' if reasons else ''}: "
                f"it has had no ready pod for {limit_s:.0f} s.",
                seen="\n".join(describe(pod) for pod in pods) or f"no pods with {' or '.join(self.selectors())}",
                expected=f"ready pods in namespace '{self.namespace}'",
                do="look at `kubectl describe pod`, and run again",
            )
        if reasons and reasons != self._told_reasons and (run := current()) is not None:
            self._told_reasons = reasons
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
