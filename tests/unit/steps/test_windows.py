"""The sliding window gives what MONAI's gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import OutputContract, Postprocessing
from medweave_core.errors import InternalError
from medweave_steps.inference.windows import (
    gaussian_weights,
    predict_probability,
    scale_hu,
    window_slices,
    window_starts,
)
from support.openvino_models import WINDOW_HU, tiny_card


class FunctionEngine:
    """An engine around a numpy function of one batch."""

    def __init__(self, function, batch_shape):
        self.function, self.batch_shape, self.num_calls = function, batch_shape, 0

    def infer(self, batch_BCIJK):
        self.num_calls += 1
        return np.array(self.function(batch_BCIJK), dtype=np.float32)

    def close(self):
        pass


@pytest.mark.parametrize("size", [1, 7, 8, 9, 14, 15, 16, 31, 40])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.9])
def test_windows_start_where_monai_starts_them(size, overlap):
    from monai.data.utils import dense_patch_slices
    from monai.inferers.utils import _get_scan_interval

    image, window = (max(size, 8),), (8,)
    expected = dense_patch_slices(image, window, _get_scan_interval(image, window, 1, (overlap,)))
    assert window_starts(image[0], 8, overlap) == [piece[0].start for piece in expected]


def test_weights_are_those_of_monai():
    from monai.data.utils import compute_importance_map

    expected = compute_importance_map((16, 24, 12), mode="gaussian", sigma_scale=0.125).numpy()
    np.testing.assert_allclose(gaussian_weights((16, 24, 12)), expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(16, 16, 16), (37, 20, 16), (11, 33, 5), (40, 17, 29)])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_probability_agrees_with_monai(shape, batch_size):
    import torch
    from monai.inferers import sliding_window_inference

    random = np.random.default_rng(1)
    volume = random.uniform(-1200, 600, shape).astype(np.float32)
    card = tiny_card(postprocessing=Postprocessing(overlap=0.4))
    weights = torch.from_numpy(random.normal(size=(1, 1, 3, 3, 3)).astype(np.float32))
    # Zero padding makes the result depend on where the windows lie.
    network = lambda x: torch.nn.functional.conv3d(x, weights, padding=1)  # noqa: E731
    engine = FunctionEngine(lambda x: network(torch.from_numpy(x)).numpy(), (batch_size, 1, 16, 16, 16))

    (ours,) = predict_probability(engine, volume[None], card)

    scaled = np.clip((volume - WINDOW_HU[0]) / (WINDOW_HU[1] - WINDOW_HU[0]), 0, 1)
    theirs = sliding_window_inference(
        torch.from_numpy(scaled)[None, None], (16, 16, 16), 2, network, overlap=0.4, mode="gaussian", sigma_scale=0.125
    )
    np.testing.assert_allclose(ours, torch.sigmoid(theirs)[0, 0].numpy(), atol=1e-4)
    assert ours.dtype == np.float32
    windows = len(window_slices(tuple(max(n, 16) for n in shape), (16, 16, 16), 0.4))
    assert engine.num_calls == -(-windows // batch_size)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_probabilities_of_several_channels_agree_with_monai(activation):
    import torch
    from monai.inferers import sliding_window_inference

    random = np.random.default_rng(2)
    volume = random.uniform(-1200, 600, (21, 33, 16)).astype(np.float32)
    labels = tuple(Label(value=value, name=f"label {value}") for value in (1, 2, 3))
    regions = tuple(Region(name=name, values=values) for name, values in (("a", (1, 2, 3)), ("b", (2, 3)), ("c", (3,))))
    output = OutputContract(activation=activation, regions=() if activation == "softmax" else regions)
    card = tiny_card(labels=labels, output=output)
    channels = 4 if activation == "softmax" else 3
    weights = torch.from_numpy(random.normal(size=(channels, 1, 3, 3, 3)).astype(np.float32))
    network = lambda x: torch.nn.functional.conv3d(x, weights, padding=1)  # noqa: E731
    engine = FunctionEngine(lambda x: network(torch.from_numpy(x)).numpy(), (1, 1, 16, 16, 16))

    ours = predict_probability(engine, volume[None], card)

    scaled = np.clip((volume - WINDOW_HU[0]) / (WINDOW_HU[1] - WINDOW_HU[0]), 0, 1)
    theirs = sliding_window_inference(
        torch.from_numpy(scaled)[None, None], (16, 16, 16), 1, network, overlap=0.25, mode="gaussian", sigma_scale=0.125
    )
    expected = theirs.softmax(dim=1) if activation == "softmax" else theirs.sigmoid()
    np.testing.assert_allclose(ours, expected[0].numpy(), atol=1e-5)
    assert ours.shape == (channels, *volume.shape)


def test_a_volume_smaller_than_a_window_is_surrounded_by_air():
    contract = dataclasses.replace(tiny_card().input, scaled_range=(-1.0, 1.0))
    seen = []
    engine = FunctionEngine(lambda x: seen.append(x.copy()) or x, (1, 1, 16, 16, 16))
    predict_probability(
        engine, np.full((1, 4, 16, 16), 400, np.float32), dataclasses.replace(tiny_card(), input=contract)
    )
    np.testing.assert_array_equal(seen[0][0, 0, 6:10], 1.0)
    np.testing.assert_array_equal(seen[0][0, 0, :6], -1.0)
    np.testing.assert_array_equal(seen[0][0, 0, 10:], -1.0)


def test_hu_are_clipped_and_scaled():
    scaled = scale_hu(np.array([-2000, -1000, -300, 400, 3000], np.float32), tiny_card().input)
    np.testing.assert_allclose(scaled, [0, 0, 0.5, 1, 1], atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_an_internal_error(bad):
    def function(x):
        out = x.copy()
        out[0, 0, 3, 3, 3] = bad
        return out

    engine = FunctionEngine(function, (1, 1, 16, 16, 16))
    with pytest.raises(InternalError, match="NaN or infinite") as caught:
        predict_probability(engine, np.zeros((1, 20, 16, 16), np.float32), tiny_card())
    assert caught.value.exit_code == 70


def test_large_logits_stay_probabilities():
    engine = FunctionEngine(lambda x: np.where(x > 0.5, 1e4, -1e4), (1, 1, 16, 16, 16))
    volume = np.zeros((16, 16, 16), np.float32)
    volume[:8] = -1000
    (probability,) = predict_probability(engine, volume[None], tiny_card())
    assert probability[:8].max() < 1e-30
    assert probability[8:].min() == 1.0
