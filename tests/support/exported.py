"""Run the verb `export`, and read its output."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medweave_core.contracts.model import Postprocessing
from medweave_steps.cli import main
from support.model_folders import trained_model


def export(folder: Path, *options: str, output: str = "exported") -> int:
    """Run `medweave-step export` in this process on `folder`/trained; its report is `folder`/report.json."""
    words = ["export", "--trained-model", str(folder / "trained"), "--output", str(folder / output)]
    return main([*words, "--run-report", str(folder / "report.json"), "--num-threads", "1", *options])


def quantize(folder: Path, *options: str, output: str = "int8", model: str = "exported", data: str = "data") -> int:
    """Run `medweave-step quantize` in this process on folders in `folder`; its report is `folder`/<output>.json."""
    words = ["quantize", "--exported-model", str(folder / model), "--training-set", str(folder / data)]
    words += ["--output", str(folder / output), "--run-report", str(folder / f"{output}.json")]
    return main([*words, "--num-threads", "1", "--windows", "6", *options])


def exported_model(folder: Path) -> Path:
    """Return a U-Net with random weights, exported: many voxels of its masks change with rounding."""
    trained_model(folder / "trained", postprocessing=Postprocessing(threshold=0.5, min_volume_mm3=2000.0, overlap=0.25))
    assert export(folder) == 0
    return folder / "exported"


def openvino_logits(xml: Path, image: np.ndarray) -> np.ndarray:
    """Return OpenVINO's output of an IR for one input [1, 1, I, J, K], float32 pinned."""
    import openvino

    compiled = openvino.Core().compile_model(xml, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([image])[0])
