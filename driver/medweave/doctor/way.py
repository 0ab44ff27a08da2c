"""The way to a machine by paramiko: the host, keys and jump hosts that `ssh` would take. Each hop's host key is checked."""

from __future__ import annotations

import contextlib
import getpass
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from medweave_connectors.ssh.command_line import ssh_words
from medweave_connectors.ssh.settings import DEFAULT_PORT, HostSettings, is_node, parse, plain, split_jump

MOST_JUMPS = 8


class Closed(Exception):
    """Nobody can go there; `do` says what to change."""

    def __init__(self, seen: str, do: str) -> None:
        super().__init__(seen)
        self.do = do


class Taken(Closed):
    """It is reached through the user's open ControlMaster, which only OpenSSH can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A machine as the site file has it; what is empty is left to ssh's configuration."""

    where: str
    host: str
    port: int | None
    user: str = ""
    key: str = ""
    passphrase: str | None = None
    known_hosts: str = ""
    limit_s: float = 10.0


def login_of(where: str, node: str, config: dict[str, Any], limit_s: float) -> Login:
    """The login to one of a deployment's nodes.

    Args:
        where: the deployment's `config` in the site file.
        config: with absolute paths and without variables.

    Raises:
        Closed: the node's port is none, or the file with the passphrase cannot be read.
    """
    if not is_node(node):
        raise Closed(f"{node} has no port from 1 to 65535", f"{where}.nodes: correct the port")
    _, host, port = split_jump(node)
    file = config.get("sshKeyPassphraseFile")
    try:
        passphrase = Path(file).read_text(encoding="utf-8").strip() if file else None
    except (OSError, ValueError) as error:
        seen = f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise Closed(seen, f"{where}.sshKeyPassphraseFile: correct the path") from error
    return Login(
        where=where,
        host=host,
        port=port,
        user=config.get("username", ""),
        key=config.get("sshKey", ""),
        passphrase=passphrase,
        known_hosts=config.get("knownHosts", ""),
        limit_s=limit_s,
    )


@contextlib.contextmanager
def connected(login: Login) -> Iterator[paramiko.SSHClient]:
    """A connection to a machine.

    Raises:
        Closed: why there is none.
    """
    with contextlib.ExitStack() as held:
        yield _connect(login, login.host, login.user, login.port, held, MOST_JUMPS)


def settings_of(login: Login) -> HostSettings:
    """What ssh's configuration says of the machine.

    Raises:
        Closed: it cannot be asked.
    """
    return _settings(login, login.host, login.user, login.port)


def _connect(
    login: Login, host: str, user: str, port: int | None, held: contextlib.ExitStack, left: int
) -> paramiko.SSHClient:
    settings = _settings(login, host, user, port)
    if settings.control_path and Path(settings.control_path).exists():
        raise Taken(
            f"{host} is reached through your open ControlMaster, which only OpenSSH can use: not tried by doctor",
            f"runs use it; try it by hand: `{shlex.join(ssh_words(host, user, port))} true`, or close it: `ssh -O exit {host}`",
        )
    if settings.jumps and not left:
        raise Closed(f"more than {MOST_JUMPS} jump hosts, one behind the other", "correct ProxyJump in ~/.ssh/config")
    via: paramiko.SSHClient | str | None = None
    for jump in settings.jumps:
        jump_user, jump_host, jump_port = split_jump(jump)
        try:
            via = _connect(login, jump_host, jump_user, jump_port, held, left - 1)
        except Taken:  # its master lets OpenSSH's `-W` through
            on = f"[{settings.hostname}]:{settings.port}"
            via = shlex.join(ssh_words(jump_host, jump_user, jump_port, "-o", "BatchMode=yes", "-W", on))
    client = held.enter_context(_client(login, settings))
    name = settings.host_key_alias or settings.hostname
    try:
        client.connect(
            name,
            port=DEFAULT_PORT if settings.host_key_alias else settings.port,  # an alias stands alone in known_hosts
            sock=_socket(settings, via, login.limit_s),
            username=settings.user,
            key_filename=_key_files(login, settings),
            passphrase=login.passphrase,
            look_for_keys=False,
            allow_agent=not login.key and bool(settings.agent),
            timeout=login.limit_s,
            banner_timeout=login.limit_s,
            auth_timeout=login.limit_s,
            channel_timeout=login.limit_s,
        )
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise _closed(error, login, settings) from error
    return client


def _settings(login: Login, host: str, user: str, port: int | None) -> HostSettings:
    """What ssh's configuration says of a host."""
    if shutil.which("ssh") is None:
        return plain(host, user or getpass.getuser(), port)
    try:
        ended = subprocess.run(
            ssh_words(host, user, port, "-G", "-T"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=login.limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        do = "look for a `Match exec` in ~/.ssh/config"
        raise Closed(f"`ssh -G {host}` has not ended after {login.limit_s:.0f} s", do) from None
    if ended.returncode:
        raise Closed(
            f"`ssh -G {host}`: {ended.stderr.strip()[:160]}", "correct ~/.ssh/config, or the name in the site file"
        )
    return parse(host, ended.stdout)


def _key_files(login: Login, settings: HostSettings) -> Any:  # a list, which the stubs do not know
    return [login.key] if login.key else [each for each in settings.identity_files if Path(each).is_file()]


def _client(login: Login, settings: HostSettings) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for file in [login.known_hosts] if login.known_hosts else settings.known_hosts:
        with contextlib.suppress(FileNotFoundError):
            client.load_system_host_keys(file)
    return client


def _socket(settings: HostSettings, via: paramiko.SSHClient | str | None, limit_s: float) -> Any:
    target = settings.hostname, settings.port
    if isinstance(via, str):
        return paramiko.ProxyCommand(via)
    if via is not None:
        transport = via.get_transport()
        assert transport is not None  # it is connected
        return transport.open_channel("direct-tcpip", target, ("", 0), timeout=limit_s)
    if settings.proxy_command:
        return paramiko.ProxyCommand(settings.proxy_command)
    return socket.create_connection(target, timeout=limit_s)


def _closed(error: Exception, login: Login, settings: HostSettings) -> Closed:
    """What stands in the way, in the site file's words."""
    at = f"{settings.hostname}:{settings.port}"
    listed = f"ssh-keyscan -p {settings.port} {settings.hostname}"
    hosts = login.known_hosts or "~/.ssh/known_hosts"
    key = login.key or ", ".join(settings.identity_files) or "none"
    if isinstance(error, paramiko.BadHostKeyException):
        return Closed(
            f"{at} shows another host key than {hosts} has",
            f"ask the site's administrator whether it was changed; only then replace its line in {hosts}",
        )
    if isinstance(error, paramiko.SSHException) and "known_hosts" in str(error):
        return Closed(
            f"{hosts} has no key of {at}", f"compare `{listed}` with what the site publishes, then add it to {hosts}"
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return Closed(f"the key {key} is encrypted", f"{login.where}.sshKeyPassphraseFile, or `ssh-add {key}`")
    if isinstance(error, paramiko.AuthenticationException):
        return Closed(
            f"{at} does not let {settings.user} in with the keys {key}",
            f"{login.where}: correct username or sshKey, or have the public key added there",
        )
    if isinstance(error, socket.gaierror):
        return Closed(f"no address is known for {settings.hostname}", f"{login.where}.nodes: correct the name")
    if isinstance(error, TimeoutError):
        return Closed(f"{at} does not answer within {login.limit_s:.0f} s", "check the network, the VPN and the port")
    if isinstance(error, ConnectionError):
        return Closed(
            f"{at}: {error.strerror or error}", f"{login.where}.nodes: correct host and port, or start the server"
        )
    return Closed(f"{at}: {error}", f"try `ssh -v -p {settings.port} {settings.hostname}`, which says more")
