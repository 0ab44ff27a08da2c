"""The connector `medweave.ssh`: machines reached by ssh."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncssh
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
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
    TimeLimitExceeded,
    of_the_file,
)
from medweave_connectors.host.job_processes import KEY, ProcessGroup, end_line
from medweave_connectors.host.shells import ShellLost
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.jobs import job_requests, run_abort
from medweave_connectors.jobs.remote_environment import (
    fetch_reports,
    file_name,
    is_read_only,
    shell_line,
    step_variables,
    stream_line,
    utility_line,
)
from medweave_connectors.jobs.retries.policy import ONE_MACHINE, read_table
from medweave_connectors.jobs.retries.single_host import SingleHostAttempts
from medweave_connectors.jobs.worker_environment import RemoteWorker, read_environment
from medweave_connectors.runlog import console, current
from medweave_connectors.runlog.job_output import JobOutput
from medweave_connectors.sites.ssh.connect import Target
from medweave_connectors.sites.ssh.hardware import PROBE, parse_hardware
from medweave_connectors.sites.ssh.login import READ_BYTES, StartedSession
from medweave_connectors.sites.ssh.openssh_config import look_up
from medweave_connectors.sites.ssh.sessions import NotReached, Sessions, SessionShell
from medweave_connectors.sites.ssh.streams import SSHReader, SSHWriter
from medweave_connectors.transfer.capabilities import Endpoint
from medweave_connectors.transfer.routes.via_driver import TarCopies
from medweave_core.errors import UsageError

GRACE_S, END_S = 3.0, 15.0
TIMED_OUT, LOST = -1, -2  # final states of a job without an exit code
_EXIT_CODES = {TIMED_OUT: 143, LOST: 1}


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
        self._groups: dict[str, tuple[ExecutionLocation, ProcessGroup]] = {}  # of jobs, by their mark
        self._closing = False

    async def deploy(self, external: bool) -> None:
        """Connect to each machine; a failure ends the run.

        Raises:
            SiteConfigError: a key, a host key or a name is wrong; the message names the setting.
            SiteUnreachable: there is no answer.
        """
        with run_abort.aborting():
            for name in self.nodes:
                location = ExecutionLocation(name=name, deployment=self.deployment_name)
                await self.run(location, ["true"], capture_output=True)

    async def undeploy(self, external: bool) -> None:
        """End running jobs, then close the connections."""
        self._closing = True
        await asyncio.gather(*(self._end(*running, key) for key, running in list(self._groups.items())))
        deadline = time.monotonic() + GRACE_S
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
            streams = (file_name(stdin), file_name(stdout), None if stderr == stdout else file_name(stderr))
            variables = dict(environment or {})

            async def shell(script: str) -> tuple[str, int]:
                return await self.run(location, [script], capture_output=True) or ("", 1)

            async def begin(further: Mapping[str, str]) -> tuple[str, int]:
                return await self.run_once(
                    location, command, {**variables, **further}, workdir, streams, timeout, job_name
                )

            attempts = SingleHostAttempts(
                job_name,
                self._table,
                lambda: self._closing,
                place=location.name,
                folder=workdir,
                temporary=variables.get("TMPDIR", ""),
                shell=shell,
                begin=begin,
            )
            return await attempts.run()
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
        target = self._sessions[location.name].target
        with _reached():
            settings = await look_up(target.host, target.user, target.port, where=f"{target.where}.nodes")

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
                logged.exit_code = _exit_code(started.process)

    def _notify(self, text: str) -> None:
        console.say(f"medweave: {self.deployment_name}: {text}")

    async def run_once(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: Mapping[str, str],
        workdir: str,
        streams: tuple[str | None, str | None, str | None],
        timeout: int | None,
        job_name: str,
    ) -> tuple[str, int]:
        """Run a job's command once in an existing folder; raises as `run`.

        Args:
            streams: files of its stdin, stdout and stderr.
        """
        key = secrets.token_hex(8)
        line = shell_line(
            command,
            environment=step_variables(location.environment, environment, {KEY: key}),
            workdir=workdir,
            stdin=streams[0] or "/dev/null",  # the session's input stays open
            stdout=streams[1],
            stderr=streams[2],
        )
        gpus = job_requests.hints_of(job_name).gpus_max > 0
        line = self._worker.started(self._worker.inside(line, folder=str(Path(workdir).parent), gpus=gpus))
        lines = (*self._worker.lines(where=self._worker_setting), line)
        return await self._run_job(location, "\n".join(lines), workdir, timeout, job_name, key)

    async def _run_job(
        self, location: ExecutionLocation, line: str, workdir: str, timeout: int | None, job_name: str, key: str
    ) -> tuple[str, int]:
        output, started = JobOutput(job_name), time.monotonic()
        end = await self._follow(location, line, timeout, output, key)
        output.close()
        outcome = output.outcome(
            exit_code=_EXIT_CODES.get(end, end),
            seconds=time.monotonic() - started,
            site_word=_word(end, location.name, timeout),
            kept_at=f"{self.deployment_name}:{workdir}",
            report_folder=await fetch_reports(self, location, workdir, job_name) if end == 0 else None,
        )
        if (run := current()) is not None:
            run.command_ended(job_name, outcome)
        if self._closing:
            raise asyncio.CancelledError  # canceled by this run: the job did not fail
        if end == TIMED_OUT:
            raise TimeLimitExceeded(f"{job_name}: {outcome.cause}")
        if end == LOST:
            raise SiteUnreachable(f"{job_name}: {outcome.cause}")
        return outcome.cause, outcome.exit_code

    async def _follow(
        self, location: ExecutionLocation, line: str, timeout: int | None, output: JobOutput, key: str
    ) -> int:
        """Run a job to its end. Return the exit code, `TIMED_OUT` or `LOST`; after these two the job was ended if possible."""
        end = LOST
        try:
            async with self._session(location, "job") as session:
                if self._closing:
                    return LOST
                # Another session can end its process group when this one is lost: it begins once that is known.
                process, self._groups[key] = session.process, (location, session.group)
                session.run(line)
                reading = asyncio.gather(_each(process.stdout, output.stdout), _each(process.stderr, output.stderr))
                try:
                    await asyncio.wait_for(reading, timeout)
                except TimeoutError:
                    return TIMED_OUT
                await process.wait_closed()
                end = _exit_code(process)
        except (asyncssh.Error, OSError):
            pass  # lost
        finally:
            running = self._groups.pop(key, None)
            if end == LOST and running is not None:
                await self._end(*running, key)
        return end

    async def _end(self, location: ExecutionLocation, group: ProcessGroup, key: str) -> None:
        """Send TERM to a process group, and kill what remains of the job after `GRACE_S`."""
        script = end_line(group, key, signal="TERM", grace_s=GRACE_S)
        with contextlib.suppress(WorkflowExecutionException, TimeoutError):
            await asyncio.wait_for(self.run(location, [script], capture_output=True), END_S)


def _exit_code(process: Any) -> int:
    if process.exit_signal is not None:
        return 128 + int(getattr(signal, f"SIG{process.exit_signal[0]}", 0))
    return LOST if process.exit_status is None else int(process.exit_status)


def _word(end: int, host: str, timeout: int | None) -> str:
    if end == TIMED_OUT:
        return f"the time limit of {timeout} s (ToolTimeLimit of the tool) was reached; the step was ended."
    return (
        f"the connection to {host} was lost; the step there was ended, if it could be reached again."
        if end == LOST
        else ""
    )


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


async def _each(stream: Any, take: Callable[[bytes], None]) -> None:
    while data := await stream.read(READ_BYTES):
        take(data)
