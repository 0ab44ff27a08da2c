"""The parts of `explain`: choice of the layer, mass per region, sanity check, source grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.volume import COLOR_CHANNELS, CT_CHANNELS, Grid, Triple
from medweave_core.errors import UserInputError
from medweave_steps.explain.layers import choose_layer, feature_layers, is_coarse
from medweave_steps.explain.network import randomized_network
from medweave_steps.explain.overlay import overlay_of
from medweave_steps.explain.regions import mass_per_region
from medweave_steps.explain.sanity import judge, rank_correlation
from medweave_steps.inference.restore import restore_image_map, restore_map
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.geometry import affine_rows
from medweave_steps.io.nifti.source_grid import file_grid, in_file_axes
from support.explained import classifier_card, image_card, resnet, volume_card, volumes
from support.image_set import image_set

torch = pytest.importorskip("torch")
pytest.importorskip("monai")

MOBILENET = {
    "class": "medweave_steps.networks.classifiers.MobileNet",
    "arguments": {"spatial_dims": 3, "in_channels": 1, "num_classes": 3, "width": 0.1},
}
VGG16 = {
    "class": "medweave_steps.networks.classifiers.Vgg16",
    "arguments": {"in_channels": 3, "num_classes": 3, "image_shape": [64, 32], "width": 0.05},
}
RESATTNET18 = {
    "class": "medweave_steps.networks.resattnet.ResAttNet",
    "arguments": {"in_channels": 1, "num_classes": 3, "layers": [2, 2, 2, 2], "channels": [8, 8, 8, 8]},
}
STACK = "medweave_steps.networks.layer_stack.LayerStack"


def layer_of(architecture: Mapping[str, Any], shape: Triple, wanted: str | None = None) -> Any:
    channels = COLOR_CHANNELS if shape[2] == 1 else CT_CHANNELS
    card = classifier_card(architecture, classes=("A", "B", "C"), channels=channels, shape=shape)
    network = randomized_network(card, code=None, device="cpu", seed=0)
    return choose_layer(feature_layers(network, card), card, wanted)


@pytest.mark.parametrize(
    ("architecture", "shape", "name", "kind", "grid"),
    [
        # The shortcut of the last block of stage 2 is computed after conv2; it only projects the block's input.
        (resnet(spatial_dims=3, in_channels=1, num_classes=3), (32, 48, 32), "layer2.0", "ResNetBlock", (4, 6, 4)),
        (resnet(spatial_dims=2, in_channels=3, num_classes=3), (64, 48, 1), "layer2.0", "ResNetBlock", (8, 6)),
        (MOBILENET, (32, 32, 32), "features.30", "Conv3d", (4, 4, 4)),
        (VGG16, (64, 32, 1), "features.21", "Conv2d", (8, 4)),
        # The attention is in stage 4, whose features are 3 x 4 x 3.
        (RESATTNET18, (96, 112, 96), "stage2_block2", "ResidualBlock", (12, 14, 12)),
    ],
)
def test_the_default_is_the_block_of_the_last_convolution_of_an_eighth_of_the_resolution(
    architecture: Mapping[str, Any], shape: Triple, name: str, kind: str, grid: tuple[int, ...]
) -> None:
    layer = layer_of(architecture, shape)
    assert (layer.name, layer.kind, layer.grid) == (name, kind, grid)
    assert (layer.input_shape, layer.is_default) == (shape, True)
    assert not is_coarse(layer)


def test_a_named_layer_may_be_coarse_and_of_another_kind() -> None:
    layer = layer_of(resnet(spatial_dims=2, in_channels=3, num_classes=3), (64, 48, 1), "layer4")
    assert (layer.kind, layer.grid, layer.is_default) == ("Sequential", (2, 2), False)
    assert is_coarse(layer)


def test_networks_that_are_coarse_from_the_start_get_their_last_finest_convolution() -> None:
    layers = [
        {"kind": "conv", "channels": 2, "kernel": 17, "stride": 16}, {"kind": "conv", "channels": 2, "kernel": 1},
        {"kind": "dense", "units": "outputs"},
    ]  # fmt: skip
    arguments = {"in_channels": 3, "outputs": 3, "input_shape": [64, 64, 1], "layers": layers}
    layer = layer_of({"class": STACK, "arguments": arguments}, (64, 64, 1))
    assert layer.name == "layers.1"
    assert is_coarse(layer)


def test_a_network_without_a_convolution_is_refused() -> None:
    arguments = {
        "in_channels": 3,
        "outputs": 3,
        "input_shape": [8, 8, 1],
        "layers": [{"kind": "dense", "units": "outputs"}],
    }
    with pytest.raises(UserInputError, match="no convolution to explain"):
        layer_of({"class": STACK, "arguments": arguments}, (8, 8, 1))


def test_mass_share_volume_share_and_their_ratio() -> None:
    values = np.array([[4, 0, 0, 0], [0, 0, 3, 3]], np.float32)
    labels = np.array([[5, 5, 0, 0], [0, 0, 2, 0]])
    two, five = mass_per_region(values, labels, {2: "hippocampus"})
    assert (two.value, two.name, five.value, five.name) == (2, "hippocampus", 5, "label 5")
    assert (two.mass_share, two.volume_share, two.ratio) == (0.3, 0.125, 2.4)
    assert (five.mass_share, five.volume_share, five.ratio) == (0.4, 0.25, 1.6)


def test_an_empty_map_has_no_mass_and_a_label_map_of_background_no_region() -> None:
    empty = np.zeros((2, 2), np.float32)
    (one,) = mass_per_region(empty, np.array([[1, 0], [0, 0]]), {})
    assert (one.mass_share, one.volume_share, one.ratio) == (None, 0.25, None)
    assert mass_per_region(empty + 1, np.zeros((2, 2), np.int64), {}) == ()


def test_rank_correlation_depends_on_the_order_only() -> None:
    values = np.random.default_rng(0).uniform(size=(4, 4, 4)).astype(np.float32)
    assert rank_correlation(values, values**3) == 1
    assert rank_correlation(values, -values) == -1
    assert rank_correlation(values, np.zeros_like(values)) is None


def test_the_sanity_check_judges_the_median_of_the_absolute_correlations() -> None:
    passed = judge([0.1, -0.9, None, 0.3], seed=3)
    assert (passed.num_cases, passed.num_compared, passed.median_absolute_correlation, passed.passed) == (
        4,
        3,
        0.3,
        True,
    )
    assert "Sanity check passed" in passed.sentence
    failed = judge([-0.9, 0.8], seed=0)
    assert failed.passed is False
    assert "hardly depend on what the network has learned" in failed.sentence
    assert judge([0.5], seed=0).passed is False
    undecided = judge([None], seed=0)
    assert undecided.passed is None
    assert "not possible" in undecided.sentence


def test_the_same_network_in_place_of_a_randomized_one_fails_the_sanity_check(tmp_path: Any) -> None:
    from medweave_steps.explain.case import Explainer
    from medweave_steps.explain.gradcam import MapMaker

    batch, card = open_prepared(volumes(tmp_path / "batch", 2)), volume_card()
    networks = [randomized_network(card, code=None, device="cpu", seed=seed) for seed in (0, 0, 1)]
    layer = choose_layer(feature_layers(networks[0], card), card, None)
    makers = [MapMaker(network, card, layer) for network in networks]
    for other, expected in ((makers[1], False), (makers[2], True)):
        explainer = Explainer(card=card, cohort=batch.cohort, trained=makers[0], randomized=other)
        folder = tmp_path / str(expected)
        folder.mkdir()
        records = [explainer.explain(folder, case, case.info(), ordinal=1, is_checked=True) for case in batch.cases()]
        assert judge([record.sanity_correlation for record in records], seed=0).passed is expected


def test_random_weights_follow_from_the_seed_and_leave_the_random_state() -> None:
    card = image_card()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (
        randomized_network(card, code=None, device="cpu", seed=seed).module.conv1.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_map_is_restored_at_its_position(tmp_path: Any) -> None:
    info = open_prepared(volumes(tmp_path / "batch", 1)).cases()[0].info()
    # The first world coordinate of each voxel: linear, so that interpolation is exact inside the prepared grid.
    indices = np.stack(np.indices(info.grid.shape), axis=-1)
    world = indices @ np.asarray(info.grid.affine)[:3, :3].T + np.asarray(info.grid.affine)[:3, 3]
    restored = restore_map(world[..., 0].astype(np.float32), info)
    source = np.stack(np.indices(info.source_grid.shape), axis=-1)
    expected = source @ np.asarray(info.source_grid.affine)[:3, :3].T + np.asarray(info.source_grid.affine)[:3, 3]
    low, high = world[..., 0].min(), world[..., 0].max()
    np.testing.assert_allclose(restored, np.clip(expected[..., 0], low, high), atol=1e-4)


def test_a_map_is_zero_outside_the_crop(tmp_path: Any) -> None:
    info = open_prepared(volumes(tmp_path / "batch", 1)).cases()[0].info()
    i, j, k = info.grid.shape
    cropped = dataclasses.replace(info, grid=Grid(shape=(i - 8, j, k), affine=info.grid.affine))
    restored = restore_map(np.ones(cropped.grid.shape, np.float32), cropped)
    inside = restored > 0
    assert 0 < inside.mean() < 1
    assert inside.all(axis=(1, 2)).sum() + (~inside).all(axis=(1, 2)).sum() == info.source_grid.shape[0]


def test_the_map_of_an_image_is_restored_at_its_position(tmp_path: Any) -> None:
    info = open_prepared(image_set(tmp_path / "batch", of_split={"test": 1})).cases()[0].info()
    affine = affine_rows(np.array([[2.5, 0, 0, 0.75], [0, 2.5, 0, -4.25], [0, 0, 1, 0], [0, 0, 0, 1]]))
    info = dataclasses.replace(
        info,
        source_grid=Grid(shape=(40, 20, 1), affine=affine_rows(np.eye(4))),
        grid=Grid(shape=(16, 12, 1), affine=affine),
    )
    columns = np.broadcast_to(np.arange(12, dtype=np.float32)[None, :, None], (16, 12, 1))
    restored = restore_image_map(columns, info)
    assert restored.shape == (40, 20, 1)
    np.testing.assert_allclose(restored[7, :, 0], (np.arange(20) + 4.25) / 2.5, atol=1e-5)


def test_a_dicom_array_gets_the_axes_of_a_converted_file(tmp_path: Any) -> None:
    info = open_prepared(volumes(tmp_path / "batch", 1)).cases()[0].info()
    dicom = dataclasses.replace(info, source_format="dicom")
    array = np.zeros(info.source_grid.shape, np.float32)
    grid = file_grid(dicom)
    assert grid.shape == in_file_axes(array, dicom).shape == info.source_grid.shape[::-1]
    affine = np.asarray(info.source_grid.affine)
    np.testing.assert_array_equal(np.asarray(grid.affine) @ [3, 2, 1, 1], affine @ [1, 2, 3, 1])
    assert file_grid(info) == info.source_grid


def test_an_overlay_shows_the_patients_right_on_the_left(tmp_path: Any) -> None:
    cohort = open_prepared(volumes(tmp_path / "batch", 1)).cohort
    volume, values = np.full((1, 24, 24, 24), -1000.0, np.float32), np.zeros((24, 24, 24), np.float32)
    values[20, 20, 20] = 1  # right, anterior, superior
    pixels = np.asarray(overlay_of(volume, values, cohort)).astype(int).sum(axis=2)
    height = pixels.shape[0]
    row, column = np.unravel_index(pixels[:, :height].argmax(), (height, height))  # the axial plane
    assert max(row, column) < height / 3
