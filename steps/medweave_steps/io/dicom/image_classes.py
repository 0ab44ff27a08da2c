"""SOP classes of images whose slices are read as volumes, and their modality."""

from __future__ import annotations

from medweave_core.contracts.volume import Modality

CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"
ENHANCED_CT = ("1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.2.2")
MR_IMAGE = "1.2.840.10008.5.1.4.1.1.4"
ENHANCED_MR = "1.2.840.10008.5.1.4.1.1.4.1"
PET_IMAGE = "1.2.840.10008.5.1.4.1.1.128"


def modality_of_class(sop_class: str) -> Modality | None:
    """Return the modality of an image class; None for any other class."""
    if sop_class == CT_IMAGE or sop_class in ENHANCED_CT:
        return "CT"
    if sop_class in (MR_IMAGE, ENHANCED_MR):
        return "MR"
    return "PT" if sop_class == PET_IMAGE else None
