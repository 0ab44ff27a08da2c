"""Inputs of a workflow, with links for the paths that a job file names. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from medweave_core.documents.file_locations import location_of, path_of

# Keys of a value that contain its path or a part of it; StreamFlow derives them from the new path.
_OF_THE_PATH = ("location", "path", "dirname", "nameroot", "nameext")


def with_links(value: Any, link_of: Callable[[str], str], *, folder: str) -> Any:
    """Return the value of an input with a link for each file and folder in it.

    Args:
        value: as StreamFlow represents it: files and folders are mappings with a `class`.
        link_of: returns the link for a path.
        folder: base of relative paths.
    """
    if isinstance(value, Mapping):
        if value.get("class") not in ("File", "Directory"):
            return {name: with_links(item, link_of, folder=folder) for name, item in value.items()}
        new = {name: item for name, item in value.items() if name not in _OF_THE_PATH}
        for name in ("secondaryFiles", "listing"):
            if name in new:
                new[name] = [with_links(item, link_of, folder=folder) for item in new[name]]
        if (path := path_of(value)) is None:
            return {**value, **new}  # the job file has its content or listing
        link = link_of(posixpath.normpath(posixpath.join(folder, path)))
        return new | {"path": link, "location": location_of(link)}
    if isinstance(value, list):
        return [with_links(item, link_of, folder=folder) for item in value]
    return value
