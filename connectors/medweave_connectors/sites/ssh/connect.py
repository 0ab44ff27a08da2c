"""Connection to a machine, through the jump hosts and with the keys that ssh would use; the host key of each hop is checked."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.constants import MSG_IGNORE

from medweave_connectors.host.deadlines import UNRESPONSIVE_S
from medweave_connectors.sites.ssh.algorithms import Offer, read_offers
from medweave_connectors.sites.ssh.command_line import ssh_words, user_file
from medweave_connectors.sites.ssh.control_master import OPTIONS, MasterConnection, MasterForward
from medweave_connectors.sites.ssh.openssh_config import look_up, master_answers
from medweave_connectors.sites.ssh.refusals import SSHHop, refusal
from medweave_connectors.sites.ssh.settings import HostSettings, split_jump
from medweave_core.errors import UsageError

KEEPALIVE_S = 15
KEEPALIVE_COUNT = round(UNRESPONSIVE_S / KEEPALIVE_S)
# None of them in CBC mode: see `_without_fillers`.
CIPHERS = [
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes192-ctr",
    "aes128-ctr",
]
FIRST_BYTES = 400
NO_HOSTS = b"# never empty\n"  # asyncssh uses the user's file for an empty value, and checks nothing for None
MOST_JUMPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine of the site file; ssh's configuration supplies empty values.

    Attributes:
        where: path of the deployment's `config` in the file, for errors.
        connect_timeout_s: for each hop.
    """

    where: str
    host: str
    port: int | None = None
    user: str = ""
    key: str = ""
    passphrase_file: str = ""
    known_hosts: str = ""
    connect_timeout_s: float = 10

    @property
    def node(self) -> str:
        """Return the machine as written in the site file."""
        return f"{self.host}:{self.port}" if self.port else self.host


class Dropped(ConnectionError):
    """The server closed the connection before it sent its version."""


class _Client(asyncssh.SSHClient):
    """Notes the authentication that the server requests, its algorithms, and its first bytes.

    Attributes:
        connection: None before there is one.
        first: the bytes before the server's version line.
    """

    def __init__(self) -> None:
        self.keys_refused = self.more_asked = False
        self.connection: Any = None
        self.first = b""

    def connection_made(self, connection: Any) -> None:
        self.connection, received = connection, connection.data_received

        def note(data: bytes, datatype: Any = None) -> None:
            if not self.has_version:
                self.first = (self.first + data)[:FIRST_BYTES]
            received(data, datatype)

        connection.data_received = note

    @property
    def has_version(self) -> bool:
        """Return True once the server has sent its version line."""
        return bool(self.connection is not None and self.connection._server_version)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Return the algorithms of the server and of this client; empty before the server has sent its list."""
        kex = getattr(self.connection, "_server_kexinit", b"")
        names = ("_kex_algs", "_server_host_key_algs", "_enc_algs", "_mac_algs")
        ours = [[algorithm.decode() for algorithm in getattr(self.connection, name, None) or ()] for name in names]
        return read_offers(kex, ours) if kex else ()

    def public_key_auth_requested(self) -> None:
        self.keys_refused = True  # called only when no key is left

    def kbdint_auth_requested(self) -> None:
        self.more_asked = True

    def password_auth_requested(self) -> None:
        self.more_asked = True


async def connect(target: Target) -> Any:
    """Return a connection to the machine: through the user's open ControlMaster if there is one, otherwise a new one.

    Raises:
        UsageError: the message names the setting, in the site file or in ssh's configuration.
        OSError, asyncssh.Error: a retry may help.
    """
    settings = await look_up(target.host, target.user, target.port, where=f"{target.where}.nodes")
    if await master_answers(settings, target.user, target.port):
        words = partial(ssh_words, target.host, target.user, target.port, "-S", settings.control_path, *OPTIONS)
        return MasterConnection(words)
    return await _connect(target, settings, jump_of="", left=MOST_JUMPS)


async def _connect(target: Target, settings: HostSettings, *, jump_of: str, left: int, via: Any = None) -> Any:
    """Connect one hop and those before it; `via` is the hop before it if the caller has connected it."""
    if via is None and settings.jumps:
        via = await _jumps(target, settings, left)
    client, notes = _Client(), list[str]()
    tunnel = None if isinstance(via, MasterForward) else via
    try:
        passphrase = _passphrase(target.passphrase_file)
        connection = await asyncssh.connect(
            host=settings.hostname,
            port=settings.port,
            username=settings.user,
            tunnel=tunnel,
            proxy_command=_proxy_command(settings, via),
            known_hosts=_known_hosts(target, settings),
            host_key_alias=settings.host_key_alias or None,
            passphrase=passphrase,
            client_factory=lambda: client,
            config=None,  # `ssh -G` has read it
            compression_algs=None,
            encryption_algs=CIPHERS,
            connect_timeout=target.connect_timeout_s,
            keepalive_interval=KEEPALIVE_S,
            keepalive_count_max=KEEPALIVE_COUNT,
            **_keys(target, settings, passphrase, notes),
        )
    except BaseException as error:
        _close(via)
        if isinstance(error, OSError | asyncssh.Error | asyncssh.KeyImportError):
            raise _failure(error, target, settings, client, notes, jump_of) from error
        raise
    if tunnel is not None:
        connection.set_tunnel(tunnel)  # closed with it
    _acknowledged(connection)
    return _without_fillers(connection)


def _passphrase(file: str) -> str | None:
    return Path(file).read_text(encoding="utf-8").strip() if file else None


def _acknowledged(connection: Any) -> None:
    """Acknowledge received data at once. OpenSSH's server sends its host keys after the login, and delays the answer to the first
    request until their acknowledgement, which this system would delay for 40 ms."""
    sock, received = connection.get_extra_info("socket"), connection.data_received
    if not hasattr(socket, "TCP_QUICKACK") or getattr(sock, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return  # not Linux, or a connection through another program

    def acknowledge(data: bytes, datatype: Any = None) -> None:
        received(data, datatype)
        with contextlib.suppress(OSError):  # it is closed
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    connection.data_received = acknowledge


def _without_fillers(connection: Any) -> Any:
    """Drop the empty packets that asyncssh sends before each other one. They hide the next initial vector of ciphers in CBC mode
    (RFC 4251, 9.3.1), which are not used here, and cost a tenth of a transfer's time on busy processors."""
    send = connection.send_packet

    def sent(kind: int, *parts: bytes, **more: Any) -> None:
        if kind != MSG_IGNORE:
            send(kind, *parts, **more)

    connection.send_packet = sent
    return connection


def _failure(
    error: Exception, target: Target, settings: HostSettings, client: _Client, notes: list[str], jump_of: str
) -> Exception:
    """Return the error to raise: a refusal with its setting, or the original error if a retry may help."""
    hop = SSHHop(
        host=target.node,
        hostname=settings.hostname,
        port=settings.port,
        user=settings.user,
        key=target.key,
        passphrase_file=target.passphrase_file,
        notes=tuple(notes),
        known_hosts=(target.known_hosts,) if target.known_hosts else (_existing(settings) or settings.known_hosts[:1]),
        known_hosts_named=bool(target.known_hosts),
        host_key_alias=settings.host_key_alias,
        keys_refused=client.keys_refused,
        more_asked=client.more_asked,
        jump_of=jump_of,
        through=settings.jumps[-1] if settings.jumps else "",
        config_file=str(user_file()),
        control_path=settings.control_path,
        offers=client.offers,
    )
    if (
        isinstance(error, asyncssh.ConnectionLost | ConnectionResetError)
        and client.connection
        and not client.has_version
    ):
        text = " ".join(client.first.decode(errors="replace").split())
        error = Dropped(f"the server closed the connection before it sent its version: {text or 'no message'}")
    if (refused := refusal(error, hop)) is not None:
        what = f"{target.where}.{refused.setting}: {jump_of or hop.host} cannot be reached by ssh."
        return UsageError(what, seen=refused.seen, expected=refused.expected, do=refused.do)
    if jump_of:
        kind = Dropped if isinstance(error, Dropped) else ConnectionError
        return kind(f"its jump host {target.host}: {str(error) or type(error).__name__}")
    return error


async def _jumps(target: Target, settings: HostSettings, left: int) -> Any:
    """Return the connection to the last jump host; each is reached through the one before it."""
    if left == 0:
        raise UsageError(
            f"{target.where}.nodes: {target.host} has too many jump hosts.",
            seen=f"more than {MOST_JUMPS} in a row, the last one {settings.jumps[0]} for {settings.alias}",
            expected="a ProxyJump that leads to a host without one",
            do=f"correct ProxyJump in {user_file()} (`Host *` also means the jump host)",
        )
    via = None
    for jump in settings.jumps:
        user, host, port = split_jump(jump)
        hop = Target(where=target.where, host=host, port=port, user=user, connect_timeout_s=target.connect_timeout_s)
        try:
            # The keys of the site file are for its machine: jump hosts use ssh's configuration.
            settings_of_jump = await look_up(host, user, port, where=f"{target.where}.nodes")
            if await master_answers(settings_of_jump, user, port):
                _close(via)
                via = MasterForward(partial(ssh_words, host, user, port, "-S", settings_of_jump.control_path, *OPTIONS))
            else:
                via = await _connect(hop, settings_of_jump, jump_of=settings.alias, left=left - 1, via=via)
        except BaseException:
            _close(via)
            raise
    return via


def _close(via: Any) -> None:
    if via is not None and not isinstance(via, MasterForward):
        via.close()


def _proxy_command(settings: HostSettings, via: Any) -> list[str] | None:
    if isinstance(via, MasterForward):
        return via.command(settings.hostname, settings.port)
    return ["sh", "-c", f"exec {settings.proxy_command}"] if settings.proxy_command and via is None else None


def _known_hosts(target: Target, settings: HostSettings) -> bytes:
    """Return the known hosts, never None: the user's StrictHostKeyChecking cannot turn the check off."""
    files = [target.known_hosts] if target.known_hosts else _existing(settings)
    lines = [line for file in files for line in Path(file).read_bytes().splitlines() if _is_entry(line)]
    return NO_HOSTS + b"\n".join([*lines, *_revoked(target, settings)])


def _revoked(target: Target, settings: HostSettings) -> list[bytes]:
    """Return RevokedHostKeys as lines of known_hosts. As with ssh, an unreadable list is an error."""
    keys: list[bytes] = []
    for file in settings.revoked:
        try:
            text = Path(file).read_bytes()
            if text.startswith(b"SSHKRL"):
                raise OSError(0, "a binary list (KRL)")
        except OSError as error:
            raise UsageError(
                f"{target.where}: the revoked host keys of ssh's configuration cannot be read.",
                seen=f"RevokedHostKeys {file}: {error.strerror}",
                expected="a file with one public key per line",
                do="correct RevokedHostKeys, or make it a text file",
            ) from None
        keys += [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    return [b"@revoked * " + key for key in keys]


class _NoKeys(list[str]):
    """An empty list that counts as true: for a false one asyncssh would use the default files in ~/.ssh."""

    def __bool__(self) -> bool:
        return True


def _is_entry(line: bytes) -> bool:
    """Return True if asyncssh can parse the line; ssh ignores other lines, asyncssh refuses the whole file."""
    try:
        asyncssh.import_known_hosts(line.decode())
    except ValueError:
        return False
    return True


def _existing(settings: HostSettings) -> tuple[str, ...]:
    return tuple(file for file in settings.known_hosts if Path(file).is_file())


def _keys(target: Target, settings: HostSettings, passphrase: str | None, notes: list[str]) -> dict[str, Any]:
    """Return asyncssh's options for keys; append to `notes` why some cannot be used. A key of the site file is the only one."""
    if target.key:
        return {"client_keys": [target.key], "agent_path": ""}
    usable, public = [], []
    for file in settings.identity_files:
        try:
            asyncssh.read_private_key(file, passphrase)
            usable.append(file)
        except asyncssh.KeyEncryptionError:
            notes.append(f"{file} is encrypted, and ssh-agent may not hold it")
        except OSError as error:
            if settings.keys_named:  # as ssh does, the others are tried
                notes.append(f"IdentityFile {file}: {error.strerror}")
        except asyncssh.KeyImportError as error:
            if "passphrase" in str(error).lower():
                notes.append(f"{file} is encrypted, and ssh-agent may not hold it")
        for half in (file, f"{file}.pub"):
            with contextlib.suppress(OSError, asyncssh.KeyImportError):
                public.append(asyncssh.read_public_key(half))
    agent = settings.agent if public or not settings.identities_only else ""
    keys: dict[str, Any] = {"client_keys": usable or _NoKeys(), "agent_path": agent}
    if settings.identities_only and public:
        keys["agent_identities"] = public
    certificates = [file for file in settings.certificate_files if Path(file).is_file()]
    return keys | ({"client_certs": certificates} if certificates else {})
