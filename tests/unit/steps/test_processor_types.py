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

from medweave_core.contracts.model import Postprocessing
from medweave_steps.cli import main
from medweave_steps.inference.engine import open_engine
from medweave_steps.io.model.folder import read_card
from medweave_steps.metrics.overlap import dice
from support.exported import export
from support.model_folders import tiny_card, trained_model
from support.prepared_builder import prepare
from support.segmented import CASE, scan_of, series_with

COMPUTE = (
    "import sys; from pathlib import Path; from test_processor_types import compute; compute(*map(Path, sys.argv[1:]))"
)


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


def compute(model: Path, batch: Path, folder: Path) -> None:
    """Write `logits.npy` of one input, and `masks` of a batch."""
    engine = open_engine(model, read_card(model), num_threads=1)
    np.save(folder / "logits.npy", engine.infer(np.random.default_rng(1).random(engine.batch_shape, dtype=np.float32)))
    words = ["--segmentation-model", str(model), "--case-batch", str(batch), "--output", str(folder / "masks")]
    assert main(["segment", *words, "--num-threads", "1", "--run-report", str(folder / "report.json")]) == 0


def compute_without_avx(*paths: Path) -> None:
    """Do the same in a new process, whose libraries see another processor."""
    paths_of_modules = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41", "PYTHONPATH": paths_of_modules}
    ended = subprocess.run(
        [sys.executable, "-c", COMPUTE, *map(str, paths)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_masks_agree_across_types_of_processors(tmp_path: Path, model: Path) -> None:
    series = series_with(shape=(12, 48, 48))
    series.stored = np.random.default_rng(2).normal(700, 400, series.shape).clip(0, 3000).astype(np.int16)
    batch = prepare(tmp_path / "batch", [scan_of(series)])
    own, other = tmp_path / "own", tmp_path / "without-avx"
    for folder, work in ((own, compute), (other, compute_without_avx)):
        folder.mkdir()
        work(model, batch, folder)
    difference = np.abs(np.load(own / "logits.npy") - np.load(other / "logits.npy")).max()
    assert 0 < difference < 1e-3, "the same bits: then this says nothing about another processor"
    masks = [
        np.asanyarray(nibabel.load(folder / "masks" / CASE / "lesion_mask.nii.gz").dataobj) > 0
        for folder in (own, other)
    ]
    assert 0.001 < np.mean(masks[0]) < 0.9
    assert dice(*masks) >= 0.999
