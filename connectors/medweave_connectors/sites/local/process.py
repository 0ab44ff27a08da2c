"""A local command in a new process group, with its output line by line, an enforced time limit, and its cost.

Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil  # type: ignore[import-untyped]  # comes with StreamFlow

from medweave_connectors.host.command_size import is_long_command
from medweave_connectors.host.job_processes import KEY, key_of, kill_marked
from medweave_connectors.host.stdin_script import WHOLE_INPUT
from medweave_connectors.jobs.remote_environment import shell_line
from medweave_connectors.runlog.job_output import TAIL_LINES, LineSplitter

GRACE_S = 3.0
DRAIN_S = 2.0
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    """An ended command: exit code as a shell reports it, seconds of wall and processor time, MiB.

    `peak_memory_mib` is the kernel's figure for the largest process of the command. The kernel starts that count at the size
    of the process that forked; so for commands smaller than the driver (about 170 MiB) it is the largest high-water mark of
    the command's processes, read once a second, and None if the command was too short for that.
    """

    exit_code: int
    seconds: float
    cpu_seconds: float
    peak_memory_mib: float | None
    timed_out: bool


running: set[LocalCommand] = set()


def end_all_now() -> None:
    """End every command of this process without the event loop, for the interpreter's exit."""
    for command in list(running):
        command.signal_group(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    while running and time.monotonic() < deadline:
        time.sleep(0.02)
    kill_all()


def kill_all() -> None:
    """Kill every command of this process, now."""
    commands = list(running)
    for command in commands:
        command.signal_group(signal.SIGKILL)
    if commands:
        kill_marked({command.key for command in commands})


class _PipeLines(asyncio.Protocol):
    """Protocol that splits a pipe's data into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._lines = LineSplitter(on_line)
        self.closed = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        try:
            self._lines.feed(data)
        except Exception as error:  # the event loop would log it, and read on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.closed.done():
            self.closed.set_exception(error)

    def connection_lost(self, _error: Exception | None) -> None:
        try:
            self._lines.close()
        except Exception as error:
            self._fail(error)
        if not self.closed.done():
            self.closed.set_result(None)


class LocalCommand:
    """One started command.

    The words are handed to `sh` as they are (StreamFlow has quoted them); the environment goes through `execve`, so no
    character in a value has a meaning for any shell.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        workdir: Path,
        owner: str = "",
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        takes_line: Callable[[str], bool] = lambda line: False,
    ) -> None:
        """Start the command.

        Args:
            owner: the run (`RunOwner.process_key`); the next run finds the command by it if the driver was killed.
            stdin, stdout, stderr: files, relative to `workdir`.
            takes_line: called with each line of stderr (unless it goes to a file); lines for which it returns False go to the tail.
        """
        self.stderr_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.stdout_tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.key = key_of(owner)  # marks its processes
        self._takes_line = takes_line
        self._clock = time.monotonic()
        with contextlib.ExitStack() as files:
            command: Sequence[str]
            standard_input: IO[bytes] | int

            def redirected(name: str | None, mode: str, otherwise: int) -> IO[bytes] | int:
                if name is None:
                    return otherwise
                if mode == "wb":
                    (workdir / name).parent.mkdir(parents=True, exist_ok=True)
                return files.enter_context((workdir / name).open(mode))

            own: Mapping[str, str] = {}  # what the driver's environment lacks
            if is_long_command(words, environment):
                own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
            if is_long_command(words, own):
                # No word of a command line holds it: the shell reads it, and checks it against its limits.
                line = shell_line(
                    words,
                    environment=own,
                    workdir=str(workdir),
                    stdin=stdin or os.devnull,
                    stdout=stdout,
                    stderr=stderr,
                )
                script = files.enter_context(tempfile.TemporaryFile())
                script.write(line.encode(errors="surrogateescape"))
                script.seek(0)
                command, standard_input = WHOLE_INPUT, script
                stdout = stderr = None
                environment = {name: value for name, value in environment.items() if name not in own}
            else:
                command = ["/bin/sh", "-c", "exec " + " ".join(words)]
                standard_input = redirected(stdin, "rb", subprocess.DEVNULL)
            self._process = subprocess.Popen(
                command,
                cwd=workdir,
                env={**environment, KEY: self.key},
                stdin=standard_input,
                stdout=redirected(stdout, "wb", subprocess.PIPE),
                stderr=redirected(stderr, "wb", subprocess.PIPE),
                start_new_session=True,  # its own group: a signal reaches all of it, and the terminal's Ctrl-C only us
            )
        self._driver_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._sampled_mib: float | None = None
        self._alive = threading.Lock(), [True]
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[tuple[int, float, float, float]] = self._loop.create_future()
        running.add(self)
        # A new thread, because the loop's executor is joined at exit and would wait for a command that hangs.
        threading.Thread(target=self._watch, name="wait-for-command", daemon=True).start()

    async def wait(self, *, time_limit_s: float | None = None) -> EndedCommand:
        """Wait for the end; after the time limit the group is ended (TERM, then KILL)."""
        timed_out = False
        sampler = self._loop.create_task(self._sample())
        try:
            readers = [
                await self._read(self._process.stdout, self.stdout_tail.append),
                await self._read(self._process.stderr, self._take_stderr),
            ]
            await asyncio.wait_for(asyncio.shield(self._ended), timeout=time_limit_s)
        except TimeoutError:
            timed_out = True
            await self.end(signal.SIGTERM)
        except asyncio.CancelledError:
            await self.end()
            raise
        finally:
            sampler.cancel()
        exit_code, seconds, cpu_seconds, largest_mib = await self._ended
        peak_memory_mib = largest_mib if largest_mib > self._driver_mib else self._sampled_mib
        await self._drain([reader for reader in readers if reader is not None])
        return EndedCommand(
            exit_code=exit_code,
            seconds=seconds,
            cpu_seconds=round(cpu_seconds, 3),
            peak_memory_mib=None if peak_memory_mib is None else round(peak_memory_mib, 1),
            timed_out=timed_out,
        )

    async def end(self, first: signal.Signals = signal.SIGINT) -> None:
        """Signal the group and kill what remains after `GRACE_S`, also processes that left the group."""
        self.signal_group(first)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ended), timeout=GRACE_S)
        self.signal_group(signal.SIGKILL)
        await asyncio.shield(self._ended)
        await asyncio.to_thread(kill_marked, {self.key})

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the group unless it has ended (its id may then belong to others)."""
        lock, alive = self._alive
        with lock:
            if alive[0]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _watch(self) -> None:
        """Wait for the command in a thread; an error there becomes the error of `wait`, which would never end."""
        try:
            self._reap()
        except Exception as error:
            running.discard(self)
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._set_failed, error)

    def _reap(self) -> None:
        pid = self._process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # While the leader is not reaped its id cannot be reused. Its remaining children end with it: an ended job must
        # not write any more.
        self.signal_group(signal.SIGKILL)
        lock, alive = self._alive
        with lock:
            _, status, usage = os.wait4(pid, 0)
            alive[0] = False
        running.discard(self)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        figures = (
            code if code >= 0 else 128 - code,
            time.monotonic() - self._clock,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
        )
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._set_ended, figures)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            with contextlib.suppress(psutil.Error, OSError):
                first = psutil.Process(self._process.pid)
                for process in (first, *first.children(recursive=True)):
                    self._sampled_mib = max(self._sampled_mib or 0.0, _high_water_mib(process.pid))

    def _set_ended(self, figures: tuple[int, float, float, float]) -> None:
        if not self._ended.done():
            self._ended.set_result(figures)

    def _set_failed(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _take_stderr(self, line: str) -> None:
        if not self._takes_line(line):
            self.stderr_tail.append(line)

    async def _read(
        self, pipe: IO[bytes] | None, on_line: Callable[[str], None]
    ) -> tuple[asyncio.ReadTransport, _PipeLines] | None:
        if pipe is None:
            return None
        return await self._loop.connect_read_pipe(lambda: _PipeLines(on_line), pipe)

    async def _drain(self, readers: Sequence[tuple[asyncio.ReadTransport, _PipeLines]]) -> None:
        # A process that left the group may keep a pipe open; its output is not awaited.
        if readers:
            await asyncio.wait([lines.closed for _, lines in readers], timeout=DRAIN_S)
        for transport, _ in readers:
            transport.close()
        for _, lines in readers:
            if lines.closed.done():
                lines.closed.result()  # raises an internal error in the handler of a line


def _high_water_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        return float(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, ValueError, IndexError):  # it has just ended
        return 0.0
