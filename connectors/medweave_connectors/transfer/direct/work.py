"""One copy's commands for each way that it may go, and what a run knows of the ways between two deployments. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from medweave_connectors.transfer.direct.carry import Listener
from medweave_connectors.transfer.same_files import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one copy takes.

    Attributes:
        path: what is copied, at the source.
        part: the folder at the destination in which it is put together.
        packing, unpacking: words of the command that writes an archive, and of the one that reads it.
        root: the only name on top of that archive.
        clears: what a copy that broke has left there, and goes; empty where it lies among other files.
        taking: words by which a destination takes it that sees what the source sees.
    """

    path: str
    part: str
    packing: Sequence[str]
    unpacking: Sequence[str]
    root: str
    clears: str
    taking: Callable[[Seen], Sequence[list[str]]]


@dataclass(slots=True)
class Pair:
    """What is known of two deployments in this run.

    Attributes:
        apart: the source does not see the destination's folders.
        listener: which end has to listen; None before it is known.
        refused: why there is no direct way; empty while there may be one.
        no_bucket: why there is none by the bucket; empty while there may be one.
        breaks: streams that broke since the last that did not.
        bucket_breaks: the same, of copies by the bucket.
    """

    apart: bool = False
    listener: Listener | None = None
    refused: str = ""
    no_bucket: str = ""
    breaks: int = 0
    bucket_breaks: int = 0
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
