"""`medweave.compss`: a cluster of pods that is one place, for steps that spread their own work over it."""

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
from medweave_connectors.host.read_only_commands import is_marked_read_only
from medweave_connectors.jobs import job_requests
from medweave_connectors.jobs.node_group import ENGINE, node_environment
from medweave_connectors.jobs.retries.policy import CLUSTER, FailureKind
from medweave_connectors.jobs.run_abort import run_is_ending
from medweave_connectors.jobs.worker_environment import RemoteWorker
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.run import short_path
from medweave_connectors.sites.compss import commands, replacement_pods, xml
from medweave_connectors.sites.compss.commands import Facts
from medweave_connectors.sites.compss.runtime_log import RuntimeLog
from medweave_connectors.sites.helm.connector import MedweaveHelmConnector
from medweave_connectors.sites.pods.api.cluster import Refused
from medweave_connectors.sites.pods.connector import RENDEZVOUS_PORT
from medweave_connectors.sites.pods.errors import DeploymentRefused, PodLost
from medweave_connectors.sites.pods.exec.group import Member
from medweave_connectors.sites.pods.startup.pod import Pod, pod_facts
from medweave_connectors.sites.pods.startup.states import loss, loss_kind

MASTER, WORKER = "master", "worker"
ASK_S = 60
LOGS_KIB = 50 * 1024
# Commands of the engine that only look: the first pod's answer is the cluster's. All others change files, on every pod.
_LOOKING = frozenset({"test", "readlink", "find", "ls", "cat", "head", "sha1sum", "set", "["})


class MedweaveCompssConnector(MedweaveHelmConnector):
    """Master and workers of one release. What a step reads is put on all of its pods; what it writes is on the first."""

    LOCATION_GIVES_NODES = True
    TABLE = CLUSTER
    GIVES_FILES = True

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
            self.signal_lead_s = 0  # runcompss would die of it
        self.master: Pod | None = None
        self.workers: list[Pod] = []
        self._watching: list[Pod] = []
        self._homes: dict[str, str] = {}
        self._runtime_log = RuntimeLog()

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    async def brought_up(self, pods: Sequence[Pod]) -> None:
        """Tells master and workers apart.

        Raises:
            DeploymentRefused: the release has no worker, or no master where the engine needs one.
        """
        self.workers = sorted((pod for pod in pods if pod.container(WORKER)), key=lambda pod: pod.order)
        self.master = next((pod for pod in pods if pod.container(MASTER)), None)
        if not self.workers or (self.engine == "compss" and self.master is None):
            have = ", ".join(dict.fromkeys(each.name for pod in pods for each in pod.containers))
            raise self._refused(
                "chart",
                f"containers {have}",
                f"a container '{WORKER}'" + (f" and one '{MASTER}'" if self.engine == "compss" else ""),
                "use helm/compss-cluster, or a chart like it",
            )

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """The cluster, by the name of its first pod.

        Raises:
            DeploymentRefused: the binding names a part of it.
        """
        if service not in (None, WORKER):
            raise DeploymentRefused(
                f"a binding to deployment '{self.deployment_name}' names a part of its cluster.",
                seen=f"service: {service}",
                expected="no service: the cluster is one place, and its engine decides what runs where",
                do="remove `service` beside the deployment",
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
        """Nothing is known: which pods a step works in, its engine decides."""
        return {}

    def most_locations(self, service: str | None) -> int | None:
        """The number of its workers."""
        return len(self.workers)

    # ---- a place of several pods

    async def utility(
        self,
        location: ExecutionLocation,
        command: Sequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: int | None = None,
    ) -> tuple[str, int]:
        """Looks at the first pod, changes files on all of them; the first failure counts."""
        told = await self.alone(location, command, environment, workdir, timeout)
        if told[1] or location.name != self._places()[0] or _only_looks(command):
            return told
        others = await asyncio.gather(
            *(self.alone(each, command, environment, workdir, timeout) for each in self._others(location))
        )
        return next((other for other in others if other[1]), told)

    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None:
        """Copies to every pod of the cluster."""
        await super().copy_local_to_remote(src, dst, self._all(locations), read_only)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Connector | None = None,
        read_only: bool = False,
    ) -> None:
        """Copies to every pod of the cluster; what an earlier step wrote is on the first only, and goes to the others too."""
        await super().copy_remote_to_remote(
            src, dst, self._all(locations), source_location, source_connector, read_only
        )

    def mirrors(self, location: ExecutionLocation) -> list[ExecutionLocation]:
        """The pods that get a copy of everything that is copied to this one."""
        return self._others(location)

    # ---- jobs

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
        """Runs a command; a distributed job never longer than `stepTimeout`."""
        distributed = job_name is not None and job_requests.hints_of(job_name).gang
        if distributed:
            timeout = min(timeout or self.step_timeout_s, self.step_timeout_s)
        return await super().run(
            location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name
        )

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """As in other pods, with the engine, and the pods of a distributed job."""
        worker, distributed = await super().worker_of(location, job_name), job_requests.hints_of(job_name).gang
        facts = {"engine": self.engine, "workers": len(self._taking_part(job_name)) if distributed else 1}
        return dataclasses.replace(worker, facts={**worker.facts, **facts})

    def places_of(self, job_name: str, location: ExecutionLocation) -> list[str]:
        """Under ddp every worker that takes part; else the first pod."""
        if self.engine == "compss" or not job_requests.hints_of(job_name).gang:
            return super().places_of(job_name, location)
        return self._taking_part(job_name)

    async def members(
        self,
        job_name: str,
        location: ExecutionLocation,
        command: Sequence[str],
        variables: dict[str, str],
        workdir: str,
        streams: dict[str, str | None],
    ) -> list[Member]:
        """The command on the master under runcompss, or in every worker; without the gang hint, on the first pod."""
        if not job_requests.hints_of(job_name).gang:
            return await super().members(job_name, location, command, variables, workdir, streams)
        workers = await asyncio.gather(*(self.pod_at(each) for each in self._taking_part(job_name)))
        variables = variables | {ENGINE: self.engine}
        if self.engine == "compss":
            return [await self._application(job_name, workers, command, variables, workdir, streams)]
        rendezvous = f"{workers[0].address}:{RENDEZVOUS_PORT}"
        nodes = []
        for rank, pod in enumerate(workers):
            own = node_environment(node_rank=rank, num_nodes=len(workers), rendezvous=rendezvous)
            told = variables | (own if len(workers) > 1 else {})
            nodes.append(self.member(job_name, rank, pod, WORKER, command, told, workdir, streams))
        return nodes

    def site_facts(self, members: Sequence[Member]) -> dict[str, Any]:
        """The pods of the job, those of the workers that COMPSs used among them, and the engine of a distributed one."""
        told = super().site_facts(members)
        if ENGINE in members[0].variables:
            told["engine"] = self.engine
        told["pods"] += [pod_facts(pod, WORKER) for pod in self._watching]
        return told

    async def before_again(
        self, job_name: str, location: ExecutionLocation, folder: str, checkpoint_folder: str
    ) -> None:
        """Waits for the pods in the places of lost ones. These get what the first one that is left has, all others its checkpoints.

        Raises:
            PodLost: they did not come in time, or none is left that has the files.
        """
        before, within_s = self._pods(), max(self.timeout_s, self.pending_timeout_s)
        pods = await replacement_pods.ready_again(
            self.cluster, before, within_s=within_s, deployment=self.deployment_name, closing=lambda: self._closing
        )
        await self.brought_up(pods)
        new = {f"{pod.name}:" for pod in pods if pod.uid not in {each.uid for each in before}}
        places = [_named(location, place) for place in self._places()]
        work = [_named(location, place) for place in self.places_of(job_name, location)]
        await replacement_pods.give_what_is_missing(self, places, new, work, folder, checkpoint_folder)

    async def watched(self) -> tuple[str, FailureKind]:
        """Return which worker the master's application has lost, or how the runtime itself has failed; it would wait for ever."""
        cause, kind = self._runtime_log.failure(time.monotonic())
        if cause:
            return cause, kind
        for before in self._watching:
            with contextlib.suppress(Refused):  # no answer: unknown, asked again
                now = await self.cluster.pod(before.name)
                if why := loss(before, now, WORKER):
                    return f"COMPSs worker lost: {why}", loss_kind(before, now, WORKER)
        return "", FailureKind.UNKNOWN

    # ---- inside

    def _first(self) -> Pod:
        assert self.workers, "asked for before the cluster is up"
        return self.master if self.engine == "compss" and self.master is not None else self.workers[0]

    def _pods(self) -> list[Pod]:
        return ([self.master] if self.engine == "compss" and self.master is not None else []) + self.workers

    def _places(self) -> list[str]:
        workers = [f"{pod.name}:{WORKER}" for pod in self.workers]
        return [f"{self._first().name}:{MASTER}", *workers] if self.engine == "compss" else workers

    def _others(self, location: ExecutionLocation) -> list[ExecutionLocation]:
        return [_named(location, place) for place in self._places() if place != location.name]

    def _all(self, locations: Sequence[ExecutionLocation]) -> list[ExecutionLocation]:
        return [each for location in locations for each in (location, *self._others(location))]

    def _taking_part(self, job_name: str) -> list[str]:
        request = job_requests.request_of(job_name)
        wanted = request.num_nodes if request is not None and request.num_nodes > 1 else len(self.workers)
        return [f"{pod.name}:{WORKER}" for pod in self.workers[:wanted]]

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
        project = xml.project(
            names,
            install_dir=facts.compss,
            working_dir=f"{home}/work",
            app_dir=facts.application_folder,
            python_path=facts.python_path,
        )
        await self.run(place, ["mkdir", "-p", shlex.quote(f"{home}/work")])
        for name, text in (("project.xml", project), ("resources.xml", xml.resources(names, ssh_port=int(facts.port)))):
            async with await self.get_stream_writer(["tee", f"{home}/{name}", ">", "/dev/null"], place) as writer:
                await writer.write(text.encode())
        try:
            words = commands.runcompss(
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
                expected=f"{commands.STEP} VERB …, without blanks and wildcards in names: runcompss would take them apart",
                do="rename the file or folder, bind the step elsewhere, or use `engine: ddp`",
            ) from None
        self._watching, self._runtime_log = list(workers), RuntimeLog(names)
        told = {"HOME": home, "JAVA_HOME": facts.java, "COMPSS_WORKER_INIT_TIMEOUT": commands.WORKER_START_MS}
        member = self.member(job_name, 0, master, MASTER, words, variables | told, workdir, streams)
        log = self._runtime_log
        member.hears = lambda line: log.take(line, time.monotonic())
        return member

    async def _facts(self, place: ExecutionLocation) -> Facts:
        text, _ = await self.alone(place, commands.ask_facts(), timeout=ASK_S)
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
        text, _ = await self.alone(place, commands.reach(names, port), timeout=ASK_S)
        if failed := commands.unreached(text, names):
            raise PodLost(
                f"deployment '{self.deployment_name}': the master cannot reach its workers over ssh.\n"
                f"  seen:     {'; '.join(f'{name}: {said}' for name, said in failed.items())}\n"
                f"  expected: a login on port {port} with the release's key\n"
                f"  do:       {commands.test_release(self.release, self.namespace, stays=self.removed_claims() is None)}"
            )

    async def after_attempt(self, job_name: str, location: ExecutionLocation) -> None:
        """Brings COMPSs' own logs home, and ends what a broken application left on the workers."""
        self._watching, self._runtime_log = [], RuntimeLog()
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
        words = commands.clear(facts.compss)
        with contextlib.suppress(PodLost, TimeoutError):
            await asyncio.gather(
                *(self.alone(each, words, timeout=ASK_S) for each in self._others(location)), return_exceptions=True
            )


def _named(location: ExecutionLocation, name: str) -> ExecutionLocation:
    other = copy.copy(location)
    other.name = name
    return other


def _only_looks(command: Sequence[str]) -> bool:
    first = command[0].split(maxsplit=1)  # names the program
    return is_marked_read_only(command) or (bool(first) and first[0] in _LOOKING)
