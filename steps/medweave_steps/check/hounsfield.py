"""Whether the values of a CT series are Hounsfield units: rescaling, type of image, units and range."""

from __future__ import annotations

from collections.abc import Sequence

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.dicom.header import Plane
from medweave_steps.io.findings import FindingError, SeriesName, notice
from medweave_steps.io.geometry import FloatArray

_HOUNSFIELD_TYPES = {"", "HU", "HOUNSFIELD", "HOUNSFIELD UNIT", "HOUNSFIELD UNITS"}
# Defined terms of RescaleType (DICOM PS3.3, C.11.1.1.2) and two marks of `Plane.rescale_type`.
_OTHER_TYPES = {"US", "OD", "MGML", "Z_EFF", "ED", "EDW", "HU_MOD", "PCT"}
_TYPE_NAMES = {
    "LUT": "a Modality LUT instead of RescaleSlope and RescaleIntercept",
    "UNSTATED": "no RescaleType in a multi-energy acquisition, which requires RescaleType",
}
# Third and later values of ImageType or FrameType of maps that are not HU, whatever their RescaleType.
_MAPS = {
    "RCBF", "RCBV", "CBF", "CBV", "MTT", "TTP", "TMAX", "TTD", "TTS", "PS", "PERMEABILITY", "BLOOD FLOW", "BLOOD VOLUME",
    "PBV", "LUNG PBV", "PERFUSED BLOOD VOLUME", "IODINE", "IODINE_MAP", "IODINE MAP", "URIC ACID", "Z_EFF", "ZEFF",
    "EFF_ATOMIC_NUM", "EFFECTIVE_Z", "ELECTRON_DENSITY", "RHO", "MAT_SPECIFIC", "MAT_FRACTIONAL", "MAT_MODIFIED",
    "MAT_VALUE_BASED", "MATERIAL_DENSITY", "QUANTITY", "STD_DEVIATION", "SUBTRACTION", "DIVISION", "MULTIPLICATION", "T2_STAR",
    "VELOCITY", "DIFFUSION_MAP", "METABOLITE_MAP",
}  # fmt: skip
# Likewise, of derived images only: original images of a perfusion scan or for calcium scoring are HU.
_DERIVED_MAPS = {"PERFUSION", "PERF", "DYNAMIC_PERFUSION", "CALCIUM"}
_VIRTUAL = {
    "VMI": "virtual monoenergetic images",
    "MAT_REMOVED": "images with a material removed (virtual non-contrast)",
}
_MAX_SLOPE, _MAX_INTERCEPT = 1e3, 1e5
# The extended scales of scanners reach from -10240 to 31743 HU. Padding outside the field of view may lie below.
_RANGE_HU = (-10240.0, 31743.0)
_MAX_SHARE_OUTSIDE = 0.5


def check_hounsfield(planes: Sequence[Plane], image_types: Sequence[Sequence[str]], name: SeriesName) -> list[Finding]:
    """Refuse a series whose headers do not make its values HU; return notices about virtual images.

    Args:
        planes: slices of the series.
        image_types: values of ImageType of its files.
    Raises:
        FindingError: no or unusable rescaling, another RescaleType, a map by its type of image, or other units.
    """
    types = {plane.rescale_type.upper() for plane in planes} - _HOUNSFIELD_TYPES
    if types:
        shown = [_TYPE_NAMES.get(kind) or _shown_type(kind) for kind in sorted(types)]
        raise _not_hu(
            name, seen=", ".join(dict.fromkeys(shown)), expected="RescaleType HU, or no RescaleType, in every slice"
        )
    _check_rescale(planes, name)
    kinds = {tuple(word.upper() for word in kind) for kind in (*image_types, *(plane.frame_type for plane in planes))}
    maps = sorted({word for kind in kinds for word in _map_words(kind)})
    if maps:
        raise _not_hu(name, seen=f"ImageType or FrameType {', '.join(maps)}", expected="slices of a CT reconstruction")
    mappings = sorted({plane.real_world for plane in planes} - {"", "HU"})
    if mappings:
        raise _not_hu(
            name,
            seen=", ".join(mappings),
            expected="no real-world value mapping, or one to Hounsfield units ([hnsf'U])",
        )
    virtual = [text for word, text in _VIRTUAL.items() if any(word in kind[2:] for kind in kinds)]
    what = f"{name}: {' and '.join(virtual)}; their HU differ from those of a conventional scan."
    return [notice("virtual-image", what, case_id=name.case_id)] if virtual else []


def check_range(plane_hu: FloatArray, name: SeriesName) -> None:
    """Refuse a sample plane most of whose values are no CT number.

    Args:
        plane_hu: one plane in HU.
    Raises:
        FindingError: over half of the values are outside -10240 to 31743 HU.
    """
    low, high = _RANGE_HU
    outside = float(((plane_hu < low) | (plane_hu > high) | (plane_hu != plane_hu)).mean())
    if outside > _MAX_SHARE_OUTSIDE:
        raise _not_hu(
            name,
            seen=f"{outside:.0%} of the values of the middle slice outside {low:.0f} to {high:.0f} HU",
            expected="air near -1000 HU, water near 0 HU",
        )


def _check_rescale(planes: Sequence[Plane], name: SeriesName) -> None:
    lacking = sum(plane.slope is None or plane.intercept is None or plane.slope == 0 for plane in planes)
    if lacking:
        raise name.refuse(
            "no-rescale",
            f"{lacking} of {len(planes)} slices have no usable rescale from stored values to HU.",
            seen="no usable RescaleSlope and RescaleIntercept",
            expected="RescaleSlope and RescaleIntercept in every slice",
            do="export the series again from the archive or the scanner, as the original images",
        )
    for keyword, limit, numbers in (
        ("RescaleSlope", _MAX_SLOPE, [plane.slope or 0.0 for plane in planes]),
        ("RescaleIntercept", _MAX_INTERCEPT, [plane.intercept or 0.0 for plane in planes]),
    ):
        worst = max(numbers, key=abs)
        if abs(worst) > limit:
            raise _not_hu(name, seen=f"{keyword} {worst:g}", expected=f"{keyword} of at most {limit:g} in every slice")


def _map_words(kind: Sequence[str]) -> set[str]:
    words = {part for word in kind[2:] for part in (word, *word.split())}
    return words & (_MAPS if kind[:1] == ("ORIGINAL",) else _MAPS | _DERIVED_MAPS)


def _shown_type(kind: str) -> str:
    # Any other text may hold a name.
    return f"RescaleType {kind}" if kind in _OTHER_TYPES else "a RescaleType that the DICOM standard does not define"


def _not_hu(name: SeriesName, *, seen: str, expected: str) -> FindingError:
    return name.refuse(
        "not-hu",
        "the values are not in Hounsfield units.",
        seen=seen,
        expected=expected,
        do="use the conventional CT reconstruction of this scan, or skip the series with --on-error skip",
    )
