"""Case F1: the reported mean HU is that of the scan."""

from __future__ import annotations

import csv

import nibabel
import numpy as np
import pytest

from cases.chest import chest_hu, ct_series, save_series
from medweave_core.contracts.model import InputContract
from medweave_steps.cli import main
from support.openvino_models import WINDOW_HU, write_tiny_model

PIXEL_MM, SLICE_MM = 3.2, 4.0


@pytest.mark.case("mean_hu", expected="mean HU of the source under the delivered mask, about 1200 HU")
def test_a_calcified_ball_has_its_own_mean_hu(tmp_path, seen):
    """A ball of 24 mm and 1200 HU in the lung, above the model's window and cropped to the lungs."""
    hu = chest_hu(50, 100, has_nodule=False)
    z, y, x = np.indices(hu.shape)
    hu[((x - 30) * PIXEL_MM) ** 2 + ((y - 48) * PIXEL_MM) ** 2 + ((z - 25) * SLICE_MM) ** 2 < 12**2] = 1200
    save_series(tmp_path / "ct", ct_series(hu, pixel_mm=PIXEL_MM, slice_mm=SLICE_MM))
    model = tmp_path / "model"
    wanted = InputContract(
        spacing_mm=(4.0, 4.0, 4.0), window_hu=WINDOW_HU, patch_shape=(32, 32, 32), patch_multiple=4, crop="lungs"
    )
    # Brighter than 250 HU, voxel by voxel.
    write_tiny_model(model, kernel=np.full((1, 1, 1), 400.0), bias=-400 * 1250 / 1400, input=wanted)

    def step(*words: object) -> None:
        report = ("--run-report", tmp_path / f"{words[0]}.json", "--num-threads", "1")
        assert main([str(word) for word in (*words, *report)]) == 0

    index, prepared = tmp_path / "index.json", tmp_path / "prepared"
    step("check", "--cohort", tmp_path / "ct", "--output", index)
    words = ("--cohort", tmp_path / "ct", "--cohort-index", index, "--segmentation-model", model)
    step("preprocess", *words, "--purpose", "inference", "--output", prepared)
    batch = prepared / "inference_batches" / "batch-000"
    step("segment", "--segmentation-model", model, "--case-batch", batch, "--output", tmp_path / "out")

    (case,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    mask = np.asarray(nibabel.load(case / "lesion_mask.nii.gz").dataobj).transpose(2, 1, 0)
    with (case / "lesions.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    seen(f"mean_hu {row['mean_hu']}")
    stored = np.rint(hu + 1024) - 1024
    assert float(row["mean_hu"]) == pytest.approx(stored[mask > 0].mean(), abs=0.051)
    assert float(row["mean_hu"]) > 900
