"""Where everything of one testbed lies: folders, addresses, ports and names. Nothing else in the package spells a path out."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import TestbedError

DEFAULT_FOLDER = Path("/opt/medweave-testbed")
ROOT = Path(__file__).resolve().parents[3]  # of the checkout

KUBERNETES_VERSION = "v1.34.4"
COREDNS_VERSION = "v1.12.4"
HELM_VERSION = "v4.0.5"
KUBERNETES_PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
)  # fmt: skip

POD_UID = 10001
TENANTS = ("tenant-a", "tenant-b")
SLURM_NODES = ("n1", "n2")
SLURM_ACCOUNT = "research"

# Each site gets its own copy of these folders (walls.py), so nothing of the testbed may lie below the machine's.
PRIVATE_FOLDERS = (Path("/var"), Path("/run"), Path("/tmp"), Path("/dev"), Path("/proc"), Path("/sys"))
LONGEST_SOCKET = 107  # bytes of a Unix socket's path, the final zero excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One testbed's folder and number.

    Attributes:
        folder: everything lies below it.
        instance: 0 for the default folder; another folder's own number keeps two testbeds' addresses and links apart.
    """

    folder: Path
    instance: int

    @property
    def bin(self) -> Path:
        """The programs: Kubernetes, CoreDNS, Helm."""
        return self.folder / "bin"

    @property
    def cache(self) -> Path:
        """Folders that a `down` leaves for the next `up`."""
        return self.folder / "cache"

    @property
    def environment(self) -> Path:
        """The worker environment; the same path on the login node, in Slurm jobs, in pods and for the driver."""
        return self.folder / "environment"

    @property
    def log(self) -> Path:
        """One log file per daemon and per long command."""
        return self.folder / "log"

    @property
    def run(self) -> Path:
        """Process ids and locks."""
        return self.folder / "run"

    @property
    def kubernetes(self) -> Path:
        """State of the cluster: certificates, kubeconfigs, what its processes see as /var and /tmp."""
        return self.folder / "kubernetes"

    @property
    def admin_kubeconfig(self) -> Path:
        """All rights in the cluster; root's only."""
        return self.kubernetes / "admin.kubeconfig"

    @property
    def slurm(self) -> Path:
        """State of Slurm that its users must not read: the database, keys, what its processes see as /var."""
        return self.folder / "slurm"

    @property
    def laptop(self) -> Path:
        """Root of the driver's site."""
        return self.folder / "laptop"

    @property
    def laptop_home(self) -> Path:
        """Home of the driver's user."""
        return self.laptop / "home"

    @property
    def hpc(self) -> Path:
        """Root of the HPC site: home and scratch of its user."""
        return self.folder / "hpc"

    @property
    def pods(self) -> Path:
        """Root of the data that pods reach through volume claims."""
        return self.folder / "pods"

    @property
    def laptop_user(self) -> str:
        """The driver's user."""
        return "medweave-laptop" + self._suffix

    @property
    def hpc_user(self) -> str:
        """The user of the HPC site: ssh and Slurm jobs."""
        return "medweave-hpc" + self._suffix

    @property
    def _suffix(self) -> str:
        return f"-{self.instance}" if self.instance else ""

    @property
    def link(self) -> str:
        """The one network interface on the machine's side."""
        return f"medweave{self.instance}"

    # 198.18.0.0/15 is set aside for tests of networks (RFC 2544): no real network uses it.
    @property
    def laptop_address(self) -> str:
        """The machine's side of the link."""
        return f"198.18.{self.instance}.1"

    @property
    def address(self) -> str:
        """The sites' side of the link: login node and Kubernetes node."""
        return f"198.18.{self.instance}.2"

    pod_network = "198.19.0.0/17"
    service_network = "198.19.128.0/17"
    first_service = "198.19.128.1"
    api_port, etcd_port, ssh_port, slurmctld_port = 6443, 2379, 22, 6817
    slurmd_ports = (17001, 17002)

    @property
    def api_server(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def cgroup(self) -> str:
        """The group below which all of the cluster's own control groups lie, in every hierarchy."""
        return f"medweave-testbed-{self.instance}"

    @property
    def containerd_socket(self) -> Path:
        """containerd's socket; reached by path from every mount namespace."""
        return self.run / "containerd.sock"


def layout_of(environment: Mapping[str, str]) -> Layout:
    """Return the testbed that MEDWEAVE_TESTBED names, or the default one.

    Raises:
        TestbedError: the folder cannot hold a testbed (relative, too long for sockets, below a folder that sites replace).
    """
    text = environment.get("MEDWEAVE_TESTBED") or str(DEFAULT_FOLDER)
    folder = Path(os.path.normpath(text))
    below = [private for private in PRIVATE_FOLDERS if folder.is_relative_to(private)]
    longest = len(os.fsencode(folder / "run" / "containerd.sock.ttrpc"))
    if folder.is_absolute() and folder != Path("/") and not below and longest <= LONGEST_SOCKET:
        instance = 0 if folder == DEFAULT_FOLDER else 1 + zlib.crc32(os.fsencode(folder)) % 250
        return Layout(folder=folder, instance=instance)
    raise TestbedError(
        "the testbed cannot lie in that folder.",
        seen=f"MEDWEAVE_TESTBED={text!r}" + (f", below {below[0]}" if below else ""),
        expected="an absolute path, at most 80 bytes long, outside "
        + ", ".join(map(str, PRIVATE_FOLDERS))
        + " (each site gets its own folders there)",
        do=f"unset MEDWEAVE_TESTBED (then it is {DEFAULT_FOLDER}) or name another folder",
    )
