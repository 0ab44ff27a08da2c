"""A step's command on the hosts of a node group, one process per host, from start to end. A single host is a group of one."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import posixpath
import secrets
import shlex
import signal as signals
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.host.job_processes import KEY, ProcessGroup, end_line
from medweave_connectors.jobs.node_group import FIRST_PORT, NUM_PORTS, node_environment
from medweave_connectors.jobs.remote_environment import shell_line, step_variables
from medweave_connectors.jobs.supervised_group import LOST_CODE, GroupMember, SupervisedGroup, describe_failure
from medweave_connectors.jobs.worker_environment import WorkerEnvironment
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.runlog.job_output import JobOutput, LineSplitter
from medweave_connectors.sites.ssh.login import READ_BYTES, StartedSession

GRACE_S, END_S = 3.0, 15.0
PRINT_ADDRESS = 'echo "$SSH_CONNECTION"'  # of sshd: address and port of the client, then those of this host

OpenSession = Callable[[ExecutionLocation], AbstractAsyncContextManager[StartedSession]]
RunLine = Callable[[ExecutionLocation, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep:
    """A step's command, as the engine requests it.

    Attributes:
        words: already quoted for a shell.
        stdin, stdout, stderr: files relative to the output folder.
        limit_s: its time limit, s; None for none.
        gpus: it has some.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    output_directory: str
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    limit_s: int | None = None
    gpus: bool = False


@dataclass(slots=True, kw_only=True)
class HostMember(GroupMember):
    """One node of the group, on a host.

    Attributes:
        script: for a POSIX shell of the host.
        group: process group of the command; None before it is started.
    """

    location: ExecutionLocation
    script: str
    group: ProcessGroup | None = None

    @property
    def place(self) -> str:
        """Return the host as in the site file."""
        return self.location.name


def rendezvous_at(printed: str, hostname: str) -> str:
    """Return `host:port` where the nodes of a group meet: node 0, at a random port.

    The address at which ssh reaches node 0 is its own, also behind a jump host, and needs no name resolution.

    Args:
        printed: output of `PRINT_ADDRESS` on node 0.
        hostname: its HostName in ssh's configuration, used if the address cannot be reached by others.
    """
    words = printed.split()
    address = words[2] if len(words) == 4 else ""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback or "%" in address:
            address = ""
    return f"{address or hostname}:{FIRST_PORT + secrets.randbelow(NUM_PORTS)}"


def build_members(
    step: HostStep,
    locations: Sequence[ExecutionLocation],
    rendezvous: str,
    further: Mapping[str, str],
    worker: WorkerEnvironment,
    *,
    worker_setting: str,
) -> list[HostMember]:
    """Return the members of a step's group, in order of rank.

    Only node 0 writes the tool's stream files, and each node has its own folder for temporary files: hosts may share a folder.

    Args:
        rendezvous: of the group; not used for a single host.
        further: variables in addition to those of the step.
        worker: environment that is loaded before the command.
        worker_setting: its path in the file, for messages.
    """
    is_group = len(locations) > 1
    members = []
    for rank, location in enumerate(locations):
        key = secrets.token_hex(8)
        variables = step_variables(location.environment, step.environment, further, {KEY: key})
        lines = list(worker.lines(where=worker_setting))
        if is_group:
            variables |= node_environment(node_rank=rank, num_nodes=len(locations), rendezvous=rendezvous)
            if temporary := variables.get("TMPDIR"):
                variables["TMPDIR"] = posixpath.join(temporary, f"node-{rank}")
                lines.append(f"mkdir -p {shlex.quote(variables['TMPDIR'])}")
        stdout, stderr = (file and "/dev/null" if rank else file for file in (step.stdout, step.stderr))
        line = shell_line(
            step.words,
            environment=variables,
            workdir=step.output_directory,
            stdin=step.stdin or "/dev/null",  # the session's input stays open
            stdout=stdout,
            stderr=stderr,
        )
        folder = posixpath.dirname(step.output_directory)
        lines.append(worker.started(worker.inside(line, folder=folder, gpus=step.gpus)))
        output = JobOutput(step.name)
        members.append(HostMember(rank=rank, key=key, output=output, location=location, script="\n".join(lines)))
    return members


class HostGroup(SupervisedGroup[HostMember]):
    """The members' commands in sessions of their hosts.

    Args:
        open_session: opens a session of a host for a job.
        run_line: runs a line in another session of a host.
    """

    def __init__(self, members: Sequence[HostMember], open_session: OpenSession, run_line: RunLine) -> None:
        super().__init__(members)
        self._open_session, self._run_line = open_session, run_line
        self._given_up = asyncio.Event()

    async def _run(self, member: HostMember) -> None:
        lines = LineSplitter(member.take)
        work = asyncio.ensure_future(self._run_in_session(member, lines))
        given_up = asyncio.ensure_future(self._given_up.wait())
        try:
            await asyncio.wait({work, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                member.exit_code = work.result()
        except (asyncssh.Error, OSError) as error:
            if member.group is None:
                member.lost = f"{member.place} cannot be reached by ssh: {error}"
        except (
            Exception
        ) as error:  # the host was not reached, or an internal error: the others do not wait for this member
            member.lost = str(error)
            raise
        finally:
            await cancel_and_wait(work, given_up)
            lines.close()
            member.output.close()
            member.ended = time.monotonic()
        if member.exit_code is None and not member.lost:
            if member.group is None:
                member.lost = f"the step was ended before it was started on {member.place}."
                return
            member.lost = (
                f"the connection to {member.place} was lost; the step there was ended, if it could be reached again."
            )
            await self._end(member, "TERM")

    async def _run_in_session(self, member: HostMember, lines: LineSplitter) -> int | None:
        """Return the exit code; None if the connection was lost, or the member's end was requested before its start."""
        async with self._open_session(member.location) as session:
            if member.end_requested:
                return None
            # Another session can end its process group when this one is lost: it begins once that is known.
            process, member.group = session.process, session.group
            session.run(member.script)
            await asyncio.gather(_each(process.stdout, member.output.stdout), _each(process.stderr, lines.feed))
            await process.wait_closed()
            return exit_code_of(process)

    async def _end(self, member: HostMember, signal: str) -> bool:
        if member.group is None:
            return True  # it will not be started any more
        script = end_line(member.group, member.key, signal=signal, grace_s=GRACE_S)
        with contextlib.suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._run_line(member.location, script)
                return True
        return False

    async def _give_up(self, reached: Sequence[HostMember]) -> None:
        for member in self.members:
            if member.exit_code is None and not member.lost:
                member.lost = f"{member.place} does not answer; the step there may still be running."
        self._given_up.set()


def build_outcome(
    group: HostGroup, *, seconds: float, limit_s: int | None, kept_at: str, reports: Path | None
) -> CommandOutcome:
    """Return the outcome of a job, decided by the member that failed first.

    Args:
        limit_s: the time limit if it was reached, s.
        kept_at: where its files are, for messages.
        reports: folder with copies of its reports, on the driver.
    """
    culprit = group.culprit()
    code = culprit.code if limit_s is None else culprit.code or LOST_CODE
    return culprit.output.outcome(
        exit_code=code,
        seconds=seconds,
        site_word=describe_failure(group.members, culprit, culprit.lost, limit_s=limit_s) if code else "",
        kept_at=kept_at,
        report_folder=reports,
    )


def exit_code_of(process: Any) -> int | None:
    """Return the exit code of a session, as a shell reports it; None if its connection was lost."""
    if process.exit_signal is not None:
        return 128 + int(getattr(signals, f"SIG{process.exit_signal[0]}", 0))
    return None if process.exit_status is None else int(process.exit_status)


async def _each(stream: Any, take: Callable[[bytes], None]) -> None:
    while data := await stream.read(READ_BYTES):
        take(data)
