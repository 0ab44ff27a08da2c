"""Settings of one host, parsed from `ssh -G`. Pure except for environment variables."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

DEFAULT_PORT = 22
NONE = "none"
MOST_NAMED_DEFAULTS = 2  # without any IdentityFile, `ssh -G` prints a longer list
_DEFAULT_KEY = re.compile(r"~/\.ssh/id_(rsa|dsa|xmss|ecdsa(_sk)?|ed25519(_sk)?)")
_TOKEN = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """OpenSSH's settings for one host; paths are absolute.

    Attributes:
        alias: the name in the site file or ProxyJump; `hostname` is the one to connect to.
        identity_files: private keys; they may be missing. `keys_named`: the configuration names them; they are not ssh's defaults.
        agent: path of the agent's socket; empty for none.
        known_hosts: files with accepted host keys; they may be missing.
        revoked: files with host keys that are always refused.
        jumps: jump hosts, as [user@]host[:port]; the first is reached first.
        control_path: socket of a ControlMaster; empty for none.
    """

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    keys_named: bool = False
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""
    known_hosts: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    host_key_alias: str = ""
    jumps: tuple[str, ...] = ()
    proxy_command: str = ""
    control_path: str = ""


def plain(host: str, user: str, port: int | None) -> HostSettings:
    """Return the settings without any configuration."""
    return HostSettings(
        alias=host,
        hostname=host,
        port=port or DEFAULT_PORT,
        user=user,
        identity_files=tuple(str(Path.home() / ".ssh" / f"id_{kind}") for kind in ("ed25519", "ecdsa", "rsa")),
        agent=os.environ.get("SSH_AUTH_SOCK", ""),
        known_hosts=(str(Path.home() / ".ssh" / "known_hosts"),),
    )


def parse(alias: str, text: str) -> HostSettings:
    """Parse the output of `ssh -G ALIAS`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value.strip())

    def one(key: str) -> str:
        value = values.get(key, [""])[0]
        return "" if value == NONE else value

    settings = HostSettings(
        alias=alias, hostname=one("hostname"), port=int(one("port") or DEFAULT_PORT), user=one("user")
    )

    def paths(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(_path(value, settings) for value in values if value != NONE)

    keys = values.get("identityfile", [])
    return replace(
        settings,
        identity_files=paths(keys),
        keys_named=len(keys) <= MOST_NAMED_DEFAULTS or not all(_DEFAULT_KEY.fullmatch(key) for key in keys),
        certificate_files=paths(values.get("certificatefile", [])),
        identities_only=one("identitiesonly") == "yes",
        agent=_agent(values.get("identityagent", ["SSH_AUTH_SOCK"])[0], settings),
        known_hosts=paths(_files(one("userknownhostsfile")) + _files(one("globalknownhostsfile"))),
        revoked=paths(_files(one("revokedhostkeys"))),
        host_key_alias=one("hostkeyalias"),
        jumps=tuple(one("proxyjump").split(",")) if one("proxyjump") else (),
        proxy_command=expand(one("proxycommand"), settings),
        control_path=_path(one("controlpath"), settings) if one("controlpath") else "",
    )


def expand(text: str, settings: HostSettings) -> str:
    """Replace ssh's tokens (`%h`, `%p`, …) in a text; `ssh -G` leaves some of them."""
    local = socket.gethostname()
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": settings.hostname,
        "i": str(os.getuid()),
        "k": settings.host_key_alias or settings.alias,
        "L": local.partition(".")[0],
        "l": local,
        "n": settings.alias,
        "p": str(settings.port),
        "r": settings.user,
        "u": os.environ.get("USER", ""),
    }
    return _TOKEN.sub(lambda match: tokens.get(match[1], match[0]), text)


def split_jump(text: str) -> tuple[str, str, int | None]:
    """Return (user, host, port) of a jump, written as [user@]host[:port] or as ssh://[user@]host[:port]."""
    user, _, place = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    host, _, port = place.rpartition(":")
    if not host or (":" in host and not host.endswith("]")):  # no port, or a bare IPv6 address
        host, port = place, ""
    return user, host.strip("[]"), int(port) if port else None


def is_node(text: str) -> bool:
    """Return True for a host, or a host with a valid port."""
    try:
        port = split_jump(text)[2]
    except ValueError:
        return False
    return port is None or 0 < port < 2**16


def _path(text: str, settings: HostSettings) -> str:
    named = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), text.strip('"'))
    return str(Path(expand(named, settings)).expanduser())


def _files(text: str) -> list[str]:
    """Split a list of files; `ssh -G` does not quote names with blanks."""
    return [text] if text and Path(text).expanduser().exists() else text.split()


def _agent(text: str, settings: HostSettings) -> str:
    if text == NONE:
        return ""
    if text == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    return os.environ.get(text[1:], "") if text.startswith("$") and "{" not in text else _path(text, settings)
