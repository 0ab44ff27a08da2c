"""PET: from stored values to standardized uptake values by body weight (SUVbw), with the attributes that this needs checked.

SUVbw [g/ml] = activity concentration [Bq/ml] x body weight [g] / injected activity [Bq], the latter decayed to the time that the
image is decay-corrected to. Source: QIBA, "Vendor-neutral pseudo-code for SUV calculation" (happy path only: no private
attributes of a vendor), and DICOM PS3.3, C.8.9.1 (PET Series: Units, Decay Correction) and C.8.9.2 (PET Isotope).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.volume import Modality
from medweave_steps.io.dicom.header import Plane, load_pydicom
from medweave_steps.io.dicom.values import HeaderValues, has_other_cause
from medweave_steps.io.findings import SeriesName

# Defined terms of Units (0054,1001), PS3.3, C.8.9.1.1.3: any other text may hold anything.
_UNITS = ("CNTS", "NONE", "CM2", "PCNT", "CPS", "BQML", "MGMINML", "UMOLMINML", "MLMING", "MLG", "1CM", "UMOLML", "PROPCNTS",
          "PROPCPS", "MLMINML", "MLML", "GML", "STDDEV", "CM2ML")  # fmt: skip
_SUV_TYPES = ("BW", "LBM", "LBMJAMES128", "LBMJANMA", "BSA", "IBW")  # SUV Type (0054,1006)
_MOST_KG = 1000.0
_LEAST_BQ = 1e4  # less was written in MBq
_MOST_HALF_LIVES = 10
_DAY_S = 86400.0
_TAGS = [
    "Units", "SUVType", "DecayCorrection", "CorrectedImage", "PatientWeight", "SeriesDate", "SeriesTime", "AcquisitionDate",
    "AcquisitionTime", "RadiopharmaceuticalInformationSequence", "SpecificCharacterSet",
]  # fmt: skip


class SuvError(Exception):
    """A PET series without usable SUV; has the parts of a finding, without patient data."""

    def __init__(self, code: str, what: str, *, seen: str, expected: str) -> None:
        super().__init__(what)
        self.code, self.what, self.seen, self.expected = code, what, seen, expected
        self.do = "export the series again with these attributes, or remove it; SUV are never guessed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PetHeader:
    """The attributes of one PET image file that SUV depend on; empty or None where the header has none that can be used.

    Attributes:
        weight_kg: body weight.
        dose_bq: injected activity.
        half_life_s: half-life of the radionuclide.
        injection: date and time of the injection (DT), or its time only (TM).
        series, acquisition: date (DA) and time (TM).
    """

    units: str
    suv_type: str
    decay_correction: str
    corrections: tuple[str, ...]
    weight_kg: float | None
    dose_bq: float | None
    half_life_s: float | None
    injection: str
    series: tuple[str, str]
    acquisition: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuvScale:
    """The conversion of one PET series.

    Attributes:
        factor: SUVbw for one unit of the stored values after slope and intercept.
        by_acquisition: decay was counted to the earliest AcquisitionTime, since SeriesTime is later or absent.
    """

    factor: float
    by_acquisition: bool = False


def planes_in_unit(
    cohort: Path, planes: Sequence[Plane], modality: Modality, name: SeriesName
) -> tuple[Sequence[Plane], bool]:
    """Return planes whose slope and intercept give the unit of the modality: those of PET give SUV.

    Returns:
        the planes, and whether decay was counted to AcquisitionTime; see `SuvScale`.
    Raises:
        FindingError: a PET series whose headers do not give SUV.
    """
    if modality != "PT":
        return planes, False
    try:
        scaled, scale = to_suv(cohort, planes)
    except SuvError as error:
        raise name.refuse(error.code, error.what, seen=error.seen, expected=error.expected, do=error.do) from error
    return scaled, scale.by_acquisition


def to_suv(folder: Path, planes: Sequence[Plane]) -> tuple[list[Plane], SuvScale]:
    """Return the planes of a PET series with slope and intercept to SUV, and the conversion.

    Args:
        folder: the cohort.
        planes: with slope and intercept to the unit of the header.
    Raises:
        SuvError: an attribute that SUV need is absent, unusable or differs between the files.
    """
    files = dict.fromkeys(plane.file for plane in planes)
    scale = suv_scale([read_pet_header(folder / file) for file in files])
    return [
        dataclasses.replace(
            plane,
            slope=None if plane.slope is None else plane.slope * scale.factor,
            intercept=None if plane.intercept is None else plane.intercept * scale.factor,
        )
        for plane in planes
    ], scale


def read_pet_header(path: Path) -> PetHeader:
    """Return the attributes of one PET image file."""
    try:
        dataset = load_pydicom().dcmread(path, stop_before_pixels=True, specific_tags=_TAGS, force=True)
    except Exception as error:  # pydicom raises many kinds for a damaged header
        if has_other_cause(error):
            raise
        raise SuvError(
            "unreadable-file", "a header cannot be read.", seen=type(error).__name__, expected="DICOM"
        ) from error
    values = HeaderValues(dataset)
    tracers = values.items("RadiopharmaceuticalInformationSequence")
    tracer: Any = tracers[0] if len(tracers) == 1 else {}
    return PetHeader(
        units=values.text("Units").upper(),
        suv_type=values.text("SUVType").upper(),
        decay_correction=values.text("DecayCorrection").upper(),
        corrections=tuple(word.upper() for word in values.words("CorrectedImage")),
        weight_kg=values.number("PatientWeight"),
        dose_bq=_large_number(values, "RadionuclideTotalDose", tracer),
        half_life_s=values.number("RadionuclideHalfLife", tracer),
        injection=values.text("RadiopharmaceuticalStartDateTime", tracer)
        or values.text("RadiopharmaceuticalStartTime", tracer),
        series=(values.text("SeriesDate"), values.text("SeriesTime")),
        acquisition=(values.text("AcquisitionDate"), values.text("AcquisitionTime")),
    )


def suv_scale(headers: Sequence[PetHeader]) -> SuvScale:
    """Return the conversion of a PET series.

    Args:
        headers: one for each file of the series.
    Raises:
        SuvError: see `to_suv`.
    """
    first = headers[0]
    for field in dataclasses.fields(PetHeader):
        if field.name != "acquisition" and any(getattr(h, field.name) != getattr(first, field.name) for h in headers):
            raise SuvError(
                "pet-headers-differ",
                "the files of a PET series disagree about an attribute that SUV need.",
                seen=f"several values of {field.name}",
                expected="one value in all files of the series",
            )
    if first.units == "GML":
        if first.suv_type in ("", "BW"):
            return SuvScale(factor=1.0)
        kind = first.suv_type if first.suv_type in _SUV_TYPES else "of an unknown kind"
        raise _unit(f"Units GML with SUVType {kind}", "SUVType BW (body weight), or none")
    if first.units != "BQML":
        known = first.units in _UNITS
        raise _unit(
            f"Units {first.units}" if known else "Units that DICOM does not define" if first.units else "no Units",
            "Units BQML, or GML with SUV by body weight; counts need factors that vendors store in private attributes",
        )
    _check_corrections(first)
    weight_kg, dose_bq, half_life_s = _checked_numbers(first)
    if first.decay_correction == "ADMIN":
        return SuvScale(factor=weight_kg * 1000 / dose_bq)
    elapsed_s, by_acquisition = _seconds_since_injection(headers)
    if elapsed_s > _MOST_HALF_LIVES * half_life_s:
        raise _no_injection_time(
            f"an injection {elapsed_s / half_life_s:.0f} half-lives before the scan",
            "an injection at most 10 half-lives before the scan (dates of an anonymized series may have been changed)",
        )
    decayed_bq = dose_bq * math.exp2(-elapsed_s / half_life_s)
    return SuvScale(factor=weight_kg * 1000 / decayed_bq, by_acquisition=by_acquisition)


def _check_corrections(header: PetHeader) -> None:
    kind = header.decay_correction
    if kind not in ("START", "ADMIN"):
        raise SuvError(
            "no-decay-correction",
            "the PET values are not decay-corrected.",
            seen="DecayCorrection (0054,1102) NONE" if kind == "NONE" else "no usable DecayCorrection (0054,1102)",
            expected="START or ADMIN",
        )
    for word, name in (("DECY", "decay"), ("ATTN", "attenuation")):
        if word not in header.corrections and name.upper() not in header.corrections:
            raise SuvError(
                f"no-{name}-correction",
                f"the PET values are not corrected for {name}.",
                seen=f"CorrectedImage (0028,0051) without {word}",
                expected=f"{word} among its values",
            )


def _checked_numbers(header: PetHeader) -> tuple[float, float, float]:
    for code, what, seen, expected, is_usable in (
        ("no-patient-weight", "the body weight is missing.", header.weight_kg, f"PatientWeight (0010,1030), 0 to {_MOST_KG:g} kg",
         0 < (header.weight_kg or 0) <= _MOST_KG),
        ("no-injected-dose", "the injected activity is missing.", header.dose_bq,
         f"RadionuclideTotalDose (0018,1074) of {_LEAST_BQ:g} Bq or more", (header.dose_bq or 0) >= _LEAST_BQ),
        ("no-half-life", "the half-life is missing.", header.half_life_s, "RadionuclideHalfLife (0018,1075) above 0 s",
         (header.half_life_s or 0) > 0),
    ):  # fmt: skip
        if not is_usable:
            shown = "no usable value" if seen is None else "a value out of range"
            raise SuvError(code, f"a PET series without usable SUV: {what}", seen=shown, expected=expected)
    assert header.weight_kg is not None
    assert header.dose_bq is not None
    assert header.half_life_s is not None
    return header.weight_kg, header.dose_bq, header.half_life_s


def _seconds_since_injection(headers: Sequence[PetHeader]) -> tuple[float, bool]:
    """Return the time from the injection to the start of the acquisition, s, and whether AcquisitionTime gave the latter."""
    first = headers[0]
    series, acquisition = _moment(*first.series), _earliest(_moment(*header.acquisition) for header in headers)
    # A series that was processed later has the time of the processing (QIBA).
    by_acquisition = acquisition is not None and (series is None or series > acquisition)
    scan = acquisition if by_acquisition else series
    if scan is None:
        raise SuvError(
            "no-scan-time",
            "a PET series without usable SUV: the time of the scan is missing.",
            seen="no usable SeriesDate and SeriesTime, AcquisitionDate and AcquisitionTime",
            expected="SeriesDate (0008,0021) and SeriesTime (0008,0031) in every file",
        )
    dated = re.fullmatch(r"(\d{8})(\d{2,6}(?:\.\d+)?)([+-]\d{4})?", first.injection)
    injection = _moment(dated[1], dated[2]) if dated else None
    if injection is None:
        time_s = _seconds_of_day(first.injection)
        if time_s is None:
            raise _no_injection_time(
                "no usable RadiopharmaceuticalStartDateTime (0018,1078) or RadiopharmaceuticalStartTime (0018,1072)",
                "the time of the injection",
            )
        scan_s = (scan - scan.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
        return scan_s - time_s + (_DAY_S if time_s > scan_s else 0.0), by_acquisition  # the scan was after midnight
    elapsed_s = (scan - injection).total_seconds()
    if elapsed_s < 0:
        raise _no_injection_time("an injection after the scan", "an injection before the scan")
    return elapsed_s, by_acquisition


def _earliest(moments: Iterable[datetime.datetime | None]) -> datetime.datetime | None:
    known = [moment for moment in moments if moment is not None]
    return min(known, default=None)


def _moment(date: str, time: str) -> datetime.datetime | None:
    seconds = _seconds_of_day(time)
    match = re.fullmatch(r"(\d{4})\.?(\d{2})\.?(\d{2})", date)
    if match is None or seconds is None:
        return None
    try:
        day = datetime.datetime(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return None
    return day + datetime.timedelta(seconds=seconds)


def _seconds_of_day(time: str) -> float | None:
    match = re.fullmatch(r"(\d{2}):?(\d{2})?:?(\d{2}(?:\.\d+)?)?", time)
    if match is None:
        return None
    seconds = int(match[1]) * 3600 + int(match[2] or 0) * 60 + float(match[3] or 0)
    return seconds if seconds < _DAY_S else None


def _large_number(values: HeaderValues, keyword: str, holder: Any) -> float | None:
    """Return a number that may be larger than a length or a pixel value."""
    try:
        number = float(values.text(keyword, holder))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unit(seen: str, expected: str) -> SuvError:
    return SuvError(
        "pet-units", "the PET values cannot be converted to SUV by body weight.", seen=seen, expected=expected
    )


def _no_injection_time(seen: str, expected: str) -> SuvError:
    what = "a PET series without usable SUV: the time of the injection is missing or wrong."
    return SuvError("no-injection-time", what, seen=seen, expected=expected)
