"""Real OpenSSH for tests: `sshd`, `ssh-agent`, and a home folder with a configuration."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SSHD = "/usr/sbin/sshd"
SITE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = getpass.getuser()


def _need_openssh() -> None:
    missing = [name for name in (SSHD, "ssh", "ssh-agent", "ssh-keygen") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (Debian packages openssh-client and openssh-server)")


def make_key(path: Path, passphrase: str = "") -> Path:
    """Create a key pair, the private key at `path`; return it. Skip the test if OpenSSH is not installed."""
    _need_openssh()
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


@dataclass(frozen=True)
class Sshd:
    """A server on 127.0.0.1.

    Attributes:
        log: its log file, with each channel.
        known_host: its host key as a line of known_hosts.
    """

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def known_host(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.host_key}\n"


@dataclass(frozen=True, kw_only=True)
class Account:
    """An account of one server only. It has the rights of root, so that it can use the files of a test.

    Attributes:
        shell: path of its login shell.
        files: name to text of files in its home folder; None for an account whose home folder is missing.
        settings: lines of sshd_config for this account.
    """

    name: str
    shell: str = "/bin/sh"
    files: Mapping[str, str] | None = field(default_factory=dict)
    settings: Sequence[str] = ()


def _namespace(folder: Path, accounts: Sequence[Account], own_disk: Path | None) -> list[str]:
    """Return words that start `sshd` with a private password file, and with a disk of its own at a path."""
    if not accounts and own_disk is None:
        return []
    if os.getuid() != 0:
        pytest.skip("accounts and disks of a test server need root and unshare (util-linux)")
    places = _password_files(folder, accounts) if accounts else {}
    if own_disk is not None:
        for path in (own_disk, folder / "disk"):
            path.mkdir(parents=True, exist_ok=True)
        places[folder / "disk"] = own_disk
    mounts = " && ".join(f"mount --bind {shlex.quote(str(one))} {shlex.quote(str(at))}" for one, at in places.items())
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts} && exec "$@"', "sh"]


def _password_files(folder: Path, accounts: Sequence[Account]) -> dict[Path, Path]:
    """Write a password file with the accounts; return the files and where they are mounted."""
    passwd, shadow = Path("/etc/passwd").read_text(), Path("/etc/shadow").read_text()
    for account in accounts:
        home = folder / "homes" / account.name
        passwd += f"{account.name}:x:0:0::{home}:{account.shell}\n"
        shadow += f"{account.name}:*:19000:0:99999:7:::\n"
        if account.files is not None:
            home.mkdir(parents=True)
            for name, text in account.files.items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_text(text)
    for name, text in (("passwd", passwd), ("shadow", shadow)):
        (folder / name).write_text(text)
    return {folder / name: Path("/etc", name) for name in ("passwd", "shadow")}


@contextlib.contextmanager
def sshd(
    folder: Path, accepted: list[Path], *settings: str, accounts: Sequence[Account] = (), own_disk: Path | None = None
) -> Iterator[Sshd]:
    """Yield a server that accepts these keys, while the context lasts; `settings` are lines of sshd_config.

    Args:
        accounts: further accounts, each with its login shell and start-up files.
        own_disk: a path where this server sees another folder than this machine (`folder / "disk"`).
    """
    folder.mkdir(parents=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it; packages make it at boot
    key = make_key(folder / "host_key")
    (folder / "home").mkdir()  # this machine's dotfiles are not the site's: some of them take longer than a copy
    (folder / "authorized").write_text("".join(Path(f"{key}.pub").read_text() for key in accepted))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {key}",
        f"AuthorizedKeysFile {folder / 'authorized'}",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin yes",
        "LogLevel DEBUG1",
        *([] if accounts else [f"SetEnv HOME={folder / 'home'} PATH={SITE_PATH}"]),
        *(
            line
            for account in accounts
            if account.settings
            for line in (f"Match User {account.name}", *account.settings)
        ),
    ]
    (folder / "config").write_text("\n".join([*settings, *lines, ""]))
    words = [*_namespace(folder, accounts, own_disk), SSHD, "-D", "-e", "-f", str(folder / "config")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
    server = Sshd(port, folder, process)
    try:
        deadline = time.monotonic() + 20
        while "Server listening" not in server.log:
            assert process.poll() is None, server.log
            assert time.monotonic() < deadline, server.log
            time.sleep(0.02)
        yield server
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def agent(socket_path: Path, *keys: Path) -> Iterator[None]:
    """Yield an ssh-agent that holds these keys, while the context lasts."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not socket_path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        environment = os.environ | {"SSH_AUTH_SOCK": str(socket_path)}
        for key in keys:
            subprocess.run(["ssh-add", "-q", key], env=environment, check=True)
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def control_master(config: Path, host: str) -> Iterator[None]:
    """Run `ssh -M HOST`, as a user opens it, while the context lasts."""
    words = ["ssh", "-F", str(config), "-o", "BatchMode=yes"]
    subprocess.run([*words, "-M", "-N", "-f", host], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        close_master(config, host)


def close_master(config: Path, host: str) -> None:
    """Close the master connection; no error if it has ended."""
    subprocess.run(["ssh", "-F", str(config), "-O", "exit", host], check=False, stderr=subprocess.DEVNULL)
