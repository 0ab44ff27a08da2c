"""One case from its source to the folder of a prepared case."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.volume import Triple, VolumeInfo, unit_of
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.source import (
    AIR_HU,
    MaskValues,
    VolumeSource,
    open_source,
    read_ground_truth,
    reference_series,
)
from medweave_steps.io.cohort.source_hu import SOURCE_HU_FILE, SourceHuCollector, source_box
from medweave_steps.io.dicom.source_headers import copy_headers
from medweave_steps.io.findings import FindingError, refuse
from medweave_steps.io.geometry import FloatArray, resampled_grid
from medweave_steps.preprocess.bias_field import correct_bias_field
from medweave_steps.preprocess.brain_masks import Mask, middle_of, read_mask
from medweave_steps.preprocess.config import CaseSettings
from medweave_steps.preprocess.contrasts import (
    box_of_multiples,
    box_of_shape,
    cut,
    joined,
    resample_channels,
    standardize,
)
from medweave_steps.preprocess.labels import ResampledLesion, paint, resample_lesions
from medweave_steps.preprocess.lungs import Box, LungField, crop_box, find_lungs
from medweave_steps.preprocess.resample import Resampling, needed_planes, plan_resampling, resample_planes

_NO_LUNGS = {
    "one-lung": "air was found on one side of the chest only; the crop has the full body width, in case the other lung is "
    "collapsed or outside the field of view",
    "body": "no lungs were found; the crop is the whole body",
    "everything": "neither lungs nor a body were found; the volume is not cropped",
}


# A mask on another grid may belong to another scan: the masks of all cases are then in doubt.
_NOT_SKIPPED = {"cohort-changed", "brain-mask-grid", "bad-brain-mask"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseJob:
    """The job of one process.

    Attributes:
        folder: of the prepared case; must exist and be empty.
        values: of the cohort's ground truth, which is read too; None for a case without ground truth.
        for_segment: keep what `segment` needs of the source: DICOM headers, which hold patient data, and the HU of CT.
        keep_all_lesions: widen the crop to every lesion (training cases only: elsewhere the truth must not help).
        num_workers: for reading.
        brain_mask: of the case; None without --brain-masks.
    """

    cohort: Path
    entry: CaseEntry
    settings: CaseSettings
    folder: Path
    values: MaskValues | None
    for_segment: bool
    keep_all_lesions: bool
    num_workers: int
    brain_mask: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDone:
    """The result of a job.

    Attributes:
        figures: for the run report; no patient data.
        notices: messages for the user.
    """

    case_id: str
    has_label: bool
    num_lesions: int
    num_label_voxels: int
    voxels_by_label: Mapping[str, int]
    figures: Mapping[str, Any]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFailed:
    """A case that `check` accepted and whose data cannot be used, such as a slice that cannot be decoded."""

    case_id: str
    error: UserInputError


def attempt_case(job: CaseJob, *, prepare: Callable[[CaseJob], CaseDone]) -> CaseDone | CaseFailed:
    """Prepare one case; a fault of its own ends only this case and removes its folder.

    Args:
        prepare: `prepare_case`, `prepare_image` for images, or `prepare_signal` for a sample of a recording.
    Raises:
        UserInputError: the cohort is not the one that `check` saw, which concerns all cases; or a brain mask does not fit its case.
        OSError: the output cannot be written.
    """
    try:
        return prepare(job)
    except FindingError as error:
        finding = error.finding
        if finding.code in _NOT_SKIPPED:
            raise
        shutil.rmtree(job.folder)
        plain = UserInputError(finding.what, finding.seen, finding.expected, finding.do)
        return CaseFailed(case_id=job.entry.case_id, error=plain)


def prepare_case(job: CaseJob) -> CaseDone:
    """Stream, resample, crop, clip and write one case.

    Raises:
        UserInputError: the source is not what the cohort index says, or cannot be read; the case is named.
        OSError: the output cannot be written.
    """
    started = time.monotonic()
    entry, settings = job.entry, job.settings
    check_files(job.cohort, entry)
    source = open_source(job.cohort, entry)
    plan = plan_resampling(source.grid, settings.spacing_mm)
    lesions = _lesions(job, plan)
    ignored = job.values.ignore_value if job.values else None
    counted = [lesion for lesion in lesions if lesion.value != ignored]
    is_ct = settings.window_hu is not None
    source_hu = (
        SourceHuCollector(source.grid.shape, plane_axis=source.plane_axis) if is_ct and job.for_segment else None
    )
    planes = _planes(job, source, plan, source_hu)
    box, field, num_widened = (_prepare_ct if is_ct else _prepare_channels)(job, source, plan, counted, planes)
    shape = _sizes(box)
    num_outside, voxels_by_label = 0, {}
    if job.values:
        label, num_outside = paint(lesions, box[0], shape, ignore_value=ignored)
        voxels_by_label = _voxels_by_label(label, job.values)
        save_array(job.folder / "label.npy", label)
    num_label_voxels = sum(voxels_by_label.values())
    referred = reference_series(source)
    if job.for_segment and referred is not None:
        copy_headers(job.folder / "source_headers.zip", referred.folder, referred.slices)
    info = _info(entry, plan, settings, box, field, has_brain_mask=job.brain_mask is not None)
    if source_hu is not None:
        info = _save_source_hu(job.folder, info, source_hu)
    (job.folder / "volume_info.json").write_text(codec.dumps(info), encoding="utf-8")
    figures = {
        "seconds": round(time.monotonic() - started, 3),
        "source_shape": list(source.grid.shape),
        "source_spacing_mm": [round(x, 4) for x in source.grid.spacing_mm],
        "shape": list(shape),
        "field_of_view": field.kind if field and settings.crop == "lungs" else settings.crop,
        "lung_volume_ml": field.lung_volume_ml if field else None,
        "num_lesions": len(counted),
        "num_lesions_outside_crop": num_outside,
        "num_label_voxels": num_label_voxels,
        **({"has_brain_mask": True} if job.brain_mask is not None else {}),
        **({"resampled_channels": list(source.resampled_channels)} if source.resampled_channels else {}),
    }
    return CaseDone(
        case_id=entry.case_id,
        has_label=job.values is not None,
        num_lesions=len(counted),
        num_label_voxels=num_label_voxels,
        voxels_by_label=voxels_by_label,
        figures=figures,
        notices=tuple(_notices(job, field, num_widened, num_outside)),
    )


def _prepare_ct(
    job: CaseJob, source: VolumeSource, plan: Resampling, lesions: list[ResampledLesion], planes: Iterator[FloatArray]
) -> tuple[Box, LungField | None, int]:
    settings = job.settings
    assert settings.window_hu is not None
    volume = resample_planes(planes, plan, plane_axis=source.plane_axis)
    field = find_lungs(volume, settings.spacing_mm)
    box, num_widened = _choose_box(job, field, plan, lesions)
    crop = _slices(box)
    save_array(job.folder / "volume.npy", _clipped(volume[crop], settings.window_hu))
    save_array(job.folder / "lung.npy", field.mask_IJK[crop])
    return box, field, num_widened


def _prepare_channels(
    job: CaseJob, source: VolumeSource, plan: Resampling, _lesions: list[ResampledLesion], planes: Iterator[FloatArray]
) -> tuple[Box, LungField | None, int]:
    names, case_id = job.settings.channels, job.entry.case_id
    brain_IJK = None if job.brain_mask is None else read_mask(job.brain_mask, case_id, plan)
    channels = resample_channels(planes, plan, plane_axis=source.plane_axis, num_channels=len(names))
    if job.settings.bias_correction == "n4" and brain_IJK is not None:
        spacing_mm = job.settings.spacing_mm
        channels = [correct_bias_field(one, brain_IJK, spacing_mm, case_id=case_id) for one in channels]
    box = _box_of_channels(job, plan, brain_IJK)
    inside = _inside(box, plan, brain_IJK)
    volume = joined(channels, box, names, case_id=case_id, inside=inside)
    if unit_of(names) == "SD":
        standardize(volume, inside)
    if inside is not None and brain_IJK is not None:
        volume[:, ~inside] = 0
    save_array(job.folder / "volume.npy", volume)
    return box, None, 0


def _box_of_channels(job: CaseJob, plan: Resampling, brain_IJK: Mask | None) -> Box:
    """Return the field of view of MR or PET: a fixed shape around the brain mask, or around the middle of the scan without mask.

    Raises:
        FindingError: a part of the brain mask lies outside of the fixed shape, or the volume is too small for multiples of 8.
    """
    settings, case_id = job.settings, job.entry.case_id
    if settings.shape is None:
        is_cut = settings.crop == "multiple-of-8"
        return box_of_multiples(plan.shape, case_id=case_id) if is_cut else ((0, 0, 0), plan.shape)
    if brain_IJK is None:
        return box_of_shape(settings.shape, double_center=plan.shape)
    box = box_of_shape(settings.shape, double_center=middle_of(brain_IJK))
    num_outside = np.count_nonzero(brain_IJK) - np.count_nonzero(cut(brain_IJK, box))
    if num_outside:
        raise refuse(
            "brain-outside-shape",
            f"{case_id}: the brain is larger than the shape of the volume.",
            seen=f"{num_outside} voxels of the brain mask outside of {' x '.join(map(str, settings.shape))} voxels",
            expected="a shape that contains the brain mask",
            do="choose a larger --shape, or correct the mask",
            case_id=case_id,
        )
    return box


def _inside(box: Box, plan: Resampling, brain_IJK: Mask | None) -> Mask | None:
    """Return the voxels of a box whose mean and deviation count: the brain, else those of the scan; None for all."""
    if brain_IJK is not None:
        return cut(brain_IJK, box)
    is_padded = min(box[0]) < 0 or any(stop > size for stop, size in zip(box[1], plan.shape, strict=True))
    return cut(np.ones(plan.shape, np.bool_), box) if is_padded else None


def _planes(
    job: CaseJob, source: VolumeSource, plan: Resampling, source_hu: SourceHuCollector | None
) -> Iterator[FloatArray]:
    """Yield the planes that resampling needs, padding as air; store all planes in `source_hu` if it is given."""
    needed = needed_planes(plan, source.plane_axis)
    if source_hu is None:
        yield from source.planes(num_workers=job.num_workers, verify=True, wanted=needed)
        return
    planes = source_hu.collect(source.planes(num_workers=job.num_workers, verify=True, padding=math.nan))
    for number, plane in enumerate(planes):
        if number in needed:
            yield np.nan_to_num(plane, copy=False, nan=AIR_HU)


def _save_source_hu(folder: Path, info: VolumeInfo, source_hu: SourceHuCollector) -> VolumeInfo:
    """Write `source_hu.npy` and return the geometry that records it."""
    box = source_box(info)
    save_array(folder / SOURCE_HU_FILE, source_hu.part(box))
    return dataclasses.replace(info, source_hu_start=(box[0].start, box[1].start, box[2].start))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(*box, strict=True))


def check_files(cohort: Path, entry: CaseEntry) -> None:
    """Refuse a case with missing files.

    Raises:
        UserInputError: names the case, never the files.
    """
    names = entry.all_files
    missing = sum(not (cohort / name).is_file() for name in names)
    if missing:
        raise UserInputError(
            f"{entry.case_id} (series {entry.series_ordinal}): the cohort has changed since `check` ran.",
            seen=f"{missing} of {len(names)} files missing",
            expected="all files that cohort_index.json lists, inside --cohort",
            do="set --cohort to the folder that check validated, or run check again and use the new cohort_index.json",
        )


def _voxels_by_label(label_IJK: npt.NDArray[np.uint8], values: MaskValues) -> dict[str, int]:
    counts = np.bincount(label_IJK.ravel(), minlength=256)
    return {str(label.value): int(counts[label.value]) for label in values.labels}


def _lesions(job: CaseJob, plan: Resampling) -> list[ResampledLesion]:
    truth = read_ground_truth(job.cohort, job.entry, job.values) if job.values else None
    return [] if truth is None else resample_lesions(truth, plan)


def _choose_box(job: CaseJob, field: LungField, plan: Resampling, lesions: list[ResampledLesion]) -> tuple[Box, int]:
    """Return the crop, and how many lesions it was widened for."""
    if job.settings.crop == "none":
        return ((0, 0, 0), plan.shape), 0
    if job.settings.crop == "multiple-of-8":
        return box_of_multiples(plan.shape, case_id=job.entry.case_id), 0
    start, stop = crop_box(field.box, plan.shape, plan.spacing_mm, job.settings.margin_mm)
    beyond = [
        lesion
        for lesion in lesions
        if any(a < b for a, b in zip(lesion.start, start, strict=True))
        or any(a > b for a, b in zip(lesion.stop, stop, strict=True))
    ]
    if not (beyond and job.keep_all_lesions):
        return (start, stop), 0
    low, high = (np.asarray([getattr(lesion, end) for lesion in beyond]) for end in ("start", "stop"))
    start = tuple(int(x) for x in np.minimum(start, low.min(axis=0)))  # type: ignore[assignment]
    stop = tuple(int(x) for x in np.maximum(stop, high.max(axis=0)))  # type: ignore[assignment]
    return (start, stop), len(beyond)


def _sizes(box: Box) -> Triple:
    a, b, c = (high - low for low, high in zip(*box, strict=True))
    return (a, b, c)


def _clipped(volume: FloatArray, window_hu: tuple[float, float]) -> FloatArray:
    # After resampling, as a pipeline of Spacing and ScaleIntensityRange does.
    low, high = window_hu
    clipped: FloatArray = np.clip(np.ascontiguousarray(volume), np.float32(low), np.float32(high))
    return clipped


def _info(
    entry: CaseEntry,
    plan: Resampling,
    settings: CaseSettings,
    box: Box,
    field: LungField | None,
    *,
    has_brain_mask: bool,
) -> VolumeInfo:
    return VolumeInfo(
        case_id=entry.case_id,
        source_format=entry.source_format,
        source_grid=plan.source,
        source_sha256=entry.content_sha256,
        source_axis=plan.axis,
        source_flipped=plan.flipped,
        grid=resampled_grid(plan.ras, settings.spacing_mm, start=box[0], shape=_sizes(box)),
        crop_start=box[0],
        window_hu=settings.window_hu,
        unit=unit_of(settings.channels),
        channels=settings.channels,
        body_part=entry.body_part,
        has_lungs=field.has_lungs if field else None,
        has_brain_mask=has_brain_mask,
    )


def _notices(job: CaseJob, field: LungField | None, num_widened: int, num_outside: int) -> list[str]:
    case_id, found = job.entry.case_id, []
    if field and job.settings.crop == "lungs" and field.kind in _NO_LUNGS:
        found.append(f"{case_id}: {_NO_LUNGS[field.kind]}.")
    if num_widened:
        lesions = "1 lesion that extends" if num_widened == 1 else f"{num_widened} lesions that extend"
        found.append(f"{case_id}: the crop was widened for {lesions} beyond the bounding box of the lungs.")
    if num_outside:
        lesions = "1 lesion" if num_outside == 1 else f"{num_outside} lesions"
        found.append(
            f"{case_id}: {lesions} of the ground truth outside the crop; a larger --margin-mm or --crop none includes them."
        )
    return found


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a `.npy` file in C order, to be memory-mapped by later steps.

    `numpy.save` hides why a write fails, and a memory map raises a bus error on a full disk; plain writes raise OSError.

    Raises:
        OSError: with its errno (ENOSPC on a full disk).
    """
    ordered = np.ascontiguousarray(array)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(ordered))
        stream.write(ordered.reshape(-1).view(np.uint8).data)
