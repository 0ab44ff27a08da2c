"""Engines compute what the network says, in the precision that the card pins."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from medweave_core.errors import BackendMissingError, UserInputError
from medweave_steps.inference.engine import open_engine
from support.openvino_models import write_openvino, write_tiny_model


@pytest.fixture(scope="module")
def kernel():
    return np.random.default_rng(3).normal(size=(3, 3, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory, kernel):
    folder = tmp_path_factory.mktemp("model")
    return folder, write_tiny_model(folder, kernel=kernel, bias=0.25)


def convolved(batch, kernel, bias):
    from scipy.ndimage import correlate

    return np.stack([correlate(one[0].astype(np.float64), kernel, mode="constant")[None] for one in batch]) + bias


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_both_backends_compute_in_float32(model, kernel, backend, batch_size):
    folder, card = model
    engine = open_engine(folder, card, backend=backend, num_threads=1, batch_size=batch_size)
    assert engine.batch_shape == (batch_size, 1, 16, 16, 16)
    batch = np.random.default_rng(4).random(engine.batch_shape, dtype=np.float32)
    first = engine.infer(batch)
    # bfloat16, which OpenVINO takes by default where the processor has it, is off by about 1e-2 here.
    np.testing.assert_allclose(first, convolved(batch, kernel, 0.25), atol=2e-5)
    retained = first.copy()
    engine.infer(np.zeros_like(batch))
    np.testing.assert_array_equal(first, retained)
    engine.close()


def test_openvino_is_reported_not_to_use_bfloat16(model):
    folder, card = model
    engine = open_engine(folder, card, num_threads=1)
    assert engine._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
    assert engine._compiled.get_property("INFERENCE_NUM_THREADS") == 1


def test_a_model_without_the_pinned_precision_is_refused(tmp_path):
    card = write_tiny_model(tmp_path, precision="int8")
    with pytest.raises(UserInputError, match=r"has no models/int8\.xml"):
        open_engine(tmp_path, card, num_threads=1)


def test_onnx_runtime_refuses_int8(tmp_path):
    card = write_tiny_model(tmp_path, precision="int8")
    with pytest.raises(UserInputError, match="cannot run with ONNX Runtime"):
        open_engine(tmp_path, card, backend="onnxruntime", num_threads=1)


def test_a_network_that_is_none_is_refused(tmp_path, model):
    _, card = model
    (tmp_path / "models").mkdir()
    for name in ("models/float32.bin", "models/model.onnx", "models/float32.xml"):
        (tmp_path / name).write_text("<not a network>")
    for backend, name in (("openvino", "float32.xml"), ("onnxruntime", "model.onnx")):
        with pytest.raises(UserInputError, match=f"{name} of the model 'tiny-nodules' is not usable"):
            open_engine(tmp_path, card, backend=backend, num_threads=1)


@pytest.mark.parametrize(("backend", "extra"), [("openvino", "segment"), ("onnxruntime", "segment-ort")])
def test_a_machine_without_the_library_is_reported_what_to_install(model, monkeypatch, backend, extra):
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(BackendMissingError) as caught:
        open_engine(*model, backend=backend, num_threads=1)
    assert f"pip install 'medweave[{extra}]'" in str(caught.value)
    assert caught.value.exit_code == 69


def test_the_card_says_which_network_runs(tmp_path):
    kernel = np.zeros((3, 3, 3), np.float32)
    write_openvino(tmp_path / "models/int8.xml", kernel, 2.0, patch=(16, 16, 16))
    card = write_tiny_model(tmp_path, kernel=kernel, bias=1.0, precision="int8")
    for precision, expected in (("int8", 2.0), ("float32", 1.0)):
        engine = open_engine(tmp_path, dataclasses.replace(card, precision=precision), num_threads=1)
        assert (engine.infer(np.zeros(engine.batch_shape, np.float32)) == expected).all()
