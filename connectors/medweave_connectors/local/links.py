"""Links on this machine to what it has already, in the place of copies."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from medweave_connectors.errors import TargetRefused
from medweave_connectors.transfer.commands import part_name


def link(source: str, destination: str, deployment: str) -> None:
    """Makes the destination a link to the source, in the place of another link or file; below it where it is a folder.

    The stock connector keeps a name that is taken, whatever it leads to; and where it is a link to a folder, it goes into that.

    Raises:
        TargetRefused: it cannot be made.
    """
    place, there = Path(destination), Path(source)
    if place.is_dir() and not place.is_symlink():
        place /= there.name
    if place.exists() and place.samefile(there):
        return
    part = place.parent / part_name(secrets.token_hex(4))
    try:
        part.symlink_to(there)
        part.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise TargetRefused(deployment, deployment, os.strerror(error.errno or 0)) from None
