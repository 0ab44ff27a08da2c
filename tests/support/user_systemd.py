"""A user's own systemd for tests: the real manager, on a machine that need not have been booted by systemd. Needs root.

It gets its own view of /run, for it starts only where systemd seems to have booted, and its own control group: whatever
is in the group in which it is started, it takes for its own and moves.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).is_file()), "")
BOOTED = "mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && "
PATIENCE_S = 20.0


@contextlib.contextmanager
def user_systemd(folder: Path) -> Iterator[dict[str, str]]:
    """Run a manager while the context lasts; yield the variables with which `systemctl --user` finds it and its units.

    Args:
        folder: for all its files.
    """
    if not PROGRAM or os.getuid() != 0:
        pytest.skip("needs root, and systemd: apt-get install systemd")
    variables = {
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
        "XDG_DATA_HOME": str(folder / "home" / ".local" / "share"),
    }
    for path in variables.values():
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    with _groups() as groups:
        line = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{line}{BOOTED}exec {PROGRAM} --user"]
        with (folder / "systemd.log").open("wb") as log:
            manager = subprocess.Popen(words, env={**os.environ, **variables}, stdout=log, stderr=log)
        try:
            _wait_for(folder, variables)
            yield variables
        finally:
            manager.send_signal(signal.SIGRTMIN + 24)  # its word for: end at once, with all units
            try:
                manager.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                manager.kill()
                manager.wait()


def _wait_for(folder: Path, variables: dict[str, str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        words = ["systemctl", "--user", "is-active", "timers.target"]
        outcome = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        if outcome.stdout.strip() == "active":
            return
        assert time.monotonic() < deadline, f"{outcome.stderr}\n{(folder / 'systemd.log').read_text()}"
        time.sleep(0.1)


@contextlib.contextmanager
def _groups() -> Iterator[list[Path]]:
    """Yield new control groups in the hierarchies by which systemd distinguishes processes; remove them after the block."""
    name = f"medweave-test-{secrets.token_hex(4)}"
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = [(line[4], *line[line.index("-") + 1 :]) for line in mounts]
    hierarchies = [Path(kind[0]) for kind in kinds if kind[1] in ("cgroup", "cgroup2")]
    tracked = [Path(kind[0]) for kind in kinds if kind[1] == "cgroup2" or "name=systemd" in kind[-1].split(",")]
    made = [hierarchy / name for hierarchy in tracked]
    for group in made:
        group.mkdir()
    try:
        yield made
    finally:
        for hierarchy in hierarchies:
            _remove(hierarchy / name)


def _remove(group: Path) -> None:
    """Remove a group and those in it, once their processes have gone."""
    if not group.is_dir():
        return
    deadline = time.monotonic() + PATIENCE_S
    for at, _, _ in sorted(os.walk(group), reverse=True):
        while True:
            try:
                Path(at).rmdir()
                break
            except OSError:
                assert time.monotonic() < deadline, f"processes are left in {at}"
                time.sleep(0.05)
