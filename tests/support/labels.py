"""Labels with DICOM codes for tests: a spleen, and a tumor of the right kidney."""

from __future__ import annotations

from medweave_core.contracts.labels import LUNG_NODULE, CodedTerm, Label


def sct(value: str, meaning: str) -> CodedTerm:
    return CodedTerm(value=value, scheme="SCT", meaning=meaning)


SPLEEN = Label(
    value=1, name="spleen", category=sct("91723000", "Anatomical Structure"), type=sct("78961009", "Spleen"),
    anatomy=sct("78961009", "Spleen"),
)  # fmt: skip
RIGHT_KIDNEY_TUMOR = Label(
    value=3, name="tumor", category=LUNG_NODULE.category, type=sct("108369006", "Neoplasm"),
    anatomy=sct("64033007", "Kidney"), laterality=sct("24028007", "Right"),
)  # fmt: skip
