"""All parts of a testbed, in an order in which they can be read; `needs` says in which order they come up."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from . import (
    binaries,
    control_plane,
    environment,
    images,
    login,
    machine,
    node,
    packages,
    sites,
    slurm,
    tenants,
    users,
    volumes,
)
from .errors import TestbedError
from .layout import Layout
from .part import Part, Testbed


def check_machine(testbed: Testbed) -> None:
    """Raises: TestbedError: the machine cannot hold the testbed."""
    layout = testbed.layout
    release = Path("/etc/os-release")
    machine.check_system(release.read_text(encoding="utf-8") if release.exists() else "")
    machine.check_rights(os.geteuid())
    machine.check_room(layout.folder, machine.free_mib(layout.folder), first=machine.is_first(layout))
    if not testbed.environment.get("MEDWEAVE_TESTBED_BINARIES") and binaries.trouble(layout, testbed.environment):
        go = machine.find_go(testbed.environment)
        version = testbed.commands.outcome([go, "env", "GOVERSION"], folder=binaries.SOURCES)[1] if go else ""
        machine.check_go(machine.go_version(version))


def _machine_trouble(testbed: Testbed) -> str | None:
    check_machine(testbed)  # the error is the reason
    return None


def _packages_trouble(testbed: Testbed) -> str | None:
    missing = packages.missing(testbed.commands)
    return f"not installed: {', '.join(missing)}" if missing else None


def _first_parts() -> list[Part]:
    return [
        Part(name="machine", trouble=_machine_trouble, start=check_machine),
        Part(
            name="packages", needs=("machine",), trouble=_packages_trouble,
            start=lambda testbed: packages.install(testbed.layout, testbed.commands), slow="apt-get install",
        ),
        *users.parts(),
        Part(
            name="binaries", needs=("machine",),
            trouble=lambda testbed: binaries.trouble(testbed.layout, testbed.environment),
            start=lambda testbed: binaries.make(testbed.layout, testbed.commands, testbed.environment),
            slow="building Kubernetes, CoreDNS and Helm (6 minutes on 2 cores)",
        ),
        *environment.parts(),
        *sites.parts(),
    ]  # fmt: skip


def _cluster_trouble(testbed: Testbed) -> str | None:
    words = testbed.kubectl_words("get", "--raw", "/readyz")
    code, _, errors = testbed.commands.outcome(words, timeout_s=10)
    return None if code == 0 else " ".join(errors.split())[:200]


def _refuse_cluster(testbed: Testbed) -> None:
    raise TestbedError(
        "cluster: the existing cluster does not answer.",
        seen=_cluster_trouble(testbed) or "it answers now",
        expected=f"an administrator's kubeconfig of a cluster that answers ({testbed.kubeconfig})",
        do="correct KUBECONFIG, or unset MEDWEAVE_TESTBED_KUBERNETES for a cluster of the testbed's own",
    )


def parts_of(layout: Layout, *, existing_cluster: bool) -> list[Part]:
    """Return the parts of a testbed: with its own cluster, or with an existing cluster of the user."""
    if existing_cluster:
        cluster = [Part(name="cluster", needs=("binaries",), trouble=_cluster_trouble, start=_refuse_cluster)]
        tenant_parts = [replace(part, needs=("cluster", "users")) for part in tenants.parts()]
        kubernetes = [*cluster, *tenant_parts]
    else:
        kubernetes = [
            *control_plane.parts(layout), *node.parts(layout), *images.parts(), *tenants.parts(), *volumes.parts(),
        ]  # fmt: skip
    return in_order([*_first_parts(), *kubernetes, *slurm.parts(layout), *login.parts()])


def in_order(parts: Sequence[Part]) -> list[Part]:
    """Return the same parts, checked: names are unique and every need comes earlier."""
    seen: set[str] = set()
    for part in parts:
        assert part.name not in seen, f"two parts are called {part.name}"
        assert seen.issuperset(part.needs), f"{part.name} needs {set(part.needs) - seen}, which come later or never"
        seen.add(part.name)
    return list(parts)


def slow_parts(parts: Sequence[Part], only: Collection[str] = ()) -> list[Part]:
    """Return the parts that take minutes the first time, and the parts that these need; they leave no process running.

    Args:
        only: names of some of them; empty: all.
    Raises:
        TestbedError: one of the names is of no slow part.
    """
    slow = {part.name for part in parts if part.slow}
    if unknown := set(only) - slow:
        raise TestbedError(
            "there is no such part to prepare.",
            seen=", ".join(sorted(unknown)),
            expected=f"some of {', '.join(sorted(slow))}",
            do="correct the name, or name none to prepare all",
        )
    chosen = set(only) or slow
    chosen |= {need for part in parts if part.name in chosen for need in part.needs}
    selected = [part for part in parts if part.name in chosen]
    assert all(part.daemon is None for part in selected), "something that is only made needs a daemon"
    return in_order(selected)
