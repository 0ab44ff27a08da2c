"""Brain masks of cases: which file belongs to which case, and the mask on the resampled grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.volume import Grid, Triple, triple_of
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.bids import title_of
from medweave_steps.io.cohort.brain_mask import BrainMask, find_masks, names_in_bids, names_of_volume, wrong_grid
from medweave_steps.io.findings import FindingError, first_of, refuse
from medweave_steps.io.geometry import affine_rows, interpolate_axis, ras_axes, ras_grid, to_ras_order
from medweave_steps.preprocess.resample import Resampling

Mask = npt.NDArray[np.bool_]
HALF = 0.5


def masks_of_cases(folder: Path, entries: Sequence[CaseEntry], *, is_bids: bool) -> dict[str, Path]:
    """Return the brain mask of every case by case id; masks of other cases are ignored, since `check` can leave cases out.

    Raises:
        UserInputError: a case has no mask or several, or shares one with another case; the message has case ids only.
    """
    masks = find_masks(folder)
    by_case = {entry.case_id: sorted(_names(entry, is_bids=is_bids) & masks.keys()) for entry in entries}
    shared = {name for name, number in Counter(name for own in by_case.values() for name in own).items() if number > 1}
    wrong = {
        "no mask": [case_id for case_id, own in by_case.items() if not own],
        "several masks": [case_id for case_id, own in by_case.items() if len(own) > 1],
        "a mask of several cases": [case_id for case_id, own in by_case.items() if shared.intersection(own)],
    }
    if any(wrong.values()):
        raise UserInputError(
            "--brain-masks: masks do not match the cases.",
            seen="; ".join(f"{what} for {first_of(case_ids)}" for what, case_ids in wrong.items() if case_ids),
            expected="one NIfTI file per case, named CASE_ID.nii.gz or after its NIfTI volume; of BIDS also as derivatives "
            "(sub-01/anat/sub-01_desc-brain_mask.nii.gz)",
            do="add or rename the masks, or remove the cases and run check again",
        )
    return {case_id: masks[own[0]] for case_id, own in by_case.items()}


def _names(entry: CaseEntry, *, is_bids: bool) -> set[str]:
    names = {entry.case_id}
    if entry.source_format == "nifti":
        names.update(name for file in entry.files for name in names_of_volume(file))
        if is_bids:
            names.update(names_in_bids(title_of(entry.files[0]), entry.files[0]))
    return names


def read_mask(path: Path, where: str, plan: Resampling) -> Mask:
    """Return a brain mask on the uncropped resampled grid, bool [I, J, K] of `plan.shape`.

    The mask is interpolated linearly like the volume; at one half and above a voxel belongs to the brain.

    Args:
        where: the case, for messages.
    Raises:
        FindingError: it cannot be read, is not binary, or does not have the voxels of the source; axes in another order are those
            of another file format, not another grid.
    """
    brain = _along_ras(BrainMask.read(path, where))
    if not brain.fits(np.asarray(plan.ras.affine), plan.ras.shape):
        raise wrong_grid(where)
    weight_IJK = brain.brain_IJK.astype(np.float32)
    for axis in range(3):
        weight_IJK = interpolate_axis(weight_IJK, plan.ras_positions(axis), axis)
    mask_IJK: Mask = weight_IJK >= HALF
    if not mask_IJK.any():
        raise _no_brain(where)
    return mask_IJK


def _along_ras(brain: BrainMask) -> BrainMask:
    """Return the same mask with axes I, J, K towards Right, Anterior, Superior."""
    grid = Grid(shape=triple_of(brain.brain_IJK.shape), affine=affine_rows(np.linalg.inv(brain.to_index)))
    axis, flipped = ras_axes(grid)
    affine = np.asarray(ras_grid(grid, axis, flipped).affine)
    return BrainMask(to_ras_order(brain.brain_IJK, axis, flipped), np.linalg.inv(affine))


def middle_of(mask_IJK: Mask) -> Triple:
    """Return first plus last index of a mask along each axis, plus 1: twice the middle of its box, in voxel borders."""
    sums = []
    for axis in range(3):
        used = np.flatnonzero(mask_IJK.any(axis=tuple(other for other in range(3) if other != axis)))
        sums.append(int(used[0]) + int(used[-1]) + 1)
    return triple_of(sums)


def _no_brain(where: str) -> FindingError:
    return refuse(
        "bad-brain-mask",
        f"{where}: no voxel of the resampled volume lies in the brain mask.",
        seen="a mask smaller than a voxel of --spacing-mm",
        expected="a mask of the brain",
        do="make the mask again with a brain extraction tool",
        case_id=where,
    )
