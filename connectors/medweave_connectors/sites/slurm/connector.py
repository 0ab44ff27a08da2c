"""The connector `medweave.slurm`: steps as jobs of a Slurm cluster."""

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

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.host.command_log import CommandLog
from medweave_connectors.host.deadlines import ResponseDeadline, SiteUnresponsive, retry_until_answered
from medweave_connectors.host.errors import SiteConfigError, SiteUnreachable, of_the_file
from medweave_connectors.jobs import run_abort
from medweave_connectors.jobs.job_requests import LocationSize
from medweave_connectors.jobs.remote_environment import fetch_reports, file_name, step_variables
from medweave_connectors.jobs.retries.policy import read_table
from medweave_connectors.jobs.worker_environment import RemoteWorker, read_environment
from medweave_connectors.runlog import current
from medweave_connectors.runlog.console import say
from medweave_connectors.sites.slurm import commands
from medweave_connectors.sites.slurm.answers import QueueEntry, QueuePoll, parse_poll
from medweave_connectors.sites.slurm.attempts import SlurmAttempts
from medweave_connectors.sites.slurm.copies import LoginNodeCopies
from medweave_connectors.sites.slurm.final_state import FinalStateQueries
from medweave_connectors.sites.slurm.job import SlurmJob
from medweave_connectors.sites.slurm.messages import is_unanswered
from medweave_connectors.sites.slurm.script import StepCommand
from medweave_connectors.sites.slurm.service import Service, check_service
from medweave_connectors.sites.slurm.site import SlurmSite
from medweave_connectors.sites.slurm.site_survey import SiteSurvey, check_services, parse_survey, survey_command
from medweave_connectors.sites.slurm.states import state_of
from medweave_connectors.sites.slurm.submission import SubmissionRate
from medweave_connectors.sites.slurm.watch import JobWatcher, QueryRate
from medweave_connectors.transfer.capabilities import Endpoint, endpoint_of

ASK_S = 60.0
CANCEL_S, CANCEL_PAUSE_S = 15.0, 0.5
SETTLE_S = 3.0
LOOK_PAUSE_S = 0.5


class MedweaveSlurmConnector(LoginNodeCopies, SlurmConnector):
    """Submits each job once, polls all of them with one query, and accepts only COMPLETED as success.

    Streams and locations are StreamFlow's.
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
        self._log = CommandLog("slurm", deployment_name)
        self._prologues: dict[str, str] = {}
        self._login: ExecutionLocation | None = None
        self._survey = SiteSurvey()
        rate = QueryRate()
        self._watch, self._final_states = JobWatcher(self._run_line, rate), FinalStateQueries(self._run_line, rate)
        self._submissions = SubmissionRate()
        self._open: set[SlurmJob] = set()
        self._closing = False

    async def deploy(self, external: bool) -> None:
        """Check the site: Slurm's programs, and what the services name. On an error the run ends.

        Raises:
            SiteConfigError: the message names the setting.
        """
        with run_abort.aborting():
            await self._check_site()

    async def _check_site(self) -> None:
        for name, service in self.services.items():
            self._prologues[name] = _text_of(service.prologue, f"{self._where(name)}.prologue")
        (location,) = (await self._login_locations()).values()
        self._login = location.location
        if (survey := await self._survey_site()) is None:
            return  # the engine waits for the end of this before it closes anything
        if survey.missing or survey.error:
            raise SiteConfigError(
                f"deployments.{self.deployment_name}: Slurm does not respond on {self._login.name}.",
                seen=f"no {', '.join(survey.missing)}" if survey.missing else survey.error,
                expected="sbatch, squeue, scontrol, scancel and sinfo, and a controller that answers",
                do="log in there and try `sinfo`",
            )
        self._survey = survey
        with of_the_file():
            check_services(survey, self.services, self._where)

    async def _survey_site(self) -> SiteSurvey | None:
        """Survey the site, repeatedly while its controller does not answer. Return None if the run ends before it does."""

        async def once() -> SiteSurvey:
            survey = parse_survey(await self._run_line(survey_command(self.services)), self.services)
            if not survey.missing and is_unanswered(survey.error):
                raise TimeoutError(survey.error)
            return survey

        def notice(text: str) -> None:
            if (run := current()) is not None:
                run.deployment_notice(self.deployment_name, text)
            else:
                say(f"medweave: {self.deployment_name}: {text}")

        deadline = ResponseDeadline("Slurm", notice, consequence="the run waits for it", at_once=True)
        survey_task = asyncio.create_task(
            retry_until_answered(once, deadline, failures=(TimeoutError, SiteUnreachable))
        )
        try:
            while not run_abort.run_is_ending():
                if (await asyncio.wait({survey_task}, timeout=LOOK_PAUSE_S))[0]:
                    return await survey_task
        except SiteUnresponsive as error:
            return SiteSurvey(error=f"no answer for half an hour: {error}")
        finally:
            survey_task.cancel()
        return None

    async def undeploy(self, external: bool) -> None:
        """Cancel jobs that wait or run, and check that they have ended."""
        self._closing = True
        try:
            if jobs := {job for job in self._open if job.sent and not job.over}:
                await self._cancel(jobs)
            deadline = time.monotonic() + SETTLE_S
            # `run` of each job reads its last output; a job that was never submitted has none.
            while any(job.sent for job in self._open) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        finally:
            await self._watch.close()
            await self._final_states.close()

    async def get_available_locations(self, service: str | None = None) -> MutableMapping[str, AvailableLocation]:
        """Return the queue as one location.

        Raises:
            SiteConfigError: a binding names no service although there are some, or an unknown one.
        """
        known = ", ".join(self.services)
        if (service is None and self.services) or (service is not None and service not in self.services):
            raise SiteConfigError(
                f"deployments.{self.deployment_name}: a binding names an unknown service.",
                seen=f"service: {service}" if service else "no service",
                expected=f"one of {known}" if known else "no service",
                do="correct `service` of the binding's target",
            )
        located: MutableMapping[str, AvailableLocation] = await super().get_available_locations(service)
        return located

    async def sizes(self, service: str | None) -> dict[str, LocationSize]:
        """Return the GPUs that a job can have on each node. Cores and memory are checked when it is submitted."""
        if self._login is None:
            return {}
        gpus = self.services[service].gpusPerNode if service in self.services else 0
        return {f"{self._login.name}/slurmctld": LocationSize(gpus=gpus)}

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
        """Run a command. For a job: submit it, retry by the site's policy, and return the cause of a failure and the exit code of
        its command.

        Raises:
            SiteConfigError: Slurm refuses such a job, or it would wait forever.
            TimeLimitExceeded: the job hit its time limit.
            JobEndedBySite: Slurm ended the job, or lost it.
            SiteUnreachable: Slurm did not answer.
        """
        if job_name is None or workdir is None:
            result: tuple[str, int] | None = await super().run(
                location, command, environment, workdir, stdin, stdout, stderr, capture_output, timeout, job_name
            )
            return result
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
                with self._log.command("job") as logged:
                    outcome = await job.run(timeout)
                    logged.exit_code = outcome[1]
                return outcome
            finally:
                if job.sent and not job.over and not self._closing:  # cancelled by the engine, or an error of ours
                    await asyncio.shield(self._cancel({job}))
                self._open.discard(job)

        return await SlurmAttempts(job_name, step, self._site_of(location), self._reactions, submit).run()

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """Describe the worker of a job. Programs are identified on the login node, which is not the node that computes."""
        name = location.service or ""
        service = self.services.get(name, Service())
        return RemoteWorker(
            environment=service.environment,
            setting=f"{self._where(name)}.environment",
            facts={
                "environment": dataclasses.asdict(service.environment),
                "prologue": self._prologues.get(name, ""),
                "nodes": [service.partition, service.constraint, service.gpusPerNode, service.gres],
            },
            computes=False,
        )

    async def agent_endpoint(self, location: ExecutionLocation) -> Endpoint | None:
        """Return the login node as one end of a direct transfer; None if Slurm runs on this machine."""
        return await endpoint_of(self.connector, location.wraps)

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed JSON Schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    def _where(self, service: str) -> str:
        return f"deployments.{self.deployment_name}.config.services.{service}"

    async def _login_locations(self) -> MutableMapping[str, AvailableLocation]:
        located: MutableMapping[str, AvailableLocation] = await self.connector.get_available_locations(self.service)
        if len(located) != 1:
            raise SiteConfigError(
                f"deployments.{self.deployment_name}.wraps: more than one login node.",
                seen=", ".join(located),
                expected="a deployment with one login node",
                do="keep one of them in `nodes`",
            )
        return located

    async def _run_line(self, line: str) -> str:
        assert self._login is not None, "the deployment has a login node"
        words = [commands.at_cluster(self._cluster, line)]
        with self._log.command(commands.program_of(line)) as logged:
            result = await asyncio.wait_for(self.connector.run(self._login, words, capture_output=True), ASK_S)
            assert result is not None, "the output was requested"
            logged.exit_code = result[1]
        return result[0]

    def _site_of(self, location: ExecutionLocation) -> SlurmSite:
        async def fetch(job_name: str, folder: str) -> Path | None:
            return await fetch_reports(self, location, folder, job_name)

        service = self.services.get(location.service or "", Service())
        return SlurmSite(
            deployment=self.deployment_name,
            service_name=location.service or "",
            service=service,
            nodes=self._survey.partition(service.partition).nodes,
            prologue=self._prologues.get(location.service or "", ""),
            run_line=self._run_line,
            submissions=self._submissions,
            watch=self._watch,
            final_states=self._final_states,
            fetch_reports=fetch,
            closing=lambda: self._closing,
        )

    async def _cancel(self, jobs: set[SlurmJob]) -> None:
        """Cancel the jobs and poll until none of them waits or runs.

        They are found by key: a job may be queued before its id is known here, and a later job may get the same id.
        """
        keys, ids = {job.key for job in jobs}, {job.job_id for job in jobs if job.job_id}
        line = commands.poll(commands.queue())
        deadline, message, pause_s = time.monotonic() + CANCEL_S, "", 0.0
        while time.monotonic() < deadline:
            await asyncio.sleep(pause_s)
            try:
                polled = parse_poll(await self._run_line(line))
            except Exception as error:  # the site is polled again
                polled = QueuePoll(error=str(error) or type(error).__name__)
            ids |= {job_id for key, job_id in polled.by_key.items() if key in keys}
            own = {job_id for job_id in ids if (known := polled.jobs.get(job_id)) and known.is_of(keys)}
            alive = sorted(job_id for job_id in own if not _gone(polled.jobs.get(job_id)))
            if polled.answered and not alive:
                return
            message = polled.error or ", ".join(
                f"{job_id} {polled.jobs[job_id].word}" for job_id in alive if job_id in polled.jobs
            )
            # The first cancellation follows at once.
            pause_s = CANCEL_PAUSE_S if pause_s or not alive else 0.001
            line = commands.cancel(alive) if alive else commands.poll(commands.queue())
        say(
            f"medweave: {self.deployment_name}: Slurm jobs may still run.\n"
            f"  seen:     {message or 'no answer'} after scancel\n"
            f"  do:       log in there and run: scancel {' '.join(sorted(ids)) or '--me --name=medweave'}"
        )


def _gone(known: QueueEntry | None) -> bool:
    # COMPLETING: Slurm ends its processes; the job has left the queue and cannot be requeued.
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
