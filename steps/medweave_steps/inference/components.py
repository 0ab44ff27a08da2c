"""Connected components of a probability map: which lesions there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import Postprocessing
from medweave_core.contracts.volume import Triple_mm
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
Box = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionComponents:
    """The components of one volume that pass the filters.

    Attributes:
        boxes: bounding box of each of them.
        probability_IJK: the probability map with the dropped components set to 0; the input array itself if none was dropped.
        num_dropped: components below the smallest volume or the lowest peak.
    """

    boxes: tuple[Box, ...]
    probability_IJK: FloatArray
    num_dropped: int


def label_26(mask: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], int]:
    """Number the 26-connected components of a mask 1, 2, … ; return the int32 label array and their number."""
    ndimage = require("scipy.ndimage", extra="segment")
    labels, number = ndimage.label(mask, structure=np.ones((3, 3, 3), dtype=bool))
    return labels, int(number)


def lesion_components(
    probability_IJK: FloatArray, postprocessing: Postprocessing, spacing_mm: Triple_mm
) -> LesionComponents:
    """Find lesions on the network's grid: 26-connected voxels at or above the threshold, large and certain enough.

    Args:
        probability_IJK: float32 [I, J, K] in [0, 1].
        postprocessing: threshold, lowest peak, and smallest volume in mm³.
        spacing_mm: voxel size along I, J, K in mm.
    """
    ndimage = require("scipy.ndimage", extra="segment")
    labels, number = label_26(probability_IJK >= np.float32(postprocessing.threshold))
    if number == 0:
        return LesionComponents(boxes=(), probability_IJK=probability_IJK, num_dropped=0)
    boxes = ndimage.find_objects(labels)
    # Box by box: ndimage.maximum sorts the whole volume.
    inside = [labels[box] == value for value, box in enumerate(boxes, start=1)]
    volume_mm3 = np.array([own.sum() for own in inside], dtype=np.float64) * float(np.prod(spacing_mm))
    peaks = np.array([probability_IJK[box][own].max() for box, own in zip(boxes, inside, strict=True)], np.float32)
    # A volume of exactly the limit stays, whatever the last bit of the product says.
    too_small = volume_mm3 < postprocessing.min_volume_mm3 * (1 - 1e-9)
    dropped = np.flatnonzero(too_small | (peaks < np.float32(postprocessing.min_peak)))
    if len(dropped):
        probability_IJK = probability_IJK.copy()
        for index in dropped:
            probability_IJK[boxes[index]][inside[index]] = 0
    passing = tuple(box for index, box in enumerate(boxes) if index not in set(dropped.tolist()))
    return LesionComponents(boxes=passing, probability_IJK=probability_IJK, num_dropped=len(dropped))
