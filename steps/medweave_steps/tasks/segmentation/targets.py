"""What a segmentation learns: from the label values of prepared cases to the arrays that its loss and its metrics take."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.labels import HIGHEST_VALUE, Label, Region, ascending, check_regions, declared_or_lesion
from medweave_core.contracts.model import ModelCard, OutputContract
from medweave_core.errors import UsageError
from medweave_steps.inference.head import OutputHead

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IGNORED = -1.0
"""Value of a voxel without annotation in a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The outputs of a model and the value of voxels without annotation.

    Attributes:
        head: channels of the network's output; its labels ascend by value.
        ignore_value: value of voxels that count in no loss and no metric; None if there are none.
    """

    head: OutputHead
    ignore_value: int | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether the labels exclude each other: the network has a channel for the background, too."""
        return self.head.output.activation == "softmax"

    @property
    def outputs(self) -> tuple[Region, ...]:
        """What is predicted and evaluated: the regions, or the labels."""
        return self.head.outputs

    def encoded(self, label_IJK: FloatArray) -> FloatArray:
        """Return the labels of a patch as the loss takes them.

        Args:
            label_IJK: label values.
        Returns:
            float32 [C, I, J, K], contiguous: 0 and 1 for one label; one channel of class numbers (0 is background) for several;
            0 and 1 in a channel for each region. Voxels without annotation are `IGNORED`.
        """
        if self.head.num_channels == 1 and self.ignore_value is None:
            return np.greater(label_IJK, 0, order="C").astype(np.float32)[None]
        # The indices are bytes and the table has 256 entries: the mode only saves a check of their range.
        return np.take(_table(self), label_IJK.astype(np.uint8, order="C"), axis=1, mode="clip")

    def mask_of_label(self, label_IJK: npt.NDArray[np.uint8], label: Label) -> BoolArray:
        """Return the voxels of a label; with one label all that are not background."""
        return self._mask(label_IJK, (label.value,))

    def reference(self, label_IJK: npt.NDArray[np.uint8], output: Region) -> BoolArray:
        """Return the voxels of an output in the ground truth, bool [I, J, K]."""
        return self._mask(label_IJK, output.values)

    def counted(self, label_IJK: npt.NDArray[np.uint8]) -> BoolArray | None:
        """Return the voxels with annotation, bool [I, J, K]; None if that is all of them."""
        return None if self.ignore_value is None else np.asarray(label_IJK != self.ignore_value)

    def _mask(self, label_IJK: npt.NDArray[np.uint8], values: Sequence[int]) -> BoolArray:
        if len(self.head.labels) > 1:
            return np.isin(label_IJK, values)
        mask, counted = np.asarray(label_IJK) > 0, self.counted(label_IJK)
        return mask if counted is None else mask & counted


ONE_LABEL = Targets(head=OutputHead(output=OutputContract(), labels=declared_or_lesion(())))
"""One label without regions."""


@functools.lru_cache(maxsize=8)
def _table(targets: Targets) -> FloatArray:
    """Return the value in each channel of a batch's labels by label value, float32 (C, 256)."""
    head, values = targets.head, np.arange(HIGHEST_VALUE + 1)
    if targets.is_softmax:
        table = np.zeros((1, len(values)), np.float32)
        for number, label in enumerate(head.labels, start=1):
            table[0, label.value] = number
    elif head.output.regions:
        table = np.stack([np.isin(values, region.values) for region in head.outputs]).astype(np.float32)
    else:  # one label: every value that is not background
        table = (values > 0).astype(np.float32)[None]
    if targets.ignore_value is not None:
        table[:, targets.ignore_value] = IGNORED
    return table


def targets_of_cohort(cohort: PreparedCohort, regions: Sequence[Region]) -> Targets:
    """Return what a new model learns from a training set.

    One label has one channel. Several labels have the regions of the option, else those that the cohort declares; without regions
    the labels exclude each other.

    Args:
        regions: values of `--regions`; empty without that option.
    Raises:
        UserInputError: the regions do not fit the labels of the training set.
    """
    labels = ascending(declared_or_lesion(cohort.labels))
    regions = tuple(regions) or (cohort.regions if len(labels) > 1 else ())
    if regions:
        check_regions(regions, labels)
        output = OutputContract(activation="sigmoid", regions=regions)
    else:
        output = OutputContract(activation="softmax" if len(labels) > 1 else "sigmoid")
    return Targets(head=OutputHead(output=output, labels=labels), ignore_value=cohort.ignore_value)


def targets_of_card(card: ModelCard, cohort: PreparedCohort) -> Targets:
    """Return what a trained model learns from a training set."""
    return Targets(head=OutputHead.of(card), ignore_value=cohort.ignore_value)


def parse_regions(texts: Sequence[str]) -> tuple[Region, ...]:
    """Return the regions of `--regions`, each `NAME:VALUES` such as `tumor core:2,3`.

    Raises:
        UsageError: another form, or a value above 255.
    """
    regions = []
    for text in texts:
        match = re.fullmatch(r"\s*(\S.{0,63}?)\s*:\s*(\d{1,3}(?:\s*,\s*\d{1,3})*)\s*", text)
        values = sorted({int(value) for value in match[2].split(",")}) if match else []
        if match is None or not 1 <= values[0] <= values[-1] <= HIGHEST_VALUE:
            raise UsageError(
                "invalid value of --regions.",
                seen=text,
                expected=f'a name and values from 1 to {HIGHEST_VALUE}, such as "tumor core:2,3"',
            )
        regions.append(Region(name=match[1], values=tuple(values)))
    return tuple(regions)
