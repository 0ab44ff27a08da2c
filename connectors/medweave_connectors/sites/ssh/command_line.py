"""Command lines of OpenSSH's client. Does not import streamflow."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_file() -> Path:
    """Return the path of the user's configuration, below $HOME as every `~` here."""
    return Path.home() / ".ssh" / "config"


def ssh_words(host: str, user: str, port: int | None, *options: str) -> list[str]:
    """Build an `ssh` command line that reads the user's configuration; a `user` and `port` override it."""
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
