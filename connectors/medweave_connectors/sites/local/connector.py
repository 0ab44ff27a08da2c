"""The connector `medweave.local`: steps on the driver's machine."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Mapping, MutableMapping, MutableSequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.deployment.connector.local import LocalConnector

from medweave_connectors.cache.lookup import with_cache_lookup
from medweave_connectors.host.command_log import CommandLog, kind_of
from medweave_connectors.host.environment import step_environment
from medweave_connectors.host.errors import CommandFailed
from medweave_connectors.jobs.remote_environment import file_name, stream_line
from medweave_connectors.jobs.retries.attempts import end_attempt
from medweave_connectors.jobs.retries.hosts import HostAttempts
from medweave_connectors.jobs.retries.policy import ONE_MACHINE, read_table
from medweave_connectors.policy.pseudonym_home import link_to
from medweave_connectors.runlog import current
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import EventRate, take_line
from medweave_connectors.runlog.run import short_path
from medweave_connectors.sites.local import utility
from medweave_connectors.sites.local.links import let_write, link
from medweave_connectors.sites.local.process import EndedCommand, LocalCommand, end_all_now
from medweave_connectors.transfer.streams.local_programs import LocalReader, LocalWriter
from medweave_core.runlog.causes import cause, step_message

SETTLE_S = 3.0


class MedweaveLocalConnector(LocalConnector):
    """StreamFlow's local connector; commands report progress and cost, and are ended reliably.

    Copies on this machine are StreamFlow's; links to read-only files are medweave's.
    """

    def __init__(
        self,
        deployment_name: str,
        config_dir: str,
        transferBufferSize: int = 2**16,
        reactions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(deployment_name, config_dir, transferBufferSize)
        self._log = CommandLog("local", deployment_name)
        self._table = read_table(reactions or {}, ONE_MACHINE)
        self._commands: set[LocalCommand] = set()
        self._closing = False

    async def deploy(self, external: bool) -> None:
        """Register an `atexit` fallback in case the engine exits without `undeploy`."""
        atexit.unregister(end_all_now)
        atexit.register(end_all_now)

    def most_locations(self, service: str | None) -> int | None:
        """Return 1: this machine is one location."""
        return 1

    async def undeploy(self, external: bool) -> None:
        """End running commands, after a failed sibling step, Ctrl-C, TERM or HUP."""
        self._closing = True
        await asyncio.gather(*(command.end() for command in self._commands))
        # `run` of each command reads its last lines and records its cost: wait for it.
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while self._commands and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
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
        """Run a command. For a job: return the cause of a failure from the step's output, and the exit code.

        Raises:
            TimeLimitExceeded: the job exceeded its ToolTimeLimit; its process group has ended.
            CommandFailed: a command failed and the caller ignores its exit code.
        """
        if job_name is None or workdir is None:
            with self._log.command(kind_of(command)) as logged:
                result = await utility.execute(
                    command,
                    environment={**location.environment, **(environment or {})},
                    workdir=workdir,
                    stdin=file_name(stdin),
                    wanted=stdout != asyncio.subprocess.DEVNULL,
                    timeout_s=timeout,
                )
                logged.exit_code = result[1]
            if result[1] and not capture_output:
                raise CommandFailed(command, "this machine", result)
            return result if capture_output else None
        variables = step_environment(location.environment, environment or {})
        # StreamFlow passes the file of stdout when the tool names none for stderr: progress must not end in there.
        streams = (file_name(stdin), file_name(stdout), None if stderr == stdout else file_name(stderr))

        async def shell(line: str) -> tuple[str, int]:
            return await self.run(location, [line], capture_output=True) or ("", 1)

        async def begin(further: Mapping[str, str]) -> tuple[str, int]:
            return await self._attempt(command, {**variables, **further}, workdir, streams, timeout, job_name)

        attempts = HostAttempts(
            job_name,
            self._table,
            lambda: self._closing,
            folder=workdir,
            temporary=(environment or {}).get("TMPDIR", ""),
            shells={"this machine": shell},
            begin=begin,
            is_empty=next(Path(workdir).iterdir(), None) is None,
        )
        return await attempts.run()

    async def _attempt(
        self,
        command: MutableSequence[str],
        variables: Mapping[str, str],
        workdir: str,
        streams: tuple[str | None, str | None, str | None],
        timeout: int | None,
        job_name: str,
    ) -> tuple[str, int]:
        rate = EventRate()
        started = LocalCommand(
            command,
            environment=variables,
            workdir=Path(workdir),
            owner=run.owner.process_key if (run := current()) is not None else "",
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            takes_line=lambda line: take_line(job_name, line, rate),
        )
        self._commands.add(started)
        try:
            with self._log.command("job") as logged:
                ended = await started.wait(time_limit_s=timeout)
                logged.exit_code = ended.exit_code
        finally:
            self._commands.discard(started)
        outcome = _outcome(started, ended, timeout, Path(workdir))
        return end_attempt(job_name, outcome, timed_out=ended.timed_out, ended_by_site=False, closing=self._closing)

    async def copy_local_to_remote(
        self, src: str, dst: str, locations: MutableSequence[ExecutionLocation], read_only: bool = False
    ) -> None:
        """Copy on this machine and make the copy writable, or link read-only files."""
        if read_only:
            link(src, dst, self.deployment_name, by=link_to(src))  # paths of the job file stay in `home/`
        else:
            await super().copy_local_to_remote(src, dst, locations, False)
            let_write(src, dst)

    async def copy_remote_to_local(
        self, src: str, dst: str, location: ExecutionLocation, read_only: bool = False
    ) -> None:
        """Copy or link as `copy_local_to_remote` does."""
        await self.copy_local_to_remote(src, dst, [location], read_only)

    async def copy_remote_to_remote(
        self,
        src: str,
        dst: str,
        locations: MutableSequence[ExecutionLocation],
        source_location: ExecutionLocation,
        source_connector: Any = None,
        read_only: bool = False,
    ) -> None:
        """Copy or link on this machine; copy from another location by its connector."""
        if source_location.local:
            await self.copy_local_to_remote(src, dst, locations, read_only)
        else:
            await super().copy_remote_to_remote(src, dst, locations, source_location, source_connector, read_only)

    async def get_stream_reader(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return the output of a program as a stream; a failed program is an error when the stream ends."""
        return LocalReader(["sh", "-c", stream_line(command)], "a transfer from this machine")

    async def get_stream_writer(self, command: MutableSequence[str], location: ExecutionLocation) -> Any:
        """Return the input of a program as a stream; a failed program is an error when the stream ends."""
        return LocalWriter(["sh", "-c", stream_line(command)], "a transfer to this machine")

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed JSON Schema of the deployment's `config`."""
        return files(__package__).joinpath("schema.json").read_text("utf-8")


def _outcome(command: LocalCommand, ended: EndedCommand, timeout: int | None, workdir: Path) -> CommandOutcome:
    stderr = list(command.stderr_tail)
    why = message = ""
    if ended.timed_out:
        message = f"the time limit of {timeout} s (ToolTimeLimit of the tool) was reached; the step was ended."
        why = "\n".join((message, *stderr[-5:]))
    elif ended.exit_code:
        why, message = cause(stderr, list(command.stdout_tail), ended.exit_code), step_message(stderr)
    return CommandOutcome(
        exit_code=ended.exit_code,
        seconds=ended.seconds,
        cpu_seconds=ended.cpu_seconds,
        peak_memory_mib=ended.peak_memory_mib,
        cause=why,
        message=message,
        kept_at=short_path(workdir),
        report_folder=workdir,
    )
