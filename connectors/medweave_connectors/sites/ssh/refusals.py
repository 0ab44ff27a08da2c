"""Why a machine cannot be reached by ssh, and which setting to change. Pure."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import asyncssh

from medweave_connectors.sites.ssh.algorithms import Offer, without_common

JUMP_SETTING = "nodes"  # of the site file: it names the machine that has the jump host


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error about a setting: the seen and the expected value, and the fix."""

    setting: str
    seen: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SSHHop:
    """One hop that failed.

    Attributes:
        host: as in the site file or ProxyJump; `hostname` and `port` are those of the connection.
        key: sshKey of the site file; empty if ssh's configuration and the agent supply the keys.
        notes: why keys could not be used.
        known_hosts_named: the site file names them.
        keys_refused, more_asked: the server refused all keys; it requested another authentication.
        jump_of: the machine whose jump host this hop is; empty for the machine itself.
        through: the jump host before this hop.
        config_file: the user's configuration of ssh.
        offers: algorithms of the server and of this client.
    """

    host: str
    hostname: str
    port: int
    user: str
    key: str
    passphrase_file: str
    notes: tuple[str, ...]
    known_hosts: tuple[str, ...]
    known_hosts_named: bool
    host_key_alias: str
    keys_refused: bool
    more_asked: bool
    jump_of: str
    through: str
    config_file: str
    control_path: str
    offers: Sequence[Offer] = ()

    @property
    def called(self) -> str:
        """Return the host for messages."""
        return f"the jump host {self.host}" if self.jump_of else self.host

    def setting(self, name: str) -> str:
        """Return the site file's setting for an error: `nodes` for a jump host, which has no settings there."""
        return JUMP_SETTING if self.jump_of else name


def refusal(error: Exception, hop: SSHHop) -> Refusal | None:
    """Return the refusal that a connection error means; None if a retry may help (a timeout, a refused connection)."""
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return _host_key(error, hop)
    if isinstance(error, asyncssh.PermissionDenied):
        return _second_factor(hop) if hop.more_asked and not hop.keys_refused else _denied(hop)
    if isinstance(error, asyncssh.ChannelOpenError) and error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
        return Refusal(
            setting=JUMP_SETTING,
            seen=f"the jump host {hop.through} does not forward to {hop.hostname}:{hop.port}: {error.reason}",
            expected="a jump host that forwards connections (AllowTcpForwarding, PermitOpen of its sshd)",
            do=f"correct ProxyJump of Host {hop.host} in {hop.config_file}, or ask its operators",
        )
    if isinstance(error, asyncssh.KeyEncryptionError) or (
        isinstance(error, asyncssh.KeyImportError) and "passphrase" in str(error).lower()
    ):
        return Refusal(
            setting="sshKeyPassphraseFile",
            seen=f"the key {hop.key} is encrypted: {error}",
            expected="its passphrase",
            do="name a file with the passphrase, or load the key into ssh-agent and remove sshKey",
        )
    if isinstance(error, asyncssh.KeyImportError):
        return Refusal(
            setting="sshKey",
            seen=f"{hop.key} is not a private key: {error}",
            expected="a private key in OpenSSH or PEM format",
            do="set the path of the private key, not of the .pub file",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.ConnectionLost | ConnectionResetError) and (
        offer := without_common(hop.offers)
    ):
        return _no_common(offer, hop)
    if isinstance(error, socket.gaierror):
        return Refusal(
            setting="nodes",
            seen=f"no address for {hop.hostname}" + (f", {hop.called}" if hop.jump_of else ""),
            expected=f"a name that resolves here, or a Host of {hop.config_file} with a HostName",
            do=f"correct {'ProxyJump in ' + hop.config_file if hop.jump_of else 'the name'}",
        )
    if isinstance(error, FileNotFoundError | PermissionError) and error.filename:
        files = {hop.passphrase_file: "sshKeyPassphraseFile"} | dict.fromkeys(hop.known_hosts, "knownHosts")
        return Refusal(
            setting=hop.setting(files.get(str(error.filename), "sshKey")),
            seen=f"{error.filename}: {error.strerror}",
            expected="a file that can be read",
            do="correct the path, or the file's owner",
        )
    return None


def _no_common(offer: Offer, hop: SSHHop) -> Refusal:
    return Refusal(
        setting="nodes",
        seen=f"no common {offer.name}: {hop.called} offers {', '.join(offer.server) or 'none'}",
        expected=f"one of {', '.join(offer.ours)}",
        do=(
            f"compare and add a host key of a kind that the server has (ssh-keyscan -p {hop.port} {hop.hostname})"
            if offer.setting == "HostKeyAlgorithms"
            else f"ask its operators to allow one of these ({offer.setting} of sshd_config), or use an open ControlMaster"
        ),
    )


def _host_key(error: asyncssh.HostKeyNotVerifiable, hop: SSHHop) -> Refusal:
    file = hop.known_hosts[0] if hop.known_hosts else "~/.ssh/known_hosts"
    files = " and ".join(hop.known_hosts) or "(UserKnownHostsFile none)"
    name = hop.host_key_alias or hop.hostname
    scan = f"ssh-keyscan -p {hop.port} {hop.hostname}" if hop.port != 22 else f"ssh-keyscan {hop.hostname}"
    add = f"compare and add it: {scan} >> {file}"
    if hop.through or hop.jump_of or hop.host_key_alias:
        option = f" -o UserKnownHostsFile={file}" if hop.known_hosts_named else ""
        add = f"log in once by hand, compare, and accept it: ssh{option} {hop.jump_of or hop.host}"
    where = "" if hop.known_hosts_named else f" (UserKnownHostsFile of Host {hop.host} in {hop.config_file})"
    return Refusal(
        setting=hop.setting("knownHosts"),
        seen=f"a host key of {hop.called} that {files}{where} does not list for {name} ({error.reason})",
        expected=f"the host key of {hop.host}, as its operators publish it; it is always checked",
        do=f"{add}; if it has changed, ask the operators why before you remove the old one",
    )


def _denied(hop: SSHHop) -> Refusal:
    keys = f"the key {hop.key}" if hop.key else "the keys of the agent and of ssh's configuration"
    notes = f" ({'; '.join(hop.notes)})" if hop.notes else ""
    where = f"User or IdentityFile of Host {hop.host} in {hop.config_file}"
    return Refusal(
        setting=hop.setting("sshKey"),
        seen=f"{hop.called} refused {keys} for user {hop.user}{notes}",
        expected="a private key whose public half is in ~/.ssh/authorized_keys of that account",
        do=(
            f"try `ssh {hop.host} true`, and correct {where}"
            if hop.jump_of
            else f"try `ssh -i KEY USER@HOST true`, and correct username or sshKey, or {where}"
        )
        + (f"; if it asks for a password or a code, {_master_first(hop)}" if hop.more_asked else ""),
    )


def _master_first(hop: SSHHop) -> str:
    name = hop.host.partition(":")[0]
    first = f"ssh -M -N -f {name}"
    if not hop.control_path:
        first = f"write `ControlPath ~/.ssh/master-%C` below `Host {name}` in {hop.config_file}, then {first}"
    return f"log in by hand first, and leave it open: {first}; then run again"


def _second_factor(hop: SSHHop) -> Refusal:
    return Refusal(
        setting="nodes",
        seen=f"{hop.called} does not accept a key alone from user {hop.user}: it also requires a password or a code",
        expected="a login with a key alone, or an open ControlMaster, which medweave then uses",
        do=_master_first(hop),
    )
