"""Connected components at the threshold, small ones dropped."""

from __future__ import annotations

import numpy as np

from medweave_core.contracts.model import Postprocessing
from medweave_steps.inference.components import label_26, lesion_components


def test_voxels_that_touch_by_a_corner_are_one_lesion():
    mask = np.zeros((4, 4, 4), bool)
    mask[0, 0, 0] = mask[1, 1, 1] = mask[3, 3, 3] = True
    labels, number = label_26(mask)
    assert number == 2
    assert labels[0, 0, 0] == labels[1, 1, 1] != labels[3, 3, 3]


def test_a_component_of_exactly_the_smallest_volume_stays():
    probability = np.zeros((10, 10, 10), np.float32)
    probability[1:3, 1:3, 1:3] = 0.9  # 8 voxels of 0.7 * 0.7 * 1.1 mm
    probability[6, 6, 6:9] = 0.5  # 3 voxels, exactly at the threshold
    probability[8, 1, 1] = 0.49
    voxel = 0.7 * 0.7 * 1.1

    def matches(min_volume_mm3):
        settings = Postprocessing(threshold=0.5, min_volume_mm3=min_volume_mm3)
        return lesion_components(probability, settings, (0.7, 0.7, 1.1))

    assert len(matches(0).boxes) == 2
    assert matches(0).probability_IJK is probability
    assert len(matches(3 * voxel).boxes) == 2
    retained = matches(3.5 * voxel)
    assert retained.boxes == ((slice(1, 3), slice(1, 3), slice(1, 3)),)
    assert retained.num_dropped == 1
    assert retained.probability_IJK[6, 6, 6:9].max() == 0
    assert retained.probability_IJK[8, 1, 1] == np.float32(0.49)
    assert probability[6, 6, 7] == 0.5  # the caller's array is left alone
    assert matches(8.5 * voxel).boxes == ()


def test_an_empty_map_has_no_component():
    result = lesion_components(np.zeros((3, 3, 3), np.float32), Postprocessing(), (1, 1, 1))
    assert result.boxes == ()
    assert result.num_dropped == 0


def test_the_peak_decides_whether_and_the_threshold_how_far():
    probability = np.zeros((9, 3, 3), dtype=np.float32)
    probability[1:4, 1, 1] = (0.5, 0.95, 0.5)
    probability[6:8, 1, 1] = (0.5, 0.85)
    calls = Postprocessing(threshold=0.5, min_peak=0.9)
    matches = lesion_components(probability, calls, (1.0, 1.0, 1.0))
    assert matches.num_dropped == 1
    assert matches.boxes == ((slice(1, 4), slice(1, 2), slice(1, 2)),)
    assert matches.probability_IJK[6:8].max() == 0
    assert probability[7, 1, 1] == np.float32(0.85), "the input map is not changed"
    exact = Postprocessing(threshold=0.5, min_peak=0.95)
    assert len(lesion_components(probability, exact, (1.0, 1.0, 1.0)).boxes) == 1
