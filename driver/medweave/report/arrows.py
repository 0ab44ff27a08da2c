"""Routing of arrows between the boxes of a picture, without crossing a box.

Each box is alone in its row, so an arrow can leave it sideways. It goes down between two columns, on a track that it shares only
with arrows of the same box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CORNER = 6.0
GAP, TRACK = 22.0, 7.0  # width of a gap without tracks, and of a track
BAND = 12.0  # distance from a column to its first track
PORT = 8.0  # arrows leave below the middle of a box and enter above it, by this distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The place of a box.

    Attributes:
        column: index from the left, from 0.
        row: index from the top, from 0; unique.
    """

    column: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The route of one arrow.

    Attributes:
        gap: gap between columns in which it goes down: 0 is left of the first; None for straight down.
        leaves, enters: the sides of the boxes: -1 for left, 1 for right.
        track: index in the gap from the left, from 0.
    """

    source: str
    target: str
    gap: int | None
    leaves: int = 0
    enters: int = 0
    track: int = 0


def routes(boxes: Mapping[str, Box], arrows: Iterable[tuple[str, str]]) -> list[Route]:
    """Return the route of each arrow.

    Args:
        boxes: boxes by name.
        arrows: pairs of a box and one in a later row.
    """
    result = [_sides(boxes, source, target) for source, target in arrows]
    tracks: dict[tuple[int, str], int] = {}
    for gap in sorted({route.gap for route in result if route.gap is not None}):
        spans: dict[str, tuple[int, int]] = {}
        for route in result:
            if route.gap == gap:
                first, last = spans.get(route.source, (boxes[route.source].row, 0))
                spans[route.source] = first, max(last, boxes[route.target].row)
        tracks |= {(gap, source): track for source, track in _tracks(spans).items()}
    return [
        route
        if route.gap is None
        else Route(
            source=route.source, target=route.target, gap=route.gap, leaves=route.leaves, enters=route.enters,
            track=tracks[route.gap, route.source],
        )
        for route in result
    ]  # fmt: skip


def widths(arrows: Sequence[Route], num_columns: int) -> list[int]:
    """Return the number of tracks of each gap, from left of the first column to right of the last."""
    return [max((route.track + 1 for route in arrows if route.gap == gap), default=0) for gap in range(num_columns + 1)]


def spread(
    arrows: Sequence[Route], num_columns: int, *, width: float, margin: float
) -> tuple[list[float], list[float], float]:
    """Return the left edge of each column, the first track of each gap, and the width of the picture.

    Args:
        width: width of a box.
        margin: margin at the left and the right.
    """
    tracks, x, lefts, gaps = widths(arrows, num_columns), margin, [], []
    for number in range(num_columns):
        gaps.append(x + BAND)
        x += (GAP if number else 0) + TRACK * tracks[number]
        lefts.append(x)
        x += width
    gaps.append(x + BAND)
    return lefts, gaps, x + margin + TRACK * tracks[-1]


def cut(text: str, letters: int) -> str:
    """Return a text shortened to a number of characters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def drawn(start: tuple[float, float], across: float, end: tuple[float, float]) -> str:
    """Return the path from the side of one box to the side of a lower one along a track.

    Args:
        start, end: x and y of the ends.
        across: x of the track.
    """
    (x0, y0), (x1, y1) = start, end
    first, last = _toward(x0, across), _toward(across, x1)
    return (
        f"M{x0:g} {y0:g}H{across - first * CORNER:g}Q{across:g} {y0:g} {across:g} {y0 + CORNER:g}"
        f"V{y1 - CORNER:g}Q{across:g} {y1:g} {across + last * CORNER:g} {y1:g}H{x1:g}"
    )


def _toward(x0: float, x1: float) -> int:
    return 1 if x1 >= x0 else -1


def _sides(boxes: Mapping[str, Box], source: str, target: str) -> Route:
    begin, end = boxes[source], boxes[target]
    if begin.column == end.column:
        if not any(box.column == end.column and begin.row < box.row < end.row for box in boxes.values()):
            return Route(source=source, target=target, gap=None)
        return Route(source=source, target=target, gap=end.column + 1, leaves=1, enters=1)
    if begin.column < end.column:
        return Route(source=source, target=target, gap=end.column, leaves=1, enters=-1)
    return Route(source=source, target=target, gap=end.column + 1, leaves=-1, enters=1)


def _tracks(spans: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return a track for each source, so that arrows on one track do not overlap."""
    free_from: list[int] = []
    tracks = {}
    for source, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        track = next((number for number, row in enumerate(free_from) if row < first), len(free_from))
        free_from[track:] = [last, *free_from[track + 1 :]]
        tracks[source] = track
    return tracks
