"""The output head of a segmentation model, regions, and labels on another grid."""

from __future__ import annotations

import numpy as np
import pytest

from medweave_core.contracts.labels import Label, Region, check_regions, own_value
from medweave_core.contracts.model import ComponentFilter, OutputContract
from medweave_core.contracts.volume import Grid
from medweave_core.errors import UserInputError
from medweave_steps.inference.head import OutputHead
from medweave_steps.preprocess.labels import paint, resample_lesions
from medweave_steps.preprocess.resample import plan_resampling

LABELS = tuple(Label(value=value, name=name) for value, name in ((1, "edema"), (2, "core"), (3, "enhancing")))
REGIONS = (
    Region(name="whole tumor", values=(1, 2, 3)),
    Region(name="tumor core", values=(2, 3)),
    Region(name="enhancing tumor", values=(3,)),
)


def head(activation: str = "softmax", regions: tuple[Region, ...] = ()) -> OutputHead:
    return OutputHead(output=OutputContract(activation=activation, regions=regions), labels=LABELS)


def test_softmax_has_a_background_channel_and_gives_the_most_probable_label() -> None:
    softmax = head()
    logits = np.random.default_rng(0).normal(size=(4, 5, 4, 3)).astype(np.float32)
    expected = np.exp(logits) / np.exp(logits).sum(axis=0)
    probability = softmax.probabilities(logits.copy())
    assert softmax.num_channels == 4
    np.testing.assert_allclose(probability, expected, rtol=1e-5)
    label = softmax.label_map(softmax.masks(probability, [ComponentFilter()] * 3))
    np.testing.assert_array_equal(label, logits.argmax(axis=0))


def test_nested_regions_give_each_voxel_the_label_of_the_smallest_region() -> None:
    regions = head("sigmoid", REGIONS)
    probability = np.zeros((3, 4, 1, 1), np.float32)
    probability[0, 1:], probability[1, 2:], probability[2, 3:] = 0.9, 0.9, 0.9
    assert regions.num_channels == 3
    filters = [ComponentFilter(threshold=0.5)] * 3
    assert regions.label_map(regions.masks(probability, filters)).ravel().tolist() == [0, 1, 2, 3]
    filters[2] = ComponentFilter(threshold=0.95)
    assert regions.label_map(regions.masks(probability, filters)).ravel().tolist() == [0, 1, 2, 2]


def test_the_label_of_a_region_is_the_one_outside_of_the_regions_in_it() -> None:
    assert [own_value(region, REGIONS) for region in REGIONS] == [1, 2, 3]
    check_regions(REGIONS, LABELS)
    check_regions(REGIONS[::-1], LABELS)


@pytest.mark.parametrize(
    ("regions", "seen"),
    [
        ((REGIONS[0], Region(name="whole tumor", values=(2,))), "two regions with one name"),
        (REGIONS[1:], "labels 1 in a region and not declared, or declared and in no region"),
        ((Region(name="a", values=(1, 2)), Region(name="b", values=(2, 3))), "overlap in part"),
        ((REGIONS[0],), "does not have exactly one label outside of the regions inside it"),
        ((*REGIONS, Region(name="necrosis", values=(4,))), "labels 4"),
    ],
)
def test_regions_that_do_not_make_one_label_map_are_refused(regions: tuple[Region, ...], seen: str) -> None:
    with pytest.raises(UserInputError) as raised:
        check_regions(regions, LABELS)
    assert seen in raised.value.seen


def grid(spacing_mm: float, shape: tuple[int, int, int]) -> Grid:
    rows = [tuple(spacing_mm if column == row else 0.0 for column in range(4)) for row in range(3)]
    return Grid(shape=shape, affine=(*rows, (0.0, 0.0, 0.0, 1.0)))  # type: ignore[arg-type]


def test_touching_labels_leave_no_gap_on_a_coarser_grid() -> None:
    truth = np.zeros((18, 18, 18), np.uint8)
    truth[3:15, 3:15, 3:15] = 1
    truth[3:9, 9:15, 3:15] = 2
    truth[9:15, 3:15, 9:15] = 3
    plan = plan_resampling(grid(1.0, truth.shape), (1.5, 1.5, 1.5))
    label, outside = paint(resample_lesions(truth, plan), (0, 0, 0), plan.shape)
    inside = label[3:9, 3:9, 3:9]
    assert outside == 0
    assert np.unique(label).tolist() == [0, 1, 2, 3]
    assert inside.all(), "voxels where three labels meet belong to one of them"


def test_a_label_of_one_voxel_inside_another_is_not_lost() -> None:
    truth = np.full((15, 15, 15), 1, np.uint8)
    truth[7, 7, 7] = 2
    plan = plan_resampling(grid(1.0, truth.shape), (2.0, 2.0, 2.0))
    label, _ = paint(resample_lesions(truth, plan), (0, 0, 0), plan.shape)
    assert (label == 2).sum() == 1
