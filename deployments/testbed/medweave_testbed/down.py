"""`down`: ends everything and looks whether anything was left behind."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import control_groups, images, tenants
from .errors import TestbedError
from .layout import TENANTS, Layout
from .part import Part, Testbed


def end_begun(parts: Sequence[Part], testbed: Testbed) -> None:
    """End what an interrupted `up` was starting: the daemons of those parts, or everything where the sites were not ready."""
    if any(part.name == "sites" for part in parts):
        testbed.walls.fall()
        return
    for part in parts:
        if part.daemon is not None:
            testbed.daemons.stop(part.daemon)


def down(testbed: Testbed, *, purge: bool) -> None:
    """End all processes and remove state and keys, but not what is slow to build (programs, environment, images).

    Args:
        purge: remove that too, and the users that the testbed made.
    Raises:
        TestbedError: something is left behind; it is named.
    """
    layout = testbed.layout
    if testbed.existing_kubeconfig is not None:
        leave_cluster(testbed)
    testbed.walls.fall()
    end_users_processes(layout)
    groups = control_groups.remove(control_groups.all_mounted(control_groups.mounted()), layout.cgroup)
    left = left_behind(layout, Path("/proc/mounts").read_text(encoding="utf-8"), groups)
    if left:
        raise TestbedError(
            "something of the testbed is left behind.",
            seen="; ".join(left),
            expected="no process, mount, interface or control group",
            do="end what is named, then run `make testbed-down` again",
        )
    for folder in (layout.kubernetes, layout.slurm, layout.laptop, layout.hpc, layout.pods, layout.run):
        testbed.commands.run(["rm", "-rf", "--one-file-system", folder])
    if purge:
        remove_users(testbed)
        testbed.commands.run(["rm", "-rf", "--one-file-system", layout.folder])
    else:
        images.forget_old(testbed)


def leave_cluster(testbed: Testbed) -> None:
    """Remove the tenants from the user's cluster; if it does not answer, print that and continue."""
    for tenant in TENANTS:
        try:
            text = testbed.kubectl("get", "namespace", tenant, "-o", "json", "--ignore-not-found")
            if text.strip() and tenants.is_ours(testbed.layout, json.loads(text)):
                testbed.kubectl("delete", "namespace", tenant, "--wait=false")
        except TestbedError as error:
            why = error.seen.splitlines()[-1]
            print(
                f"testbed: namespace {tenant} may be left in the cluster of {testbed.kubeconfig}: {why}",
                file=sys.stderr,
            )


def processes_of(user_ids: set[int]) -> list[int]:
    """Return the ids of all processes that run as one of the users."""
    process_ids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid in user_ids and running(entry):
                process_ids.append(int(entry.name))
        except OSError:  # it has ended since
            continue
    return process_ids


def running(entry: Path) -> bool:
    """Return whether a folder of /proc is of a process that is more than a zombie."""
    return (entry / "stat").read_text(encoding="utf-8", errors="replace").rsplit(") ", 1)[1][0] not in "ZX"


def testbed_user_ids(layout: Layout) -> set[int]:
    """Return the numbers of the testbed's own users, as far as they exist."""
    return {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in (layout.laptop_user, layout.hpc_user)}


def end_users_processes(layout: Layout, patience_s: float = 10) -> None:
    """End what the testbed's own users run outside of the walls: a driver, its ssh connections."""
    users = testbed_user_ids(layout)
    deadline = time.monotonic() + patience_s
    word = signal.SIGTERM
    while (process_ids := processes_of(users)) and time.monotonic() < deadline:
        for pid in process_ids:
            try:
                os.kill(pid, word)
            except ProcessLookupError:
                continue
        time.sleep(0.2)
        if time.monotonic() > deadline - patience_s / 2:
            word = signal.SIGKILL


def left_behind(layout: Layout, mounts: str, groups: Sequence[Path]) -> list[str]:
    """Return what of the testbed still exists on the machine, in words."""
    left = [f"control group {group}" for group in groups]
    points = [line.split()[1] for line in mounts.splitlines()]
    left += [f"mount {point}" for point in points if Path(point).is_relative_to(layout.folder)]
    left += [f"process {pid} of a testbed user" for pid in processes_of(testbed_user_ids(layout))]
    if Path("/sys/class/net", layout.link).exists():
        left.append(f"network interface {layout.link}")
    return left


def remove_users(testbed: Testbed) -> None:
    """Remove the users that the testbed made, and no others."""
    layout = testbed.layout
    made = layout.cache / "users"
    names = set(made.read_text(encoding="utf-8").split()) if made.exists() else set()
    for name in sorted(names & {layout.laptop_user, layout.hpc_user}):
        testbed.commands.run(["userdel", name])
    made.unlink(missing_ok=True)
