"""The connector `medweave.ssh`: hosts reached by ssh; a step with the hint medweave:Gang runs on several of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncssh
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.scheduling import Hardware
from streamflow.deployment.connector.ssh import SSHConnector

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.host import deadlines
from medweave_connectors.host.command_log import CommandLog, kind_of
from medweave_connectors.host.deadlines import NoProgress
from medweave_connectors.host.errors import (
    CommandFailed,
    SiteConfigError,
    SiteUnreachable,
    of_the_file,
)
from medweave_connectors.host.gather import gather_all
from medweave_connectors.host.shells import ShellLost
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.jobs import job_requests, run_abort
from medweave_connectors.jobs.remote_environment import (
    fetch_reports,
    file_name,
    is_read_only,
    stream_line,
    utility_line,
)
from medweave_connectors.jobs.retries.attempts import end_attempt
from medweave_connectors.jobs.retries.hosts import HostAttempts
from medweave_connectors.jobs.retries.policy import ONE_MACHINE, read_table
from medweave_connectors.jobs.worker_environment import RemoteWorker, read_environment
from medweave_connectors.runlog import console
from medweave_connectors.sites.ssh.connect import Target
from medweave_connectors.sites.ssh.hardware import PROBE, parse_hardware
from medweave_connectors.sites.ssh.host_group import (
    PRINT_ADDRESS,
    HostGroup,
    HostStep,
    build_members,
    build_outcome,
    exit_code_of,
    rendezvous_at,
)
from medweave_connectors.sites.ssh.login import StartedSession
from medweave_connectors.sites.ssh.openssh_config import look_up
from medweave_connectors.sites.ssh.sessions import NotReached, Sessions, SessionShell
from medweave_connectors.sites.ssh.settings import HostSettings
from medweave_connectors.sites.ssh.shared_folders import SharedFolders
from medweave_connectors.sites.ssh.streams import SSHReader, SSHWriter
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.manifest import remote_scan
from medweave_connectors.transfer.routes.via_driver import TarCopies
from medweave_core.errors import UsageError

CLOSE_S = 3.0


class MedweaveSSHConnector(TarCopies, SSHConnector):
    """StreamFlow's ssh connector with checked host keys; each command is sent once, and jobs report progress and are ended."""

    CHECKED_AT_START = True

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        nodes: MutableSequence[str],
        username: str = "",
        sshKey: str = "",
        sshKeyPassphraseFile: str = "",
        knownHosts: str = "",
        connectTimeout: int = 10,
        maxConcurrentSessions: int = 10,
        transferBufferSize: int = 2**20,
        environment: MutableMapping[str, Any] | None = None,
        reactions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            deployment_name,
            config_dir,
            nodes=nodes,
            username=username or None,
            checkHostKey=True,
            connectTimeout=connectTimeout,
            maxConcurrentSessions=maxConcurrentSessions,
            sshKey=sshKey or None,
            sshKeyPassphraseFile=sshKeyPassphraseFile or None,
            transferBufferSize=transferBufferSize,
        )
        self._log = CommandLog("ssh", deployment_name)
        self._sessions: dict[str, Sessions] = {}
        for name in self.nodes:
            host, _, port = name.partition(":")
            target = Target(
                where=f"deployments.{deployment_name}.config",
                host=host,
                port=int(port) if port else None,
                user=username,
                key=str(Path(sshKey).expanduser()) if sshKey else "",
                passphrase_file=sshKeyPassphraseFile,
                known_hosts=str(Path(knownHosts).expanduser()) if knownHosts else "",
                connect_timeout_s=connectTimeout,
            )
            self._sessions[name] = Sessions(target, most=maxConcurrentSessions, notify=self._notify)
        self._worker_setting = f"deployments.{deployment_name}.config.environment"
        with of_the_file():
            self._worker = read_environment(environment or {}, where=self._worker_setting)
        self._table = read_table(reactions or {}, ONE_MACHINE)
        self._groups: set[HostGroup] = set()
        self._writers = remote_scan.OutputWriters()
        self._shared_folders = SharedFolders(self._run_at)
        self._closing = False

    async def deploy(self, external: bool) -> None:
        """Connect to each machine; a failure ends the run.

        Raises:
            SiteConfigError: a key, a host key or a name is wrong; the message names the setting.
            SiteUnreachable: there is no answer.
        """
        with run_abort.aborting():
            locations = [ExecutionLocation(name=name, deployment=self.deployment_name) for name in self.nodes]
            await gather_all(self.run(location, ["true"], capture_output=True) for location in locations)

    async def undeploy(self, external: bool) -> None:
        """End running jobs, then close the connections."""
        self._closing = True
        await asyncio.gather(*(group.end("TERM") for group in self._groups))
        deadline = time.monotonic() + CLOSE_S
        while self._groups and time.monotonic() < deadline:  # their `run` reads the last lines
            await asyncio.sleep(0.01)
        for sessions in self._sessions.values():
            await sessions.close()
        await super().undeploy(external)

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
        """Run a command once, because its progress is unknown after a lost connection. Read-only commands are sent again.

        Raises:
            SiteUnreachable: the connection failed, or was lost before the command's end.
            TimeLimitExceeded: a job exceeded its ToolTimeLimit and was ended.
            CommandFailed: a command failed and the caller ignores its exit code.
        """
        if job_name is not None and workdir is not None:
            # StreamFlow passes the file of stdout when the tool names none for stderr.
            step = HostStep(
                name=job_name,
                words=command,
                environment=dict(environment or {}),
                output_directory=workdir,
                stdin=file_name(stdin),
                stdout=file_name(stdout),
                stderr=None if stderr == stdout else file_name(stderr),
                limit_s=timeout,
                gpus=job_requests.hints_of(job_name).gpus_max > 0,
            )
            return await self._run_step(step, location)
        if self._writers.are_elsewhere(command, location.name):
            return remote_scan.empty_answer(), 0
        line = utility_line(command, environment=environment or {}, workdir=workdir, stdin=file_name(stdin))
        for pause_s in (*(deadlines.RETRY_PAUSES_S if is_read_only(command) else ()), None):
            try:
                with _reached(), self._log.command(kind_of(command)) as logged:
                    result = await self._sessions[location.name].shells.execute(line, timeout)
                    logged.exit_code = result[1]
                break
            except NoProgress as error:
                raise SiteUnreachable(str(error)) from None
            except TimeoutError:
                raise SiteUnreachable(f"{location.name}: a command did not end within {timeout} s") from None
            except (ShellLost, asyncssh.Error, OSError) as error:
                if pause_s is None:
                    raise SiteUnreachable(
                        f"{location.name}: {error}; the exit code of a command there is unknown"
                    ) from error
            await asyncio.sleep(pause_s)
        if result[1] and not capture_output:
            raise CommandFailed(command, location.name, result)
        return result if capture_output else None

    def most_locations(self, service: str | None) -> int | None:
        """Return the number of hosts."""
        return len(self.nodes)

    def has_outputs(self, location: ExecutionLocation, workdir: str) -> None:
        """Store which host writes the outputs of a job: node 0."""
        self._writers.note(workdir, location.name)

    async def distinct(self, locations: Sequence[ExecutionLocation], path: str) -> list[ExecutionLocation]:
        """Return one location for each folder at a path: hosts may share it, or have one each."""
        by_name = {location.name: location for location in locations}
        return [by_name[host] for host in await self._shared_folders.one_host_each(list(by_name), path)]

    async def worker_of(self, location: ExecutionLocation, job_name: str) -> RemoteWorker:
        """Describe the worker of a job."""
        return RemoteWorker(environment=self._worker, setting=self._worker_setting)

    async def get_stream_reader(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return the standard output of a command as a stream; a failed command is an error when the stream ends."""
        what = f"a transfer from {location.name}"
        return SSHReader(self._session(location, "stream"), stream_line(command), what, stdin_of(command))

    async def get_stream_writer(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return the standard input of a command as a stream; a failed command is an error when the stream ends."""
        what = f"a transfer to {location.name}"
        return SSHWriter(self._session(location, "stream"), stream_line(command), what, stdin_of(command))

    async def agent_endpoint(self, location: ExecutionLocation) -> Endpoint:
        """Return the machine as one end of a direct transfer; it listens at all of its addresses.

        Raises:
            SiteConfigError: ssh's configuration cannot be read.
        """
        settings = await self._settings_of(location)

        async def begin(words: Sequence[str]) -> SessionShell:
            with _reached():
                return await self._sessions[location.name].program(stream_line(words))

        return Endpoint(f"{self.deployment_name}/{location.name}", [settings.hostname], "", begin)

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed JSON Schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")

    async def _get_available_location(self, location: str) -> Hardware:
        if location not in self.hardware:
            place = ExecutionLocation(name=location, deployment=self.deployment_name)
            result = await self.run(place, [PROBE], capture_output=True)
            try:
                self.hardware[location] = parse_hardware(result[0] if result is not None else "")
            except ValueError as error:
                seen = result[0][-200:] if result is not None else ""
                raise SiteUnreachable(f"{location}: nproc, free or df did not answer there: {seen!r}") from error
        return self.hardware[location]

    @contextlib.asynccontextmanager
    async def _session(self, location: ExecutionLocation, kind: str) -> AsyncIterator[StartedSession]:
        """Open a session for a `job` or a `stream`: the shells have others, so that short commands are always answered."""
        with _reached(), self._log.command(kind) as logged:
            async with self._sessions[location.name].session() as started:
                yield started
                logged.exit_code = exit_code_of(started.process)

    def _notify(self, text: str) -> None:
        console.say(f"medweave: {self.deployment_name}: {text}")

    async def _run_step(self, step: HostStep, location: ExecutionLocation) -> tuple[str, int]:
        """Run a step on its hosts with retries by the policy.

        Raises:
            SiteConfigError: several hosts for a step that is not a node group.
        """
        with of_the_file():
            if (request := job_requests.request_of(step.name)) is not None:
                job_requests.refuse_without_gang(request, where=f"deployments.{self.deployment_name}")
        names = job_requests.locations_of(step.name, location.name)
        locations = [_named(location, name) for name in names]
        self.has_outputs(location, step.output_directory)
        shells = {
            host.name: partial(self._shell, host) for host in await self.distinct(locations, step.output_directory)
        }
        attempts = HostAttempts(
            step.name,
            self._table,
            lambda: self._closing,
            folder=step.output_directory,
            temporary=step.environment.get("TMPDIR", ""),
            shells=shells,
            begin=lambda further: self.run_once(step, locations, further),
        )
        return await attempts.run()

    async def run_once(
        self, step: HostStep, locations: Sequence[ExecutionLocation], further: Mapping[str, str]
    ) -> tuple[str, int]:
        """Run a step's command once on each of its hosts, in existing folders; raises as `run`.

        Args:
            locations: its hosts, in order of rank.
            further: variables in addition to those of the step.
        """
        rendezvous = await self._rendezvous(locations[0]) if len(locations) > 1 else ""
        members = build_members(step, locations, rendezvous, further, self._worker, worker_setting=self._worker_setting)
        group, started = HostGroup(members, partial(self._session, kind="job"), self._shell), time.monotonic()
        self._groups.add(group)
        try:
            in_time = await group.supervise(step.limit_s)
        finally:
            self._groups.discard(group)
        culprit, folder = group.culprit(), step.output_directory
        where = f"/{culprit.place}" if len(members) > 1 else ""
        has_succeeded = in_time and not culprit.failed
        outcome = build_outcome(
            group,
            seconds=time.monotonic() - started,
            limit_s=None if in_time else step.limit_s,
            kept_at=f"{self.deployment_name}{where}:{folder}",
            reports=await fetch_reports(self, locations[0], folder, step.name) if has_succeeded else None,
        )
        result = end_attempt(step.name, outcome, timed_out=not in_time, ended_by_site=False, closing=self._closing)
        if culprit.lost:
            raise SiteUnreachable(f"{step.name}: {outcome.cause}")
        return result

    async def _rendezvous(self, first: ExecutionLocation) -> str:
        printed, _ = await self._shell(first, PRINT_ADDRESS)
        return rendezvous_at(printed, (await self._settings_of(first)).hostname)

    async def _settings_of(self, location: ExecutionLocation) -> HostSettings:
        """Return ssh's settings of a host.

        Raises:
            SiteConfigError: ssh's configuration cannot be read.
        """
        target = self._sessions[location.name].target
        with _reached():
            return await look_up(target.host, target.user, target.port, where=f"{target.where}.nodes")

    async def _run_at(self, host: str, line: str) -> tuple[str, int]:
        return await self._shell(ExecutionLocation(name=host, deployment=self.deployment_name), line)

    async def _shell(self, location: ExecutionLocation, line: str) -> tuple[str, int]:
        return await self.run(location, [line], capture_output=True) or ("", 1)


def _named(location: ExecutionLocation, name: str) -> ExecutionLocation:
    other = copy.copy(location)
    other.name = name
    return other


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """Raise the errors of a connection as those of the engine.

    Raises:
        SiteConfigError: instead of a UsageError.
        SiteUnreachable: instead of NotReached.
    """
    try:
        yield
    except UsageError as error:
        raise SiteConfigError.of(error) from None
    except NotReached as error:
        raise SiteUnreachable(str(error)) from error
