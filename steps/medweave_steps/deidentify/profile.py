"""The rules: DICOM PS3.15 Annex E, Table E.1-1, the Basic Application Level Confidentiality Profile, and what we add to it.

`basic_profile.csv` holds the facts of that table: the action of the basic profile, the action under the option "Retain
Longitudinal Temporal Information With Modified Dates" and that under "Retain Patient Characteristics", of the edition 2024e,
and the attributes that editions up to 2026c have added.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

PROFILE = "DICOM PS3.15 2026c, Table E.1-1, Basic Application Level Confidentiality Profile"

Action = Literal["remove", "empty", "dummy", "uid", "date", "keep", "clean", "scan-words"]

# Codes of the profile and its options, DICOM PS3.16, CID 7050.
Option = tuple[str, str]
BASIC: Option = ("113100", "Basic Application Confidentiality Profile")
FACES: Option = ("113102", "Clean Recognizable Visual Features Option")
STRUCTURED: Option = ("113104", "Clean Structured Content Option")
DESCRIPTORS: Option = ("113105", "Clean Descriptors Option")
MODIFIED_DATES: Option = ("113107", "Retain Longitudinal Temporal Information Modified Dates Option")
CHARACTERISTICS: Option = ("113108", "Retain Patient Characteristics Option")

# What a type 1 or type 2 attribute needs so that the object stays valid: where the table leaves the choice to the IOD, the
# value that every type allows.
_ACTIONS: Mapping[str, Action] = {
    "X": "remove",
    "Z": "empty",
    "D": "dummy",
    "U": "uid",
    "X/Z": "empty",
    "X/D": "dummy",
    "Z/D": "dummy",
    "X/Z/D": "dummy",
    "X/Z/U*": "clean",
}

# Where medweave goes beyond the table, or chooses among the actions that it allows.
_OWN: Mapping[int, Action] = {
    0x00081110: "remove",  # Referenced Study Sequence: empty is not allowed where it is optional
    0x00080110: "remove",  # Coding Scheme Identification Sequence: names of a hospital's own schemes, and persons responsible
    0x0040A730: "clean",  # Content Sequence: option "Clean Structured Content", so that references and measurements stay
    0x0040A160: "dummy",  # Text Value, of that content
    0x0040A073: "clean",  # Verifying Observer Sequence: each of its attributes has its own rule
    0x00620020: "dummy",  # Tracking ID: required with a Tracking UID, and free text
    0x006A0003: "uid",  # Annotation Group UID
    0x30060026: "keep",  # ROI Name: option "Clean Descriptors", so that the ground truth keeps the names of its labels
    0x04000500: "remove",  # Encrypted Attributes Sequence: the original values, for whoever has that key
    0x04000520: "remove",  # Encrypted Content
    # What many patients share (a machine's calibration, the version of a code list) is not moved: the same true date under two
    # shifts, or a published one under any, would give the shifts away.
    0x00080106: "dummy", 0x00080107: "dummy",  # Context Group Version, and its Local Version
    0x00181200: "remove", 0x00181201: "remove",  # Date and Time of Last Calibration
    0x00181202: "remove", 0x00181203: "empty",  # DateTime of Last Calibration, Calibration DateTime
    0x00181204: "remove", 0x00181205: "remove",  # Date of Manufacture, Date of Installation
    0x0018700C: "dummy", 0x0018700E: "dummy",  # Date and Time of Last Detector Calibration
    0x00686226: "dummy", 0x00686270: "dummy",  # Effective and Information Issue DateTime, of implant templates
    0xFFFAFFFA: "remove",  # Digital Signatures Sequence: no signature holds any more
    0xFFFCFFFC: "remove",  # Data Set Trailing Padding: bytes without meaning
}  # fmt: skip

# Pixels, tables and waveforms: binary values that an image needs. Any other binary value is removed.
BINARY_KEPT = frozenset(
    {
        0x7FE00010,  # Pixel Data
        0x00280120, 0x00280121,  # Pixel Padding Value and its range limit
        0x00283006,  # LUT Data
        0x00281201, 0x00281202, 0x00281203, 0x00281204,  # Palette Color Lookup Table Data
        0x00281221, 0x00281222, 0x00281223,  # segmented ones
        0x00660016,  # Point Coordinates Data
        0x00660040, 0x00660041, 0x00660042, 0x00660043,  # Primitive Point Index Lists, of surfaces
        0x00020001,  # File Meta Information Version
    }
)  # fmt: skip


# Text about machines, algorithms and units that the table does not name and later steps or readers need. Any other text that
# it does not name says nothing any more: the standard knows some that do name people (a birth date in another calendar).
_TEXT_KEPT = (
    "Manufacturer", "ManufacturerModelName", "ManufacturerRelatedModelGroup", "SoftwareVersions",
    "CodeValue", "CodingSchemeDesignator", "CodingSchemeVersion", "CodeMeaning", "MappingResourceName",
    "SequenceName", "PulseSequenceName", "ImagedNucleus", "ReceiveCoilName", "TransmitCoilName", "AcquisitionMode",
    "Radionuclide", "Radiopharmaceutical", "RadiopharmaceuticalRoute", "ContrastBolusRoute", "TriggerSourceOrType",
    "CardiacFramingType", "PVCRejection", "FilterType", "TypeOfFilters", "CollimatorGridName", "DoseModeName",
    "ConvolutionKernel", "ImageFilter", "ApplicationName", "ApplicationVersion", "ApplicationManufacturer",
    "DetectorManufacturerName", "DetectorManufacturerModelName", "ReconstructionMethod", "AttenuationCorrectionMethod",
    "ScatterCorrectionMethod", "StackID", "DimensionDescriptionLabel", "PositionReferenceIndicator", "RescaleType",
    "WindowCenterWidthExplanation", "LUTExplanation", "LUTLabel", "ModalityLUTType", "SegmentLabel",
    "SegmentAlgorithmName", "AlgorithmName", "AlgorithmVersion", "AlgorithmSource",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """The profile's rule for one attribute.

    Attributes:
        action: for the attribute.
        otherwise: action for a date that cannot be shifted, or a text without a word that stays.
    """

    action: Action
    otherwise: Action


# What readers of MR and PET need and the table removes: words that name the contrast, and in PET the weight, without which there is
# no standardized uptake value (SUV).
_WORDS: Mapping[int, Rule] = {
    0x0008103E: Rule("scan-words", "remove"),  # Series Description
    0x00180010: Rule("scan-words", "dummy"),  # Contrast/Bolus Agent
}
_BY_MODALITY: Mapping[str, Mapping[int, Rule]] = {
    "MR": _WORDS,
    "PT": {**_WORDS, 0x00101030: Rule("keep", "keep")},  # Patient's Weight
}


def own_rule(modality: str, tag: int) -> Rule | None:
    """Return the rule of an attribute that holds for one modality only; None for any other."""
    return _BY_MODALITY.get(modality, {}).get(tag)


@functools.cache
def rules(retain_patient_characteristics: bool) -> Mapping[int, Rule]:
    """Return the rule of every attribute that the standard's table or medweave's own table lists, by tag."""
    table: dict[int, Rule] = {}
    source = resources.files("medweave_steps.deidentify").joinpath("basic_profile.csv")
    for row in csv.DictReader(source.read_text(encoding="utf-8").splitlines()):
        basic = _ACTIONS[row["basic_profile"]]
        action: Action = "date" if row["modified_dates"] == "C" else basic
        # "C" of that option means free text to be read by a person: without one, the basic profile holds.
        if retain_patient_characteristics and row["patient_characteristics"] == "K":
            action = "keep"
        table[int(row["tag"], 16)] = Rule(action, basic)
    return table | {tag: Rule(action, action) for tag, action in _OWN.items()}


@functools.cache
def text_kept() -> frozenset[int]:
    """Return the tags of short text attributes that are kept although the table does not list them."""
    from pydicom.datadict import tag_for_keyword

    return frozenset(int(tag_for_keyword(keyword)) for keyword in _TEXT_KEPT)
