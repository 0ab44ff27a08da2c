"""Rows into training, validation and test, random under-sampling, and the partition of the training rows into files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import Split
from medweave_core.errors import UserInputError
from medweave_steps.io.tables.row_block import NO_CLASS

IntArray = npt.NDArray[np.int64]
SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")
_DRAW = 104_729
"""Second word of the seeds of under-sampling, which are then others than those of the split."""


def split_rows(
    targets: npt.NDArray[np.int16], groups: IntArray | None, *, fractions: Sequence[float], seed: int
) -> dict[Split, IntArray]:
    """Return the row numbers of each split, ascending.

    Validation and test have the rounded fraction of all rows, and of each class, to less than one row; training has the rest.

    Args:
        targets: [rows], class of each row; rows of no class are in no split.
        groups: [rows]; rows of one group stay together, and a group counts for the rarest class of its rows. None to draw rows.
    """
    of_unit = targets if groups is None else _rarest_class(targets, groups)
    split_of_unit = np.full(len(of_unit), -1, np.int8)
    sizes = np.bincount(of_unit[of_unit != NO_CLASS])
    numbers = zip(_counts_by_class(sizes, fractions[2]), _counts_by_class(sizes, fractions[1]), strict=True)
    for number, (tested, validated) in enumerate(numbers):
        members = np.flatnonzero(of_unit == number)
        order = np.random.default_rng((seed, number)).permutation(members)
        split_of_unit[order] = 0
        split_of_unit[order[:tested]] = 2
        split_of_unit[order[tested : tested + validated]] = 1
    split_of_row = np.where(targets == NO_CLASS, -1, split_of_unit if groups is None else split_of_unit[groups])
    return {name: np.flatnonzero(split_of_row == place) for place, name in enumerate(SPLITS)}


def _counts_by_class(sizes: IntArray, fraction: float) -> list[int]:
    """Return the fraction of each class by largest remainder; of equal remainders, the larger class gets the row."""
    exact = np.round(sizes * fraction, 9)
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((-sizes, counts - exact))
    counts[by_remainder[: round(float(exact.sum())) - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def _rarest_class(targets: npt.NDArray[np.int16], groups: IntArray) -> IntArray:
    """Return for each group the class with the fewest rows in all among its own; -1 for a group without any class."""
    known = targets != NO_CLASS
    frequency = np.bincount(targets[known])
    by_frequency = np.argsort(frequency, kind="stable")
    rank = np.empty(len(by_frequency), np.int64)
    rank[by_frequency] = np.arange(len(by_frequency))
    lowest = np.full(int(groups.max(initial=-1)) + 1, len(by_frequency), np.int64)
    np.minimum.at(lowest, groups[known], rank[targets[known]])
    return np.asarray(np.append(by_frequency, -1)[lowest], np.int64)


def undersample(rows: IntArray, targets: npt.NDArray[np.int16], *, ratio: int, seed: int, split: Split) -> IntArray:
    """Return all rows of the smaller of two classes, and `ratio` times as many of the larger one, ascending.

    The rows of the larger class are drawn without replacement; those of a smaller ratio are among those of a larger one.

    Args:
        rows: of a split.
        targets: of all rows of the table.
    Raises:
        UserInputError: there are not two classes, or too few rows of the larger one.
    """
    own = targets[rows]
    classes, counts = np.unique(own, return_counts=True)
    if len(classes) != 2:
        raise UserInputError(
            "under-sampling needs two classes.",
            seen=f"{len(classes)} {'class' if len(classes) == 1 else 'classes'} in the {split} rows",
            expected="2 classes",
            do="leave out --ratio and --test-ratio",
        )
    smaller = int(np.argmin(counts))
    minority, majority = rows[own == classes[smaller]], rows[own == classes[1 - smaller]]
    wanted = ratio * len(minority)
    if wanted > len(majority):
        raise UserInputError(
            f"the ratio 1:{ratio} needs more rows than the larger class has.",
            seen=f"{len(majority)} {split} rows of the larger class, {len(minority)} of the smaller one",
            expected=f"{wanted} rows, or a ratio of at most {len(majority) // len(minority)}",
            do=f"reduce --{'test-' if split == 'test' else ''}ratio",
        )
    order = np.random.default_rng((seed, _DRAW, SPLITS.index(split))).permutation(majority)
    return np.sort(np.concatenate([minority, order[:wanted]]))


def partition_sizes(rows: int, *, nodes: int, most: int) -> list[list[int]]:
    """Return the rows of each part of each node: nodes differ by one row at most, and so do the parts of a node.

    It determines the files. `train` shuffles the rows of all parts and distributes them over its ranks in each epoch.

    Args:
        rows: in all.
        most: rows of a part that fit into a node's memory.
    Returns:
        nodes x ceil(ceil(rows / nodes) / most) numbers.
    Raises:
        UserInputError: there are more nodes than rows.
    Source: "A parallel and distributed stochastic gradient descent implementation using commodity clusters", J Big Data 6, 2019.
    """
    if nodes > rows:
        raise UserInputError(
            "there are more nodes than training rows.",
            seen=f"{nodes} nodes, {rows} training rows",
            expected=f"at most {rows} nodes",
            do="reduce --nodes",
        )
    parts = math.ceil(math.ceil(rows / nodes) / most)
    return [_divide(of_node, parts) for of_node in _divide(rows, nodes)]


def _divide(number: int, parts: int) -> list[int]:
    return [number * (place + 1) // parts - number * place // parts for place in range(parts)]
