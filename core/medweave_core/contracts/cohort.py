"""The contents of a cohort: the cases that `check` lists, and those that `preprocess` prepares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.labels import Label, LabelMerge, Region, older_labels
from medweave_core.contracts.volume import CT_CHANNELS, BiasCorrection, Crop, DataClass, Grid, SourceFormat, Triple_mm

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One error or notice of `check` about a cohort, without patient data.

    Attributes:
        severity: an error stops `preprocess`; a notice does not.
        code: stable key, such as `missing-slice`.
        case_id: the case it is about, or None for the cohort.
    """

    severity: Literal["error", "notice"]
    code: str
    what: str
    seen: str = ""
    expected: str = ""
    do: str = ""
    case_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSeries:
    """One DICOM series of a case that has several: one channel.

    Attributes:
        name: name of the channel.
        ordinal: 1-based place of the series in the cohort, in the order of discovery; used in messages.
        files: paths relative to the cohort, sorted along the slice normal.
        grid: grid of the series; where it differs from that of the case, the series is resampled to that of the case.
        content_sha256: digest of the voxel values and geometry of the series.
        is_resampled: True if the grid differs from that of the case.
        has_ground_truth: True if the reference mask of the case was drawn on this series.
    """

    name: str
    ordinal: int
    files: tuple[str, ...]
    grid: Grid
    content_sha256: str
    is_resampled: bool = False
    has_ground_truth: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEntry:
    """One case of the cohort: CT, PET, MR with a channel for each contrast, a radiograph, a photograph, or a sample of an ECG.

    An image is a volume of one slice: columns along I, rows along J, and K = 1. A sample of an ECG has its values along I, and
    J = K = 1; all samples of a recording have one patient key.

    Attributes:
        case_id: `case-` + 8 hex digits of the SHA-256 of the SeriesInstanceUID (DICOM; of the first channel), of the relative path
            (NIfTI) or of subject and session (BIDS); the name of the file or the case in a data set with dataset.json, whose names
            are public.
        series_ordinal: 1-based place of the series in the cohort, in the order of discovery; used in messages.
        patient_key: digest that is equal for volumes of one patient, for splitting without leakage.
        source_format: how the volume is stored.
        files: paths relative to the cohort: of DICOM sorted along the slice normal (one per slice, or a single file; of the first
            channel where there are several series), of NIfTI a single file, or one for each of `channels`; the first has the grid.
        ground_truth: path of the reference mask (DICOM SEG or NIfTI) relative to the cohort, or None.
        grid: the source grid; of the first channel where there are several series.
        fixed_split: the split that the cohort's `splits.json` names for this case, or None.
        content_sha256: digest of the voxel values and geometry; equal digests are the same scan twice.
        channels: names of the contrasts, in the order of the file.
        body_part: scanned body part by the header, as a defined term of BodyPartExamined; None if it is not known.
        series: the DICOM series of the channels, in their order; empty for a case of one series or file.
        classes: names of the case's classes, one unless the cohort is multi-label; None where the target is not known.
        beats: of a sample of an ECG, the R peaks of its heartbeats in the recording, in samples of 300 Hz; empty for others.
    """

    case_id: str
    series_ordinal: int
    patient_key: str
    source_format: SourceFormat
    files: tuple[str, ...]
    ground_truth: str | None
    grid: Grid
    fixed_split: Split | None
    content_sha256: str
    channels: tuple[str, ...] = CT_CHANNELS
    body_part: str | None = None
    series: tuple[ChannelSeries, ...] = ()
    classes: tuple[str, ...] | None = None
    beats: tuple[int, ...] = ()

    @property
    def all_files(self) -> tuple[str, ...]:
        """Return the files of all channels and of the reference mask."""
        volumes = tuple(file for one in self.series for file in one.files) or self.files
        return volumes if self.ground_truth is None else (*volumes, self.ground_truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortIndex:
    """`cohort_index.json`, the result of `check`: every usable case, and the findings.

    It holds file paths, so it stays with the data and has the data's class.

    Attributes:
        layout: layout that `check` recognized.
        synthetic: True if the cohort declares synthetic data; all results then declare it, too.
        labels: foreground labels of the ground truth, after merging.
        merges: values of the masks that count as one label, as requested with --merge-labels.
        channels: names of the contrasts; every case has these.
        regions: unions of labels that the cohort declares as training targets (nnU-Net); empty for the labels themselves.
        ignore_value: value of voxels without annotation, which count in no loss and no metric; None if there are none.
        data_class: de-identified if the cohort card of `deidentify` declares it.
        classes: classes that the table of targets has; empty for a cohort without targets.
        is_multi_label: True if a case can have any number of the classes; otherwise it has exactly one.
    """

    layout: Literal["dicom", "nifti", "msd", "bids", "images", "signals"]
    synthetic: bool
    labels: tuple[Label, ...]
    cases: tuple[CaseEntry, ...]
    findings: tuple[Finding, ...]
    data_class: DataClass = "identified"
    channels: tuple[str, ...] = CT_CHANNELS
    merges: tuple[LabelMerge, ...] = ()
    regions: tuple[Region, ...] = ()
    ignore_value: int | None = None
    classes: tuple[ImageClass, ...] = ()
    is_multi_label: bool = False

    @staticmethod
    def from_older(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read an index whose labels are an object of value to name."""
        return older_labels(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCase:
    """One prepared case; its files lie in `cases/<case_id>/`. A case of a table is a part: a block of rows of one split.

    Files: `volume.npy` float32 [I, J, K] in HU, [channel, I, J, K] in standard deviations for MR, in SUV for PET, and from 0 to 1
    for radiographs and photographs (K = 1), in mV for ECG (J = K = 1),
    `volume_info.json`, `lung.npy` bool (lungs, filled; CT only), `label.npy` uint8 where there is a ground truth. A batch's
    cases of CT have `source_hu.npy` too (see `VolumeInfo.source_hu_start`), and those from DICOM `source_headers.zip`: the
    headers without pixel data, which hold patient data. A training set has neither.

    A part has the rows' features as a sparse matrix (`indptr.npy` int64, `indices.npy` int32, `values.npy` float32), `targets.npy`
    int16 (number of the class, -1 if not known), `row_numbers.npy` int64 (in the source, from 0) and `groups.npy` int64 (equal for
    rows that belong together).

    Attributes:
        has_label: True if there is `label.npy`; in a cohort with classes and without any mask, True if the classes are known.
        num_lesions: connected components (26) of each label, summed.
        voxels_by_label: voxels of `label.npy` by label value; empty in the files of older versions.
        classes: as in the cohort index; None for a part.
        rows_by_class: of a part, the number of rows of each class, by name; None for other cases.
        num_rows: rows of a part, with those of no known class; 0 for other cases.
    """

    case_id: str
    patient_key: str
    split: Split
    has_label: bool
    num_lesions: int
    num_label_voxels: int
    voxels_by_label: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    rows_by_class: Mapping[str, int] | None = None
    num_rows: int = 0

    @property
    def num_samples(self) -> int:
        """Return the number of inputs of a network in the case: the rows of a part, else one."""
        return 1 if self.rows_by_class is None else self.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCohort:
    """`cohort.json` of a folder of prepared cases: a training set, or one batch for inference.

    Attributes:
        spacing_mm: voxel size along I, J, K.
        window_hu: clipping range, HU; None for MR and PET.
        channels: names of the contrasts; of a table, of the features.
        crop: how the field of view was chosen.
        labels: foreground labels of `label.npy`.
        merges: values of the source masks that count as one label.
        regions, ignore_value, classes, is_multi_label: as in the cohort index.
        split_seed: seed of the patient-level draw.
        has_brain_masks: True if voxels outside of the brain masks of all cases were set to 0.
        bias_correction: n4 if the MR contrasts were corrected for their bias field by N4.
        data_sha256: digest over the source digests of all cases, in order of case id.
    """

    spacing_mm: Triple_mm
    window_hu: tuple[float, float] | None
    crop: Crop
    margin_mm: float
    split_seed: int
    synthetic: bool
    labels: tuple[Label, ...]
    data_sha256: str
    cases: tuple[PreparedCase, ...]
    data_class: DataClass = "derived"
    channels: tuple[str, ...] = CT_CHANNELS
    merges: tuple[LabelMerge, ...] = ()
    regions: tuple[Region, ...] = ()
    ignore_value: int | None = None
    classes: tuple[ImageClass, ...] = ()
    is_multi_label: bool = False
    has_brain_masks: bool = False
    bias_correction: BiasCorrection = "none"

    @staticmethod
    def from_older(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read a cohort file whose labels are an object of value to name."""
        return older_labels(data)
