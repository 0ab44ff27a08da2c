"""Folders of prepared cases made straight from arrays: what `preprocess` writes, without its search for lungs."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import PreparedCase, PreparedCohort
from medweave_core.contracts.labels import PRESETS
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.io.cohort.source_hu import SourceHu, SourceHuCollector, source_box
from medweave_steps.io.dicom.source_headers import write_headers
from medweave_steps.io.geometry import (
    affine_rows,
    interpolate_axis,
    ras_axes,
    ras_grid,
    resampled_grid,
    resampled_shape,
    to_ras_order,
)

SPACING_MM = (2.0, 2.0, 2.0)
WINDOW_HU = (-1000.0, 400.0)


@dataclass(kw_only=True)
class Scan:
    """A source volume: HU in source order, its affine to RAS in mm, and its DICOM headers where it has some."""

    case_id: str
    hu: np.ndarray
    affine_ras: np.ndarray
    source_format: Literal["dicom", "nifti"] = "dicom"
    headers: Sequence[Any] = ()


def with_balls(
    shape: tuple[int, ...], affine_ras: np.ndarray, balls: Sequence[tuple[Sequence[float], float]]
) -> np.ndarray:
    """Return air of -850 HU with balls of 100 HU, whose outlines are smoothed over 2 mm.

    Args:
        balls: centre as a (fractional) array index, and radius in mm.
    """
    hu = np.full(shape, -850.0, np.float32)
    points = np.stack(np.indices(shape), axis=-1).astype(np.float32) @ affine_ras[:3, :3].T.astype(np.float32)
    for centre, radius_mm in balls:
        distance = np.linalg.norm(points - affine_ras[:3, :3].astype(np.float32) @ np.float32(centre), axis=-1)
        hu = np.maximum(hu, -850 + 950 * np.clip((radius_mm - distance) / 2 + 0.5, 0, 1))
    return hu.astype(np.float32)


def prepare(folder: Path, scans: Sequence[Scan], *, spacing_mm=SPACING_MM, crop_start=(0, 0, 0), **cohort: Any) -> Path:
    """Write a folder of prepared test cases; return it.

    Args:
        crop_start: voxels of the network's grid left out at the low ends.
        cohort: other values for `cohort.json`.
    """
    cases = []
    for scan in scans:
        own = folder / "cases" / scan.case_id
        own.mkdir(parents=True)
        info, volume = _resampled(scan, spacing_mm, crop_start)
        source_hu = source_hu_of(scan, info)
        info = dataclasses.replace(info, source_hu_start=source_hu.start)
        np.save(own / "source_hu.npy", source_hu.values)
        np.save(own / "volume.npy", np.clip(volume, *WINDOW_HU).astype(np.float32))
        np.save(own / "lung.npy", np.ones(volume.shape, np.bool_))
        (own / "volume_info.json").write_text(codec.dumps(info), encoding="utf-8")
        if scan.headers:
            write_headers(own / "source_headers.zip", scan.headers)
        cases.append(
            PreparedCase(
                case_id=scan.case_id,
                patient_key=scan.case_id,
                split="test",
                has_label=False,
                num_lesions=0,
                num_label_voxels=0,
            )
        )
    values: dict[str, Any] = {
        "spacing_mm": spacing_mm,
        "window_hu": WINDOW_HU,
        "crop": "none",
        "margin_mm": 0.0,
        "split_seed": 0,
        "synthetic": True,
        "labels": PRESETS["lung-nodule"],
        "data_sha256": "0" * 64,
        "cases": tuple(cases),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cohort.json").write_text(codec.dumps(PreparedCohort(**(values | cohort))), encoding="utf-8")
    return folder


def source_hu_of(scan: Scan, info: VolumeInfo) -> SourceHu:
    """Return the source HU that `preprocess` keeps of a scan."""
    axis = 0 if scan.source_format == "dicom" else 2
    collector = SourceHuCollector(scan.hu.shape, plane_axis=axis)
    collections.deque(collector.collect(iter(np.moveaxis(scan.hu, axis, 0).astype(np.float32))), maxlen=0)
    box = source_box(info)
    return SourceHu(values=collector.part(box), start=(box[0].start, box[1].start, box[2].start))


def _resampled(scan: Scan, spacing_mm, crop_start) -> tuple[VolumeInfo, np.ndarray]:
    source = Grid(shape=scan.hu.shape, affine=affine_rows(scan.affine_ras))
    axis, flipped = ras_axes(source)
    ras = ras_grid(source, axis, flipped)
    full = resampled_shape(ras.shape, ras.spacing_mm, spacing_mm)
    shape = tuple(n - s for n, s in zip(full, crop_start, strict=True))
    volume = np.ascontiguousarray(to_ras_order(scan.hu, axis, flipped), dtype=np.float32)
    for a in range(3):
        positions = (np.arange(shape[a]) + crop_start[a]) * spacing_mm[a] / ras.spacing_mm[a]
        volume = interpolate_axis(volume, positions, a)
    info = VolumeInfo(
        case_id=scan.case_id,
        source_format=scan.source_format,
        source_grid=source,
        source_sha256="0" * 64,
        source_axis=axis,
        source_flipped=flipped,
        grid=resampled_grid(ras, spacing_mm, start=crop_start, shape=shape),
        crop_start=crop_start,
        window_hu=WINDOW_HU,
    )
    return info, volume
