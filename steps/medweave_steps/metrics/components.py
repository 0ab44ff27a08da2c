"""Connected components of sparse masks, by runs: the time grows with the lesions, not with the scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_steps.metrics.masks import BoolArray, IndexArray, foreground


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """The components of one mask.

    Attributes:
        num: number of components.
        voxels: flattened (C order) indices of the foreground, ascending, shape (n,).
        labels: component of each of these voxels, 0 to num - 1 in the order of their first voxels, shape (n,).
        mask: the mask itself.
    """

    num: int
    voxels: IndexArray
    labels: npt.NDArray[np.int32]
    mask: BoolArray

    def num_voxels(self) -> IndexArray:
        """Return voxels of each component, shape (num,)."""
        return np.bincount(self.labels, minlength=self.num)


def connected_components(mask: BoolArray) -> Components:
    """Return the components under 26-connectivity (voxels that share a face, an edge or a corner are connected).

    Runs of foreground along the last axis are joined with the runs of the four neighboring rows that come later, as
    in two-pass labeling; a 512 x 512 x 300 scan with some lesions takes tens of milliseconds.

    Args:
        mask: bool array of three dimensions.
    Source: He, Chao, Suzuki 2008, IEEE Trans Image Process 17(5):749-756 (run-based labeling).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components as graph_components

    voxels = foreground(mask)
    if not len(voxels):
        return Components(num=0, voxels=voxels, labels=np.zeros(0, np.int32), mask=mask)
    _, size_j, size_k = mask.shape
    is_start = np.ones(len(voxels), np.bool_)
    is_start[1:] = (np.diff(voxels) != 1) | (voxels[1:] % size_k == 0)
    starts = np.flatnonzero(is_start)
    lengths = np.diff(starts, append=len(voxels))
    rows, first = np.divmod(voxels[starts], size_k)
    run_i, run_j = np.divmod(rows, size_j)
    # A padded line number keeps the neighbours of a border row from wrapping to the other side of the volume.
    line = (run_i + 1) * (size_j + 2) + run_j + 1
    # Two columns of distance between lines, so that "one column further" never reaches the next line.
    begin = line * (size_k + 2) + first
    end = begin + lengths - 1
    here, there = [], []
    for step in (1, size_j + 1, size_j + 2, size_j + 3):
        shift = step * (size_k + 2)
        low = np.searchsorted(end, begin + shift - 1)
        high = np.searchsorted(begin, end + shift + 1, side="right")
        count = np.maximum(high - low, 0)
        source = np.repeat(np.arange(len(starts)), count)
        offset = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
        here.append(source)
        there.append(np.repeat(low, count) + offset)
    pairs = (np.concatenate(here), np.concatenate(there))
    graph = coo_array((np.ones(len(pairs[0]), np.bool_), pairs), shape=(len(starts), len(starts)))
    num, run_labels = graph_components(graph, directed=False)
    # Numbered by first voxel, so that the order does not depend on the library.
    _, first_run, by_name = np.unique(run_labels, return_index=True, return_inverse=True)
    rank = np.empty(num, np.int32)
    rank[np.argsort(first_run)] = np.arange(num, dtype=np.int32)
    return Components(num=int(num), voxels=voxels, labels=np.repeat(rank[by_name], lengths), mask=mask)
