"""Compact letters of groups: two groups differ if and only if they have no letter in common. Pure."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence


def compact_letters(groups: Sequence[str], different: Collection[tuple[str, str]]) -> Mapping[str, str]:
    """Return the letters of each group.

    Args:
        groups: names in descending order of their means; so the letters begin with `a` at the largest mean.
        different: pairs of groups that differ, in any order.
    Source: Piepho 2004, Journal of Computational and Graphical Statistics 13(2):456-466, "insert and absorb".
    """
    columns = [frozenset(groups)]
    for one, other in different:
        split = [part for column in columns for part in _without_pair(column, one, other)]
        unique = list(dict.fromkeys(split))
        columns = [column for column in unique if not any(column < larger for larger in unique)]
    place = {name: number for number, name in enumerate(groups)}
    ordered = sorted(columns, key=lambda column: sorted(place[name] for name in column))
    return {
        name: "".join(_letter(number) for number, column in enumerate(ordered) if name in column) for name in groups
    }


def _without_pair(column: frozenset[str], one: str, other: str) -> list[frozenset[str]]:
    """Return the column, or two columns with one of the groups each if it has both."""
    return [column - {one}, column - {other}] if {one, other} <= column else [column]


def _letter(number: int) -> str:
    letters = string.ascii_letters
    return letters[number % len(letters)] * (number // len(letters) + 1)
