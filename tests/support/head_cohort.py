"""A small BIDS cohort of T1-weighted heads with brain masks and two groups."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import numpy.typing as npt

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
SHAPE = (18, 20, 15)
GROUPS = ("NC", "AD")
"""Of the subjects, alternately."""


def head(seed: int) -> npt.NDArray[np.int16]:
    """Return noise, int16 [I, J, K]."""
    return np.random.default_rng(seed).integers(100, 900, SHAPE).astype(np.int16)


def brain() -> npt.NDArray[np.uint8]:
    """Return a box of brain in the middle of a head."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[4:14, 3:18, 5:13] = 1
    return mask


def save(path: Path, array: npt.NDArray[np.generic], affine: npt.NDArray[np.float64] = AFFINE) -> None:
    """Write NIfTI, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, affine), path)


def write_heads(folder: Path, number: int, *, mmse: bool = False) -> Path:
    """Write subjects with voxels of 2 mm in RAS, brain masks and participants.tsv.

    Args:
        mmse: the table has a column of scores.
    """
    rows = []
    for place in range(number):
        subject = f"sub-{place + 1:02d}"
        below = f"{subject}/anat/{subject}"
        save(folder / f"{below}_T1w.nii.gz", head(place))
        save(folder / "derivatives" / "brain" / f"{below}_desc-brain_mask.nii.gz", brain())
        rows.append([subject, GROUPS[place % 2], *([str(20 + place)] if mmse else [])])
    columns = ["participant_id", "group", *(["mmse"] if mmse else [])]
    (folder / "participants.tsv").write_text("".join("\t".join(row) + "\n" for row in [columns, *rows]))
    return folder
