"""Body parts: the words of DICOM headers, the codes of labels, and the regions of the body that both lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from medweave_core.contracts.labels import CodedTerm, Label
from medweave_core.contracts.volume import MODALITY_NAMES, Modality

Region = Literal["head", "neck", "chest", "abdomen", "pelvis", "upper limb", "lower limb"]

_NEXT_TO_CHEST = {"neck", "abdomen"}
_ALL: tuple[Region, ...] = ("head", "neck", "chest", "abdomen", "pelvis", "upper limb", "lower limb")

# Defined terms of BodyPartExamined (DICOM PS3.16, annex L), the regions that each lies in, and its SNOMED CT codes (CID 4031 and
# others). Parts at a border count to both regions: nothing is called a contradiction that may be none.
_PARTS: Mapping[str, tuple[tuple[Region, ...], str]] = {
    "WHOLEBODY": (_ALL, "38266002"),
    "HEAD": (("head",), "69536005"),
    "BRAIN": (("head",), "12738006 119238007 83251001 78277001 16630005 31065004 35764002 113305005"),
    "SKULL": (("head",), "89546000"),
    "HEADNECK": (("head", "neck"), "774007"),
    "ORBIT": (("head",), "363654007 371398005"),
    "EYE": (("head",), "81745001"),
    "EAR": (("head",), ""),
    "SINUS": (("head",), "2095001"),
    "FACE": (("head",), "91397008"),
    "JAW": (("head",), "661005 91609006"),
    "MAXILLA": (("head",), "70925003"),
    "SELLA": (("head",), "42575006"),
    "PAROTID": (("head", "neck"), "45289007"),
    "NECK": (("neck",), "45048000"),
    "LARYNX": (("neck",), "4596009"),
    "THYROID": (("neck", "chest"), "69748006"),
    "CSPINE": (("neck",), "122494005"),
    "NECKCHEST": (("neck", "chest"), "417437006"),
    "NECKCHESTABDOMEN": (("neck", "chest", "abdomen"), "416152001"),
    "NECKCHESTABDPELV": (("neck", "chest", "abdomen", "pelvis"), "416319003"),
    "TRACHEA": (("neck", "chest"), "44567001"),
    "CHEST": (("chest",), "816094009 51185008"),
    "LUNG": (("chest",), "39607008 3341006 44029006 45653009 90572001 72481006 86598002 31094006 72674008"),
    "HEART": (("chest",), "80891009"),
    "CORONARYARTERY": (("chest",), "41801008"),
    "MEDIASTINUM": (("chest",), "72410000"),
    "BREAST": (("chest",), "76752008"),
    "RIB": (("chest", "abdomen"), "113197003"),
    "STERNUM": (("chest",), "56873002"),
    "TSPINE": (("chest",), "122495006"),
    "BRONCHUS": (("chest",), "955009"),
    "THORACICAORTA": (("chest",), "113262008 57034009 54247002"),
    "AORTA": (("chest", "abdomen"), "15825003"),
    "ESOPHAGUS": (("neck", "chest", "abdomen"), "32849002"),
    "CHESTABDOMEN": (("chest", "abdomen"), "416550000"),
    "CHESTABDPELVIS": (("chest", "abdomen", "pelvis"), "416775004"),
    "TLSPINE": (("chest", "abdomen"), "1217256009"),
    "SPINE": (("neck", "chest", "abdomen", "pelvis"), "421060004"),
    "ABDOMEN": (("abdomen",), "818981001 113345001"),
    "LIVER": (("abdomen",), "10200004"),
    "SPLEEN": (("abdomen",), "78961009"),
    "PANCREAS": (("abdomen",), "15776009"),
    "KIDNEY": (("abdomen",), "64033007 9846003 18639004"),
    "ADRENAL": (("abdomen",), "23451007"),
    "GALLBLADDER": (("abdomen",), "28231008"),
    "STOMACH": (("abdomen",), "69695003"),
    "DUODENUM": (("abdomen",), "38848004"),
    "ABDOMINALAORTA": (("abdomen",), "7832008"),
    "LSPINE": (("abdomen",), "122496007"),
    "COLON": (("abdomen", "pelvis"), "71854001"),
    "SMALLINTESTINE": (("abdomen", "pelvis"), "30315005"),
    "URETER": (("abdomen", "pelvis"), "87953007"),
    "ABDOMENPELVIS": (("abdomen", "pelvis"), "818982008"),
    "LSSPINE": (("abdomen", "pelvis"), "1217253001"),
    "PELVIS": (("pelvis",), "816092008 12921003"),
    "PROSTATE": (("pelvis",), "41216001"),
    "UTERUS": (("pelvis",), "35039007"),
    "OVARY": (("pelvis",), "15497006"),
    "BLADDER": (("pelvis",), "89837001"),
    "RECTUM": (("pelvis",), "34402009"),
    "SSPINE": (("pelvis",), "54735007"),
    "SIJOINT": (("pelvis",), "39723000"),
    "ILIUM": (("pelvis",), "22356005"),
    "HIP": (("pelvis", "lower limb"), "29836001 24136001"),
    "EXTREMITY": (("upper limb", "lower limb"), "66019005"),
    "SHOULDER": (("upper limb", "neck", "chest"), "16982005"),
    "CLAVICLE": (("upper limb", "neck", "chest"), "51299004"),
    "SCAPULA": (("upper limb", "chest"), "79601000"),
    "ARM": (("upper limb",), "40983000 53120007"),
    "HUMERUS": (("upper limb",), "85050009"),
    "ELBOW": (("upper limb",), "16953009"),
    "FOREARM": (("upper limb",), "14975008"),
    "WRIST": (("upper limb",), "74670003"),
    "HAND": (("upper limb",), "85562004"),
    "FINGER": (("upper limb",), "7569003"),
    "THUMB": (("upper limb",), "76505004"),
    "LEG": (("lower limb",), "30021000 61685007"),
    "THIGH": (("lower limb",), "68367000"),
    "FEMUR": (("lower limb",), "71341001"),
    "KNEE": (("lower limb",), "72696002"),
    "PATELLA": (("lower limb",), "64234005"),
    "ANKLE": (("lower limb",), "70258002"),
    "CALCANEUS": (("lower limb",), "80144004"),
    "FOOT": (("lower limb",), "56459004"),
    "TOE": (("lower limb",), "29707007"),
}  # fmt: skip
# Words that scanners write instead of a defined term.
_SYNONYMS = {
    "THORAX": "CHEST", "ABDOMENANDPELVIS": "ABDOMENPELVIS", "ABDPELVIS": "ABDOMENPELVIS", "HEADANDNECK": "HEADNECK",
    "CHESTABDOMENPELVIS": "CHESTABDPELVIS", "NECKCHESTABDPELVIS": "NECKCHESTABDPELV", "NECKCHESTABDOMENPELVIS": "NECKCHESTABDPELV",
    "EXTREMITIES": "EXTREMITY", "LUNGS": "LUNG",
}  # fmt: skip
PARTS_BY_CODE = {code: part for part, (_, codes) in _PARTS.items() for code in codes.split()}

# Procedures of CT by the region that was scanned; where none is known, and for other modalities, the one of CID 100 that names
# no region.
_PROCEDURES: Mapping[str, CodedTerm] = {
    "chest": CodedTerm(value="169069000", scheme="SCT", meaning="CT of chest"),
}
_ANY_REGION: Mapping[str, CodedTerm] = {
    "CT": CodedTerm(value="25045-6", scheme="LN", meaning="CT unspecified body region"),
    "MR": CodedTerm(value="25056-3", scheme="LN", meaning="MRI unspecified body region"),
    "PT": CodedTerm(value="44136-0", scheme="LN", meaning="PET unspecified body region"),
    "CR": CodedTerm(value="43468-8", scheme="LN", meaning="XR unspecified body region"),
    "DX": CodedTerm(value="43468-8", scheme="LN", meaning="XR unspecified body region"),
    "MG": CodedTerm(value="71651007", scheme="SCT", meaning="Mammography"),
}


def known_body_part(text: str) -> str | None:
    """Return the defined term of DICOM for a value of BodyPartExamined; None for any other text, which may be anything."""
    word = "".join(character for character in text.upper() if character.isalnum())
    word = _SYNONYMS.get(word, word)
    return word if word in _PARTS else None


def regions_of(body_part: str | None) -> frozenset[str]:
    """Return the regions that a body part lies in; empty if it is not known."""
    return frozenset(_PARTS[body_part][0]) if body_part and body_part in _PARTS else frozenset()


def regions_of_labels(labels: Iterable[Label]) -> frozenset[str]:
    """Return the regions that the anatomy of any label lies in; empty if one of them is not known."""
    regions = [regions_of(_part_of(label)) for label in labels]
    return frozenset().union(*regions) if all(regions) else frozenset()


def only_region(*labels: Label) -> str:
    """Return the one region that all labels lie in, or an empty text."""
    regions = regions_of_labels(labels)
    return next(iter(regions)) if len(regions) == 1 else ""


def scans_of(label: Label, modality: Modality) -> str:
    """Return what a model or report about a label works on, such as `chest CT`, or `CT` where no region is known."""
    return scans_of_labels((label,), modality)


def scans_of_labels(labels: Iterable[Label], modality: Modality) -> str:
    """Return what a model or report about several labels works on, such as `head MR`."""
    return f"{only_region(*labels)} {MODALITY_NAMES[modality]}".strip()


def procedure_of(*labels: Label, modality: str = "CT") -> CodedTerm:
    """Return the procedure that a report about labels names: of CT with its region where one is known.

    Args:
        modality: of DICOM images, a key of the table of procedures without a region.
    """
    any_region = _ANY_REGION[modality]
    return _PROCEDURES.get(only_region(*labels), any_region) if modality == "CT" else any_region


def is_in_lungs(label: Label) -> bool:
    """Return True if the label's anatomy is the lung or a part of it."""
    return _part_of(label) == "LUNG"


def contradiction(body_part: str | None, labels: Iterable[Label], *, has_lungs: bool | None = None) -> tuple[str, str]:
    """Return the scanned body part and the anatomy of the labels, if these exclude each other; else two empty texts.

    Args:
        body_part: body part of the header; None if it is not known.
        has_lungs: True if the voxels of a CT show a lung; None if it is not known. Scans of a part next to the chest often
            reach into the lungs, and protocols often name one part for a longer scan: then the voxels decide for lung labels.
    """
    labels = tuple(labels)
    wanted, seen = regions_of_labels(labels), regions_of(body_part)
    anatomy = ", ".join(dict.fromkeys(label.anatomy.meaning for label in labels if label.anatomy))
    are_in_lungs = bool(labels) and all(map(is_in_lungs, labels))
    if wanted and seen and not wanted & seen and not (are_in_lungs and has_lungs and seen & _NEXT_TO_CHEST):
        return f"body part {body_part}", anatomy
    if has_lungs is False and are_in_lungs:
        return "no lungs in the voxels", anatomy
    return "", ""


def _part_of(label: Label) -> str | None:
    anatomy = label.anatomy
    return PARTS_BY_CODE.get(anatomy.value) if anatomy is not None and anatomy.scheme == "SCT" else None
