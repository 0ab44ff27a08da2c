"""`medweave.compss`: a COMPSs cluster in pods as one location, for steps that distribute their own work over it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import shlex
import shutil
import time
from collections.abc import MutableMapping, MutableSequence, Sequence
from importlib.resources import files
from typing import Any, Literal

from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.scheduling import AvailableLocation

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.node_group import ENGINE, node_environment
from medweave_connectors.jobs.remote_environment import is_read_only
from medweave_connectors.jobs.retries.policy import CLUSTER, FailureKind
from medweave_connectors.jobs.run_abort import run_is_ending
from medweave_connectors.jobs.worker_environment import RemoteWorker
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.run import short_path
from medweave_connectors.sites.compss import commands, replacement_pods, xml
from medweave_connectors.sites.compss.commands import Facts
from medweave_connectors.sites.compss.runtime_log import RuntimeLog
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.pods.api.errors import DeploymentRefused, PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError
from medweave_connectors.sites.pods.connector import RENDEZVOUS_PORT
from medweave_connectors.sites.pods.exec.member import Member
from medweave_connectors.sites.pods.objects.pod import Pod, pod_facts
from medweave_connectors.sites.pods.objects.pod_states import describe_loss, loss_kind
from medweave_connectors.transfer.routes.via_driver import StreamOptions

MASTER, WORKER = "master", "worker"
ASK_S = 60
LOGS_KIB = 50 * 1024


class MedweaveCompssConnector(MedweaveHelmConnector):
    """Master and workers of one release. Inputs of a step are copied to all of its pods; outputs are on the first."""

    LOCATION_GIVES_NODES = True
    TABLE = CLUSTER
    COPIES_FILES = True

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        engine: Literal["compss", "ddp"] = "ddp",
        stepTimeout: int = 43200,
        **release: Any,
    ) -> None:
        super().__init__(deployment_name, config_dir, **release)
        self.engine, self.step_timeout_s = engine, stepTimeout
        self.values["engine"] = engine
        if engine == "compss":
            self.signal_lead_s = 0  # the signal would kill runcompss
        self.master: Pod | None = None
        self.workers: list[Pod] = []
        self._watched_workers: list[Pod] = []
        self._homes: dict[str, str] = {}
        self._runtime_log = RuntimeLog()

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    async def on_pods_ready(self, pods: Sequence[Pod]) -> None:
        """Store which pods are the master and the workers.

        Raises:
            DeploymentRefused: the release has no worker, or no master where the engine needs one.
        """
        self.workers = sorted((pod for pod in pods if pod.container(WORKER)), key=lambda pod: pod.order)
        self.master = next((pod for pod in pods if pod.container(MASTER)), None)
        if not self.workers or (self.engine == "compss" and self.master is None):
            have = ", ".join(dict.fromkeys(container.name for pod in pods for container in pod.containers))
            raise self._refused(
                "chart",
                f"containers {have}",
                f"a container '{WORKER}'" + (f" and one '{MASTER}'" if self.engine == "compss" else ""),
                "use helm/compss-cluster, or a chart like it",
            )

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """Return the cluster as one location, named after its first pod.

        Raises:
            DeploymentRefused: the binding names a part of it.
        """
        if service not in (None, WORKER):
            raise DeploymentRefused(
                f"a binding to deployment '{self.deployment_name}' names a part of its cluster.",
                seen=f"service: {service}",
                expected="no service: the cluster is one location, and its engine decides what runs where",
                do="remove `service` next to `deployment` in the binding",
            )
        if run_is_ending():
            raise asyncio.CancelledError
        first = self._places()[0]
        return {
            first: AvailableLocation(
                name=first, deployment=self.deployment_name, hostname=self._first().ip, service=service, slots=1
            )
        }

    async def sizes(self, service: str | None) -> dict[str, job_requests.LocationSize]:
        """Return no sizes: the engine decides which pods a step uses."""
        return {}

    def most_locations(self, service: str | None) -> int | None:
        """Return the number of workers."""
        return len(self.workers)

    # ---- one location of several pods

    async def utility(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """Run a read-only command in the first pod, any other command in all pods; return the first failure, if any."""
        first_result = await self.alone(location, command, environment, workdir, timeout)
        if first_result[1] or location.name != self._places()[0] or is_read_only(command):
            return first_result
        others = await asyncio.gather(
            *(self.alone(other, command, environment, workdir, timeout) for other in self._others(location))
        )
        return next((other for other in others if other[1]), first_result)

    async def copy_local_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to every pod of the cluster."""
        await super().copy_local_to_remote(src, dst, self._all(locations), read_only, options)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
        options: StreamOptions | None = None,
    ) -> None:
        """Copy to every pod of the cluster; outputs of an earlier step, which only the first pod has, go to the others too."""
        await super().copy_remote_to_remote(
            src, dst, self._all(locations), source_location, source_connector, read_only, options
        )

    def mirrors(self, location: ExecutionLocation) -> list[ExecutionLocation]:
        """Return the pods that get a copy of everything that is copied to this location."""
        return self._others(location)

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
        """Run a command; limit a distributed job to `stepTimeout`."""
        distributed = job_name is not None and job_requests.hints_of(job_name).gang
        if distributed:
            timeout = min(timeout or self.step_timeout_s, self.step_timeout_s)
        return await super().run(
            location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name
        )

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """Return the worker as in other pods, with the engine and the number of workers of a distributed job."""
        worker, distributed = await super().worker_of(location, job_name), job_requests.hints_of(job_name).gang
        facts = {"engine": self.engine, "workers": len(self._participants(job_name)) if distributed else 1}
        return dataclasses.replace(worker, facts={**worker.facts, **facts})

    def places_of(self, job_name: str, location: ExecutionLocation) -> list[str]:
        """Return all participating workers under ddp; otherwise the first pod."""
        if self.engine == "compss" or not job_requests.hints_of(job_name).gang:
            return super().places_of(job_name, location)
        return self._participants(job_name)

    async def members(
        self,
        job_name: str,
        location: ExecutionLocation,
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> list[Member]:
        """Return the command on the master under runcompss, or in every worker; without the gang hint, in the first pod."""
        if not job_requests.hints_of(job_name).gang:
            return await super().members(job_name, location, command, variables, workdir, streams)
        workers = await asyncio.gather(*(self.pod_at(place) for place in self._participants(job_name)))
        variables = variables | {ENGINE: self.engine}
        if self.engine == "compss":
            return [await self._application(job_name, workers, command, variables, workdir, streams)]
        rendezvous = f"{workers[0].address}:{RENDEZVOUS_PORT}"
        nodes = []
        for rank, pod in enumerate(workers):
            own = node_environment(node_rank=rank, num_nodes=len(workers), rendezvous=rendezvous)
            member_variables = variables | (own if len(workers) > 1 else {})
            nodes.append(self.member(job_name, rank, pod, WORKER, command, member_variables, workdir, streams))
        return nodes

    def site_facts(self, members: Sequence[Member]) -> dict[str, Any]:
        """Return the pods of the job, including the workers that COMPSs used, and the engine of a distributed job."""
        facts = super().site_facts(members)
        if ENGINE in members[0].variables:
            facts["engine"] = self.engine
        facts["pods"] += [pod_facts(pod, WORKER) for pod in self._watched_workers]
        return facts

    async def before_retry(
        self, job_name: str, location: ExecutionLocation, folder: str, checkpoint_folder: str
    ) -> None:
        """Wait for the replacements of lost pods; copy the files of the first surviving pod to them, and its checkpoints to all.

        Raises:
            PodLost: a replacement did not become ready in time, or no surviving pod has the files.
        """
        before, within_s = self._pods(), max(self.timeout_s, self.pending_timeout_s)
        pods = await replacement_pods.wait_until_ready(
            self.cluster, before, within_s=within_s, deployment=self.deployment_name, closing=lambda: self._closing
        )
        await self.on_pods_ready(pods)
        new = {f"{pod.name}:" for pod in pods if pod.uid not in {pod.uid for pod in before}}
        places = [_named(location, place) for place in self._places()]
        work = [_named(location, place) for place in self.places_of(job_name, location)]
        await replacement_pods.copy_missing_files(self, places, new, work, folder, checkpoint_folder)

    async def watched(self) -> tuple[str, FailureKind]:
        """Return which worker the application lost, or how the COMPSs runtime failed, since the master would hang."""
        cause, kind = self._runtime_log.failure(time.monotonic())
        if cause:
            return cause, kind
        for before in self._watched_workers:
            with contextlib.suppress(ApiServerError):  # no answer: unknown until the next check
                now = await self.cluster.pod(before.name)
                if why := describe_loss(before, now, WORKER):
                    return f"COMPSs worker lost: {why}", loss_kind(before, now, WORKER)
        return "", FailureKind.UNKNOWN

    # ---- inside

    def _first(self) -> Pod:
        assert self.workers, "the cluster is not up yet"
        return self.master if self.engine == "compss" and self.master is not None else self.workers[0]

    def _pods(self) -> list[Pod]:
        return ([self.master] if self.engine == "compss" and self.master is not None else []) + self.workers

    def _places(self) -> list[str]:
        workers = [f"{pod.name}:{WORKER}" for pod in self.workers]
        return [f"{self._first().name}:{MASTER}", *workers] if self.engine == "compss" else workers

    def _others(self, location: ExecutionLocation) -> list[ExecutionLocation]:
        return [_named(location, place) for place in self._places() if place != location.name]

    def _all(self, locations: Sequence[ExecutionLocation]) -> list[ExecutionLocation]:
        return [member for location in locations for member in (location, *self._others(location))]

    def _participants(self, job_name: str) -> list[str]:
        request = job_requests.request_of(job_name)
        num_workers = request.num_nodes if request is not None and request.num_nodes > 1 else len(self.workers)
        return [f"{pod.name}:{WORKER}" for pod in self.workers[:num_workers]]

    async def _application(
        self,
        job_name: str,
        workers: Sequence[Pod],
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> Member:
        place = ExecutionLocation(name=self._places()[0], deployment=self.deployment_name)
        master = await self.pod_at(place.name)
        facts = await self._facts(place)
        names = [pod.address for pod in workers]
        await self._reach(place, names, facts.port)
        # COMPSs writes its logs below HOME, which StreamFlow sets to the output folder.
        home = f"{variables.get('TMPDIR', '/tmp')}/compss"
        self._homes[job_name] = home
        project = xml.build_project(
            names,
            install_dir=facts.compss,
            working_dir=f"{home}/work",
            app_dir=facts.application_folder,
            python_path=facts.python_path,
        )
        await self.run(place, ["mkdir", "-p", shlex.quote(f"{home}/work")])
        for name, text in (
            ("project.xml", project),
            ("resources.xml", xml.build_resources(names, ssh_port=int(facts.port))),
        ):
            async with await self.get_stream_writer(["tee", f"{home}/{name}", ">", "/dev/null"], place) as writer:
                await writer.write(text.encode())
        try:
            words = commands.build_runcompss_command(
                command,
                facts,
                project=f"{home}/project.xml",
                resources=f"{home}/resources.xml",
                master=master.address,
            )
        except ValueError as error:
            raise DeploymentRefused(
                f"{job_name} cannot be run as a COMPSs application.",
                seen=str(error),
                expected=f"{commands.STEP} VERB …, without blanks and wildcards in names: runcompss would split them",
                do="rename the file or folder, bind the step elsewhere, or use `engine: ddp`",
            ) from None
        self._watched_workers, self._runtime_log = list(workers), RuntimeLog(names)
        own_variables = {"HOME": home, "JAVA_HOME": facts.java, "COMPSS_WORKER_INIT_TIMEOUT": commands.WORKER_START_MS}
        member = self.member(job_name, 0, master, MASTER, words, variables | own_variables, workdir, streams)
        log = self._runtime_log
        member.on_stderr_line = lambda line: log.take(line, time.monotonic())
        return member

    async def _facts(self, place: ExecutionLocation) -> Facts:
        text, _ = await self.alone(place, commands.build_facts_command(), timeout=ASK_S)
        facts = commands.parse_facts(text)
        if missing := facts.missing():
            raise self._refused(
                "engine",
                f"{place.name} has no {', no '.join(missing)}",
                f"pods that can run COMPSs ({facts.compss})",
                "use an image that has it, mount an installation by the chart's extraVolumes, or set `engine: ddp`",
            )
        return facts

    async def _reach(self, place: ExecutionLocation, names: Sequence[str], port: str) -> None:
        text, _ = await self.alone(place, commands.build_reach_command(names, port), timeout=ASK_S)
        if failed := commands.parse_unreachable(text, names):
            is_external = self.removed_claims() is None
            raise PodLost(
                f"deployment '{self.deployment_name}': the master cannot reach its workers over ssh.\n"
                f"  seen:     {'; '.join(f'{name}: {message}' for name, message in failed.items())}\n"
                f"  expected: a login on port {port} with the release's key\n"
                f"  do:       {commands.describe_release_test(self.release, self.namespace, is_external=is_external)}"
            )

    async def after_attempt(self, job_name: str, location: ExecutionLocation) -> None:
        """Copy COMPSs' own logs to the run folder, and kill the remaining processes of a failed application on the workers."""
        self._watched_workers, self._runtime_log = [], RuntimeLog()
        home = self._homes.pop(job_name, None)
        run = current()
        if home is None or self._closing:
            return
        facts = Facts(compss="/opt/COMPSs")
        with contextlib.suppress(PodLost, TimeoutError, DeploymentRefused):
            facts = await self._facts(location)
        with contextlib.suppress(PodLost, TimeoutError, OSError, ValueError, LookupError):
            logs = f"{home}/.COMPSs"
            text, code = await self.alone(location, [f"test -d {shlex.quote(logs)} && du -sk {shlex.quote(logs)}"])
            if run is not None and not code and int(text.split()[0]) < LOGS_KIB:
                target = run.folder / "logs" / run.jobs[job_name].label
                shutil.rmtree(target, ignore_errors=True)  # of an earlier attempt
                target.mkdir(parents=True)
                await self.copy_remote_to_local(logs, str(target / "compss"), location)
                outcome = run.jobs[job_name].outcome
                if outcome is not None and outcome.exit_code:
                    console.say(f"medweave: COMPSs' own logs: {short_path(target)}")
        words = commands.build_kill_command(facts.compss)
        with contextlib.suppress(PodLost, TimeoutError):
            await asyncio.gather(
                *(self.alone(other, words, timeout=ASK_S) for other in self._others(location)), return_exceptions=True
            )


def _named(location: ExecutionLocation, name: str) -> ExecutionLocation:
    other = copy.copy(location)
    other.name = name
    return other
