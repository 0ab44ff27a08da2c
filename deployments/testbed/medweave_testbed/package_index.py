"""The machine's access to the package index, passed to image builds as secrets: neither the recipes nor the images contain it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from .commands import Commands
from .layout import Layout

# Settings that name or reach an index. Others (paths of the machine, caches) mean nothing inside a build.
FORWARDED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # the machine's and the image's place, on Debian and Ubuntu


def settings(listed: str) -> dict[str, str]:
    """pip's settings by name, from `pip config list`; a variable of the environment wins over a file, as in pip.

    Args:
        listed: lines such as `global.index-url='…'` and `:env:.timeout='60'`.
    """
    rows = [match.groups() for line in listed.splitlines() if (match := re.fullmatch(r"(\S+)\.([a-z-]+)=(.*)", line))]
    rows.sort(key=lambda row: row[0] == ":env:")
    # pip knows PIP_DEFAULT_TIMEOUT under this name.
    return {name.removeprefix("default-"): str(ast.literal_eval(value)) for _, name, value in rows}


def pip_conf(index_settings: Mapping[str, str], certificates: str) -> str:
    """Return a pip.conf for inside a build; `certificates` is the authorities' file there, or empty."""
    pip_settings = {name: index_settings[name].replace("\n", "\n    ") for name in FORWARDED if name in index_settings}
    lines = [
        f"{name} = {value}"
        for name, value in {**pip_settings, **({"cert": certificates} if certificates else {})}.items()
    ]
    return "\n".join(["[global]", *lines]) + "\n"


def certificates_of(pip_settings: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """Return the file of the authorities that this machine trusts, if there is one."""
    named = (pip_settings.get("cert"), environment.get("SSL_CERT_FILE"), CERTIFICATES)
    return next((Path(file) for file in named if file and Path(file).is_file()), None)


def secrets(layout: Layout, commands: Commands, environment: Mapping[str, str]) -> list[str]:
    """buildah's options that give a build the index's settings and authorities under the names that our recipes ask for."""
    pip_settings = settings(commands.run([sys.executable, "-m", "pip", "config", "list"]))
    authorities = certificates_of(pip_settings, environment)
    config = layout.cache / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.touch(mode=0o600)
    config.write_text(pip_conf(pip_settings, str(CERTIFICATES) if authorities else ""), encoding="utf-8")
    files = {"pip.conf": config, **({"ca-certificates": authorities} if authorities else {})}
    return [word for name, file in files.items() for word in ("--secret", f"id={name},src={file}")]
