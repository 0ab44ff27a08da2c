"""Figures of groups, and the checks that every design has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.statistics import Comparison, GroupFigures
from medweave_core.errors import UserInputError
from medweave_steps.stats.letters import compact_letters

EXTRA = "stats"


def check_groups(values: Mapping[str, npt.NDArray[np.float64]], name: str, *, unit: str = "value") -> None:
    """Check that there are two or more groups, each with two or more values.

    Args:
        name: of the analysis; empty if there is one only.
        unit: what a value is, for the message.
    Raises:
        UserInputError: there are too few.
    """
    where = f" of {name}" if name else ""
    if len(values) < 2:
        raise UserInputError(
            f"fewer than two groups{where}.",
            seen=f"only the group '{next(iter(values))}'",
            expected="two or more values of the column of --factor",
            do="name the column that distinguishes the groups with --factor",
        )
    single = [group for group, own in values.items() if len(own) < 2]
    if single:
        raise UserInputError(
            f"a group{where} has one {unit} only.",
            seen=f"one {unit} in {', '.join(single)}",
            expected=f"two or more {unit}s in each group: one has no variance",
            do="repeat the measurements, or remove the group from the table",
        )


def figures_of(
    values: Mapping[str, npt.NDArray[np.float64]], comparisons: Sequence[Comparison]
) -> tuple[GroupFigures, ...]:
    """Return the figures of each group, with letters by the pairs that differ."""
    descending = sorted(values, key=lambda group: -values[group].mean())
    different = [(pair.first, pair.second) for pair in comparisons if pair.is_different]
    letters = compact_letters(descending, different)
    return tuple(
        GroupFigures(
            name=group,
            count=len(own),
            mean=float(own.mean()),
            sd=float(own.std(ddof=1)),
            median=float(np.median(own)),
            minimum=float(own.min()),
            maximum=float(own.max()),
            letters=letters[group],
        )
        for group, own in values.items()
    )
