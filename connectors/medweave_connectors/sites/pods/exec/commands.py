"""Shell commands in pods: start of a step, exit code, signals and counters of the container. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from medweave_connectors.host.job_processes import ProcessGroup, start_time
from medweave_connectors.host.stdin_command import CommandWithInput
from medweave_connectors.host.stdin_script import WORDS, encode
from medweave_connectors.jobs.retries.attempt_script import SIGNAL

MARK = "medweave-pod "
_V2, _V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"
_FILES = (
    f"{_V2}/memory.events",
    f"{_V2}/memory.max",
    f"{_V2}/cpu.stat",
    f"{_V1}/memory.oom_control",
    f"{_V1}/memory.limit_in_bytes",
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",
)
_LARGEST_PID = 2**22  # of Linux
_URL_BYTES = 4096  # proxies before an API server accept 8 KiB
_NO_LIMIT = 2**60  # cgroup v1 writes a huge number for no limit
COUNTERS = (
    f'for file in {" ".join(_FILES)}; do if [ -r "$file" ]; then sed "s|^|{MARK}$file |" "$file"; fi; done 2>/dev/null'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStep:
    """Command of one step, as the engine passes it.

    Attributes:
        words: quoted for a shell already.
        streams: files of stdin, stdout and stderr, relative to the output folder.
        limit_s: its time limit, s; None for none.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    output_directory: str
    streams: Mapping[str, str | None]
    limit_s: int | None


@dataclass(slots=True)
class Counters:
    """Counters of a container's control groups; None for those that the kernel does not expose.

    Attributes:
        group: of the command and the shell above it, which leads the group; numbers of the container.
        command: number of the command's own process there.
        oom_kills: processes of the container killed for lack of memory so far.
        cpu_seconds: processor time of the container so far, s.
        limit_mib: its memory limit, MiB.
    """

    group: ProcessGroup | None = None
    command: int | None = None
    oom_kills: int | None = None
    cpu_seconds: float | None = None
    limit_mib: float | None = None

    def take(self, line: str) -> bool:
        """Read one line; return True if it was a counter."""
        if not line.startswith(MARK):
            return False
        words = line.removeprefix(MARK).split()
        # A counter that this kernel writes in another form is unknown; a job may print such lines, too.
        with contextlib.suppress(ValueError, IndexError, OverflowError):
            self._read(words)
        return True

    def _read(self, words: list[str]) -> None:
        name, values = words[0], words[1:]
        if name == "pid" and self.group is None:  # only the first line counts: a job cannot name other processes later
            leader, self.command = (min(int(value), _LARGEST_PID) for value in values[:2])
            self.group = ProcessGroup(leader, values[2] if len(values) == 3 and values[2].isdecimal() else "")
        elif name.endswith(("memory.events", "memory.oom_control")) and values[0] == "oom_kill":
            self.oom_kills = int(values[1])
        elif name.endswith("cpu.stat") and values[0] == "usage_usec":
            self.cpu_seconds = int(values[1]) / 1e6
        elif name.endswith("cpuacct.usage"):
            self.cpu_seconds = int(values[0]) / 1e9
        elif name.endswith(("memory.max", "memory.limit_in_bytes")) and values[0] != "max":
            self.limit_mib = int(values[0]) / 2**20 if int(values[0]) < _NO_LIMIT else None


def parse_counters(lines: Iterable[str]) -> Counters:
    """Return the counters in the output of `build_counters_command`."""
    counters = Counters()
    for line in lines:
        counters.take(line)
    return counters


def build_exit_code_wrapper(words: Sequence[str], mark: str) -> list[str]:
    """Return words that run a command, then write the mark and its exit code to standard error.

    Their shell leads the process group, and survives a signal to the group that ends the command.
    """
    script = f"trap : HUP INT TERM; \"$@\"; code=$?; echo '{mark}'$code >&2; exit $code"
    return ["sh", "-c", script, "sh", *words]


def build_start_command(line: str) -> list[str]:
    """Return words that print the process group and the counters on stderr, then exec the command.

    A long line is sent by standard input, since words become part of a URL.

    Args:
        line: for a POSIX shell, ending in `exec`.
    """
    before = f"{{ echo '{MARK}pid' $PPID $$ ${start_time('$PPID')}; {COUNTERS}; }} >&2"
    if len(line) > _URL_BYTES:
        return CommandWithInput(WORDS, encode(f"{before}; exec < /dev/null; {line}"))
    return ["sh", "-c", f"{before}; {line}"]


def build_signal_command(process_id: int) -> list[str]:
    """Return words that send the command the signal to write a checkpoint."""
    return ["kill", "-s", SIGNAL, str(process_id)]


def build_counters_command() -> list[str]:
    """Return words that print the counters of the container."""
    return ["sh", "-c", COUNTERS]


def count_oom_kills(before: Counters, after: Counters) -> int:
    """Return how many processes of a container were killed for lack of memory between two readings; 0 if unknown."""
    return max((after.oom_kills or 0) - (before.oom_kills or 0), 0)


def explain_failure(exit_code: int, before: Counters, after: Counters) -> str:
    """Return the explanation of a failure by the container's counters; empty if they do not explain it."""
    killed = count_oom_kills(before, after)
    limit = "" if after.limit_mib is None else f" of {after.limit_mib:.0f} MiB"
    if killed > 0:
        return f"out of memory: {killed} of its processes were killed at the container's memory limit{limit}."
    if exit_code == 137:
        seen = "its counters are not readable" if after.oom_kills is None else "the container counts no kill for memory"
        return f"killed by SIGKILL; {seen}."
    return ""
