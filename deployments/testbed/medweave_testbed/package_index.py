"""The machine's own way to the package index, given to image builds as secrets: neither the recipes nor the images hold it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from .commands import Commands
from .layout import Layout

# Settings that name or reach an index. Others (paths of the machine, caches) mean nothing inside a build.
KEPT = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
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


def pip_conf(found: Mapping[str, str], certificates: str) -> str:
    """A pip.conf for inside a build; `certificates` is the authorities' file there, or empty."""
    kept = {name: found[name].replace("\n", "\n    ") for name in KEPT if name in found}
    lines = [
        f"{name} = {value}" for name, value in {**kept, **({"cert": certificates} if certificates else {})}.items()
    ]
    return "\n".join(["[global]", *lines]) + "\n"


def certificates_of(found: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """The file of the authorities that this machine trusts, if there is one."""
    named = (found.get("cert"), environment.get("SSL_CERT_FILE"), CERTIFICATES)
    return next((Path(each) for each in named if each and Path(each).is_file()), None)


def secrets(layout: Layout, commands: Commands, environment: Mapping[str, str]) -> list[str]:
    """buildah's options that give a build the index's settings and authorities under the names that our recipes ask for."""
    found = settings(commands.run([sys.executable, "-m", "pip", "config", "list"]))
    authorities = certificates_of(found, environment)
    config = layout.cache / "pip.conf"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.touch(mode=0o600)
    config.write_text(pip_conf(found, str(CERTIFICATES) if authorities else ""), encoding="utf-8")
    given = {"pip.conf": config, **({"ca-certificates": authorities} if authorities else {})}
    return [word for name, file in given.items() for word in ("--secret", f"id={name},src={file}")]
