"""Links on this machine to what it has already, in the place of copies; and what a real copy needs besides."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from medweave_connectors.host.errors import TargetRefused
from medweave_connectors.transfer.shell_commands import staging_name


def link(source: str, destination: str, deployment: str, *, by: str | None = None) -> None:
    """Makes the destination a link to the source, in the place of another link or file; below it where it is a folder.

    Args:
        by: another path that leads to the source, which the link names in its place.

    The stock connector keeps a name that is taken, whatever it leads to; and where it is a link to a folder, it goes into that.

    Raises:
        TargetRefused: it cannot be made.
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
    """Lets the owner write to a copy of what nobody, or only somebody else, may write to.

    Args:
        destination: as it was said when the copy was made; a file that was copied to a folder lies below it.
    """
    place = Path(destination)
    if place.is_dir() and not Path(source).is_dir():
        place /= Path(source).name
    for each in (place, *place.rglob("*")):
        mode = each.lstat().st_mode
        if not stat.S_ISLNK(mode) and not mode & stat.S_IWUSR:
            each.chmod(stat.S_IMODE(mode) | stat.S_IWUSR)
