"""The rewritten graph computes the same sums."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from medweave_steps.inference.engine import open_engine
from medweave_steps.inference.graph import widen_logits
from support.openvino_models import write_tiny_model


def network(*, transposed: bool, patch=(8, 6, 12), side=3, pads=(1, 1, 1), stride=1, channels_out=1):
    """Three channels made from one, then a convolution with an asymmetric kernel, then a bias."""
    random = np.random.default_rng(7)
    values = ops.parameter([2, 1, *patch], np.float32)
    first = random.normal(size=(3, 1, 3, 3, 3)).astype(np.float32)
    features = ops.convolution(values, ops.constant(first), [1] * 3, [1] * 3, [1] * 3, [1] * 3)
    shape = (3, channels_out) if transposed else (channels_out, 3)
    weights = ops.constant(random.normal(size=(*shape, side, side, side)).astype(np.float32))
    strides = [stride] * 3
    if transposed:
        out = ops.convolution_backprop_data(features, weights, strides, None, list(pads), list(pads), [1] * 3)
    else:
        out = ops.convolution(features, weights, strides, list(pads), list(pads), [1] * 3)
    return ov.Model([ops.add(out, ops.constant(np.float32(0.5)))], [values], "tiny")


def run(model, image):
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return ov.Core().compile_model(model, "CPU", options)([image])[0]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("side", "pads"), [(3, (1, 1, 1)), (1, (0, 0, 0)), (5, (2, 2, 2))])
def test_the_logits_are_the_same(transposed, side, pads):
    model = network(transposed=transposed, side=side, pads=pads)
    image = np.random.default_rng(8).random((2, 1, 8, 6, 12), dtype=np.float32)
    expected = run(model, image)
    assert widen_logits(model) == 1
    np.testing.assert_allclose(run(model, image), expected, atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [{"patch": (8, 6, 10)}, {"patch": (7, 6, 12)}, {"channels_out": 2}, {"stride": 2}],
    ids=["not a multiple of four", "not a multiple of two", "two labels", "stride two"],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_other_layers_are_left_alone(transposed, options):
    model = network(transposed=transposed, **options)
    assert widen_logits(model) == 0


def test_quantized_weights_are_left_alone():
    values = ops.parameter([1, 1, 8, 8, 8], np.float32)
    stored = ops.convert(ops.constant(np.ones((1, 1, 3, 3, 3), np.int8)), np.float32)
    weights = ops.multiply(stored, ops.constant(np.float32(0.1)))
    model = ov.Model([ops.convolution(values, weights, [1] * 3, [1] * 3, [1] * 3, [1] * 3)], [values], "int8")
    assert widen_logits(model) == 0


def test_the_engine_rewrites_what_it_opens(tmp_path):
    card = write_tiny_model(tmp_path)
    engine = open_engine(tmp_path, card, num_threads=1)
    kernels = [
        node.input(1).get_source_output().get_node().get_output_shape(0)
        for node in engine._compiled.get_runtime_model().get_ordered_ops()
        if node.get_input_size() > 1
    ]
    assert any(tuple(shape)[:1] == (16,) for shape in kernels)
