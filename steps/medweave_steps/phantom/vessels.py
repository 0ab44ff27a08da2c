"""Branching trees: pulmonary arteries with their bronchi, and veins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.fields import Float
from medweave_steps.phantom.tubes import Tubes

# Murray 1926 (PNAS 12:207) gives r^3 = sum of the daughters' r^3; measured in the lung 2.7 to 3 (Huang et al. 1996,
# J Appl Physiol 81:2123).
MURRAY_EXPONENT = 2.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Branches of one tree: start and end (N, 3) in mm, radius (N,), the parent branch's radius (N,)."""

    start: Float
    end: Float
    radius: Float
    parent_radius: Float


def _split_groups(
    points: Float, centroid: Float, parent: Float, counts: NDArray[np.intp], fraction: Float
) -> tuple[Float, NDArray[np.intp]]:
    """Cut each group across its widest direction at right angles to its branch; return sorted points and new counts."""
    group = np.repeat(np.arange(len(counts)), counts)
    heading = centroid - parent
    heading /= np.maximum(np.linalg.norm(heading, axis=1, keepdims=True), 1e-6)
    offset = points - centroid[group]
    across = offset - (offset * heading[group]).sum(axis=1, keepdims=True) * heading[group]
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    spread = np.add.reduceat(across[:, :, None] * across[:, None, :], first, axis=0)
    widest = np.linalg.eigh(spread.astype(np.float64))[1][:, :, 2].astype(np.float32)
    widest *= np.where(widest.sum(axis=1, keepdims=True) < 0, -1, 1)  # the sign of an eigenvector is arbitrary
    order = np.lexsort(((across * widest[group]).sum(axis=1), group))
    left = np.clip(np.rint(counts * fraction), 1, counts - 1).astype(np.intp)
    return points[order], np.stack([left, counts - left], axis=1).reshape(-1)


def grow_tree(root_xyz_mm: Float, targets_xyz_mm: Float, root_radius_mm: float, rng: np.random.Generator) -> Tree:
    """Grow a tree from a root to every target, all branches of one level at a time.

    A branch heads for the centroid of the targets it serves, then parts them in two across their widest direction; the
    radius follows Murray's law with equal flow to every target. This fills the lung evenly.

    Args:
        root_xyz_mm: (3,) in mm.
        targets_xyz_mm: (N, 3) in mm, N >= 2.
        root_radius_mm: radius of the first branch.
        rng: branch lengths and asymmetry.
    """
    total = len(targets_xyz_mm)
    points, counts = targets_xyz_mm.astype(np.float32), np.array([total], np.intp)
    parent, parent_radius = root_xyz_mm.astype(np.float32)[None], np.array([root_radius_mm], np.float32)
    branches: list[tuple[Float, Float, Float, Float]] = []
    while len(counts):
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        centroid: Float = (np.add.reduceat(points, first, axis=0) / counts[:, None]).astype(np.float32)
        radius = (root_radius_mm * (counts / total) ** (1 / MURRAY_EXPONENT)).astype(np.float32)
        reach = rng.uniform(0.28, 0.5, len(counts)).astype(np.float32)
        reach[counts == 1] = 1.0
        end: Float = (parent + reach[:, None] * (centroid - parent)).astype(np.float32)
        branches.append((parent, end, radius, parent_radius))
        fork = counts > 1
        points = points[np.repeat(fork, counts)]
        parent, centroid, counts, radius = end[fork], centroid[fork], counts[fork], radius[fork]
        if len(counts):
            fraction = rng.uniform(0.25, 0.75, len(counts)).astype(np.float32)
            points, counts = _split_groups(points, centroid, parent, counts, fraction)
        parent, parent_radius = np.repeat(parent, 2, axis=0), np.repeat(radius, 2)
    start, end, radius, parent_radius = (np.concatenate(column) for column in zip(*branches, strict=True))
    return Tree(start=start, end=end, radius=radius, parent_radius=parent_radius)


def tree_tubes(tree: Tree, rng: np.random.Generator, *, piece_mm: float = 7.0, bow: float = 0.09) -> Tubes:
    """Return the branches as tapering tubes in pieces of about `piece_mm`; `bow` scales how far a branch bends, by its length."""
    direction = tree.end - tree.start
    length = np.linalg.norm(direction, axis=1)
    sideways = np.cross(direction, rng.standard_normal(direction.shape).astype(np.float32)) * np.float32(bow)
    sideways *= rng.uniform(0, 1, len(length)).astype(np.float32)[:, None]
    pieces = np.clip(np.ceil(length / piece_mm), 1, 6).astype(np.intp)
    branch = np.repeat(np.arange(len(pieces)), pieces)
    step = np.arange(len(branch)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first_radius = np.minimum(tree.parent_radius, tree.radius * np.float32(1.15))
    ends = []
    for at in (step / pieces[branch], (step + 1) / pieces[branch]):
        at = at.astype(np.float32)
        bend = (2 * at * (1 - at))[:, None] * sideways[branch]
        position = tree.start[branch] + at[:, None] * direction[branch] + bend
        ends.append((position, first_radius[branch] + at * (tree.radius * np.float32(0.85) - first_radius)[branch]))
    (start, start_radius), (end, end_radius) = ends
    return Tubes(start=start, end=end, start_radius=start_radius, end_radius=end_radius)


def airways_beside(arteries: Tree, side_xyz: Float, *, smallest_mm: float) -> Tree:
    """Return bronchi that follow the arteries down to a lumen radius of `smallest_mm`.

    A bronchus and its artery share a sheath and have about the same width (lumen to artery ratio 0.7 to 0.8 in healthy
    adults: Matsuoka et al. 2003, AJR 180:513), so the tree is the arterial one, shifted.
    """
    lumen, parent_lumen = arteries.radius * np.float32(0.75), arteries.parent_radius * np.float32(0.75)
    keep = lumen >= smallest_mm
    unit = (side_xyz / np.linalg.norm(side_xyz)).astype(np.float32)
    shift_start = (arteries.parent_radius * np.float32(1.6) + np.float32(1.2))[:, None] * unit
    shift_end = (arteries.radius * np.float32(1.6) + np.float32(1.2))[:, None] * unit
    return Tree(
        start=(arteries.start + shift_start)[keep],
        end=(arteries.end + shift_end)[keep],
        radius=lumen[keep],
        parent_radius=parent_lumen[keep],
    )
