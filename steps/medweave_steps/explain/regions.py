"""The mass of a map in the labels of a label map and in the brain mask: in which structures the evidence lies."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.explanations import RegionMass
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.inference.restore import restore_map
from medweave_steps.io.channel_grid import SAME_PLACE_VOXELS, is_same_grid
from medweave_steps.io.cohort.bids_tables import LABEL_TABLE
from medweave_steps.io.cohort.discovery import walk
from medweave_steps.io.findings import SeriesName, first_of
from medweave_steps.io.nifti.source_grid import file_grid, in_file_axes
from medweave_steps.io.nifti.volume import NiftiVolume, is_nifti, open_nifti, stem

FloatArray = npt.NDArray[np.float32]
LabelArray = npt.NDArray[np.int64]
MaskArray = npt.NDArray[np.bool_]
GridName = Literal["source", "prepared"]

NAME_COLUMNS = ("index", "name")
"""Columns of a table of label names, as in the `dseg.tsv` of BIDS."""
_DECIMALS = 6
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMap:
    """The label map of one case.

    Attributes:
        labels: int64 with the axes of its file, 0 is background.
        where: the grid that it lies on.
    """

    labels: LabelArray
    where: GridName


def find_label_maps(folders: Sequence[Path], case_ids: Sequence[str]) -> dict[str, Path]:
    """Return the label map of each case that has one: `<case_id>.nii.gz`, or `<case_id>_dseg.nii.gz` of BIDS derivatives.

    Folders below are searched too. In names of BIDS, entities may follow the case: `sub-01_space-T1w_dseg.nii.gz`.

    Raises:
        UserInputError: there are cases, and none has one, or one has several.
    """
    files = [folder / name for folder in folders for name in walk(folder) if is_nifti(name)]
    by_case: dict[str, list[Path]] = {}
    for file in files:
        title = stem(file.name)
        owners = [one for one in case_ids if title == one or (title.startswith(f"{one}_") and title.endswith("_dseg"))]
        for owner in owners:
            by_case.setdefault(owner, []).append(file)
    if case_ids and not by_case:
        raise UserInputError(
            "the folder of --regions has no label map of a case of this batch.",
            seen=f"{len(files)} other NIfTI files",
            expected=f"files named after the case, such as {case_ids[0]}.nii.gz or {case_ids[0]}_dseg.nii.gz",
            do="name the label maps after the cases in cohort.json, or use the batch that they belong to",
        )
    several = sorted(case_id for case_id, own in by_case.items() if len(own) > 1)
    if several:
        raise UserInputError(
            f"--regions has several label maps for {first_of(several)}.",
            seen=f"{len(by_case[several[0]])} files of {several[0]}",
            expected="one label map for each case",
            do="keep the label maps of one segmentation in the folder",
        )
    return {case_id: own[0] for case_id, own in by_case.items()}


def names_beside(folders: Sequence[Path]) -> Path | None:
    """Return the table of label names of BIDS derivatives, `dseg.tsv` in one of the folders."""
    return next((folder / LABEL_TABLE for folder in folders if (folder / LABEL_TABLE).is_file()), None)


def read_names(path: Path) -> dict[int, str]:
    """Return the names of label values from a table with the columns `index` and `name`, comma- or tab-separated.

    Raises:
        UserInputError: it is no such table.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = text.splitlines()
        rows = list(csv.DictReader(lines, delimiter="\t" if lines and "\t" in lines[0] else ","))
        return {int(row["index"]): row["name"].strip() for row in rows}
    except FileNotFoundError as error:
        raise _bad_names("no such file") from error
    except (ValueError, KeyError, AttributeError, TypeError, csv.Error) as error:
        raise _bad_names(f"{type(error).__name__} in a table with {len(text.splitlines())} lines") from error


def _bad_names(seen: str) -> UserInputError:
    return UserInputError(
        "the table of --region-names cannot be read.",
        seen=seen,
        expected=f"a table with the columns {' and '.join(NAME_COLUMNS)} (TSV or CSV, UTF-8), index a whole number",
        do="write the table as BIDS describes it for label images (dseg.tsv)",
    )


def read_label_map(path: Path, info: VolumeInfo, *, ordinal: int) -> LabelMap:
    """Read the label map of a case.

    Args:
        ordinal: number of the case in the batch, from 1, for messages.
    Raises:
        UserInputError: it cannot be read, is on neither grid of the case, or has values that are not whole numbers.
    """
    volume = open_nifti(path, SeriesName(case_id=info.case_id, ordinal=ordinal), role="label map")
    where = _grid_of(volume, info)
    values = np.stack([volume.to_hu(plane, padding=np.nan) for plane in volume.planes()], axis=-1)
    labels = np.rint(np.nan_to_num(values, nan=-1, posinf=-1, neginf=-1)).astype(np.int64)
    wrong = (labels < 0) | (labels != values)
    if wrong.any():
        raise UserInputError(
            f"the label map of {info.case_id} has values that are no labels.",
            seen=f"value {values[wrong][0]:g} ({int(wrong.sum())} such voxels)",
            expected="whole numbers from 0, which is background",
            do="write the label map without interpolation",
        )
    return LabelMap(labels=labels, where=where)


def _grid_of(volume: NiftiVolume, info: VolumeInfo) -> GridName:
    source = file_grid(info)
    if is_same_grid(volume.grid, source):
        return "source"
    if is_same_grid(volume.grid, info.grid):
        return "prepared"
    raise UserInputError(
        f"the label map of {info.case_id} is on another grid than its image.",
        seen=_shown(volume.grid),
        expected=f"the source grid: {_shown(source)}; or the prepared grid: {_shown(info.grid)}; corners within "
        f"{SAME_PLACE_VOXELS:g} voxel",
        do="resample the label map to the image by nearest neighbor, or use the label map of this image",
    )


def _shown(grid: Grid) -> str:
    spacing = ", ".join(f"{value:.2f}" for value in grid.spacing_mm)
    origin = ", ".join(f"{row[3]:.1f}" for row in grid.affine[:3])
    return f"{' x '.join(map(str, grid.shape))} voxels of ({spacing}) mm, first voxel at ({origin}) mm"


def on_grid(where: GridName, *, prepared: FloatArray, restored: FloatArray, info: VolumeInfo) -> FloatArray:
    """Return the map on one of the grids of a case, with the axes of a label map there.

    Args:
        prepared: the map on the prepared grid [I, J, K].
        restored: the map on the source grid, in the source's axis order.
    """
    if where == "prepared":
        return prepared
    array: FloatArray = in_file_axes(restored, info)
    return array


def mass_per_region(values: FloatArray, labels: npt.NDArray[Any], names: Mapping[int, str]) -> tuple[RegionMass, ...]:
    """Return the mass of a map in each label that has voxels, ascending by value, without the background 0.

    Args:
        values: float32, at least 0.
        labels: integers of the same shape.
        names: of label values; others are named `label <value>`.
    """
    present, inverse = np.unique(labels, return_inverse=True)
    place = inverse.reshape(-1)
    voxels = np.bincount(place, minlength=len(present)) / labels.size
    mass = np.bincount(place, weights=values.reshape(-1).astype(np.float64), minlength=len(present))
    total = float(mass.sum())
    regions = []
    for value, volume_share, own in zip(present.tolist(), voxels.tolist(), mass.tolist(), strict=True):
        if value == 0:
            continue
        share = own / total if total > 0 else None
        regions.append(
            RegionMass(
                value=value,
                name=names.get(value, f"label {value}"),
                mass_share=None if share is None else round(share, _DECIMALS),
                volume_share=round(volume_share, _DECIMALS),
                ratio=None if share is None else round(share / volume_share, _DECIMALS),
            )
        )
    return tuple(regions)


def brain_on_grid(where: GridName, volume_CIJK: npt.NDArray[np.floating], info: VolumeInfo) -> MaskArray:
    """Return the voxels of a case that are not 0, which are those of the brain after `preprocess`, on one of its grids.

    On the source grid, a voxel whose interpolated mask is at least one half belongs to the brain, as in `preprocess`.

    Args:
        volume_CIJK: the prepared volume, whose voxels outside of the mask are 0 in all channels.
    """
    brain_IJK: MaskArray = np.asarray((volume_CIJK != 0).any(axis=0))
    if where == "prepared":
        return brain_IJK
    restored = restore_map(brain_IJK.astype(np.float32), info)
    mask: MaskArray = in_file_axes(restored, info) >= _HALF
    return mask


def shares_inside(values: FloatArray, mask: MaskArray) -> tuple[float | None, float]:
    """Return the share of a map's mass inside a mask, None for an empty map, and the mask's share of the voxels.

    Args:
        values: float32, at least 0.
        mask: of the same shape.
    """
    total = float(values.sum(dtype=np.float64))
    inside = float(values[mask].sum(dtype=np.float64))
    return round(inside / total, _DECIMALS) if total > 0 else None, round(float(mask.mean()), _DECIMALS)
