"""Options of `segment`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_steps.runtime.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentConfig:
    """What to segment, with what, and where to put it."""

    segmentation_model: Path = option("model folder with model_card.json, as export or gate writes it")
    case_batch: Path = option(
        "folder of prepared cases, as preprocess writes it (prepared/inference_batches/batch-000)"
    )
    output: Path = option(
        "new folder: <case_id>/lesion_mask.nii.gz, lesions.csv and, for DICOM, lesion_mask.dcm, lesions_sr.dcm"
    )
    backend: Literal["openvino", "onnxruntime"] = option(
        "library that runs the network on the CPU; onnxruntime (extra segment-ort) computes float32 only",
        default="openvino",
    )
    threshold: float | None = option(
        "probability from which a voxel belongs to a lesion, between 0 and 1; without it the one on the model's card",
        default=None,
    )
