"""What is run in a pod besides the step itself: its start, and the counters of its container. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
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
_NO_LIMIT = 2**60  # cgroup v1 writes a huge number where there is none
COUNTERS = (
    f'for file in {" ".join(_FILES)}; do if [ -r "$file" ]; then sed "s|^|{MARK}$file |" "$file"; fi; done 2>/dev/null'
)


@dataclass(slots=True)
class Counters:
    """The counters of a container, read from its own control groups; None where the kernel does not show them.

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
        """Reads one line of the pod's own; True where it was one."""
        if not line.startswith(MARK):
            return False
        words = line.removeprefix(MARK).split()
        # A counter that this kernel writes in another form is unknown; a job may print such lines, too.
        with contextlib.suppress(ValueError, IndexError, OverflowError):
            self._read(words)
        return True

    def _read(self, words: list[str]) -> None:
        name, values = words[0], words[1:]
        if name == "pid" and self.group is None:  # the first one; a job cannot name other processes later
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
    """What `read_counters` printed."""
    counters = Counters()
    for line in lines:
        counters.take(line)
    return counters


def telling_its_end(words: Sequence[str], mark: str) -> list[str]:
    """Words that run a command and write the mark and its exit code to standard error when it has ended.

    The shell that does so leads the process group, and outlives a signal to the group that asks the command to end.
    """
    script = f"trap : HUP INT TERM; \"$@\"; code=$?; echo '{mark}'$code >&2; exit $code"
    return ["sh", "-c", script, "sh", *words]


def start(line: str) -> list[str]:
    """Words to execute in a container: tells the number of its process group and the counters on stderr, then becomes the command.

    A long line goes by standard input: words become part of a URL.

    Args:
        line: for a POSIX shell, ending in `exec`.
    """
    before = f"{{ echo '{MARK}pid' $PPID $$ ${start_time('$PPID')}; {COUNTERS}; }} >&2"
    if len(line) > _URL_BYTES:
        return CommandWithInput(WORDS, encode(f"{before}; exec < /dev/null; {line}"))
    return ["sh", "-c", f"{before}; {line}"]


def signal(process_id: int) -> list[str]:
    """Words that send the command the signal to write a checkpoint."""
    return ["kill", "-s", SIGNAL, str(process_id)]


def read_counters() -> list[str]:
    """Words that print the counters of the container."""
    return ["sh", "-c", COUNTERS]


def oom_kills(before: Counters, after: Counters) -> int:
    """Processes of a container that were killed for lack of memory between two looks; 0 where it is not known."""
    return max((after.oom_kills or 0) - (before.oom_kills or 0), 0)


def verdict(exit_code: int, before: Counters, after: Counters) -> str:
    """What the container's counters say about a failure; empty where they say nothing."""
    killed = oom_kills(before, after)
    limit = "" if after.limit_mib is None else f" of {after.limit_mib:.0f} MiB"
    if killed > 0:
        return f"out of memory: {killed} of its processes were killed at the container's memory limit{limit}."
    if exit_code == 137:
        seen = "its counters are not readable" if after.oom_kills is None else "the container counts no kill for memory"
        return f"killed by SIGKILL; {seen}."
    return ""
