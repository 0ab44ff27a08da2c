"""The commands of one copy for each route, and what a run has learned about the routes between two deployments."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamflow.core.deployment import ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException

from medweave_connectors.transfer.capabilities import endpoint_of
from medweave_connectors.transfer.manifest.manifest import Manifest
from medweave_connectors.transfer.routes import same_file_system
from medweave_connectors.transfer.routes.direct.direct_copy import Listener, NotConnected, PeerTask
from medweave_connectors.transfer.routes.same_file_system import SourceView
from medweave_connectors.transfer.streams import pieces
from medweave_connectors.transfer.streams.pieces import Piece
from medweave_connectors.transfer.streams.tree_stream_piece import TreeStream


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWork:
    """One copy, or a part of one.

    Attributes:
        path: of the source.
        part: the staging folder at the destination.
        piece: the stream that carries it.
        local_copy: the commands by which a destination that sees the source's files copies them; None for a part of a file.
        tree: the same as a tree stream, for the direct route.
        before_plain_stream: called before the copy takes a route that carries no tree stream.
    """

    path: str
    part: str
    piece: Piece
    local_copy: Callable[[SourceView], Sequence[list[str]]] | None
    tree: TreeStream | None = None
    before_plain_stream: Callable[[], object] = lambda: None

    async def peer_tasks(
        self, source: ExecutionLocation, target: ExecutionLocation, connector_of: Callable[[str], Any]
    ) -> tuple[PeerTask, PeerTask]:
        """Return the tasks of the agents at the two locations.

        Raises:
            NotConnected: no agent can be started at one of them.
        """
        ends = []
        for location in (source, target):
            try:
                end = await endpoint_of(connector_of(location.deployment), location)
            except WorkflowExecutionException:  # a pod is gone
                end = None
            if end is None:
                raise NotConnected(f"no program can be started at {location.deployment}")
            ends.append(end)
        if self.tree is not None:
            return PeerTask(ends[0], tree=self.tree.for_source()), PeerTask(ends[1], tree=self.tree.for_target())
        receiving = PeerTask(ends[1], self.piece.unpacking, self.piece.checker_for_agent())
        return PeerTask(ends[0], self.piece.packing), receiving


def whole_work(
    path: str,
    target: str,
    *,
    manifest: Manifest,
    links: bool,
    tree: TreeStream | None,
    before_plain_stream: Callable[[], object],
) -> CopyWork:
    """Return the work for a whole file or folder.

    Args:
        target: its path in the staging folder.
        manifest: of the source.
        links: see `same_file_system.copy_or_link`.
    """
    return CopyWork(
        path=path,
        part=posixpath.dirname(target),
        piece=pieces.whole_copy(path, target, num_bytes=manifest.num_bytes),
        local_copy=lambda view: [
            same_file_system.copy_or_link(
                view, path, target, holds=(manifest.num_files, manifest.num_bytes), links=links
            )
        ],
        tree=tree,
        before_plain_stream=before_plain_stream,
    )


def partial_work(folder: str, piece: Piece, part: str) -> CopyWork:
    """Return the work for the files of a folder that a piece carries."""
    above, names = posixpath.dirname(folder), list(piece.packing[piece.packing.index("--") + 1 :])
    return CopyWork(
        path=folder,
        part=part,
        piece=piece,
        local_copy=lambda view: [
            same_file_system.copy_some(view, above, batch, part) for batch in pieces.batches(names)
        ],
    )


@dataclass(slots=True)
class PairState:
    """What this run has learned about the routes between two deployments.

    Attributes:
        apart: the source does not see the destination's folders.
        listener: the end that listens; None before it is known.
        refused: why there is no direct route; empty while it is a candidate.
        no_bucket: why there is no bucket route; empty while it is a candidate.
        breaks: direct streams that broke since the last one that did not.
        bucket_breaks: the same for copies by the bucket.
    """

    apart: bool = False
    listener: Listener | None = None
    refused: str = ""
    no_bucket: str = ""
    breaks: int = 0
    bucket_breaks: int = 0
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
