"""The command lines of OpenSSH's client. No streamflow in here."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_file() -> Path:
    """The user's configuration; below $HOME, as every `~` of ours."""
    return Path.home() / ".ssh" / "config"


def ssh_words(host: str, user: str, port: int | None, *options: str) -> list[str]:
    """An `ssh` command line that reads the user's configuration; `user` and `port` win over it where they are given."""
    words = ["ssh"]
    # ssh takes the home folder of the account, whatever HOME says.
    if Path.home() != Path(pwd.getpwuid(os.getuid()).pw_dir):
        words += ["-F", str(user_file()) if user_file().is_file() else "none"]
    words += list(options)
    if user:
        words += ["-l", user]
    if port is not None:
        words += ["-p", str(port)]
    return [*words, "--", host]
