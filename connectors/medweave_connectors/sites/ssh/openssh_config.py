"""OpenSSH's settings for a host, from the `ssh` program, which evaluates its configuration.

`ssh -G` prints the settings after Host, Match, Include and the system's file; `ssh -O check` checks for an open ControlMaster.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
from pathlib import Path

from medweave_connectors.host import programs
from medweave_connectors.sites.ssh.command_line import ssh_words, user_file
from medweave_connectors.sites.ssh.settings import HostSettings, parse, plain
from medweave_core.errors import UsageError

ANSWER_S = 20.0  # a `Match exec` may query a network


async def look_up(host: str, user: str, port: int | None, *, where: str) -> HostSettings:
    """Return the settings for a host.

    Args:
        user, port: of the site file; empty or None if it has none.
        where: the setting that names the host, for errors.

    Raises:
        UsageError: ssh refuses its configuration, or there is one and no program to read it.
    """
    if not _can_ask():
        if user_file().is_file():
            raise UsageError(
                f"{where}: the settings for {host} cannot be read.",
                seen=f"{user_file()}, and no program `ssh` on the PATH, or no account for user id {os.getuid()}",
                expected="OpenSSH's client, which reads that file",
                do="install it (Debian: openssh-client), or remove the file",
            )
        return plain(host, user or _own_name(where), port)
    code, output, errors = await _answer(ssh_words(host, user, port, "-G", "-T"))
    if code != 0:
        raise UsageError(
            f"{where}: ssh refuses its configuration for {host}.",
            seen="; ".join(errors.split("\n")) or f"`ssh -G {host}` ended with {code}",
            expected=f"a configuration that `ssh -G {host}` accepts",
            do=f"correct {user_file()}, or the name in the site file",
        )
    return parse(host, output)


def _own_name(where: str) -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError(
            f"{where}: there is no user name for the login.",
            seen=f"no account for user id {os.getuid()} on this machine, and neither LOGNAME nor USER",
            expected="a user name",
            do="set `username` in the site file, and LOGNAME in the environment",
        ) from None


async def master_answers(settings: HostSettings, user: str, port: int | None) -> bool:
    """Return True if the ControlMaster of this host is open."""
    if not settings.control_path or not _can_ask() or not Path(settings.control_path).exists():
        return False
    words = ssh_words(settings.alias, user, port, "-S", settings.control_path, "-O", "check")
    return (await _answer(words))[0] == 0


def _can_ask() -> bool:
    with contextlib.suppress(KeyError):
        pwd.getpwuid(os.getuid())  # without an account `ssh` starts nothing
        return shutil.which("ssh") is not None
    return False


async def _answer(words: list[str]) -> tuple[int, str, str]:
    try:
        ended = await programs.run(words, timeout_s=ANSWER_S)  # without a terminal, so that it cannot prompt
    except TimeoutError:
        return -1, "", f"no answer within {ANSWER_S:.0f} s (a Match exec?)"
    return ended.code, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace").strip()
