"""Connected components of a probability map: which lesions there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ComponentFilter, Postprocessing
from medweave_core.contracts.volume import Triple_mm
from medweave_steps.inference.head import OutputHead
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Box = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionComponents:
    """The components of one volume that pass the filters.

    Attributes:
        boxes: bounding box of each of them.
        mask_IJK: their voxels.
        probability_IJK: the probability map with the dropped components set to 0; the input array itself if none was dropped.
    """

    boxes: tuple[Box, ...]
    mask_IJK: BoolArray
    probability_IJK: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredOutputs:
    """The outputs of a model without the components that its filters drop.

    Attributes:
        boxes: bounding boxes that hold every voxel of every output.
        masks: voxels of each output, bool [I, J, K]; regions may overlap.
        probability_CIJK: the probabilities; the input array itself if no component was dropped.
    """

    boxes: tuple[Box, ...]
    masks: tuple[BoolArray, ...]
    probability_CIJK: FloatArray


def label_26(mask: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], int]:
    """Number the 26-connected components of a mask 1, 2, … ; return the int32 label array and their number."""
    ndimage = require("scipy.ndimage", extra="segment")
    labels, number = ndimage.label(mask, structure=np.ones((3, 3, 3), dtype=bool))
    return labels, int(number)


def lesion_components(
    probability_IJK: FloatArray, postprocessing: Postprocessing | ComponentFilter, spacing_mm: Triple_mm
) -> LesionComponents:
    """Find lesions on the network's grid: 26-connected voxels at or above the threshold, large and certain enough.

    Args:
        probability_IJK: float32 [I, J, K] in [0, 1].
        postprocessing: threshold, lowest peak, and smallest volume in mm³.
        spacing_mm: voxel size along I, J, K in mm.
    """
    mask = probability_IJK >= np.float32(postprocessing.threshold)
    passing, dropped = _sorted_out(mask, probability_IJK, postprocessing, spacing_mm)
    if dropped:
        probability_IJK = probability_IJK.copy()
        for box, inside in dropped:
            probability_IJK[box][inside] = 0
            mask[box][inside] = False
    return LesionComponents(boxes=passing, mask_IJK=mask, probability_IJK=probability_IJK)


def filter_outputs(
    probability_CIJK: FloatArray, head: OutputHead, filters: Sequence[ComponentFilter], spacing_mm: Triple_mm
) -> FilteredOutputs:
    """Drop the components of each label or region that are too small or not certain enough.

    A dropped component of a region gets that region's probability 0; one of exclusive labels (softmax) becomes background.

    Args:
        probability_CIJK: float32, as `OutputHead.probabilities` returns it.
        head: the model's outputs.
        filters: one for each output.
        spacing_mm: voxel size along I, J, K in mm.
    """
    if head.is_binary:
        found = lesion_components(probability_CIJK[0], filters[0], spacing_mm)
        return FilteredOutputs(boxes=found.boxes, masks=(found.mask_IJK,), probability_CIJK=found.probability_IJK[None])
    masks, dropped = head.masks(probability_CIJK, filters), []
    for place, (mask, one) in enumerate(zip(masks, filters, strict=True)):
        channel = head.channel_of(place)
        dropped.append(_sorted_out(mask, probability_CIJK[channel], one, spacing_mm)[1])
    if any(dropped):
        probability_CIJK = probability_CIJK.copy()
    for place, components in enumerate(dropped):
        for box, inside in components:
            masks[place][box][inside] = False
            head.drop(probability_CIJK[:, *box], inside, place)
    # Boxes of the union, so that nested regions are not restored twice.
    labels, _ = label_26(np.logical_or.reduce(masks))
    boxes = tuple(require("scipy.ndimage", extra="segment").find_objects(labels))
    return FilteredOutputs(boxes=boxes, masks=tuple(masks), probability_CIJK=probability_CIJK)


def _sorted_out(
    mask: BoolArray, probability_IJK: FloatArray, one: Postprocessing | ComponentFilter, spacing_mm: Triple_mm
) -> tuple[tuple[Box, ...], list[tuple[Box, BoolArray]]]:
    """Return the boxes of the components that pass a filter, and box and voxels of those that do not."""
    labels, number = label_26(mask)
    if number == 0:
        return (), []
    boxes = require("scipy.ndimage", extra="segment").find_objects(labels)
    # Box by box: ndimage.maximum sorts the whole volume.
    inside = [labels[box] == value for value, box in enumerate(boxes, start=1)]
    volume_mm3 = np.array([own.sum() for own in inside], dtype=np.float64) * float(np.prod(spacing_mm))
    peaks = np.array([probability_IJK[box][own].max() for box, own in zip(boxes, inside, strict=True)], np.float32)
    # A volume of exactly the limit stays, whatever the last bit of the product says.
    too_small = volume_mm3 < one.min_volume_mm3 * (1 - 1e-9)
    is_dropped = too_small | (peaks < np.float32(one.min_peak))
    passing = tuple(box for box, out in zip(boxes, is_dropped, strict=True) if not out)
    return passing, [(boxes[index], inside[index]) for index in np.flatnonzero(is_dropped)]
