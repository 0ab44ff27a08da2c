"""What is run at the ends of a copy by way of a bucket. Pure."""

from __future__ import annotations

import functools
from importlib.resources import files

from medweave_connectors.transfer.direct import commands
from medweave_connectors.transfer.direct.encoding import with_module


@functools.cache
def program() -> bytes:
    """The far end's program, with its length in front; the parts that direct copies have too are a module within it."""
    own = files(__package__).joinpath("far_end.py").read_text("utf-8")
    text = with_module(own, "far_end", commands.far_end()).encode()
    return f"{len(text)}\n".encode() + text
