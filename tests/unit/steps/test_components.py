"""Connected components at the threshold, small ones dropped."""

from __future__ import annotations

import numpy as np
import pytest

from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import ComponentFilter, OutputContract, Postprocessing
from medweave_core.errors import UserInputError
from medweave_steps.inference.components import filter_outputs, label_26, lesion_components
from medweave_steps.inference.head import OutputHead


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
    assert np.argwhere(retained.mask_IJK).tolist() == np.argwhere(probability == np.float32(0.9)).tolist()
    assert retained.probability_IJK[6, 6, 6:9].max() == 0
    assert retained.probability_IJK[8, 1, 1] == np.float32(0.49)
    assert probability[6, 6, 7] == 0.5  # the caller's array is left alone
    assert matches(8.5 * voxel).boxes == ()


def test_an_empty_map_has_no_component():
    result = lesion_components(np.zeros((3, 3, 3), np.float32), Postprocessing(), (1, 1, 1))
    assert result.boxes == ()
    assert not result.mask_IJK.any()


def test_the_peak_decides_whether_and_the_threshold_how_far():
    probability = np.zeros((9, 3, 3), dtype=np.float32)
    probability[1:4, 1, 1] = (0.5, 0.95, 0.5)
    probability[6:8, 1, 1] = (0.5, 0.85)
    calls = Postprocessing(threshold=0.5, min_peak=0.9)
    matches = lesion_components(probability, calls, (1.0, 1.0, 1.0))
    assert np.argwhere(matches.mask_IJK).tolist() == [[1, 1, 1], [2, 1, 1], [3, 1, 1]]
    assert matches.boxes == ((slice(1, 4), slice(1, 2), slice(1, 2)),)
    assert matches.probability_IJK[6:8].max() == 0
    assert probability[7, 1, 1] == np.float32(0.85), "the input map is not changed"
    exact = Postprocessing(threshold=0.5, min_peak=0.95)
    assert len(lesion_components(probability, exact, (1.0, 1.0, 1.0)).boxes) == 1


LABELS = (Label(value=1, name="edema"), Label(value=2, name="core"))
KEEP, DROP = ComponentFilter(), ComponentFilter(min_peak=0.8)


def test_a_dropped_component_of_a_softmax_label_becomes_background():
    head = OutputHead(output=OutputContract(activation="softmax"), labels=LABELS)
    probability = np.zeros((3, 6, 4, 4), np.float32)
    probability[0] = 1
    probability[:, 1, 1, 1] = (0.1, 0.2, 0.7)  # core, not certain enough
    probability[:, 1, 1, 2] = (0.1, 0.7, 0.2)  # edema, whose filter keeps it
    probability[:, 4, 1, 1] = (0.0, 0.1, 0.9)
    found = filter_outputs(probability, head, [KEEP, DROP], (1.0, 1.0, 1.0))
    labels = head.label_map(head.masks(found.probability_CIJK, [KEEP, DROP]))
    assert (labels[1, 1, 1], labels[1, 1, 2], labels[4, 1, 1]) == (0, 1, 2)
    assert [np.argwhere(mask).tolist() for mask in found.masks] == [[[1, 1, 2]], [[4, 1, 1]]]
    assert found.probability_CIJK[:, 1, 1, 1].tolist() == [1, 0, 0]
    assert probability[2, 1, 1, 1] == np.float32(0.7)  # the caller's array is left alone
    assert found.boxes == ((slice(1, 2), slice(1, 2), slice(2, 3)), (slice(4, 5), slice(1, 2), slice(1, 2)))


def test_a_dropped_component_of_a_region_leaves_the_region_around_it():
    regions = (Region(name="whole", values=(1, 2)), Region(name="core", values=(2,)))
    head = OutputHead(output=OutputContract(regions=regions), labels=LABELS)
    probability = np.zeros((2, 6, 4, 4), np.float32)
    probability[0, 1:4, 1:3, 1:3] = 0.9
    probability[1, 2, 1, 1] = 0.6
    found = filter_outputs(probability, head, [KEEP, DROP], (1.0, 1.0, 1.0))
    labels = head.label_map(head.masks(found.probability_CIJK, [KEEP, DROP]))
    assert set(labels[1:4, 1:3, 1:3].flatten().tolist()) == {1}
    assert found.probability_CIJK[1].max() == 0
    assert found.boxes == ((slice(1, 4), slice(1, 3), slice(1, 3)),)


def test_a_card_with_filters_of_another_number_of_outputs_is_refused():
    head = OutputHead(output=OutputContract(activation="softmax"), labels=LABELS)
    assert len(head.filters_of(Postprocessing(min_peak=0.3))) == 2
    with pytest.raises(UserInputError, match="does not match its outputs") as caught:
        head.filters_of(Postprocessing(by_output=(KEEP,) * 3))
    assert caught.value.expected == "2: edema, core"
