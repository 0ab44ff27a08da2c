"""The hop from the laptop to the HPC site: an sshd with its own host key, and the laptop user's home with keys for it."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from . import certificates, tenants
from .layout import SLURM_ACCOUNT, Layout
from .part import Part, Testbed
from .walls import HPC

HOST_ALIAS = "testbed-login"


def sshd_config(layout: Layout) -> str:
    """sshd of the login node: one user, keys only; commands find Slurm and the worker environment."""
    path = f"{layout.environment}/bin:/usr/local/bin:/usr/bin:/bin"
    return f"""ListenAddress {layout.address}
Port {layout.ssh_port}
HostKey {layout.slurm}/ssh_host_ed25519_key
PidFile none
AuthorizedKeysFile {layout.hpc}/home/.ssh/authorized_keys
AllowUsers {layout.hpc_user}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
MaxSessions 200
MaxStartups 200
PrintMotd no
SetEnv PATH={path}
Subsystem sftp internal-sftp
"""


def ssh_config(layout: Layout) -> str:
    """~/.ssh/config of the laptop's user."""
    return f"""Host {HOST_ALIAS} {layout.address}
    HostName {layout.address}
    Port {layout.ssh_port}
    User {layout.hpc_user}
    IdentityFile {layout.laptop_home}/.ssh/id_ed25519
    UserKnownHostsFile {layout.laptop_home}/.ssh/known_hosts
    StrictHostKeyChecking yes
"""


def environment_sh(layout: Layout) -> str:
    """Return what a shell of the laptop's user sources: programs, kubeconfig, and the sites' facts that a site file refers to."""
    values = {
        "HOME": layout.laptop_home,
        "MEDWEAVE_TESTBED": layout.folder,
        "MEDWEAVE_TESTBED_ENVIRONMENT": layout.environment,
        "MEDWEAVE_TESTBED_LOGIN_HOST": layout.address,
        "MEDWEAVE_TESTBED_LOGIN_PORT": layout.ssh_port,
        "MEDWEAVE_TESTBED_LOGIN_USER": layout.hpc_user,
        "MEDWEAVE_TESTBED_ACCOUNT": SLURM_ACCOUNT,
        "MEDWEAVE_TESTBED_SCRATCH": layout.hpc / "scratch",
        "KUBECONFIG": tenants.kubeconfig_of(layout, "tenant-a"),
    }
    lines = [f"export {name}='{value}'" for name, value in values.items()]
    return "\n".join([*lines, f"export PATH='{layout.environment}/bin:{layout.bin}':\"$PATH\"", ""])


def start_login(testbed: Testbed) -> None:
    """Create the host key and the laptop's key pair where they are missing, and start sshd."""
    layout = testbed.layout
    laptop, hpc = layout.laptop_home / ".ssh", layout.hpc / "home" / ".ssh"
    for folder, owner in ((laptop, layout.laptop_user), (hpc, layout.hpc_user)):
        folder.mkdir(mode=0o700, exist_ok=True)
        own(folder, owner)
    for key, owner in ((layout.slurm / "ssh_host_ed25519_key", "root"), (laptop / "id_ed25519", layout.laptop_user)):
        if not key.exists():
            comment = "login node" if owner == "root" else "testbed laptop"
            testbed.commands.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", key])
        for file in (key, key.with_name(key.name + ".pub")):
            own(file, owner)
    host_key = (layout.slurm / "ssh_host_ed25519_key.pub").read_text(encoding="utf-8")
    known = host_key.rsplit(" ", 2)[0]
    write_owned(laptop / "known_hosts", f"{layout.address} {known}\n", layout.laptop_user)
    write_owned(laptop / "config", ssh_config(layout), layout.laptop_user)
    write_owned(hpc / "authorized_keys", (laptop / "id_ed25519.pub").read_text(encoding="utf-8"), layout.hpc_user)
    (layout.slurm / "sshd_config").write_text(sshd_config(layout), encoding="utf-8")
    words = ["/usr/sbin/sshd", "-D", "-e", "-f", str(layout.slurm / "sshd_config")]
    testbed.daemons.start("login", words, view=HPC)


def login_trouble(testbed: Testbed) -> str | None:
    """Return why no ssh server answers at the login node's address."""
    address = (testbed.layout.address, testbed.layout.ssh_port)
    try:
        with socket.create_connection(address, timeout=3) as connection:
            banner = connection.recv(64)
    except OSError as problem:
        return f"{address[0]} port {address[1]} does not answer ({problem})"
    return None if banner.startswith(b"SSH-2.0-") else f"{address[0]} port {address[1]} says {banner!r}"


def start_laptop(testbed: Testbed) -> None:
    """Write the laptop user's environment file."""
    layout = testbed.layout
    write_owned(layout.laptop / "environment.sh", environment_sh(layout), layout.laptop_user)


def laptop_trouble(testbed: Testbed) -> str | None:
    """Return whether the laptop's user gets through to the login node with its own key, the host key checked."""
    file = testbed.layout.laptop / "environment.sh"
    if not file.exists() or file.read_text(encoding="utf-8") != environment_sh(testbed.layout):
        return f"{file} is missing or not current"
    user = testbed.layout.laptop_user
    identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    words = [
        "ssh",
        "-F",
        str(testbed.layout.laptop_home / ".ssh" / "config"),
        "-o",
        "BatchMode=yes",
        HOST_ALIAS,
        "true",
    ]
    code, _, errors = testbed.commands.outcome([*identity, *words], timeout_s=10)
    return None if code == 0 else f"ssh to the login node: {' '.join(errors.split())[:200]}"


def write_owned(file: Path, text: str, owner: str) -> None:
    """Write a file that only its owner reads."""
    user = pwd.getpwnam(owner)
    certificates.write_private(file, text, (user.pw_uid, user.pw_gid))


def own(path: Path, owner: str) -> None:
    """Give a file or folder to a user."""
    user = pwd.getpwnam(owner)
    os.chown(path, user.pw_uid, user.pw_gid)


def parts() -> list[Part]:
    """Return the login node's and the laptop's part."""
    return [
        Part(
            name="login", needs=("sites",), daemon="login", port=Layout.ssh_port, trouble=login_trouble,
            start=start_login,
        ),
        Part(name="laptop", needs=("login", "tenants"), trouble=laptop_trouble, start=start_laptop),
    ]  # fmt: skip
