"""The walls between the sites: namespaces, so that one machine is a laptop, an HPC site and a cluster.

One process holds the namespaces of all that is not the laptop: processes, network, host name. Each site holds a view of the file
system below that: its own /var, /run, /tmp and /dev/shm, and the other sites' roots closed (mode 0). The kernel takes all of it
away, mounts, interfaces and firewall rules too, when the holding process ends: `down` cannot forget one.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import Commands
from .errors import TestbedError, last_lines
from .layout import SLURM_NODES, Layout

BASE, KUBERNETES, HPC = "base", "kubernetes", "hpc"

# The first process of the namespaces. It says its process id as the machine knows it (the old /proc still does), then gets a /proc
# separately. Because it ignores SIGCHLD, the kernel itself buries the orphans that become its children.
_BASE_SCRIPT = """
set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
hostname testbed
ip link set lo up
echo "$pid"
exec env --ignore-signal=CHLD sleep infinity
"""


@dataclass(frozen=True, slots=True)
class NetworkView:
    """What one site sees of the file system.

    Attributes:
        hostname: what `hostname` says there.
        state: the site's folder; holds its /var and /tmp.
        closed: roots of other sites; every access below them is refused (EACCES) to all but root.
        bound: (file or folder, where it appears).
        folders: folders to make below /var and /run, with owner and mode.
    """

    hostname: str
    state: Path
    closed: tuple[Path, ...]
    bound: tuple[tuple[Path, str], ...] = ()
    folders: tuple[tuple[str, str, int], ...] = ()


def view_script(view: NetworkView) -> str:
    """The shell script that turns a fresh mount namespace into a site's view; it keeps holding it and says its process id."""
    quoted = shlex.quote
    lines = ["set -e", f"hostname {quoted(view.hostname)}"]
    lines += mounts_of(view.state, view.closed)
    for path, owner, mode in view.folders:
        lines += [f"mkdir -p {path}", f"chmod {mode:o} {path}", f"chown {owner}: {path}"]
    lines += [f"mount --bind {quoted(str(what))} {quoted(where)}" for what, where in view.bound]
    return "\n".join([*lines, "echo $$", "exec sleep infinity"]) + "\n"


def mounts_of(state: Path, closed: Sequence[Path]) -> list[str]:
    """Shell lines: a site's own /var, /run, /tmp and /dev/shm, and the other sites' roots closed."""
    quoted = shlex.quote
    var, tmp = quoted(str(state / "var")), quoted(str(state / "tmp"))
    return [
        f"mkdir -p {var} {tmp}",
        f"chmod 0755 {var}; chmod 1777 {tmp}",
        f"mount --bind {var} /var",
        f"mount --bind {tmp} /tmp",
        "mount -t tmpfs -o mode=0755 tmpfs /run",
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        "mkdir -p /var/log /var/lib /var/tmp && chmod 1777 /var/tmp",
        "[ -e /var/run ] || ln -s /run /var/run",
        *(f"mount -t tmpfs -o mode=0000,size=4k tmpfs {quoted(str(path))}" for path in closed),
    ]


def hosts_file(layout: Layout) -> str:
    """/etc/hosts of the sites."""
    names = " ".join(("login", "testbed", *SLURM_NODES))
    return f"127.0.0.1 localhost\n::1 localhost\n{layout.address} {names}\n"


def laptop_command(layout: Layout, words: Sequence[str]) -> list[str]:
    """Return the command line that runs a program behind the laptop's walls, still as root (setpriv comes after)."""
    closed = (layout.hpc, layout.pods, layout.kubernetes, layout.slurm)
    script = "\n".join(["set -e", *mounts_of(layout.laptop / ".site", closed), 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", script, "sh", *words]


class Walls:
    """The namespaces of one testbed; knows them again after a restart of the program by files in `run/`."""

    def __init__(self, layout: Layout, commands: Commands) -> None:
        self._layout = layout
        self._commands = commands

    @property
    def base(self) -> int | None:
        """Process id, as the machine counts, of the first process of the namespaces; None if there is none."""
        return living(self._file(BASE), Path("/proc"))

    def view(self, name: str) -> int | None:
        """Process id, as the namespaces count, of the process with a site's view; None if there is none."""
        return None if self.base is None else living(self._file(name), self.proc)

    @property
    def proc(self) -> Path:
        """/proc of the namespaces, seen from the machine."""
        return Path(f"/proc/{self.base}/root/proc")

    def inside(self, view: str = BASE) -> list[str]:
        """Return the words before a command that is to run in the namespaces, with a site's view of the file system."""
        prefix = ["nsenter", "--target", str(self.base), "--pid", "--net"]
        if view == BASE:
            return [*prefix, "--mount", "--uts", "--"]
        namespaces = self.proc / str(self.view(view)) / "ns"
        return [*prefix, f"--mount={namespaces / 'mnt'}", f"--uts={namespaces / 'uts'}", "--"]

    def raise_base(self) -> None:
        """Create the namespaces and the link to them.

        Raises:
            TestbedError: the kernel refuses namespaces or the link.
        """
        words = ["unshare", "--fork", "--pid", "--mount", "--net", "--uts", "/bin/sh", "-c", _BASE_SCRIPT]
        pid = self._hold(words)
        remember(self._file(BASE), pid, Path("/proc"))
        layout = self._layout
        into_base = ["nsenter", "--target", str(pid), "--net", "--"]
        for line in (
            f"ip link add {layout.link} type veth peer name eth0 netns {pid}",
            f"ip address add {layout.laptop_address}/30 dev {layout.link}",
            f"ip link set {layout.link} up",
        ):
            self._commands.run(line.split())
        for line in (
            f"ip address add {layout.address}/30 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {layout.laptop_address}",
        ):
            self._commands.run([*into_base, *line.split()])

    def raise_view(self, name: str, view: NetworkView) -> None:
        """Create a site's view of the file system below the namespaces."""
        inner = ["unshare", "--mount", "--uts", "--propagation", "private", "/bin/sh", "-c", view_script(view)]
        pid = self._hold([*self.inside(), "/bin/sh", "-c", '"$@" & wait', "sh", *inner])
        remember(self._file(name), pid, self.proc)

    def fall(self) -> None:
        """End everything inside and wait until the kernel has taken it away."""
        pid = self.base
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while self.base is not None and time.monotonic() < deadline:
                time.sleep(0.05)
        if self._commands.outcome(["ip", "link", "show", self._layout.link])[0] == 0:
            self._commands.outcome(["ip", "link", "delete", self._layout.link])

    def _hold(self, words: Sequence[str]) -> int:
        """Start a process that prints its id and then holds its namespaces; return the id."""
        log = self._layout.log / "walls.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd="/"
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        process.stdout.close()
        if line.strip().isdigit():
            return int(line)
        raise TestbedError(
            "the sites' namespaces cannot be made.",
            seen=last_lines(log.read_text(encoding="utf-8", errors="replace")),
            expected="a kernel and rights (CAP_SYS_ADMIN) for new mount, network and process namespaces",
            do="run on a machine or virtual machine, or in a container that was started with --privileged",
        )

    def _file(self, name: str) -> Path:
        return self._layout.run / f"wall-{name}.pid"


def start_time(pid: int, proc: Path) -> str | None:
    """When a process began, in clock ticks since boot; None if it is no more (a zombie is no more, too)."""
    try:
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def remember(file: Path, pid: int, proc: Path) -> None:
    """Write a process's id and start time, which together name it even after the id is used again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{pid} {start_time(pid, proc)}\n", encoding="utf-8")


def living(file: Path, proc: Path) -> int | None:
    """Return the process that a file names, if that very process still lives."""
    try:
        pid, started = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return int(pid) if start_time(int(pid), proc) == started else None
