"""Which of the images of a folder are read: those of one modality; and findings about the files that are not."""

from __future__ import annotations

from collections.abc import Callable

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.volume import Modality
from medweave_steps.io.dicom.header import SECONDARY_CAPTURE, DicomFile
from medweave_steps.io.dicom.image_classes import modality_of_class
from medweave_steps.io.findings import notice, refuse

_IMAGE_MODALITIES = (
    "MR", "PT", "NM", "CR", "DX", "MG", "US", "XA", "RF", "IVUS", "OPT", "SM", "ES", "XC", "RTIMAGE", "CT",
)  # fmt: skip


def modality_of_file(file: DicomFile) -> Modality | None:
    """Return the modality of an image that can be read; None for anything else."""
    modality = modality_of_class(file.sop_class)
    return modality if file.modality in (modality, "") else None


def select_files(
    files: list[DicomFile], others: list[DicomFile], modality: Modality | None
) -> tuple[list[DicomFile], list[DicomFile], tuple[Modality, ...]]:
    """Return the files to read (images of the wanted modalities, and masks), the other files, and these modalities.

    Args:
        files: CT images and masks.
        others: anything else.
        modality: see `discover_dicom`.
    """
    has_ct = any(modality_of_file(file) == "CT" for file in files)
    wanted: tuple[Modality, ...] = ("CT",) if has_ct else ("MR", "PT")
    if modality is not None:
        wanted = (modality,)
    if "CT" in wanted:
        return files, others, wanted
    scans = [file for file in others if modality_of_file(file) in wanted]
    if not scans and modality is None:
        return files, others, ("CT",)
    masks = [file for file in files if modality_of_file(file) is None]
    ct = [file for file in files if modality_of_file(file) is not None]
    rest = [file for file in others if modality_of_file(file) not in wanted]
    return [*masks, *scans], [*rest, *ct], wanted


def judge_others(
    others: list[DicomFile], wanted: tuple[Modality, ...], studies: set[str], *, case_id_of: Callable[[str], str]
) -> list[Finding]:
    """Return findings about files that are neither images of the wanted modalities nor masks.

    Args:
        studies: StudyInstanceUIDs of the images that are read; other images of these studies are no error.
        case_id_of: returns the case id of a series.
    """
    findings = []
    captures = sum(file.sop_class.startswith(SECONDARY_CAPTURE) for file in others)
    if captures:
        findings.append(notice("secondary-capture", f"{captures} secondary {images_are(captures)} ignored."))
    rest = [file for file in others if not file.sop_class.startswith(SECONDARY_CAPTURE)]
    images: dict[str, list[DicomFile]] = {}
    aside = 0
    for file in rest:
        if file.modality in _IMAGE_MODALITIES and file.study_uid not in studies:
            images.setdefault(file.series_uid, []).append(file)
        else:
            aside += 1
    if aside:
        findings.append(
            notice(
                "other-objects",
                f"{aside} DICOM {files_are(aside)} not {' or '.join(wanted)} images (other modalities, reports) and ignored.",
            )
        )
    for uid, files in images.items():
        case_id = case_id_of(uid)
        findings.append(
            refuse(
                "wrong-modality",
                f"{case_id}: the series has an unsupported modality.",
                seen=f"modality {files[0].modality or 'unknown'}, {len(files)} {'file' if len(files) == 1 else 'files'}",
                expected=f"modality {' or '.join(wanted)}, as in the other series of the cohort: CT, MR or PT (stored as CT, "
                "Enhanced CT, MR, Enhanced MR or PET Image)",
                do="remove the series from the cohort, skip it with --on-error skip, or choose the modality with --channels",
                case_id=case_id,
            ).finding
        )
    return findings


def files_are(count: int) -> str:
    """Return the noun and verb after a count of files."""
    return "file is" if count == 1 else "files are"


def images_are(count: int) -> str:
    """Return the noun and verb after a count of images."""
    return "image is" if count == 1 else "images are"
