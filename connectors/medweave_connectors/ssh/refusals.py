"""Why a machine cannot be reached by ssh, and which setting to look at. Pure."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import asyncssh


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What to tell: the setting at fault, what was seen, what was expected, what to do."""

    setting: str
    seen: str
    expected: str
    do: str


def refusal(error: Exception, *, host: str, user: str, key: str, known_hosts: str) -> Refusal | None:
    """The meaning of an error while connecting; None where another try may help (a timeout, a refused connection).

    Args:
        host: `host` or `host:port`, as the file has it.
        user, key: as configured; may be empty.
    """
    name = host.partition(":")[0]
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return Refusal(
            setting="knownHosts",
            seen=f"a host key of {name} that {known_hosts} does not hold ({error.reason})",
            expected=f"the host key of {host}, as its operators publish it",
            do=f"compare and add it: ssh-keyscan {_scan_arguments(host)} >> {known_hosts}",
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return Refusal(
            setting="sshKey",
            seen=f"{host} refused the key {key or 'of the agent and of ~/.ssh'}"
            + (f" for user {user}" if user else ""),
            expected="a private key whose public half is in ~/.ssh/authorized_keys of that account",
            do="try `ssh -i KEY USER@HOST true`, and correct username or sshKey",
        )
    if isinstance(error, asyncssh.KeyEncryptionError) or (
        isinstance(error, asyncssh.KeyImportError) and "passphrase" in str(error).lower()
    ):
        return Refusal(
            setting="sshKeyPassphraseFile",
            seen=f"the key {key} is encrypted: {error}",
            expected="its passphrase",
            do="name a file with the passphrase, or load the key into ssh-agent and leave sshKey out",
        )
    if isinstance(error, asyncssh.KeyImportError):
        return Refusal(
            setting="sshKey",
            seen=f"{key} is no private key: {error}",
            expected="a private key in OpenSSH or PEM format",
            do="name the private half, not the .pub file",
        )
    if isinstance(error, socket.gaierror):
        return Refusal(
            setting="nodes", seen=f"no address for {name}", expected="a name that resolves here", do="correct the name"
        )
    if isinstance(error, FileNotFoundError | PermissionError) and error.filename:
        setting = "knownHosts" if str(error.filename) == known_hosts else "sshKey"
        return Refusal(
            setting=setting,
            seen=f"{error.filename}: {error.strerror}",
            expected="a file that can be read",
            do="correct the path, or the file's owner",
        )
    return None


def _scan_arguments(host: str) -> str:
    name, _, port = host.partition(":")
    return f"-p {port} {name}" if port else name
