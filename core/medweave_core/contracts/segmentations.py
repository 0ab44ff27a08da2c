"""`segmentations.json`: the results of `segment` for a batch of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import RESEARCH_USE_ONLY, ComponentFilter, Precision, Runtime
from medweave_core.contracts.volume import DataClass, SourceFormat

RECORD_FILE = "segmentations.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTotals:
    """Lesions of one label in one case.

    Attributes:
        value, name: of the label.
        num_lesions: connected components (26) of the label.
        volume_mm3: their volume in all, mm³, on the source grid.
    """

    value: int
    name: str
    num_lesions: int
    volume_mm3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMember:
    """One of several models whose probabilities are averaged.

    Attributes:
        model_sha256: digest of its model card.
    """

    model_name: str
    model_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentedCase:
    """The results of one case; its files lie in `<case_id>/`.

    Attributes:
        files: file name to SHA-256.
        num_lesions: connected components (26) of the delivered mask, of each label, summed.
        lesion_volume_mm3: their volume in all, mm³, on the source grid.
        findings: remarks that a reader of this case needs, such as a body part that differs from the model's.
        by_label: lesions and volume of each label, for a model with several.
    """

    case_id: str
    source_format: SourceFormat
    files: Mapping[str, str]
    num_lesions: int
    lesion_volume_mm3: float
    findings: tuple[Finding, ...] = ()
    by_label: tuple[LabelTotals, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentations:
    """The segmented cases, the model, and the settings.

    Attributes:
        model_sha256: digest of the model card, which holds the digests of the model's files; of an ensemble, the SHA-256 of the
            lines with the digests of its members' cards.
        precision, backend: numeric precision and runtime of the inference.
        synthetic_data: the cases come from a generator.
        synthetic_model: the model was trained on such cases.
        labels: foreground labels of the masks, as the model card declares them; the segments of a DICOM SEG have the numbers
            1, 2, … by ascending value.
        regions: unions of labels that the model predicts, for a model with regions.
        ensemble: the models whose probabilities were averaged; empty for one model.
        thresholds: threshold and filters of each output that were applied; for an ensemble the medians of its members' cards.
        table_columns: meaning and unit of the columns of `lesions.csv`.
    """

    model_name: str
    model_sha256: str
    precision: Precision
    backend: Runtime
    synthetic_data: bool
    synthetic_model: bool
    table_columns: Mapping[str, str]
    cases: tuple[SegmentedCase, ...]
    labels: tuple[Label, ...] = ()
    regions: tuple[Region, ...] = ()
    ensemble: tuple[EnsembleMember, ...] = ()
    thresholds: tuple[ComponentFilter, ...] = ()
    intended_use: str = RESEARCH_USE_ONLY
    segmentations_version: Literal[1] = 1
    data_class: DataClass = "derived"
