"""Real OpenSSH for tests: `sshd`, `ssh-agent`, and a home folder with a configuration."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
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
    """A new key pair; the private half is at `path`. The test is skipped where OpenSSH is not installed."""
    _need_openssh()
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


@dataclass(frozen=True)
class Sshd:
    """A server on 127.0.0.1.

    Attributes:
        log: what it says, with each channel.
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


@contextlib.contextmanager
def sshd(folder: Path, accepted: list[Path], *settings: str) -> Iterator[Sshd]:
    """A server that lets these keys in, while the context lasts; `settings` are lines of sshd_config."""
    folder.mkdir(parents=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it; packages make it at boot
    key = make_key(folder / "host_key")
    (folder / "home").mkdir()  # this machine's dotfiles are not the site's: some of them take longer than a copy
    (folder / "authorized").write_text("".join(Path(f"{each}.pub").read_text() for each in accepted))
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
        f"SetEnv HOME={folder / 'home'} PATH={SITE_PATH}",
    ]
    (folder / "config").write_text("\n".join([*settings, *lines, ""]))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stdin=subprocess.DEVNULL, stderr=log)
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
    """An ssh-agent that holds these keys, while the context lasts."""
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
    """`ssh -M HOST`, as a user opens it, while the context lasts."""
    words = ["ssh", "-F", str(config), "-o", "BatchMode=yes"]
    subprocess.run([*words, "-M", "-N", "-f", host], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        close_master(config, host)


def close_master(config: Path, host: str) -> None:
    """Ends it; no error where it has ended."""
    subprocess.run(["ssh", "-F", str(config), "-O", "exit", host], check=False, stderr=subprocess.DEVNULL)
