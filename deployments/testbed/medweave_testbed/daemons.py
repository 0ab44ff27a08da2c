"""Starts, finds, judges and ends the long-running programs inside the walls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .commands import Commands
from .errors import TestbedError, last_lines
from .layout import Layout
from .walls import Walls, living, remember

# The shell leaves the program behind as a child of the namespaces' first process and says its id there.
_LAUNCH = 'log=$1; shift; cd / && setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'


class Daemons:
    """The testbed's daemons by name; each has a log and a file with its process id."""

    def __init__(self, layout: Layout, commands: Commands, walls: Walls) -> None:
        self._layout = layout
        self._commands = commands
        self._walls = walls

    def log(self, name: str) -> Path:
        """Return what the daemon printed since it was started last."""
        return self._layout.log / f"{name}.log"

    def start(
        self, name: str, words: Sequence[str | Path], *, view: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a daemon (an earlier one of the same name is ended first) and remember it; does not wait until it serves."""
        self.stop(name)
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        path = f"{self._layout.bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"} | dict(environment or {})
        command = ["/bin/sh", "-c", _LAUNCH, "sh", str(log), *map(str, words)]
        pid = int(self._commands.run([*self._walls.inside(view), *command], environment=variables))
        remember(self._file(name), pid, self._walls.proc)

    def pid(self, name: str) -> int | None:
        """Return the daemon's id inside the namespaces; None if it does not run."""
        return None if self._walls.base is None else living(self._file(name), self._walls.proc)

    def trouble(self, name: str) -> str | None:
        """Return why the daemon does not run; None if it does."""
        if self.pid(name) is not None:
            return None
        if not self._file(name).exists():
            return "it was never started"
        pid = self._file(name).read_text(encoding="utf-8").split()[0]
        return f"its process {pid} is gone (stale pid file); {self._last_words(name)}"

    def stop(self, name: str, patience_s: float = 10) -> None:
        """End a daemon, politely first, and forget it."""
        for word in ("TERM", "KILL"):
            pid = self.pid(name)
            if pid is None:
                break
            self._commands.outcome([*self._walls.inside(), "kill", f"-{word}", str(pid)])
            deadline = time.monotonic() + patience_s
            while self.pid(name) is not None and time.monotonic() < deadline:
                time.sleep(0.05)
        self._file(name).unlink(missing_ok=True)

    def ended_early(self, name: str) -> TestbedError:
        """Return the error for a daemon that ended while it was waited for."""
        return TestbedError(
            f"{name} ended as soon as it was started.",
            seen=last_lines(self.log(name).read_text(encoding="utf-8", errors="replace")),
            expected="a daemon that keeps running",
            do=f"read {self.log(name)}, correct the cause, then run `make testbed` again",
        )

    def _last_words(self, name: str) -> str:
        """Return the last line that says something went wrong, or the last line at all, of a daemon's log."""
        try:
            lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "it left no log"
        return f"its log ends: {lines[-1].strip()[:200]}" if lines else "its log is empty"

    def _file(self, name: str) -> Path:
        return self._layout.run / f"{name}.pid"
