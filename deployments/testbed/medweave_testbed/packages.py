"""Debian's packages that the testbed's daemons come from, installed without starting one of Debian's own services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .commands import Commands
from .layout import Layout

PACKAGES = (
    "slurm-wlm", "slurmdbd", "mariadb-server", "munge", "environment-modules", "openssh-server", "openssh-client",
    "etcd-server", "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "socat",
    "buildah", "debootstrap", "gcc", "libc6-dev", "openssl", "iproute2", "procps", "ca-certificates", "python3-venv",
)  # fmt: skip
SERVICES = {
    "slurm-wlm": ("slurmctld", "slurmd"), "slurmdbd": ("slurmdbd",), "mariadb-server": ("mariadb",), "munge": ("munge",),
    "openssh-server": ("ssh",), "etcd-server": ("etcd",), "containerd": ("containerd",),
}  # fmt: skip
_POLICY = Path("/usr/sbin/policy-rc.d")


def installed(status: str) -> set[str]:
    """Return the names of the installed packages in the output of dpkg-query, "name<TAB>status" a line."""
    pairs = (line.split("\t") for line in status.splitlines())
    return {pair[0] for pair in pairs if len(pair) == 2 and pair[1].endswith(" installed")}


def missing(commands: Commands) -> list[str]:
    """Return the packages that still have to be installed."""
    words = ["dpkg-query", "--show", "--showformat=${Package}\t${Status}\n", *PACKAGES]
    have = installed(commands.outcome(words)[1])
    return [name for name in PACKAGES if name not in have]


def install(layout: Layout, commands: Commands) -> None:
    """Install what is missing; no service is started, and on a machine with systemd no new one starts at the next boot."""
    names = missing(commands)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    do = "let `apt-get install` of these packages succeed (network, sources, another apt that runs), then run again"
    log = layout.log / "packages.log"
    with services_held_back():
        commands.run(["apt-get", "update", "-qq"], environment=environment, log=log, do=do)
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *names]
        commands.run(words, environment=environment, log=log, do=do)
    services = [service for name in names for service in SERVICES.get(name, ())]
    if services and Path("/run/systemd/system").exists():
        commands.outcome(["systemctl", "disable", "--quiet", *services])


@contextmanager
def services_held_back() -> Iterator[None]:
    """Debian's packages ask this program whether they may start their service; a machine's own answer stays in place."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
