"""The figures of one case, on its source grid."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medweave_core.contracts.cohort import CaseEntry
from medweave_core.contracts.evaluation import CaseFigures, LabelCaseFigures
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_core.errors import UserInputError
from medweave_steps.evaluate import delivered
from medweave_steps.evaluate.baseline import BoolArray, threshold_mask, to_source_grid
from medweave_steps.evaluate.compared import ComparedLabels
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.cohort.source import MaskValues, read_ground_truth
from medweave_steps.io.geometry import FloatArray, ras_axes
from medweave_steps.metrics.lesions import LesionMatch, match_lesions
from medweave_steps.metrics.overlap import dice
from medweave_steps.metrics.surface import surface_distances

NSD_TOLERANCE_MM = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTask:
    """One case to evaluate, with its ground truth, prepared data and delivered mask.

    Attributes:
        entry: the case in the cohort index.
        compared: labels and regions that are evaluated.
        values: of the cohort's ground truth.
        prepared: the case in its batch, for the baseline.
        mask_folder: what `segment` delivered for it.
    """

    entry: CaseEntry
    compared: ComparedLabels
    values: MaskValues
    prepared: CaseFolder
    mask_folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRule:
    """The rule of the baseline (see `evaluate.baseline`); the threshold is in HU, or for MR in SD of the first contrast.

    Attributes:
        inside_lungs: only voxels of `lung.npy` count; for cases that were cropped to the lungs.
    """

    threshold: float
    is_ct: bool
    inside_lungs: bool
    volume_mm3: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResult:
    """Figures and lesions of one label or region in one case."""

    figures: LabelCaseFigures
    match: LesionMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """Figures of one case, and the lesions of network and baseline.

    Attributes:
        by_label: of each label or region, in the order of `ComparedLabels.outputs`.
    """

    figures: CaseFigures
    match: LesionMatch
    baseline_match: LesionMatch
    by_label: tuple[LabelResult, ...] = ()


def evaluate_case(cohort: Path, task: CaseTask, rule: BaselineRule) -> CaseResult:
    """Compare the delivered mask and the baseline with the ground truth.

    Voxels without annotation (the ignore value of the cohort) are background in all masks.

    Raises:
        UserInputError: the delivered mask or the ground truth cannot be read, or does not lie on the source grid.
    """
    entry, compared = task.entry, task.compared
    truth = read_ground_truth(cohort, entry, task.values)
    assert truth is not None, "cases without a ground truth are sorted out before"
    truth = np.ascontiguousarray(truth)  # C order once, not in every metric
    if compared.outputs:
        label_map, mask_format = delivered.read_label_map(cohort, task.mask_folder, entry, compared.delivered)
    else:
        only, mask_format = delivered.read_mask(cohort, task.mask_folder, entry, compared.labels[0])
        label_map = only * np.uint8(compared.labels[0].value)
    baseline = _baseline_mask(entry, task.prepared, rule)
    if task.values.ignore_value is not None:
        annotated = truth != task.values.ignore_value
        truth, label_map, baseline = truth * annotated, label_map * annotated, baseline & annotated
    reference = truth > 0
    predicted = np.isin(label_map, [label.value for label in compared.labels])
    union = _compare(predicted, reference, entry, mask_format)
    results = [
        _compare(np.isin(label_map, output.values), np.isin(truth, output.values), entry, mask_format)
        for output in compared.outputs
    ]
    baseline_match = match_lesions(
        baseline, reference, spacing_mm=entry.grid.spacing_mm, plane_axis=plane_axis_of(entry)
    )
    figures = CaseFigures(
        **{field.name: getattr(union.figures, field.name) for field in dataclasses.fields(union.figures)},
        baseline_dice=number(dice(baseline, reference)),
        baseline_false_positives=baseline_match.num_false_positives,
    )
    return CaseResult(figures=figures, match=union.match, baseline_match=baseline_match, by_label=tuple(results))


def _compare(
    predicted: BoolArray, reference: BoolArray, entry: CaseEntry, mask_format: delivered.MaskFormat
) -> LabelResult:
    """Return figures and lesions of two masks of one label, region, or of all labels."""
    spacing_mm, plane_axis = entry.grid.spacing_mm, plane_axis_of(entry)
    match = match_lesions(predicted, reference, spacing_mm=spacing_mm, plane_axis=plane_axis)
    distances = surface_distances(predicted, reference, spacing_mm=spacing_mm)
    hits, lesions = match.count()
    hits_6mm, lesions_6mm = match.count(at_least_mm=6)
    figures = LabelCaseFigures(
        case_id=entry.case_id,
        patient_key=entry.patient_key,
        mask_format=mask_format,
        dice=number(dice(predicted, reference)),
        hd95_mm=number(distances.hd95_mm()),
        nsd_2mm=number(distances.nsd(tolerance_mm=NSD_TOLERANCE_MM)),
        lesions=lesions,
        lesions_hit=hits,
        lesions_6mm=lesions_6mm,
        lesions_6mm_hit=hits_6mm,
        predicted_components=match.num_predicted,
        false_positives=match.num_false_positives,
        reference_volume_mm3=round(float(reference.sum()) * entry.grid.voxel_volume_mm3, 3),
        predicted_volume_mm3=round(float(predicted.sum()) * entry.grid.voxel_volume_mm3, 3),
    )
    return LabelResult(figures=figures, match=match)


def plane_axis_of(entry: CaseEntry) -> int:
    """Return the axis that counts image planes: the slices of a DICOM series, the axis closest to Superior in a NIfTI file."""
    return 0 if entry.source_format == "dicom" else ras_axes(entry.grid)[0][2]


def number(value: float) -> float | None:
    """Return a figure for JSON: six decimals, None where it is not a finite number."""
    return round(value, 6) if math.isfinite(value) else None


def _baseline_mask(entry: CaseEntry, prepared: CaseFolder, rule: BaselineRule) -> BoolArray:
    info = prepared.info()
    _check_same_source(info.source_grid, entry)
    mask_IJK = threshold_mask(
        _values(prepared, info),
        prepared.lung_IJK() if rule.inside_lungs else None,
        threshold=rule.threshold,
        volume_mm3=rule.volume_mm3,
        voxel_volume_mm3=info.grid.voxel_volume_mm3,
    )
    return to_source_grid(mask_IJK, info)


def _values(prepared: CaseFolder, info: VolumeInfo) -> FloatArray:
    """Return the first channel in the unit of the threshold: HU for CT, standard deviations from the mean for MR and PET."""
    volume_IJK: FloatArray = prepared.volume_CIJK()[0]
    if info.unit != "SUV":
        return volume_IJK
    mean, deviation = volume_IJK.mean(dtype=np.float64), volume_IJK.std(dtype=np.float64)
    return (volume_IJK - np.float32(mean)) / np.float32(deviation)


def _check_same_source(source_grid: Grid, entry: CaseEntry) -> None:
    if source_grid.shape == entry.grid.shape and np.allclose(source_grid.affine, entry.grid.affine, atol=1e-3):
        return
    raise UserInputError(
        f"the preprocessed volume of {entry.case_id} has another source.",
        seen=f"source grid {' x '.join(map(str, source_grid.shape))} voxels in its volume_info.json",
        expected=f"{' x '.join(map(str, entry.grid.shape))} voxels at the same position, as in the cohort index",
        do="use the case batches that were preprocessed from this cohort index",
    )
