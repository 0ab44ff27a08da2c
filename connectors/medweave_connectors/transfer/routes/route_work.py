"""One copy's commands for each way that it may go, and what a run knows of the ways between two deployments. Pure."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.transfer import stream_commands
from medweave_connectors.transfer.routes import same_file_system
from medweave_connectors.transfer.routes.direct.carry import Listener
from medweave_connectors.transfer.routes.same_file_system import Seen
from medweave_connectors.transfer.stream_commands import Piece
from medweave_connectors.transfer.tree_receiver import Tree

SAME, DIRECT, BUCKET, THROUGH = "same-file-system", "direct", "bucket", "through-driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one copy takes.

    Attributes:
        path: what is copied, at the source.
        part: the folder at the destination in which it is put together.
        piece: the stream that carries it.
        taking: words by which a destination takes it that sees what the source sees; None where it gets a part of a file.
        tree: the same as a stream of our own, which is straight only.
    """

    path: str
    part: str
    piece: Piece
    taking: Callable[[Seen], Sequence[list[str]]] | None
    tree: Tree | None = None


def whole(path: str, target: str, *, holds: tuple[int, int], links: bool, tree: Tree | None) -> Work:
    """A file or folder.

    Args:
        target: its path in the folder in which it is put together.
        holds, links: see `same_files.take`.
        tree: see `Work`.
    """
    return Work(
        path=path,
        part=posixpath.dirname(target),
        piece=stream_commands.whole(path, target),
        taking=lambda seen: [same_file_system.take(seen, path, target, holds=holds, links=links)],
        tree=tree,
    )


def some(folder: str, piece: Piece, part: str) -> Work:
    """The files of a folder that a piece carries."""
    above, names = posixpath.dirname(folder), list(piece.packing[piece.packing.index("--") + 1 :])
    return Work(
        path=folder,
        part=part,
        piece=piece,
        taking=lambda seen: [
            same_file_system.take_some(seen, above, each, part) for each in stream_commands.batches(names)
        ],
    )


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


def by_driver(source: ExecutionLocation, destination: ExecutionLocation) -> str:
    """How bytes go that this machine handles: `local`, `from-driver`, `to-driver`, or `through-driver` between other sites."""
    if source.local and destination.local:
        return "local"
    if source.local:
        return "from-driver"
    return "to-driver" if destination.local else THROUGH
