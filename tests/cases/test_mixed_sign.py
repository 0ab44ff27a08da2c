"""F10: slices of one series may store signed and unsigned values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cases.chest import chest_hu, ct_series, save_series
from support.checked import open_only
from support.identified import deidentify


@pytest.mark.case("mixed_sign", expected="de-identified, with the same HU")
def test_signed_and_unsigned_slices_in_one_series(tmp_path: Path, seen: Callable[[object], None]) -> None:
    hu = chest_hu()
    datasets = ct_series(hu)
    for dataset, plane in zip(datasets[::2], hu[::2], strict=True):
        dataset.PixelRepresentation, dataset.RescaleIntercept = 1, 0
        dataset.PixelData = np.rint(plane).astype("<i2").tobytes()
    cohort = save_series(tmp_path / "cohort", datasets)
    exit_code = deidentify(cohort)
    seen(f"exit code {exit_code}")
    assert exit_code == 0
    assert np.array_equal(open_only(tmp_path / "out").volume(), open_only(cohort).volume())
