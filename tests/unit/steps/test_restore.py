"""The inverse transform: inside boxes as on the whole volume, and at the right position."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import ComponentFilter, OutputContract, Postprocessing
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.inference import restore
from medweave_steps.inference.components import filter_outputs, lesion_components
from medweave_steps.inference.head import OutputHead
from medweave_steps.inference.restore import restore_labels
from medweave_steps.io.cohort.source_hu import source_box
from medweave_steps.io.geometry import (
    affine_rows,
    interpolate_axis,
    ras_axes,
    ras_grid,
    resampled_grid,
    resampled_shape,
    to_ras_order,
)


def make_info(shape, matrix, *, spacing_mm, crop_start=(0, 0, 0), crop_shape=None):
    source = Grid(shape=shape, affine=affine_rows(matrix))
    axis, flipped = ras_axes(source)
    ras = ras_grid(source, axis, flipped)
    full = resampled_shape(ras.shape, ras.spacing_mm, spacing_mm)
    crop_shape = crop_shape or tuple(n - s for n, s in zip(full, crop_start, strict=True))
    return VolumeInfo(
        case_id="case-00000001",
        source_format="dicom",
        source_grid=source,
        source_sha256="0" * 64,
        source_axis=axis,
        source_flipped=flipped,
        grid=resampled_grid(ras, spacing_mm, start=crop_start, shape=crop_shape),
        crop_start=crop_start,
        window_hu=(-1000.0, 400.0),
    )


def dicom_like(spacing_mm, *, feet_first=False):
    """[slice, row, column] of a supine patient: rows run to posterior, columns to the left."""
    matrix = np.zeros((4, 4))
    matrix[2, 0] = -spacing_mm[0] if feet_first else spacing_mm[0]
    matrix[1, 1], matrix[0, 2] = -spacing_mm[1], -spacing_mm[2]
    matrix[:, 3] = (31.0, -12.0, 250.0, 1.0)
    return matrix


BINARY = OutputHead(output=OutputContract(), labels=(Label(value=1, name="lesion"),))
THREE = tuple(Label(value=value, name=name) for value, name in ((1, "edema"), (2, "core"), (4, "enhancing")))
SOFTMAX = OutputHead(output=OutputContract(activation="softmax"), labels=THREE)
REGIONS = OutputHead(
    output=OutputContract(
        regions=(
            Region(name="whole", values=(1, 2, 4)), Region(name="core", values=(2, 4)), Region(name="enhancing", values=(4,))
        )
    ),
    labels=THREE,
)  # fmt: skip


def restore_mask(probability, info, *, threshold, boxes=None):
    return restore_labels(probability[None], info, BINARY, [ComponentFilter(threshold=threshold)], boxes=boxes)


def whole_volume(probability, info, threshold):
    """The reference: zeros around the crop, interpolation of everything, threshold, source order."""
    full = interpolated(probability, info)
    mask = np.zeros(info.source_grid.shape, np.uint8)
    to_ras_order(mask, info.source_axis, info.source_flipped)[...] = full >= np.float32(threshold)
    return mask


def interpolated(probability, info, outside=0.0):
    """Return the probability on the source grid in RAS order, computed for the whole volume at once."""
    ras = ras_grid(info.source_grid, info.source_axis, info.source_flipped)
    full_shape = resampled_shape(ras.shape, ras.spacing_mm, info.grid.spacing_mm)
    full = np.full(full_shape, outside, np.float32)
    full[tuple(slice(s, s + n) for s, n in zip(info.crop_start, info.grid.shape, strict=True))] = probability
    for a in range(3):
        positions = np.arange(ras.shape[a]) * ras.spacing_mm[a] / info.grid.spacing_mm[a]
        full = interpolate_axis(full, positions, a)
    return full


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spacing=st.tuples(*[st.floats(0.5, 3.0)] * 3),
    feet_first=st.booleans(),
    cropped=st.booleans(),
    threshold=st.sampled_from([0.3, 0.5, 0.8]),
    density=st.sampled_from([0.0, 0.01, 0.1]),
    min_volume_mm3=st.sampled_from([0.0, 20.0]),
)
def test_boxes_give_what_the_whole_volume_gives(seed, spacing, feet_first, cropped, threshold, density, min_volume_mm3):
    random = np.random.default_rng(seed)
    crop = {"crop_start": (1, 0, 2), "crop_shape": (4, 5, 3)} if cropped else {}
    shape = (21, 24, 23) if cropped else tuple(int(n) for n in random.integers(1, 22, 3))
    if cropped:
        spacing = tuple(max(s, 0.9) for s in spacing)
    info = make_info(shape, dicom_like(spacing, feet_first=feet_first), spacing_mm=(2.0, 2.0, 2.0), **crop)
    probability = (random.random(info.grid.shape) * 0.29).astype(np.float32)
    spots = random.random(info.grid.shape) < density
    probability[spots] = random.uniform(0.3, 1, int(spots.sum()))

    lesions = lesion_components(
        probability, Postprocessing(threshold=threshold, min_volume_mm3=min_volume_mm3), info.grid.spacing_mm
    )
    ours = restore_mask(lesions.probability_IJK, info, threshold=threshold, boxes=lesions.boxes)

    np.testing.assert_array_equal(ours, whole_volume(lesions.probability_IJK, info, threshold))
    assert ours.flags.c_contiguous
    assert ours.dtype == np.uint8


@pytest.mark.parametrize("head", [SOFTMAX, REGIONS], ids=["softmax", "regions"])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spacing=st.tuples(*[st.floats(0.9, 3.0)] * 3),
    feet_first=st.booleans(),
    density=st.sampled_from([0.0, 0.02, 0.2]),
    min_volume_mm3=st.sampled_from([0.0, 20.0]),
)
def test_boxes_of_several_outputs_give_what_the_whole_volume_gives(
    head, seed, spacing, feet_first, density, min_volume_mm3
):
    random = np.random.default_rng(seed)
    info = make_info(
        (21, 24, 23), dicom_like(spacing, feet_first=feet_first), spacing_mm=(2.0, 2.0, 2.0), crop_start=(1, 0, 2),
        crop_shape=(4, 5, 3),
    )  # fmt: skip
    logits = random.normal(size=(head.num_channels, *info.grid.shape)).astype(np.float32)
    lift = random.random(info.grid.shape) >= density  # elsewhere background
    logits[:, lift] -= 6
    if head is SOFTMAX:
        logits[0, lift] += 12
    thresholds = (0.3, 0.5, 0.7)
    filters = [ComponentFilter(threshold=t, min_volume_mm3=min_volume_mm3) for t in thresholds]
    found = filter_outputs(head.probabilities(logits), head, filters, info.grid.spacing_mm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "MOST_VALUES", 500)  # so that boxes are cut
        ours = restore_labels(found.probability_CIJK, info, head, filters, boxes=found.boxes)

    full = np.stack(
        [interpolated(one, info, float(head is SOFTMAX and c == 0)) for c, one in enumerate(found.probability_CIJK)]
    )
    expected = np.zeros(full.shape[1:], np.uint8)
    if head is SOFTMAX:
        expected = np.array([0, 1, 2, 4], np.uint8)[full.argmax(axis=0)]
    else:
        for channel, threshold, value in zip(full, thresholds, (1, 2, 4), strict=True):
            expected[channel >= np.float32(threshold)] = value
    np.testing.assert_array_equal(to_ras_order(ours, info.source_axis, info.source_flipped), expected)


def test_a_label_at_the_edge_of_the_field_of_view_ends_half_way_to_the_next_voxel():
    info = make_info((9, 9, 9), np.eye(4), spacing_mm=(2.0, 2.0, 2.0), crop_start=(2, 0, 0))
    probability = np.zeros((4, *info.grid.shape), np.float32)
    probability[1] = 1  # edema everywhere in the crop, which begins at 4 mm
    labels = restore_labels(probability, info, SOFTMAX, [ComponentFilter()] * 3)
    assert labels[:, 4, 4].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("feet_first", [False, True])
def test_a_ball_comes_back_where_it_was(feet_first):
    info = make_info(
        (40, 64, 64),
        dicom_like((1.5, 0.8, 0.8), feet_first=feet_first),
        spacing_mm=(2.0, 2.0, 2.0),
        crop_start=(3, 2, 4),
    )
    source_RAS = np.asarray(info.source_grid.affine)
    centre_mm = (source_RAS @ [22.0, 30.0, 41.0, 1.0])[:3]
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in info.grid.shape], indexing="ij"), axis=-1)
    points = indices @ np.asarray(info.grid.affine)[:3, :3].T + np.asarray(info.grid.affine)[:3, 3]
    distance = np.linalg.norm(points - centre_mm, axis=-1)
    probability = np.clip(0.5 + (8.0 - distance) / 4, 0, 1).astype(np.float32)  # a ball of radius 8 mm

    mask = restore_mask(probability, info, threshold=0.5)

    where = np.argwhere(mask)
    np.testing.assert_allclose(where.mean(axis=0), (22, 30, 41), atol=0.15)
    assert mask.sum() * info.source_grid.voxel_volume_mm3 == pytest.approx(4 / 3 * np.pi * 8**3, rel=0.05)


def test_an_oblique_source_comes_back_in_its_own_axis_order():
    turn = np.deg2rad(20)
    rotation = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    matrix = dicom_like((2.0, 1.0, 1.0))
    matrix[:3, :3] = rotation @ matrix[:3, :3]
    info = make_info((12, 20, 16), matrix, spacing_mm=(1.0, 1.0, 2.0))
    assert info.source_axis == (2, 1, 0)
    probability = np.zeros(info.grid.shape, np.float32)
    probability[3, 4, 5] = 1
    mask = restore_mask(probability, info, threshold=0.9)
    # Source [slice, row, column]; rows and columns run against A and R.
    assert np.argwhere(mask).tolist() == [[5, 20 - 1 - 4, 16 - 1 - 3]]


def test_every_axis_order_and_direction():
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            matrix = np.eye(4)
            matrix[:3, :3] = np.eye(3)[:, list(order)] * signs
            info = make_info((5, 6, 7), matrix, spacing_mm=(1.0, 1.0, 1.0))
            mask = np.zeros((5, 6, 7), np.uint8)
            mask[1, 2, 4] = mask[1, 2, 5] = 1
            probability = to_ras_order(mask, info.source_axis, info.source_flipped).astype(np.float32)
            np.testing.assert_array_equal(restore_mask(probability, info, threshold=0.5), mask)


@settings(max_examples=60, deadline=None)
@given(
    source_mm=st.tuples(*[st.floats(0.5, 3.0)] * 3),
    spacing_mm=st.tuples(*[st.floats(0.5, 3.0)] * 3),
    feet_first=st.booleans(),
    start=st.tuples(*[st.integers(0, 4)] * 3),
    end=st.tuples(*[st.integers(0, 4)] * 3),
)
def test_source_hu_covers_every_mask_that_the_prepared_grid_can_give(source_mm, spacing_mm, feet_first, start, end):
    shape = (14, 16, 18)
    matrix = dicom_like(source_mm, feet_first=feet_first)
    full = make_info(shape, matrix, spacing_mm=spacing_mm).grid.shape
    start = tuple(min(s, n - 1) for s, n in zip(start, full, strict=True))
    crop = tuple(max(1, n - s - e) for n, s, e in zip(full, start, end, strict=True))
    info = make_info(shape, matrix, spacing_mm=spacing_mm, crop_start=start, crop_shape=crop)
    mask = restore_mask(np.ones(crop, np.float32), info, threshold=1e-6)
    box = source_box(info)
    assert mask[box].sum() == mask.sum() > 0
    assert all(part.stop - part.start <= n for part, n in zip(box, shape, strict=True))
