"""Brain masks: NIfTI files that keep the brain and remove everything else of a head scan.

Masks of the public brain extraction tools (HD-BET, SynthStrip, BET) have this form. A mask lies on the grid of one scan and also
applies to other scans in the same frame of reference, sampled at their voxel centers (nearest neighbor).
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.discovery import walk
from medweave_steps.io.dicom.frames import Frame
from medweave_steps.io.findings import FindingError, SeriesName, refuse
from medweave_steps.io.geometry import AnyArray, lps_to_ras
from medweave_steps.io.nifti.volume import is_nifti, open_nifti
from medweave_steps.runtime.imports import require

Mask = npt.NDArray[np.bool_]
MASK_FOLDER = "brain-masks"
GRID_TOLERANCE = 0.1  # voxels by which a voxel center of the scan may miss the one of its mask: rounding in headers


def find_masks(folder: Path) -> dict[str, Path]:
    """Return the masks of a folder by their relative path without suffix."""
    return {_without_suffix(name): folder / name for name in walk(folder) if is_nifti(name)}


def write_masks(folder: Path, masks: Mapping[str, Path]) -> None:
    """Write brain masks into a folder of a cohort.

    Args:
        folder: `brain-masks` or a folder of `derivatives`, which `check` ignores.
        masks: source of each mask by the name that it gets, without suffix.
    Raises:
        FindingError: a mask cannot be used.
    """
    folder.mkdir(parents=True)
    for name, path in sorted(masks.items()):
        BrainMask.read(path, name).write(folder / f"{name}.nii.gz")


def match_masks(masks: Mapping[str, Path], names: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Return the mask of each case that has one.

    Args:
        names: by case, the names that its mask may have: a path without suffix, or a case id.
    Raises:
        UserInputError: a mask that belongs to no case, or to several.
    """
    owners = {mask: [case for case, own in names.items() if mask in own] for mask in masks}
    wrong = {mask for mask, cases in owners.items() if len(cases) != 1}
    chosen: dict[str, Path] = {}
    for mask, cases in owners.items():
        if mask not in wrong:
            if cases[0] in chosen:
                wrong.add(mask)
            chosen[cases[0]] = masks[mask]
    if wrong or not masks:
        raise UserInputError(
            "--brain-masks: masks do not match the cases.",
            seen=f"{len(wrong)} of {len(masks)} NIfTI files match no case, or more than one",
            expected="one mask per case: for NIfTI under the name of a volume or of the case, for DICOM named CASE_ID.nii.gz, with "
            "the id that check prints for a series of the study",
            do="rename or remove these files",
        )
    return chosen


def names_in_bids(title: str, file: str) -> list[str]:
    """Return the further names that the mask of a BIDS case may have: the case, and as derivative `*_desc-brain_mask`.

    Args:
        title: subject and session, as file names begin.
        file: path of a volume of the case.
    """
    mask = f"{title}_desc-brain_mask"
    return [title, mask, f"{PurePosixPath(file).parent}/{mask}"]


def names_of_volume(path: str) -> tuple[str, str]:
    """Return the names that the mask of a NIfTI volume may have: path without suffix, and file name without suffix."""
    whole = _without_suffix(path)
    return whole, whole.rpartition("/")[2]


def _without_suffix(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".nii")


@dataclass(frozen=True, slots=True)
class BrainMask:
    """A brain mask in the space of the patient.

    Attributes:
        brain_IJK: True for voxels to keep.
        to_index: 4 x 4, RAS in mm to voxel indices.
    """

    brain_IJK: Mask
    to_index: npt.NDArray[np.float64]

    @classmethod
    def read(cls, path: Path, where: str | SeriesName) -> BrainMask:
        """Read a mask.

        Args:
            where: the case or the series, for messages; a file's name may be a person's.
        Raises:
            FindingError: it is not NIfTI, or holds anything else than one value besides 0, or keeps everything or nothing.
        """
        name = where if isinstance(where, SeriesName) else SeriesName(case_id=where, ordinal=0)
        try:
            volume = open_nifti(path, name, role="brain mask")
            values = np.stack(list(volume.planes()), axis=2)
        except FindingError as error:
            raise _refuse(
                where,
                "bad-brain-mask",
                "the brain mask cannot be read.",
                seen=error.seen,
                expected="a NIfTI volume of three axes",
                do="write the mask again with a brain extraction tool",
            ) from error
        except OSError as error:
            raise OSError(error.errno, error.strerror) from None
        kinds = np.unique(values)
        if len(kinds) != 2 or kinds[0] != 0:
            raise _refuse(
                where,
                "bad-brain-mask",
                "the brain mask is not binary.",
                seen=f"{len(kinds)} distinct {'value' if len(kinds) == 1 else 'values'}",
                expected="0 outside of the brain and one other value inside",
                do="write the mask again with a brain extraction tool",
            )
        return cls(values != 0, np.linalg.inv(np.asarray(volume.grid.affine)))

    def write(self, path: Path) -> None:
        """Write the mask as NIfTI (0 and 1, no text in the header); equal masks give equal bytes."""
        nibabel = require("nibabel", extra="deidentify")
        image = nibabel.Nifti1Image(self.brain_IJK.astype(np.uint8), np.linalg.inv(self.to_index))
        path.write_bytes(gzip.compress(image.to_bytes(), mtime=0))

    def keep_of_frame(self, frame: Frame, rows: int, columns: int) -> tuple[Mask, bool] | None:
        """Return the pixels [row, column] of a DICOM frame to keep, and whether the frame lies on the mask's grid.

        Returns:
            None where the header has no usable geometry.
        """
        position, orientation, spacing = frame.position_lps, frame.orientation, frame.pixel_spacing_mm
        if position is None or orientation is None or spacing is None:
            return None
        to_patient = np.zeros((4, 3))
        to_patient[:3, 0] = np.multiply(orientation[:3], spacing[1])  # along a row: the column index grows
        to_patient[:3, 1] = np.multiply(orientation[3:], spacing[0])
        to_patient[:, 2] = (*position, 1)
        return self._sample(self.to_index @ lps_to_ras(to_patient), rows, columns)

    def keep_of_grid(self, affine: AnyArray, shape: tuple[int, int, int]) -> tuple[Mask, bool]:
        """Return the voxels [i, j, k] of a NIfTI grid to keep, and whether the grid is the mask's, voxel for voxel."""
        if self.fits(affine, shape):
            return self.brain_IJK, True
        to_index = self.to_index @ affine
        keep_IJK = np.empty(shape, np.bool_)
        for index in range(shape[2]):
            of_plane = np.stack([to_index[:, 1], to_index[:, 0], to_index[:, 2] * index + to_index[:, 3]], axis=1)
            keep_IJK[:, :, index] = self._sample(of_plane, *shape[:2])[0]
        return keep_IJK, False

    def count_outside(self, points_lps: npt.NDArray[np.float64]) -> int:
        """Return how many points lie outside of the mask and of the voxels next to it.

        Args:
            points_lps: mm, shape (n, 3). Contours run along the border of the voxels that they enclose.
        """
        index = np.rint((points_lps * (-1, -1, 1)) @ self.to_index[:3, :3].T + self.to_index[:3, 3]).astype(np.intp)
        near = np.zeros(len(index), np.bool_)
        for offset in np.ndindex(3, 3, 3):
            place = index + offset - 1
            inside = ((place >= 0) & (place < self.brain_IJK.shape)).all(axis=1)
            near[inside] |= self.brain_IJK[tuple(place[inside].T)]
        return int((~near).sum())

    def fits(self, affine: AnyArray, shape: tuple[int, ...]) -> bool:
        """Return whether the mask lies on a NIfTI grid, voxel for voxel."""
        if self.brain_IJK.shape != shape:
            return False
        corners = np.array(np.meshgrid(*((0, size - 1) for size in shape))).reshape(3, -1)
        indices = self.to_index @ affine @ np.vstack([corners, np.ones(corners.shape[1])])
        return bool(np.abs(indices[:3] - corners).max() <= GRID_TOLERANCE)

    def _sample(self, to_index: AnyArray, rows: int, columns: int) -> tuple[Mask, bool]:
        """Return the mask at pixel centers; False for pixels outside of it.

        Args:
            to_index: 4 x 3, from (column, row, 1) to voxel indices of the mask.
        """
        column, row = np.arange(columns)[None, :], np.arange(rows)[:, None]
        nearest, inside, is_on_grid = [], np.ones((rows, columns), np.bool_), True
        for axis, size in enumerate(self.brain_IJK.shape):
            place = to_index[axis, 0] * column + to_index[axis, 1] * row + to_index[axis, 2]
            index = np.rint(place).astype(np.intp)
            corners = place[np.ix_([0, -1], [0, -1])] - index[np.ix_([0, -1], [0, -1])]
            is_within = (index >= 0) & (index < size)
            is_on_grid &= bool(np.abs(corners).max() <= GRID_TOLERANCE and is_within.all())
            inside &= is_within
            nearest.append(np.clip(index, 0, size - 1))
        return self.brain_IJK[nearest[0], nearest[1], nearest[2]] & inside, is_on_grid


def wrong_grid(where: str | SeriesName) -> FindingError:
    """Return the error for a mask that is not on the grid of its own scan."""
    return _refuse(
        where,
        "brain-mask-grid",
        "the brain mask is on another grid than its scan.",
        seen="other numbers of voxels, or voxel centers that differ",
        expected=f"the same voxels, to {GRID_TOLERANCE} voxels",
        do="make the mask from this scan without resampling it, or resample the mask to the scan (nearest neighbor)",
    )


def contour_outside(where: str | SeriesName, number: int) -> FindingError:
    """Return the error for contours outside of the brain mask: one of the skin shows the face."""
    return _refuse(
        where,
        "label-outside-brain-mask",
        "contours lie outside of the brain mask.",
        seen=f"{number} points farther than a voxel from the mask",
        expected="a mask that contains every contour",
        do="correct or dilate the mask, remove these contours, or skip the case with --on-error skip",
    )


def label_outside(where: str | SeriesName, number: int) -> FindingError:
    """Return the error for labelled voxels that the brain mask removes."""
    return _refuse(
        where,
        "label-outside-brain-mask",
        "labelled voxels lie outside of the brain mask.",
        seen=f"{number} labelled voxels that the mask removes",
        expected="a mask that contains every labelled voxel",
        do="correct or dilate the mask, or skip the case with --on-error skip",
    )


def _refuse(where: str | SeriesName, code: str, what: str, *, seen: str, expected: str, do: str) -> FindingError:
    case_id = where.case_id if isinstance(where, SeriesName) else None
    return refuse(code, f"{where}: {what}", seen=seen, expected=expected, do=do, case_id=case_id)
