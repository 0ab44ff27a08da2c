"""Where the arrows of a picture run: beside the boxes, never over them. Pure.

Each box has a row of its own, so the way sideways from a box is free. Down it goes between two columns, on a track that no other
box's arrows have there; arrows from one box share theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

CORNER = 6.0
GAP, TRACK = 22.0, 7.0  # a gap's width without tracks, and each track's
BAND = 12.0  # from a column to its first track
PORT = 8.0  # arrows leave a box as much below its middle as others come in above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box's place.

    Attributes:
        column: from the left, from 0.
        row: from above, from 0; no other box has it.
    """

    column: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One arrow's way.

    Attributes:
        gap: between which columns it goes down: 0 is left of the first; None for straight down.
        leaves, enters: the sides of the boxes: -1 for left, 1 for right.
        track: in the gap, from the left, from 0.
    """

    source: str
    target: str
    gap: int | None
    leaves: int = 0
    enters: int = 0
    track: int = 0


def routes(boxes: Mapping[str, Box], arrows: Iterable[tuple[str, str]]) -> list[Route]:
    """The way of each arrow.

    Args:
        boxes: by name.
        arrows: from a box to one in a later row.
    """
    found = [_sides(boxes, source, target) for source, target in arrows]
    tracks: dict[tuple[int, str], int] = {}
    for gap in sorted({each.gap for each in found if each.gap is not None}):
        spans: dict[str, tuple[int, int]] = {}
        for each in found:
            if each.gap == gap:
                first, last = spans.get(each.source, (boxes[each.source].row, 0))
                spans[each.source] = first, max(last, boxes[each.target].row)
        tracks |= {(gap, source): track for source, track in _tracks(spans).items()}
    return [
        each
        if each.gap is None
        else Route(
            source=each.source, target=each.target, gap=each.gap, leaves=each.leaves, enters=each.enters,
            track=tracks[each.gap, each.source],
        )
        for each in found
    ]  # fmt: skip


def widths(found: Sequence[Route], num_columns: int) -> list[int]:
    """How many tracks each gap has, from the one left of the first column to the one right of the last."""
    return [max((each.track + 1 for each in found if each.gap == gap), default=0) for gap in range(num_columns + 1)]


def spread(
    found: Sequence[Route], num_columns: int, *, width: float, margin: float
) -> tuple[list[float], list[float], float]:
    """Where each column begins, where the first track of each gap is, and how wide the picture is.

    Args:
        width: of a box.
        margin: left and right of all.
    """
    tracks, x, lefts, gaps = widths(found, num_columns), margin, [], []
    for number in range(num_columns):
        gaps.append(x + BAND)
        x += (GAP if number else 0) + TRACK * tracks[number]
        lefts.append(x)
        x += width
    gaps.append(x + BAND)
    return lefts, gaps, x + margin + TRACK * tracks[-1]


def cut(text: str, letters: int) -> str:
    """A text of a box, with no more letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def drawn(start: tuple[float, float], across: float, end: tuple[float, float]) -> str:
    """The path from the side of one box to the side of a lower one, by way of a track.

    Args:
        start, end: x and y.
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
    """A track for each, so that those of one track do not meet."""
    free_from: list[int] = []
    given = {}
    for source, (first, last) in sorted(spans.items(), key=lambda each: each[1]):
        track = next((number for number, row in enumerate(free_from) if row < first), len(free_from))
        free_from[track:] = [last, *free_from[track + 1 :]]
        given[source] = track
    return given
