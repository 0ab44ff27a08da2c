"""`classifications.json`: the results of `classify` for a batch of cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import Finding
from medweave_core.contracts.model import RESEARCH_USE_ONLY, Precision, Runtime
from medweave_core.contracts.volume import DataClass, SourceFormat

RECORD_FILE = "classifications.json"
TABLE = "classifications.csv"
RECORDINGS_TABLE = "recordings.csv"
STRUCTURED_REPORT = "classification_sr.dcm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedCase:
    """The result of one case; its files, if it has any, lie in `<case_id>/`.

    Attributes:
        files: file name to SHA-256; only DICOM sources have one.
        classes: names of the predicted classes: exactly one of exclusive classes, any number in a multi-label classification.
        probabilities: calibrated probability of each class, by name.
        findings: remarks that a reader of this case needs.
    """

    case_id: str
    source_format: SourceFormat
    files: Mapping[str, str]
    classes: tuple[str, ...]
    probabilities: Mapping[str, float]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifications:
    """The classified cases, the model, and the settings.

    Attributes:
        model_sha256: digest of the model card, which holds the digests of the model's files.
        precision, backend: numeric precision and runtime of the inference.
        synthetic_data: the cases come from a generator.
        synthetic_model: the model was trained on such cases.
        classes: classes of the model with their codes, in the order of its output.
        is_multi_label: True if a case can have any number of the classes; otherwise it has exactly one.
        temperature: divisor of the logits before the activation.
        thresholds: probability from which on a case has a class, in the order of `classes`; empty for exclusive classes, of which
            the most probable one counts.
        table_columns: meaning and unit of the columns of `classifications.csv`.
    """

    model_name: str
    model_sha256: str
    precision: Precision
    backend: Runtime
    synthetic_data: bool
    synthetic_model: bool
    classes: tuple[ImageClass, ...]
    is_multi_label: bool
    temperature: float
    thresholds: tuple[float, ...]
    table_columns: Mapping[str, str]
    cases: tuple[ClassifiedCase, ...]
    intended_use: str = RESEARCH_USE_ONLY
    classifications_version: Literal[1] = 1
    data_class: DataClass = "derived"
