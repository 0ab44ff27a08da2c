"""Engines compute what the network says, in the precision that the card pins."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from medweave_core.errors import BackendMissingError, InternalError, UsageError, UserInputError
from medweave_steps.inference.engine import open_engine
from medweave_steps.inference.runtimes import devices
from medweave_steps.inference.runtimes.devices import choose_device, installed_runtimes
from medweave_steps.io.model.folder import read_card, write_card
from support.model_folders import trained_model
from support.openvino_models import write_onnx, write_openvino, write_tiny_model


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
    engine = open_engine(folder, card, runtime=backend, num_threads=1, batch_size=batch_size)
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
        open_engine(tmp_path, card, runtime="onnxruntime", num_threads=1)


def test_a_network_that_is_none_is_refused(tmp_path, model):
    _, card = model
    (tmp_path / "models").mkdir()
    for name in ("models/float32.bin", "models/model.onnx", "models/float32.xml"):
        (tmp_path / name).write_text("<not a network>")
    for backend, name in (("openvino", "float32.xml"), ("onnxruntime", "model.onnx")):
        with pytest.raises(UserInputError, match=f"{name} of the model 'tiny-nodules' is not usable") as caught:
            open_engine(tmp_path, card, runtime=backend, num_threads=1)
        assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(("backend", "extra"), [("openvino", "segment"), ("onnxruntime", "segment-ort")])
def test_a_machine_without_the_library_is_reported_what_to_install(model, monkeypatch, backend, extra):
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(BackendMissingError) as caught:
        open_engine(*model, runtime=backend, num_threads=1)
    assert f"pip install 'medweave[{extra}]'" in str(caught.value)
    assert caught.value.exit_code == 69


def test_the_card_says_which_network_runs(tmp_path):
    kernel = np.zeros((3, 3, 3), np.float32)
    write_openvino(tmp_path / "models/int8.xml", kernel, 2.0, patch=(16, 16, 16))
    card = write_tiny_model(tmp_path, kernel=kernel, bias=1.0, precision="int8")
    for precision, expected in (("int8", 2.0), ("float32", 1.0)):
        engine = open_engine(tmp_path, dataclasses.replace(card, precision=precision), num_threads=1)
        assert (engine.infer(np.zeros(engine.batch_shape, np.float32)) == expected).all()


def write_int8_onnx(path):
    """Writes a QDQ graph of one convolution: its float32 input and weights are rounded to steps of 1/127."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.full((1, 1, 1, 1, 1), 100, np.int8)
    step, zero = np.float32(1 / 127), np.int8(0)
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["image8"]),
        helper.make_node("DequantizeLinear", ["weights", "step", "zero"], ["weights8"]),
        helper.make_node("Conv", ["image8", "weights8"], ["logits"]),
    ]
    sides = ["b", 1, "i", "j", "k"]
    constants = {"weights": weights, "step": step, "zero": zero}
    graph = helper.make_graph(
        nodes,
        "int8",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, sides)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_int8_onnx_graph_runs_in_both_cpu_runtimes(tmp_path, runtime):
    write_int8_onnx(tmp_path / "models/int8.onnx")
    card = write_tiny_model(tmp_path, precision="int8")
    engine = open_engine(tmp_path, card, runtime=runtime, num_threads=1)
    batch = np.random.default_rng(5).random(engine.batch_shape, dtype=np.float32)
    np.testing.assert_allclose(engine.infer(batch), np.round(batch * 127) / 127 * 100 / 127, atol=1e-5)


def test_openvino_reads_the_onnx_file_of_a_model_without_ir(tmp_path, kernel):
    card = write_tiny_model(tmp_path, kernel=kernel, bias=0.25)
    for suffix in ("xml", "bin"):
        (tmp_path / f"models/float32.{suffix}").unlink()
    card = write_card(tmp_path, card)
    engine = open_engine(tmp_path, card, num_threads=1)
    batch = np.random.default_rng(4).random(engine.batch_shape, dtype=np.float32)
    np.testing.assert_allclose(engine.infer(batch), convolved(batch, kernel, 0.25), atol=2e-5)


def test_the_card_says_which_runtime_runs(tmp_path):
    kernel = np.zeros((3, 3, 3), np.float32)
    card = write_tiny_model(tmp_path, kernel=kernel, bias=1.0)
    write_onnx(tmp_path / "models/model.onnx", kernel, 2.0)
    card = write_card(tmp_path, card)
    assert card.runtime == "openvino"
    for runtime, expected in (("openvino", 1.0), ("onnxruntime", 2.0)):
        engine = open_engine(tmp_path, dataclasses.replace(card, runtime=runtime), num_threads=1)
        assert (engine.infer(np.zeros(engine.batch_shape, np.float32)) == expected).all()


def test_a_card_of_an_earlier_version_runs_with_openvino(tmp_path):
    write_tiny_model(tmp_path)
    path = tmp_path / "model_card.json"
    lines = [line for line in path.read_text().splitlines() if '"runtime"' not in line]
    path.write_text("\n".join(lines).replace('"classes": [],', '"classes": []'))
    assert read_card(tmp_path).runtime == "openvino"


def test_torch_has_the_logits_of_the_network_with_the_folders_weights(tmp_path):
    import torch

    from medweave_steps.io.model.network import load_network

    card = trained_model(tmp_path / "model")
    engine = open_engine(tmp_path / "model", card, runtime="torch", num_threads=1, batch_size=2)
    batch = np.random.default_rng(6).random(engine.batch_shape, dtype=np.float32)
    with torch.inference_mode():
        expected = load_network(tmp_path / "model", card)(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(engine.infer(batch), expected, atol=1e-5)
    engine.close()


def test_torch_refuses_int8_and_code_of_a_user(tmp_path, model):
    _, card = model
    with pytest.raises(UserInputError, match="cannot run with torch"):
        open_engine(tmp_path, dataclasses.replace(card, precision="int8"), runtime="torch", num_threads=1)
    own = dataclasses.replace(card, architecture={"class": "mine:Network", "arguments": {}})
    with pytest.raises(UserInputError, match="code of a user") as caught:
        open_engine(tmp_path, own, runtime="torch", num_threads=1)
    assert "--backend openvino" in str(caught.value)


def test_a_machine_without_torch_is_reported_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BackendMissingError, match=r"medweave\[segment-torch\]"):
        open_engine(*model, runtime="torch", num_threads=1)


def test_runtimes_that_are_not_installed_are_not_listed(monkeypatch):
    assert installed_runtimes() == ("openvino", "onnxruntime", "torch")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert installed_runtimes() == ("openvino", "torch")


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime", "torch"])
def test_cuda_where_there_is_none_is_an_error_and_auto_is_the_cpu(monkeypatch, runtime):
    monkeypatch.setattr(devices, "can_use_cuda", lambda name: False)
    assert choose_device(runtime, "auto") == choose_device(runtime, "cpu") == "cpu"
    with pytest.raises(UsageError, match=f"--device cuda is not available on this machine with the runtime {runtime}"):
        choose_device(runtime, "cuda")


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_auto_is_a_gpu_that_the_runtime_can_use(monkeypatch, runtime):
    monkeypatch.setattr(devices, "can_use_cuda", lambda name: name == runtime)
    assert choose_device(runtime, "auto") == choose_device(runtime, "cuda") == "cuda"
    assert choose_device(runtime, "cpu") == "cpu"


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_no_library_is_imported_where_there_is_no_gpu(monkeypatch, runtime):
    monkeypatch.setattr(devices, "_num_cuda_devices", lambda: 0)
    monkeypatch.setitem(sys.modules, runtime, None)
    assert not devices.can_use_cuda(runtime)


def test_onnx_runtime_needs_its_cuda_build_and_a_gpu(monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    for number in (0, 1):
        monkeypatch.setattr(devices, "_num_cuda_devices", lambda number=number: number)
        assert devices.can_use_cuda("onnxruntime") == bool(number)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert not devices.can_use_cuda("onnxruntime")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_cuda_libraries_that_are_missing_are_reported_without_an_option_that_fails_again(model, monkeypatch):
    monkeypatch.setattr(devices, "can_use_cuda", lambda name: True)
    with pytest.raises(UsageError, match="could not load its CUDA libraries") as caught:
        open_engine(*model, runtime="onnxruntime", device="auto", num_threads=1)
    assert "CUDA_VISIBLE_DEVICES=-1" in caught.value.do
    assert "--device auto" not in caught.value.do


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_a_gpu_without_enough_memory_is_no_fault_of_medweave(tmp_path, model, runtime):
    def exhausted(*_):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    folder, card = model
    if runtime == "torch":
        folder, card = tmp_path / "model", trained_model(tmp_path / "model")
    engine = open_engine(folder, card, runtime=runtime, num_threads=1)
    batch = np.zeros(engine.batch_shape, np.float32)
    engine._session = type("Session", (), {"run": exhausted})()
    engine._network = exhausted
    with pytest.raises(RuntimeError, match="out of memory"):  # the engine is on the CPU: not the fault of a GPU
        engine.infer(batch)
    engine._device = "cuda"
    engine._torch = type("Torch", (), {"inference_mode": contextlib.nullcontext, "from_numpy": Moved})
    with pytest.raises(InternalError, match="failed on the GPU") as caught:
        engine.infer(batch)
    assert "out of memory" in caught.value.seen
    assert "--device cpu" in caught.value.do


class Moved:
    """An array that is moved to a GPU where there is none."""

    def __init__(self, batch):
        self.batch = batch

    def to(self, device):
        return self.batch


def test_onnx_runtime_sends_no_telemetry_and_leaves_no_files(tmp_path, model):
    folder, _ = model
    program = f"""
from pathlib import Path
from medweave_steps.inference.engine import open_engine
from medweave_steps.io.model.folder import read_card
open_engine(Path({str(folder)!r}), read_card(Path({str(folder)!r})), runtime="onnxruntime", num_threads=1)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=environment)
    assert list(tmp_path.iterdir()) == []
