"""Folders are listed for tools that want that (`loadListing`), and for nobody else.

Where a workflow wants no listing, the engine makes one nevertheless, at every other step that a folder goes through: it reads each
file in the folder for its digest, and its database keeps their names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import streamflow.cwl.utils
from streamflow.cwl.utils import LoadListing

_made: Callable[..., Awaitable[Any]] = streamflow.cwl.utils.get_file_token
_updated: Callable[..., Awaitable[Any]] = streamflow.cwl.utils.update_file_token


async def _token(*arguments: Any, load_listing: LoadListing | None = None, **keywords: Any) -> Any:
    """The value of a file or folder that has been found."""
    return await _made(*arguments, load_listing=load_listing or LoadListing.no_listing, **keywords)


async def _update(
    *arguments: Any, token_value: Mapping[str, Any], load_listing: LoadListing | None = None, **keywords: Any
) -> Any:
    """The value of a file or folder as the next step wants it."""
    if load_listing == LoadListing.no_listing:
        token_value = {name: each for name, each in token_value.items() if name != "listing"}
        load_listing = None
    return await _updated(*arguments, token_value=token_value, load_listing=load_listing, **keywords)


def install() -> None:
    """Puts both in the place where the engine looks them up."""
    streamflow.cwl.utils.get_file_token = _token
    streamflow.cwl.utils.update_file_token = _update
