"""Values of type File and Directory: their paths, locations and listings, by functions that replace StreamFlow's.

StreamFlow writes the locations of staged files unescaped and reads them as URIs, so that `%41` in a name becomes A. It writes an
entry of InitialWorkDirRequirement into an existing folder only.

Where a workflow asks for no listing (`loadListing`), StreamFlow makes one nevertheless, at every other step that a folder goes
through: it reads each file in the folder for its digest, and its database keeps the names of the files.
"""

from __future__ import annotations

import posixpath
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import streamflow.cwl.command
import streamflow.cwl.utils
from streamflow.cwl.utils import LoadListing
from streamflow.data.remotepath import StreamFlowPath

from medweave_core.documents.file_locations import FILE, location_of

_stock_adjust_input: Callable[..., Any] = streamflow.cwl.command._adjust_input
_stock_adjust_cwl_output: Callable[..., Any] = streamflow.cwl.command._adjust_cwl_output
_stock_write_remote_file: Callable[..., Awaitable[None]] = streamflow.cwl.utils.write_remote_file
_stock_get_file_token: Callable[..., Awaitable[Any]] = streamflow.cwl.utils.get_file_token
_stock_update_file_token: Callable[..., Awaitable[Any]] = streamflow.cwl.utils.update_file_token


def adjust_input(job_name: str, input_: Any, path_processor: Any, src_path: str, dst_path: str) -> bool:
    """Give a file of the working directory its new path and location. Return True if the value was that file."""
    changed = bool(_stock_adjust_input(job_name, input_, path_processor, src_path, dst_path))
    if changed and isinstance(input_, dict) and input_.get("path") == dst_path:
        input_["location"] = location_of(dst_path)
    return changed


def adjust_cwl_output(base_path: Any, job_name: str, path_processor: Any, value: Any) -> Any:
    """Return a value of `cwl.output.json` with absolute paths."""
    if isinstance(value, dict) and value.get("class") in ("File", "Directory"):
        location = value.get("location")
        if isinstance(location, str) and "://" not in location:
            value = {**value, "location": urllib.parse.unquote(location)}
        value = _stock_adjust_cwl_output(base_path, job_name, path_processor, value)
        return value | {"location": location_of(str(value["path"]))} if "path" in value else value
    return _stock_adjust_cwl_output(base_path, job_name, path_processor, value)


async def write_remote_file(context: Any, locations: Sequence[Any], content: str, path: str, relpath: str) -> None:
    """Write a file of the working directory, and make its folder first."""
    if posixpath.dirname(relpath):
        for location in locations:
            folder = StreamFlowPath(posixpath.dirname(path), context=context, location=location)
            await folder.mkdir(mode=0o777, parents=True, exist_ok=True)
    await _stock_write_remote_file(context=context, locations=locations, content=content, path=path, relpath=relpath)


def remap_path(path_processor: ModuleType, path: str, old_dir: str, new_dir: str) -> str:
    """Return a path or location of one folder as the same path of another folder."""
    if old_dir == new_dir:
        return path
    if path.startswith(FILE):
        return location_of(remap_path(path_processor, urllib.parse.unquote(path[len(FILE) :]), old_dir, new_dir))
    if ":/" in path and not path.startswith("/"):  # of another scheme
        return path
    remapped: str = path_processor.join(new_dir, path_processor.relpath(path, old_dir))
    return remapped


async def get_file_token(*arguments: Any, load_listing: LoadListing | None = None, **keywords: Any) -> Any:
    """Return the value of a file or folder that exists, without a listing unless one is requested."""
    return await _stock_get_file_token(*arguments, load_listing=load_listing or LoadListing.no_listing, **keywords)


async def update_file_token(
    *arguments: Any, token_value: Mapping[str, Any], load_listing: LoadListing | None = None, **keywords: Any
) -> Any:
    """Return the value of a file or folder as the next step reads it, without a listing unless one is requested."""
    if load_listing == LoadListing.no_listing:
        token_value = {name: value for name, value in token_value.items() if name != "listing"}
        load_listing = None
    return await _stock_update_file_token(*arguments, token_value=token_value, load_listing=load_listing, **keywords)
