"""Figures of lesions of known size."""

from __future__ import annotations

import numpy as np
import pytest

from medweave_core.contracts.labels import LUNG_NODULE
from medweave_steps.segment.lesions import LabelLesions, measure_lesions, write_table
from support.dicom_builder import AXIAL, CtSeries
from support.prepared_builder import Scan, _resampled, source_hu_of


@pytest.fixture(scope="module")
def case():
    series = CtSeries(shape=(12, 40, 36), spacing_mm=(2.5, 0.6, 0.9), orientation=AXIAL)
    hu = np.full(series.shape, -800, np.float32)
    hu[:, 20:, :] = 40
    scan = Scan(case_id="case-00000001", hu=hu, affine_ras=series.affine_ras())
    info, _ = _resampled(scan, (2.0, 2.0, 2.0), (0, 0, 0))
    return info, source_hu_of(scan, info)


def test_boxes_are_measured_and_ordered(case):
    info, source_hu = case
    mask = np.zeros(info.source_grid.shape, np.uint8)
    mask[2:4, 5:8, 10:14] = 1  # in dark tissue: 2 x 3 x 4 voxels
    mask[6:9, 28:34, 20:25] = 1  # in bright tissue: 3 x 6 x 5
    mask[9, 29:31, 21:23] = 1  # its tail

    large, small = measure_lesions(mask, info, source_hu, instance_numbers=range(100, 112))

    voxel = 2.5 * 0.6 * 0.9
    assert (large.lesion, small.lesion) == (1, 2)
    assert large.volume_mm3 == pytest.approx((3 * 6 * 5 + 4) * voxel)
    assert small.volume_mm3 == pytest.approx(2 * 3 * 4 * voxel)
    assert large.longest_diameter_mm == pytest.approx(np.hypot(5 * 0.6, 4 * 0.9) + 0.75)
    assert small.longest_diameter_mm == pytest.approx(np.hypot(2 * 0.6, 3 * 0.9) + 0.75)
    assert large.mean_hu == pytest.approx(40, abs=1e-3)
    assert small.mean_hu == pytest.approx(-800, abs=1e-3)
    assert (large.slice, large.first_slice, large.last_slice, large.instance_number) == (7, 7, 10, 106)
    centre = np.asarray(info.source_grid.affine) @ [2.5, 6, 11.5, 1]
    np.testing.assert_allclose(small.centre_ras_mm, centre[:3])


def test_a_table_without_lesions_is_its_header(tmp_path, case):
    info, source_hu = case
    lesions = measure_lesions(np.zeros(info.source_grid.shape, np.uint8), info, source_hu)
    assert lesions == []
    write_table(tmp_path / "lesions.csv", [LabelLesions(label=LUNG_NODULE, segment=1, lesions=())])
    assert (tmp_path / "lesions.csv").read_text().splitlines() == [
        "lesion,volume_mm3,longest_diameter_mm,mean_hu,slice,instance_number,first_slice,last_slice,"
        "centre_r_mm,centre_a_mm,centre_s_mm"
    ]
