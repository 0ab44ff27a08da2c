"""What the machine must be and have before anything is started: system, rights, room, a Go compiler or ready programs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from .errors import STILL_WORKS, TestbedError
from .layout import COREDNS_VERSION, HELM_VERSION, KUBERNETES_PROGRAMS, KUBERNETES_VERSION, Layout

LEAST_GO = (1, 24)
LEAST_FREE_MIB = 5_000
# A first `up` makes the worker environment (7 GB, most of it PyTorch's CUDA libraries), builds programs and a base image.
FIRST_FREE_MIB = 16_000
PROGRAMS = (*KUBERNETES_PROGRAMS, "coredns", "helm")


def system_of(os_release: str) -> dict[str, str]:
    """Return the fields of /etc/os-release."""
    pairs = (line.split("=", 1) for line in os_release.splitlines() if "=" in line and not line.startswith("#"))
    return {key: value.strip().strip("\"'") for key, value in pairs}


def check_system(os_release: str) -> None:
    """Raises: TestbedError: the machine is neither Debian nor one of its descendants."""
    fields = system_of(os_release)
    if "debian" in {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}:
        return
    raise TestbedError(
        "the testbed cannot be made on this system.",
        seen=fields.get("PRETTY_NAME") or fields.get("ID") or "no /etc/os-release",
        expected="Debian or Ubuntu (Slurm, MariaDB, containerd and etcd come from their packages)",
        do=f"use a Debian machine or virtual machine; {STILL_WORKS}",
    )


def check_rights(user_id: int) -> None:
    """Raises: TestbedError: we are not root."""
    if user_id == 0:
        return
    raise TestbedError(
        "the testbed needs root.",
        seen=f"user id {user_id}",
        expected="user id 0: it makes namespaces, mounts and users, and installs packages",
        do=f"run it as root, for example by `sudo make testbed`; {STILL_WORKS}",
    )


def check_room(folder: Path, free_mib: int, *, first: bool) -> None:
    """Raises: TestbedError: too little room for a first `up`, or for one that finds its environment and images made."""
    needed_mib = FIRST_FREE_MIB if first else LEAST_FREE_MIB
    if free_mib >= needed_mib:
        return
    raise TestbedError(
        f"too little room on the disk of {folder}.",
        seen=f"{free_mib} MiB free",
        expected=f"{needed_mib} MiB or more" + (" for the first `make testbed`" if first else ""),
        do=f"free some space, or name a folder on another disk by MEDWEAVE_TESTBED=/that/disk/testbed; {STILL_WORKS}",
    )


def free_mib(folder: Path) -> int:
    """MiB that can still be written on the disk of a folder that need not exist yet."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free // 2**20


def go_version(text: str) -> tuple[int, int] | None:
    """(1, 24) of "go version go1.24.3 linux/amd64"; None if it says no version."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def find_go(environment: Mapping[str, str]) -> str | None:
    """Return the Go compiler on the PATH, or where its own installer puts it."""
    return shutil.which("go", path=f"{environment.get('PATH', os.defpath)}{os.pathsep}/usr/local/go/bin")


def check_go(version: tuple[int, int] | None) -> None:
    """Raises: TestbedError: there is no Go compiler, or it is too old for Kubernetes 1.34."""
    if version is not None and version >= LEAST_GO:
        return
    raise TestbedError(
        "Kubernetes and Helm cannot be built.",
        seen="no Go compiler" if version is None else f"Go {version[0]}.{version[1]}",
        expected=f"Go {LEAST_GO[0]}.{LEAST_GO[1]} or newer on the PATH or in /usr/local/go (Debian 12's own is too old)",
        do="install Go from go.dev, or name a folder of ready programs by MEDWEAVE_TESTBED_BINARIES=DIR: "
        + f"Kubernetes {KUBERNETES_VERSION} ({', '.join(KUBERNETES_PROGRAMS)}), coredns {COREDNS_VERSION}, "
        + f"helm {HELM_VERSION} or another Helm 4; {STILL_WORKS}",
    )


def check_ready_programs(folder: Path) -> None:
    """Raises: TestbedError: the folder that MEDWEAVE_TESTBED_BINARIES names lacks programs."""
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if not missing:
        return
    raise TestbedError(
        f"MEDWEAVE_TESTBED_BINARIES={folder} lacks programs.",
        seen=f"no executable file {', '.join(missing)}",
        expected=f"all of {', '.join(PROGRAMS)} (files or links)",
        do="put them there, or unset MEDWEAVE_TESTBED_BINARIES to build them",
    )


def is_first(layout: Layout) -> bool:
    """Return whether the big parts (programs, environment, base image) are still to be made."""
    return not (layout.environment / ".made").exists() or not (layout.bin / ".made").exists()
