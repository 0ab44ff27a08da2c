"""Inputs of a workflow, with links in the place of the paths that a job file names. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from medweave_core.documents.file_locations import location_of, path_of

# Of a token, what holds or tells the path; the engine makes them anew from the new one.
_OF_THE_PATH = ("location", "path", "dirname", "nameroot", "nameext")


def behind_links(value: Any, link_of: Callable[[str], str], *, folder: str) -> Any:
    """The value of an input with another path for each file and folder of this machine in it.

    Args:
        value: as the engine has it: files and folders are mappings with a `class`.
        link_of: path to the one that the engine shall see.
        folder: where relative paths start.
    """
    if isinstance(value, Mapping):
        if value.get("class") not in ("File", "Directory"):
            return {name: behind_links(each, link_of, folder=folder) for name, each in value.items()}
        new = {name: each for name, each in value.items() if name not in _OF_THE_PATH}
        for name in ("secondaryFiles", "listing"):
            if name in new:
                new[name] = [behind_links(each, link_of, folder=folder) for each in new[name]]
        if (path := path_of(value)) is None:
            return {**value, **new}  # its content or listing stands in the job file itself
        link = link_of(posixpath.normpath(posixpath.join(folder, path)))
        return new | {"path": link, "location": location_of(link)}
    if isinstance(value, list):
        return [behind_links(each, link_of, folder=folder) for each in value]
    return value
