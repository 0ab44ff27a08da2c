"""Run a verb in a separate process: for signals, limits and leftovers (files and processes)."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_RUN = "import sys; from medweave_steps.cli import main; sys.exit(main(sys.argv[1:]))"


# A watchdog in the process enforces the promised two seconds. With three times as many processes as cores it was seen to get its
# turn only after eight: this limit finds a step that does not stop, it measures no machine.
_STOPPED_S = 30


KILLED_AT = """
import os, signal
from medweave_steps.training.loop.stepper import Stepper
apply, begun = Stepper.apply, []
def apply_or_die(self, *arguments, **named):
    begun.append(arguments)
    if len(begun) == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    apply(self, *arguments, **named)
Stepper.apply = apply_or_die
"""
"""Kills the process before it changes the weights for the `{step}`-th time."""


def started(
    words: Sequence[str], *, folder: Path, largest_file: int | None = None, before: str = ""
) -> subprocess.Popen[str]:
    """Start `medweave-step words…` with one thread; its standard error is piped.

    Args:
        folder: where it runs, and where its report and its temporary files go.
        largest_file: bytes that no file may grow beyond, as on a disk that is nearly full.
        before: Python to run first.
    """
    limit = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file},) * 2); " if largest_file else ""
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", f"{limit}{before}\n{_RUN}", *words, "--num-threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
    )  # fmt: skip


@contextlib.contextmanager
def nearly_full_disk(folder: Path, largest_file: int) -> Iterator[io.StringIO]:
    """Run a verb in this process, with its workers, as on a disk that is nearly full.

    Args:
        folder: the working directory in the block, and the place of temporary files.
        largest_file: size in bytes beyond which no file can grow: a write that exceeds the limit fails (EFBIG).
    Yields:
        standard error, which pytest would write into a file.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as output:
        patch.chdir(folder)
        patch.setattr("tempfile.tempdir", str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)  # Python would keep byte code that the limit cuts short
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, limits[1]))
        try:
            yield output
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def wait_for_line(process: subprocess.Popen[str], part: str) -> None:
    """Read standard error up to a line that holds a text; fail if the process ends before."""
    assert process.stderr is not None
    seen = []
    while part not in (line := process.stderr.readline()):
        seen.append(line)
        assert line, f"the process ended before it printed {part!r}: {''.join(seen)}"


def interrupted(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Send a signal and wait for the process to end; return its exit code and the rest of its standard error."""
    process.send_signal(number)
    sent = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - sent < _STOPPED_S
    return process.returncode, stderr


def names_below(folder: Path) -> list[str]:
    """Return all files below a folder, hidden ones too, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def processes_with(token: str, variable: str) -> list[str]:
    """Return the command lines of processes, of any user, that name a token or have inherited it as the value of a variable."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            if token.encode() in words or f"{variable}={token}".encode() in (entry / "environ").read_bytes():
                command_lines.append(words.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return command_lines


def alive(pid: int) -> bool:
    """Return True if a process runs; a killed one may wait for its parent, or a container's first process, to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
