"""Whether the values of an MR or PET series can be used: rescaling, and one contrast in one volume."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_steps.check.acquisitions import normalized
from medweave_steps.io.dicom.planes import MR_ATTRIBUTES, Plane
from medweave_steps.io.findings import SeriesName

_MOST_VALUES = 4


def check_rescale(planes: Sequence[Plane], name: SeriesName) -> None:
    """Refuse slices without a linear conversion from stored values. MR without any rescaling has the stored values.

    Raises:
        FindingError: a look-up table, or no usable RescaleSlope and RescaleIntercept.
    """
    by_table = sum(plane.rescale_type == "LUT" for plane in planes)
    lacking = sum(plane.slope is None or plane.intercept is None or plane.slope == 0 for plane in planes)
    if by_table or lacking:
        raise name.refuse(
            "no-rescale",
            f"{max(by_table, lacking)} of {len(planes)} slices have no usable rescale from stored values.",
            seen="a Modality LUT" if by_table else "no usable RescaleSlope and RescaleIntercept",
            expected="RescaleSlope and RescaleIntercept in every slice",
            do="export the series again from the archive or the scanner, as the original images",
        )


def check_one_contrast(planes: Sequence[Plane], name: SeriesName) -> None:
    """Refuse an MR series (or multi-frame file) with several echoes, inversion times, b-values, time points or stacks.

    Raises:
        FindingError: names the attribute and its values, where they are numbers.
    """
    for index, (keyword, _) in enumerate(MR_ATTRIBUTES):
        values = list(dict.fromkeys(normalized(plane.acquisition[index]) for plane in planes))
        if len(values) < 2:
            continue
        shown = ", ".join(value for value in values[:_MOST_VALUES] if _is_number(value))
        raise name.refuse(
            "several-volumes",
            "the series holds several volumes: its slices differ in an attribute that makes a contrast.",
            seen=f"{keyword} with {len(values)} values" + (f": {shown}" if shown else ""),
            expected="one value in all slices of a series (one echo, inversion time, b-value, time point and stack)",
            do="split the series into one SeriesInstanceUID for each value, and name the wanted ones in the channel rules",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
