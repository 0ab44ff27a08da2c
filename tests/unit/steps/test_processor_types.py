"""The same model on processors of two types: other bits, the same masks but for single voxels.

The second type is this processor with the instructions of one without AVX: oneDNN takes them by ONEDNN_MAX_CPU_ISA.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest

from medweave_steps.contracts.model import Postprocessing
from medweave_steps.metrics.overlap import dice
from support.exported import export
from support.model_folders import tiny_card, trained_model
from support.prepared_builder import prepare
from support.segmented import CASE, scan_of, series_with

TYPES = {"own": {}, "without AVX": {"ONEDNN_MAX_CPU_ISA": "SSE41"}}
LOGITS = """
import sys
from pathlib import Path
import numpy as np
from medweave_steps.inference.engine import open_engine
from medweave_steps.io.model_folder import read_card
folder = Path(sys.argv[1])
engine = open_engine(folder, read_card(folder), num_threads=1)
image = np.random.default_rng(1).random(engine.batch_shape, dtype=np.float32)
sys.stdout.buffer.write(engine.infer(image).astype(np.float32).tobytes())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A U-Net with random weights: its masks are full of voxels that a rounding would tip over."""
    folder = tmp_path_factory.mktemp("model")
    postprocessing = Postprocessing(threshold=0.6, min_volume_mm3=0.0, overlap=0.25)
    trained_model(
        folder / "trained", postprocessing=postprocessing, input=dataclasses.replace(tiny_card().input, crop="none")
    )
    assert export(folder) == 0
    return folder / "exported"


def on(kind: str, *words: str) -> bytes:
    """What a program prints on a processor of a type."""
    ended = subprocess.run([sys.executable, *words], env=os.environ | TYPES[kind], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout


@pytest.mark.slow
def test_masks_agree_across_types_of_processors(tmp_path: Path, model: Path) -> None:
    logits = {kind: np.frombuffer(on(kind, "-c", LOGITS, str(model)), np.float32) for kind in TYPES}
    difference = np.abs(logits["own"] - logits["without AVX"]).max()
    assert 0 < difference < 1e-3, "the same bits: then this says nothing about another processor"
    series = series_with()
    series.stored = np.random.default_rng(2).normal(700, 400, series.shape).clip(0, 3000).astype(np.int16)
    batch = prepare(tmp_path / "batch", [scan_of(series)])
    masks = {}
    for kind in TYPES:
        output = tmp_path / kind
        words = ["--segmentation-model", str(model), "--case-batch", str(batch), "--output", str(output)]
        on(kind, "-m", "medweave_steps", "segment", *words, "--num-threads", "1", "--run-report", f"{output}.json")
        masks[kind] = np.asanyarray(nibabel.load(output / CASE / "lesion_mask.nii.gz").dataobj) > 0
    assert 0.001 < np.mean(masks["own"]) < 0.9
    assert dice(masks["own"], masks["without AVX"]) >= 0.999
