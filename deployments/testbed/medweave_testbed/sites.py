"""The two sites that are not the laptop: their namespaces and what each of them sees of the file system."""

from __future__ import annotations

from . import node, slurm
from .layout import Layout
from .part import Part, Testbed
from .walls import HPC, KUBERNETES, NetworkView, hosts_file


def hpc_view(layout: Layout) -> NetworkView:
    """Return the login node and the Slurm nodes."""
    return NetworkView(
        hostname="login",
        state=layout.slurm / "site",
        closed=(layout.laptop, layout.pods, layout.kubernetes),
        bound=((layout.slurm / "hosts", "/etc/hosts"), (slurm.configuration(layout), "/etc/slurm")),
        folders=(
            ("/run/sshd", "root", 0o755),
            ("/run/munge", "munge", 0o755), ("/var/lib/munge", "munge", 0o700), ("/var/log/munge", "munge", 0o700),
            ("/run/mysqld", "mysql", 0o755), ("/var/lib/mysql", "mysql", 0o700),
            ("/run/slurm", "slurm", 0o755), ("/var/lib/slurm/slurmctld", "slurm", 0o700), ("/var/spool", "root", 0o755),
        ),
    )  # fmt: skip


def kubernetes_view(layout: Layout) -> NetworkView:
    """The cluster's node. The kubelet is shown kernel settings as it wants them, so that it changes none of the machine's."""
    settings = layout.kubernetes / "kernel"
    return NetworkView(
        hostname="testbed",
        state=layout.kubernetes / "site",
        closed=(layout.laptop, layout.hpc, layout.slurm),
        bound=(
            (layout.kubernetes / "hosts", "/etc/hosts"),
            (layout.cache / "containerd", "/var/lib/containerd"),  # images stay over a `down`
            *((settings / name.replace("/", "."), f"/proc/sys/{name}") for name in node.KERNEL_SETTINGS),
        ),
        folders=tuple(
            (path, "root", 0o700)
            for path in ("/var/lib/etcd", "/var/lib/kubelet", "/var/lib/containerd", "/run/containerd")
        ),
    )


def start(testbed: Testbed) -> None:
    """Create the namespaces; an earlier, incomplete set of them is ended first, with everything that runs inside."""
    layout = testbed.layout
    testbed.walls.fall()
    for folder in (layout.slurm, layout.kubernetes):
        (folder / "hosts").write_text(hosts_file(layout), encoding="utf-8")
    settings = layout.kubernetes / "kernel"
    settings.mkdir(exist_ok=True)
    (layout.cache / "containerd").mkdir(mode=0o700, exist_ok=True)
    for name, value in node.KERNEL_SETTINGS.items():
        (settings / name.replace("/", ".")).write_text(value + "\n", encoding="utf-8")
    slurm.write_configuration(layout, testbed.commands)
    testbed.walls.raise_base()
    testbed.walls.raise_view(HPC, hpc_view(layout))
    testbed.walls.raise_view(KUBERNETES, kubernetes_view(layout))


def trouble(testbed: Testbed) -> str | None:
    """Which namespace or link is missing."""
    if testbed.walls.base is None:
        return "its namespaces do not exist"
    for name in (HPC, KUBERNETES):
        if testbed.walls.view(name) is None:
            return f"the view of {name} is gone"
    code, output, _ = testbed.commands.outcome(["ip", "-brief", "address", "show", testbed.layout.link])
    if code != 0 or testbed.layout.laptop_address not in output:
        return f"there is no interface {testbed.layout.link} with address {testbed.layout.laptop_address}"
    return None


def parts() -> list[Part]:
    """Return the sites' part."""
    return [Part(name="sites", needs=("packages", "users"), trouble=trouble, start=start)]
