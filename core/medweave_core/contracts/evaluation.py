"""`metrics.json`: how well segmentations agree with the ground truth, per case and pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.volume import DataClass

Interval = tuple[float, float]

ALL_LABELS = "all labels"  # name of the rows of the CSV tables that count all labels as one mask


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCaseFigures:
    """One label or region in one case, or all labels as one mask, on the source grid.

    Attributes:
        patient_key: equal for cases of one patient.
        mask_format: which delivered file was read.
        dice: Dice coefficient; None if both masks are empty, 0 if exactly one is.
        hd95_mm: 95th percentile of the Hausdorff distance, mm; None if a mask is empty.
        nsd_2mm: normalised surface distance at a tolerance of 2 mm; None if both masks are empty.
        lesions: reference lesions of any size.
        lesions_hit: those that a predicted component overlaps.
        lesions_6mm, lesions_6mm_hit: of these, the ones with a longest in-plane diameter of 6 mm or more.
        predicted_components: components of the predicted mask.
        false_positives: predicted components that overlap no lesion.
        reference_volume_mm3, predicted_volume_mm3: volume of the masks, mm³.
    """

    case_id: str
    patient_key: str
    mask_format: Literal["dicom-seg", "nifti"]
    dice: float | None
    hd95_mm: float | None
    nsd_2mm: float | None
    lesions: int
    lesions_hit: int
    lesions_6mm: int
    lesions_6mm_hit: int
    predicted_components: int
    false_positives: int
    reference_volume_mm3: float
    predicted_volume_mm3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFigures(LabelCaseFigures):
    """One case, on its source grid: all labels as one mask.

    Attributes:
        baseline_dice, baseline_false_positives: Dice and false positives of the baseline.
    """

    baseline_dice: float | None
    baseline_false_positives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFigures:
    """A fixed rule without learning on the same cases: a threshold, and a filter on component size.

    Attributes:
        threshold_hu: minimum value of a voxel in the mask, HU; None for MR.
        threshold_sd: for MR, in standard deviations of the first contrast; None for CT.
        inside_lungs: only voxels in the filled lungs count, for CT that was cropped to them.
        volume_mm3: range of the volumes of components in the mask, mm³.
        dice_mean: mean over cases.
        false_positives_per_scan: components that overlap no lesion, per scan.
        lesion_sensitivity_6mm: lesions of 6 mm or more that it overlaps, over all of them.
    """

    volume_mm3: Interval
    dice_mean: float | None
    dice_ci: Interval | None
    false_positives_per_scan: float
    false_positives_per_scan_ci: Interval | None
    lesion_sensitivity_6mm: float | None
    lesion_sensitivity_6mm_ci: Interval | None
    threshold_hu: float | None = None
    threshold_sd: float | None = None
    inside_lungs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledFigures:
    """Figures over all cases. A figure that is not defined is null; `_ci` is the bootstrap interval over patients.

    Attributes:
        synthetic: True if the data come from a generator: the figures then say nothing about patients.
        patients: patients with a ground truth.
        cases: scans with a ground truth.
        lesions: reference lesions with a longest in-plane diameter of 6 mm or more.
        lesions_10mm, lesions_6_to_8mm, lesions_any_size: reference lesions of 10 mm or more, of 6 to below 8 mm, and of any size.
        dice_mean, dice_median: over cases; cases where both masks are empty have no Dice and are counted apart.
        nsd_2mm_mean: mean over cases of the normalised surface distance at a tolerance of 2 mm.
        hd95_mm_median: over cases, mm; a case with exactly one empty mask counts as the worst.
        lesion_sensitivity_6mm: lesions hit over lesions, pooled over scans, and so on by size.
        false_positives_per_scan: predicted components that overlap no lesion, per scan with a ground truth.
        cases_both_empty: neither prediction nor ground truth holds a lesion.
        cases_one_empty: exactly one of them does.
    """

    synthetic: bool
    patients: int
    cases: int
    lesions: int
    lesions_10mm: int
    lesions_6_to_8mm: int
    lesions_any_size: int
    dice_mean: float | None
    dice_ci: Interval | None
    dice_median: float | None
    dice_median_ci: Interval | None
    nsd_2mm_mean: float | None
    nsd_2mm_ci: Interval | None
    hd95_mm_median: float | None
    hd95_mm_median_ci: Interval | None
    lesion_sensitivity_10mm: float | None
    lesion_sensitivity_10mm_ci: Interval | None
    lesion_sensitivity_6mm: float | None
    lesion_sensitivity_6mm_ci: Interval | None
    lesion_sensitivity_6_to_8mm: float | None
    lesion_sensitivity_6_to_8mm_ci: Interval | None
    lesion_sensitivity_any_size: float | None
    lesion_sensitivity_any_size_ci: Interval | None
    false_positives_per_scan: float
    false_positives_per_scan_ci: Interval | None
    cases_both_empty: int
    cases_one_empty: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFigures(PooledFigures):
    """One label, or one region of the model.

    Attributes:
        name: of the label or region.
        values: values of its labels in the masks.
        per_case: its figures in each case.
    """

    name: str
    values: tuple[int, ...]
    per_case: tuple[LabelCaseFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(PooledFigures):
    """The whole of `metrics.json`; its own figures count all labels as one mask.

    Attributes:
        cases_without_ground_truth: segmented, but nothing to compare with; in no figure.
        bootstrap: seed, draws and level of the intervals.
        by_label: the figures of each label, or of each region of the model, where there are several.
        dice_by_label_mean: mean over `by_label` of their mean Dice; null for one label.
        labels_not_evaluated: labels or regions of the model that the ground truth lacks; they are in no figure of `by_label`, and
            voxels of such labels count as background.
    """

    cases_without_ground_truth: tuple[str, ...]
    bootstrap: Mapping[str, float]
    baseline: BaselineFigures
    per_case: tuple[CaseFigures, ...]
    by_label: tuple[LabelFigures, ...] = ()
    dice_by_label_mean: float | None = None
    dice_by_label_ci: Interval | None = None
    labels_not_evaluated: tuple[str, ...] = ()
    evaluation_version: Literal[1] = 1
    data_class: DataClass = "aggregate"
