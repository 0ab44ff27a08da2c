"""Whether the slices of a series belong to one acquisition and one reconstruction.

Harmless patterns: one value; a different value for each slice (axial scans of one slice per rotation); blocks of slices
(several slices per rotation, or table positions one after the other). A value that returns after another one means that two
acquisitions alternate along the stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from medweave_steps.io.dicom.planes import ACQUISITION_ATTRIBUTES, Plane
from medweave_steps.io.findings import SeriesName

# One volume has one value of these: blocks are separate volumes, too.
_CONSTANT = {
    "ConvolutionKernel", "TemporalPositionIdentifier", "TemporalPositionIndex", "NominalPercentageOfCardiacPhase", "StackID",
    "MonoenergeticEnergyEquivalent",
}  # fmt: skip
# Absence of these is a value: without contrast agent.
_ABSENCE_COUNTS = {"ContrastBolusAgent"}
_TIME = "AcquisitionTime"
_MIN_SLICES_PER_TIME = 4


def check_one_acquisition(planes: Sequence[Plane], name: SeriesName) -> None:
    """Refuse a volume whose slices come from several acquisitions, reconstructions, stacks, phases or energies.

    Args:
        planes: slices in the order of their positions.
    Raises:
        FindingError: names the attribute and the number of values, never a value.
    """
    for index, (keyword, _) in enumerate(ACQUISITION_ATTRIBUTES):
        values = [normalized(plane.acquisition[index]) for plane in planes]
        if keyword not in _ABSENCE_COUNTS:
            values = [value for value in values if value]
        num_values = len(set(values))
        if num_values < 2:
            continue
        num_changes = sum(a != b for a, b in itertools.pairwise(values))
        if keyword == _TIME and not _alternates(len(values), num_values, num_changes):
            continue
        if num_changes >= num_values or keyword in _CONSTANT:
            raise _mixed(name, keyword, num_values, num_changes)
    kinds = [plane.frame_type for plane in planes]
    num_changes = sum(a != b for a, b in itertools.pairwise(kinds))
    if num_changes >= len(set(kinds)):
        raise _mixed(name, "ImageType or FrameType", len(set(kinds)), num_changes)


def _alternates(num_slices: int, num_values: int, num_changes: int) -> bool:
    """Return True for times of few acquisitions that change at most slices; a time that differs for each slice has no meaning."""
    return num_values * _MIN_SLICES_PER_TIME <= num_slices and num_changes * 2 > num_slices


def normalized(text: str) -> str:
    """Return a number without its spelling ("120" and "120.0" are equal), and other text in capitals."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text.upper()


def _mixed(name: SeriesName, keyword: str, num_values: int, num_changes: int) -> Exception:
    return name.refuse(
        "mixed-acquisitions",
        "the slices come from different acquisitions or reconstructions: several volumes are mixed.",
        seen=f"{keyword} with {num_values} values that change {num_changes} times along the stack",
        expected="one acquisition and one reconstruction per series",
        do="split the series into one SeriesInstanceUID per acquisition or reconstruction",
    )
