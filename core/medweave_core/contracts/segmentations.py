"""`segmentations.json`: the results of `segment` for a batch of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.labels import Label
from medweave_core.contracts.model import RESEARCH_USE_ONLY, Precision
from medweave_core.contracts.volume import DataClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentedCase:
    """The results of one case; its files lie in `<case_id>/`.

    Attributes:
        files: file name to SHA-256.
        num_lesions: connected components (26) of the delivered mask.
        lesion_volume_mm3: their volume in all, mm³, on the source grid.
        findings: remarks that a reader of this case needs, such as a body part that differs from the model's.
    """

    case_id: str
    source_format: Literal["dicom", "nifti"]
    files: Mapping[str, str]
    num_lesions: int
    lesion_volume_mm3: float
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentations:
    """The segmented cases, the model, and the settings.

    Attributes:
        model_sha256: digest of the model card, which holds the digests of the model's files.
        precision, backend: numeric precision and library of the inference.
        synthetic_data: the cases come from a generator.
        synthetic_model: the model was trained on such cases.
        labels: foreground labels of the masks, as the model card declares them.
        table_columns: meaning and unit of the columns of `lesions.csv`.
    """

    model_name: str
    model_sha256: str
    precision: Precision
    backend: Literal["openvino", "onnxruntime"]
    synthetic_data: bool
    synthetic_model: bool
    table_columns: Mapping[str, str]
    cases: tuple[SegmentedCase, ...]
    labels: tuple[Label, ...] = ()
    intended_use: str = RESEARCH_USE_ONLY
    segmentations_version: Literal[1] = 1
    data_class: DataClass = "derived"
