"""`medweave.slurm`: steps as jobs of a Slurm cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, MutableMapping, MutableSequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.scheduling import AvailableLocation
from streamflow.deployment.connector.queue_manager import SlurmConnector

from medweave_connectors.cache.lookup import reusing
from medweave_connectors.cache.remote_worker import Worker
from medweave_connectors.engine import shutdown
from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable, of_the_file
from medweave_connectors.jobs.job_requests import Size
from medweave_connectors.jobs.remote_environment import fetch_reports, file_name, step_variables
from medweave_connectors.jobs.retries.policy import read_table
from medweave_connectors.jobs.worker_environment import read_environment
from medweave_connectors.runlog import current
from medweave_connectors.runlog.console import say
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import Polled, Queued, read_poll
from medweave_connectors.sites.slurm.attempts import SlurmAttempts
from medweave_connectors.sites.slurm.deadlines import Patience, SiteSilent, until_answered
from medweave_connectors.sites.slurm.final_state import Ends
from medweave_connectors.sites.slurm.job import Site, SlurmJob
from medweave_connectors.sites.slurm.messages import unanswered
from medweave_connectors.sites.slurm.script import StepCommand
from medweave_connectors.sites.slurm.service import Service, check_service
from medweave_connectors.sites.slurm.site_survey import Look, look, read_look, refuse_what_is_not_there
from medweave_connectors.sites.slurm.states import state_of
from medweave_connectors.sites.slurm.watch import Pace, Watch
from medweave_connectors.transfer.capabilities import Endpoint, endpoint_of
from medweave_connectors.transfer.shell_commands import link_or_copy

ASK_S = 60.0
CANCEL_S, CANCEL_PAUSE_S = 15.0, 0.5
SETTLE_S = 3.0
LOOK_PAUSE_S = 0.5


class MedweaveSlurmConnector(SlurmConnector):  # type: ignore[misc]
    """Submits each job once, watches all of them by one query, and believes nothing but COMPLETED.

    Transfers between sites, streams and locations stay StreamFlow's own.
    """

    CHECKED_AT_START = True
    LOCATION_GIVES_NODES = True

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        connector: Any,
        service: str | None,
        maxConcurrentJobs: int = 32,
        services: MutableMapping[str, MutableMapping[str, Any]] | None = None,
        transferBufferSize: int = 2**20,
        reactions: MutableMapping[str, MutableMapping[str, Any]] | None = None,
        cluster: str = "",
    ) -> None:
        super().__init__(
            deployment_name,
            config_dir,
            connector,
            service,
            maxConcurrentJobs=maxConcurrentJobs,
            transferBufferSize=transferBufferSize,
        )
        self.services: dict[str, Service] = {
            name: _service(keys, self._where(name)) for name, keys in (services or {}).items()
        }
        self._reactions, self._cluster = read_table(reactions or {}), cluster
        self._prologues: dict[str, str] = {}
        self._login: ExecutionLocation | None = None
        self._seen = Look()
        pace = Pace()
        self._watch, self._ends = Watch(self._ask, pace), Ends(self._ask, pace)
        self._open: set[SlurmJob] = set()
        self._closing = False

    async def deploy(self, external: bool) -> None:
        """Looks at the site: its programs, and whether it has what the services name; the run ends if that is wrong.

        Raises:
            SiteConfigError: the message names the setting.
        """
        with shutdown.aborting():
            await self._look_at_the_site()

    async def _look_at_the_site(self) -> None:
        for name, service in self.services.items():
            self._prologues[name] = _text_of(service.prologue, f"{self._where(name)}.prologue")
        (location,) = (await self._login_locations()).values()
        self._login = location.location
        if (seen := await self._first_look()) is None:
            return  # the engine waits for the end of this before it closes anything
        if seen.missing or seen.said:
            raise SiteConfigError(
                f"deployments.{self.deployment_name}: no Slurm that answers on {self._login.name}.",
                seen=f"no {', '.join(seen.missing)}" if seen.missing else seen.said,
                expected="sbatch, squeue, scontrol, scancel and sinfo, and a controller that answers",
                do="log in there and try `sinfo`",
            )
        self._seen = seen
        with of_the_file():
            refuse_what_is_not_there(seen, self.services, self._where)

    async def _first_look(self) -> Look | None:
        """What the site has; None where the run ends before that is known: while its controller is away it is asked again."""

        async def once() -> Look:
            seen = read_look(await self._ask(look(self.services)), self.services)
            if not seen.missing and unanswered(seen.said):
                raise TimeoutError(seen.said)
            return seen

        def notice(text: str) -> None:
            if (run := current()) is not None:
                run.deployment_notice(self.deployment_name, text)
            else:
                say(f"medweave: {self.deployment_name}: {text}")

        patience = Patience(notice, follows="the run waits for it", at_once=True)
        asking = asyncio.create_task(until_answered(once, patience, silences=(TimeoutError, SiteUnreachable)))
        try:
            while not shutdown.run_is_ending():
                if (await asyncio.wait({asking}, timeout=LOOK_PAUSE_S))[0]:
                    return await asking
        except SiteSilent as error:
            return Look(said=f"no answer for half an hour: {error}")
        finally:
            asking.cancel()
        return None

    async def undeploy(self, external: bool) -> None:
        """Cancels what still waits or runs, and looks whether it has gone."""
        self._closing = True
        if jobs := {job for job in self._open if job.sent and not job.over}:
            await self._cancel(jobs)
        deadline = time.monotonic() + SETTLE_S
        # Their `run` reads the last words; what was never submitted has none.
        while any(job.sent for job in self._open) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """The queue, as one location.

        Raises:
            SiteConfigError: a binding names no service where there are some, or one that there is not.
        """
        known = ", ".join(self.services)
        if (service is None and self.services) or (service is not None and service not in self.services):
            raise SiteConfigError(
                f"deployments.{self.deployment_name}: a binding names no service that it has.",
                seen=f"service: {service}" if service else "no service",
                expected=f"one of {known}" if known else "no service",
                do="correct `service` of the binding's target",
            )
        located: MutableMapping[str, AvailableLocation] = await super().get_available_locations(service)
        return located

    async def sizes(self, service: str | None) -> dict[str, Size]:
        """The GPUs that a job can have on each node. Cores and memory are judged when it is submitted."""
        if self._login is None:
            return {}
        gpus = self.services[service].gpusPerNode if service in self.services else 0
        return {f"{self._login.name}/slurmctld": Size(gpus=gpus)}

    @reusing
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
        """Runs a command. For a job: submits it, again where the site's table says so, and returns the cause of a failure and the
        exit code of its command.

        Raises:
            SiteConfigError: Slurm refuses such a job, or it would wait for ever.
            TimeLimitExceeded: it hit its time limit.
            JobEndedBySite: Slurm ended it, or lost it.
            SiteUnreachable: Slurm could not be asked.
        """
        if job_name is None or workdir is None:
            told: tuple[str, int] | None = await super().run(
                location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name
            )
            return told
        step = StepCommand(
            words=command,
            environment=step_variables(location.environment, environment or {}),
            output_directory=workdir,
            stdin=file_name(stdin),
            stdout=file_name(stdout),
            # StreamFlow passes the file of stdout when the tool names none for stderr.
            stderr=None if stderr == stdout else file_name(stderr),
        )
        self._login = location.wraps

        async def submit(job: SlurmJob) -> tuple[str, int]:
            self._open.add(job)
            try:
                return await job.run(timeout)
            finally:
                if job.sent and not job.over and not self._closing:  # cancelled by the engine, or an error of ours
                    await asyncio.shield(self._cancel({job}))
                self._open.discard(job)

        return await SlurmAttempts(job_name, step, self._site_of(location), self._reactions, submit).run()

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> Worker:
        """What runs a job's command there. The login node is asked about programs; it is not the one that computes."""
        name = location.service or ""
        service = self.services.get(name, Service())
        return Worker(
            environment=service.environment,
            setting=f"{self._where(name)}.environment",
            facts={
                "environment": dataclasses.asdict(service.environment),
                "prologue": self._prologues.get(name, ""),
                "nodes": [service.partition, service.constraint, service.gpusPerNode, service.gres],
            },
            computes=False,
        )

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Any = None,
        read_only: bool = False,
    ) -> None:
        """Copies from another place; at the cluster itself it links what is only read, and a copy may be written to."""
        here = (source_location.deployment, source_location.name)
        others = [each for each in locations if (each.deployment, each.name) != here]
        if len(others) < len(locations) and src != dst:
            await self.run(source_location, link_or_copy(src, dst, read_only=read_only))
        if others:
            await super().copy_remote_to_remote(src, dst, others, source_location, source_connector, read_only)

    async def agent_endpoint(self, location: ExecutionLocation) -> Endpoint | None:
        """The login node as one end of a direct copy; None where Slurm is this machine's."""
        return await endpoint_of(self.connector, location.wraps)

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    def _where(self, service: str) -> str:
        return f"deployments.{self.deployment_name}.config.services.{service}"

    async def _login_locations(self) -> MutableMapping[str, AvailableLocation]:
        located: MutableMapping[str, AvailableLocation] = await self.connector.get_available_locations(self.service)
        if len(located) != 1:
            raise SiteConfigError(
                f"deployments.{self.deployment_name}.wraps: more than one machine to submit from.",
                seen=", ".join(located),
                expected="a deployment with one login node",
                do="leave one of them in `nodes`",
            )
        return located

    async def _ask(self, line: str) -> str:
        words = [commands.at_cluster(self._cluster, line)]
        told = await asyncio.wait_for(self.connector.run(self._login, words, capture_output=True), ASK_S)
        return str(told[0])

    def _site_of(self, location: ExecutionLocation) -> Site:
        async def fetch(job_name: str, folder: str) -> Path | None:
            return await fetch_reports(self, location, folder, job_name)

        service = self.services.get(location.service or "", Service())
        return Site(
            deployment=self.deployment_name,
            service_name=location.service or "",
            service=service,
            nodes=self._seen.partition(service.partition).nodes,
            prologue=self._prologues.get(location.service or "", ""),
            ask=self._ask,
            watch=self._watch,
            ends=self._ends,
            fetch_reports=fetch,
            closing=lambda: self._closing,
        )

    async def _cancel(self, jobs: set[SlurmJob]) -> None:
        """Cancels the jobs and looks until none of them waits or runs.

        They are found by key: a job may be in the queue before its id is known here, and a later job may have that id.
        """
        keys, ids = {job.key for job in jobs}, {job.job_id for job in jobs if job.job_id}
        line = commands.poll(commands.queue())
        deadline, said, pause_s = time.monotonic() + CANCEL_S, "", 0.0
        while time.monotonic() < deadline:
            await asyncio.sleep(pause_s)
            try:
                polled = read_poll(await self._ask(line))
            except Exception as error:  # the site is asked again
                polled = Polled(said=str(error) or type(error).__name__)
            ids |= {job_id for key, job_id in polled.by_key.items() if key in keys}
            own = {job_id for job_id in ids if (known := polled.jobs.get(job_id)) and known.is_of(keys)}
            alive = sorted(job_id for job_id in own if not _gone(polled.jobs.get(job_id)))
            if polled.answered and not alive:
                return
            said = polled.said or ", ".join(
                f"{job_id} {polled.jobs[job_id].word}" for job_id in alive if job_id in polled.jobs
            )
            # The first cancellation follows at once.
            pause_s = CANCEL_PAUSE_S if pause_s or not alive else 0.001
            line = commands.cancel(alive) if alive else commands.poll(commands.queue())
        say(
            f"medweave: {self.deployment_name}: Slurm jobs may still run.\n"
            f"  seen:     {said or 'no answer'} after scancel\n"
            f"  do:       log in there and run: scancel {' '.join(sorted(ids)) or '--me --name=medweave'}"
        )


def _gone(known: Queued | None) -> bool:
    # COMPLETING: Slurm ends its processes; it is in no queue any more and cannot come back.
    return known is None or state_of(known.word).ended or known.word == "COMPLETING"


def _service(keys: Mapping[str, Any], where: str) -> Service:
    with of_the_file():
        check_service(keys, where=where)
        environment = read_environment(keys.get("environment", {}), where=f"{where}.environment")
    return Service(**{**keys, "environment": environment})


def _text_of(path: str, where: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8") if path else ""
    except OSError as error:
        raise SiteConfigError(
            f"{where}: the file cannot be read.",
            seen=f"{path}: {error.strerror}",
            expected="a shell file",
            do="correct the path",
        ) from None
