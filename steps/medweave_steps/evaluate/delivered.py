"""The masks that `segment` delivered, read on the grid of the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.labels import Label
from medweave_core.contracts.volume import Grid
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.ground_truth import read_dicom_segmentation, read_nifti_mask
from medweave_steps.io.cohort.source import name_of, open_source, reference_series
from medweave_steps.io.findings import FindingError
from medweave_steps.io.geometry import affine_rows

MaskFormat = Literal["dicom-seg", "nifti"]
BoolArray = npt.NDArray[np.bool_]
LabelArray = npt.NDArray[np.uint8]

DICOM_MASK = "lesion_mask.dcm"
NIFTI_MASK = "lesion_mask.nii.gz"


def find_masks(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the folder that holds the mask of each case, by case id, over all folders of segmentations.

    Raises:
        UserInputError: two folders hold a mask of the same case.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for case_folder in sorted(path for path in folder.iterdir() if path.is_dir()):
            if not any((case_folder / name).is_file() for name in (DICOM_MASK, NIFTI_MASK)):
                continue
            if case_folder.name in found:
                raise UserInputError(
                    f"{case_folder.name} was segmented twice.",
                    seen="a mask in two folders of --segmentations",
                    expected="one mask per case",
                    do="list each segmentation folder once, and remove older results",
                )
            found[case_folder.name] = case_folder
    return found


def read_label_map(
    cohort: Path, folder: Path, entry: CaseEntry, labels: Sequence[Label]
) -> tuple[LabelArray, MaskFormat]:
    """Return the delivered label map of one case; see `read_mask` for the file that is read.

    Args:
        labels: of the delivered masks, ascending by value; the segments of a DICOM SEG are numbered in this order.
    Returns:
        uint8 label values of shape `entry.grid.shape` in source order, C-contiguous, and which file was read.
    Raises:
        UserInputError: the file cannot be read, its grid is not that of the source, or it holds other labels.
    """
    stored, mask_format = _read(cohort, folder, entry)
    values = [label.value for label in labels]
    is_seg = mask_format == "dicom-seg"
    known = [0, *(range(1, len(values) + 1) if is_seg else values)]
    unknown = np.setdiff1d(np.unique(stored), known)
    if len(unknown):
        kind = "segments" if is_seg else "the values"
        raise UserInputError(
            f"the delivered mask of {entry.case_id} contains labels that segmentations.json does not name.",
            seen=f"{kind} {', '.join(map(str, unknown.tolist()))}",
            expected=", ".join(f"{place} ({label.name})" for place, label in zip(known[1:], labels, strict=True)),
            do="evaluate the unmodified masks that segment wrote for this cohort, with their segmentations.json",
        )
    table = np.zeros(256, np.uint8)
    table[known] = [0, *values]
    return table[np.ascontiguousarray(stored)], mask_format


def read_mask(cohort: Path, folder: Path, entry: CaseEntry, label: Label) -> tuple[BoolArray, MaskFormat]:
    """Return the delivered mask of one case: the DICOM SEG where there is one, else the NIfTI.

    The frames of a DICOM SEG go to the slices at whose position they lie, which must be the ones whose images they name.

    Args:
        cohort: folder of the cohort, for the images that a DICOM SEG names.
        folder: `segmentations/<case_id>/`.
        entry: the case.
        label: of the ground truth; the mask holds its value, or 1.
    Returns:
        bool array of shape `entry.grid.shape` in source order, and which file was read.
    Raises:
        UserInputError: the file cannot be read, its grid is not that of the source, or it holds several labels.
    """
    labels, mask_format = _read(cohort, folder, entry)
    predicted: BoolArray = np.ascontiguousarray(labels) > 0
    others = [int(value) for value in np.unique(labels[(labels != label.value) & (labels != 0)])]
    if others and (others != [1] or (labels == label.value).any()):
        raise UserInputError(
            f"the delivered mask of {entry.case_id} contains labels that differ from the ground truth.",
            seen=f"the values {', '.join(map(str, sorted({*others, *np.unique(labels).tolist()} - {0})))}",
            expected=f"0, and {label.text}",
            do="evaluate masks with this label only; labels are never merged silently",
        )
    return predicted, mask_format


def _read(cohort: Path, folder: Path, entry: CaseEntry) -> tuple[LabelArray, MaskFormat]:
    """Return the stored values of a delivered mask (of a DICOM SEG the segment numbers), and which file was read."""
    mask_format: MaskFormat = "dicom-seg" if (folder / DICOM_MASK).is_file() else "nifti"
    try:
        if mask_format == "nifti":
            labels = _read_nifti(folder / NIFTI_MASK, entry)
        else:
            source = reference_series(open_source(cohort, entry))
            if source is None:
                raise UserInputError(
                    f"{entry.case_id} has a DICOM mask, but its source is not DICOM.",
                    seen=f"{DICOM_MASK} for a NIfTI source",
                    expected=f"only {NIFTI_MASK}",
                    do="evaluate the masks that segment wrote for this cohort",
                )
            labels = read_dicom_segmentation(folder / DICOM_MASK, source.slices, source.grid, name_of(entry))
    except FindingError as error:
        raise UserInputError(
            f"the delivered mask cannot be compared with the ground truth. {error.what}",
            seen=error.seen,
            expected=error.expected,
            do="evaluate the unmodified masks that segment wrote for this cohort; run segment again if a mask is corrupt",
        ) from error
    return labels, mask_format


def _read_nifti(path: Path, entry: CaseEntry) -> npt.NDArray[np.uint8]:
    if entry.source_format == "nifti":
        return read_nifti_mask(path, entry.grid, name_of(entry))
    # `segment` writes a DICOM source's [slice, row, column] as [i = column, j = row, k = slice], as converters do.
    (slices, rows, columns), affine = entry.grid.shape, np.asarray(entry.grid.affine)
    grid = Grid(shape=(columns, rows, slices), affine=affine_rows(affine[:, [2, 1, 0, 3]]))
    return read_nifti_mask(path, grid, name_of(entry)).transpose(2, 1, 0)
