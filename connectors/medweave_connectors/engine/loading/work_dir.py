"""Files of a step's working directory: any name reaches the step, and a name may lead into a folder that must be made.

The engine writes the locations of staged files unescaped and reads them as URIs, so that `%41` in a name becomes A. It writes an
entry of InitialWorkDirRequirement into an existing folder only.
"""

from __future__ import annotations

import posixpath
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import streamflow.cwl.command
import streamflow.cwl.utils
from streamflow.data.remotepath import StreamFlowPath

from medweave_core.documents.file_locations import location_of

_stock_adjusted: Callable[..., Any] = streamflow.cwl.command._adjust_input
_stock_output: Callable[..., Any] = streamflow.cwl.command._adjust_cwl_output
_stock_write: Callable[..., Awaitable[None]] = streamflow.cwl.utils.write_remote_file


def _adjusted(job_name: str, input_: Any, path_processor: Any, src_path: str, dst_path: str) -> bool:
    """Give a file of the working directory its new path and location."""
    changed = bool(_stock_adjusted(job_name, input_, path_processor, src_path, dst_path))
    if changed and isinstance(input_, dict) and input_.get("path") == dst_path:
        input_["location"] = location_of(dst_path)
    return changed


def _output(base_path: Any, job_name: str, path_processor: Any, value: Any) -> Any:
    """A value of `cwl.output.json` with absolute paths."""
    if isinstance(value, dict) and value.get("class") in ("File", "Directory"):
        location = value.get("location")
        if isinstance(location, str) and "://" not in location:
            value = {**value, "location": urllib.parse.unquote(location)}
        value = _stock_output(base_path, job_name, path_processor, value)
        return value | {"location": location_of(str(value["path"]))} if "path" in value else value
    return _stock_output(base_path, job_name, path_processor, value)


async def _write(context: Any, locations: Sequence[Any], content: str, path: str, relpath: str) -> None:
    """Write a file of the working directory, and make its folder first."""
    if posixpath.dirname(relpath):
        for location in locations:
            folder = StreamFlowPath(posixpath.dirname(path), context=context, location=location)
            await folder.mkdir(mode=0o777, parents=True, exist_ok=True)
    await _stock_write(context=context, locations=locations, content=content, path=path, relpath=relpath)


def install() -> None:
    """Put them in the places where the engine looks them up."""
    streamflow.cwl.command._adjust_input = _adjusted
    streamflow.cwl.command._adjust_cwl_output = _output
    streamflow.cwl.utils.write_remote_file = _write
