"""Links to local files instead of copies, and permissions of real copies."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from medweave_connectors.host.errors import TargetRefused
from medweave_connectors.transfer.shell_commands import staging_name


def link(source: str, destination: str, deployment: str, *, by: str | None = None) -> None:
    """Make the destination a link to the source and replace an existing link or file; create it inside if it is a folder.

    Args:
        by: another path to the source, used as the target of the link.

    StreamFlow's connector keeps an existing name whatever its target, and creates the link inside a linked folder.

    Raises:
        TargetRefused: the link cannot be created.
    """
    place, there = Path(destination), Path(source)
    if place.is_dir() and not place.is_symlink():
        place /= there.name
    if place.exists() and place.samefile(there):
        return
    part = place.parent / staging_name(secrets.token_hex(4))
    try:
        part.symlink_to(by or there)
        part.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise TargetRefused(deployment, deployment, os.strerror(error.errno or 0)) from None


def let_write(source: str, destination: str) -> None:
    """Make a copy writable for its owner, also if the source is read-only.

    Args:
        destination: as in the copy command; a file that was copied to a folder is inside of it.
    """
    place = Path(destination)
    if place.is_dir() and not Path(source).is_dir():
        place /= Path(source).name
    for path in (place, *place.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and not mode & stat.S_IWUSR:
            path.chmod(stat.S_IMODE(mode) | stat.S_IWUSR)
