"""Faces in head scans: whether an image may show one, and the data class that follows for the cohort.

A face can be reconstructed from a scan of the head and matched with photographs (Schwarz et al. 2019, N Engl J Med 381:1684), so a
head scan is de-identified only without it. Whether a scan shows a face comes from its header, from the cohort card, or from the
user; voxels are not examined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from medweave_core.contracts.body_parts import regions_of
from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.io.dicom.header import body_part_of
from medweave_steps.io.dicom.values import HeaderValues
from medweave_steps.io.findings import first_of

DeclaredFaces = Literal["auto", "present", "absent"]
FaceState = Literal["absent", "removed", "unknown", "undeclared", "photograph", "present"]
"""absent: another part of the body, or declared; removed: by a brain mask; unknown: a CT, a CR, a DX, or a volume of unknown
modality, without body part, which counts as absent; undeclared: an MR or PET without body part, which counts as present;
photograph: not declared as without a face, so that it counts as present."""

_ORDER: tuple[FaceState, ...] = ("absent", "removed", "unknown", "undeclared", "photograph", "present")
IDENTIFIABLE: frozenset[FaceState] = frozenset(("present", "photograph", "undeclared"))
CARD_KEY = "faces"
_WITHOUT_BODY_PART: Mapping[str, FaceState] = {"CT": "unknown", "CR": "unknown", "DX": "unknown", "MG": "absent"}


def worst(states: list[FaceState]) -> FaceState:
    """Return the state of a series from those of its images."""
    return max(states, key=_ORDER.index, default="absent")


def face_in_image(dataset: Any, declared: DeclaredFaces) -> FaceState:
    """Return whether a DICOM image may show a face.

    Args:
        dataset: pydicom Dataset of an image.
        declared: by the user or the cohort card. RecognizableVisualFeatures (0028,0302) of the header comes first.
    """
    values = HeaderValues(dataset)
    in_header: dict[str, FaceState] = {"NO": "absent", "YES": "present"}
    if state := in_header.get(values.text("RecognizableVisualFeatures").upper()):
        return state
    if declared != "auto":
        return declared
    part = body_part_of(dataset)
    if part is None:
        return _WITHOUT_BODY_PART.get(values.text("Modality"), "undeclared")
    return "present" if "head" in regions_of(part) else "absent"


def face_in_volume(channels: tuple[str, ...] | None, declared: DeclaredFaces) -> FaceState:
    """Return whether a NIfTI volume may show a face; its header names no body part.

    Args:
        channels: contrasts that dataset.json declares; None where the cohort has no dataset.json.
    """
    if declared != "auto":
        return declared
    return "unknown" if channels is None or channels == CT_CHANNELS else "undeclared"


def face_in_photograph(declared: DeclaredFaces) -> FaceState:
    """Return whether a JPEG or PNG file may show a face: only a declaration excludes it."""
    return "absent" if declared == "absent" else "photograph"


def notices_of(states: Mapping[str, FaceState]) -> list[str]:
    """Return what the user should know about the written cases.

    Args:
        states: by case id of the output, of cases with images.
    """

    def cases(*wanted: FaceState) -> list[str]:
        return sorted(case_id for case_id, state in states.items() if state in wanted)

    notices = []
    if shown := cases("present"):
        notices.append(
            f"{len(shown)} head {'scan' if len(shown) == 1 else 'scans'} may show a face ({first_of(shown)}): the cohort keeps the "
            "data class identified. Remove faces with --brain-masks, or declare --faces absent if they were removed before."
        )
    if shown := cases("photograph"):
        notices.append(
            f"{len(shown)} {'photograph' if len(shown) == 1 else 'photographs'} may show a face, a tattoo or another mark by which "
            f"the patient can be recognized ({first_of(shown)}): the cohort keeps the data class identified. Look at every "
            "photograph; if none shows such a mark, declare --faces absent."
        )
    if shown := cases("undeclared"):
        notices.append(
            f"{len(shown)} MR or PET {'case states' if len(shown) == 1 else 'cases state'} no body part ({first_of(shown)}): they "
            "may show faces, so the cohort keeps the data class identified. Declare --faces absent, or --faces present and "
            "--brain-masks."
        )
    if shown := cases("unknown"):
        notices.append(
            f"{len(shown)} {'case states' if len(shown) == 1 else 'cases state'} no body part ({first_of(shown)}) and "
            f"{'counts' if len(shown) == 1 else 'count'} as without a face. If they show heads, run again with --faces present."
        )
    return notices
