"""`medweave-step export` as a user meets it: equal logits, equal files, errors and exit codes."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.model import ComponentFilter, InputContract, ModelContract, OutputContract, Postprocessing
from medweave_core.errors import InternalError, UserInputError
from medweave_steps.cli import main
from medweave_steps.export.graphs import write_onnx
from medweave_steps.io.model.folder import CARD_FILE, WEIGHTS_FILE, card_sha256, read_card, write_card
from medweave_steps.io.model.network import load_network
from medweave_steps.io.model.onnx_file import add_contract, remove_traces
from medweave_steps.io.model.parity import compare, judge, parity_windows
from medweave_steps.tasks import task_named
from support.exported import export, openvino_logits
from support.label_models import LABELS, REGIONS, SOFTMAX, label_card
from support.model_folders import TINY_UNET, seeded_network, tiny_card, trained_model
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line

MADE = {"models/model.onnx", "models/float32.xml", "models/float32.bin"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trained/, exported/ and report.json."""
    folder = tmp_path_factory.mktemp("export")
    trained_model(folder / "trained")
    assert export(folder) == 0
    return folder


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    """Two inputs that the parity check has not seen."""
    return np.random.default_rng(99).random((2, 1, 8, 8, 8), dtype=np.float32)


def torch_logits(folder: Path, image: np.ndarray) -> np.ndarray:
    """What the trained network computes."""
    import torch

    network = load_network(folder, read_card(folder))
    with torch.inference_mode():
        return network(torch.from_numpy(image)).numpy()


def at_threshold(threshold: float) -> Callable[[np.ndarray], np.ndarray]:
    """The decisions of a model with one label."""
    card = tiny_card(postprocessing=Postprocessing(threshold=threshold))
    return functools.partial(task_named("segmentation").decisions, card=card)


@pytest.mark.slow
def test_onnx_computes_what_torch_computes(exported: Path, image: np.ndarray) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(exported / "exported/models/model.onnx", providers=["CPUExecutionProvider"])
    (seen,) = session.run(None, {"image": image})
    np.testing.assert_allclose(seen, torch_logits(exported / "trained", image), atol=1e-5)


@pytest.mark.slow
def test_openvino_computes_what_torch_computes(exported: Path, image: np.ndarray) -> None:
    seen = np.concatenate([openvino_logits(exported / "exported/models/float32.xml", one[None]) for one in image])
    np.testing.assert_allclose(seen, torch_logits(exported / "trained", image), atol=1e-5)


def test_weights_are_kept_in_float32_and_batch_norms_are_folded(exported: Path) -> None:
    import openvino

    model = openvino.Core().read_model(exported / "exported/models/float32.xml")
    types = {
        operation.get_element_type().to_string()
        for operation in model.get_ops()
        if "Const" in operation.get_type_name()
    }
    assert "f32" in types
    assert "f16" not in types
    assert not [op for op in model.get_ops() if "BatchNorm" in op.get_type_name()]


@pytest.mark.slow
def test_the_same_weights_give_the_same_files(exported: Path) -> None:
    assert export(exported, output="again") == 0
    first, second = (read_card(exported / name) for name in ("exported", "again"))
    assert first.files == second.files
    assert card_sha256(first) == card_sha256(second)


def test_the_card_names_its_parent_and_keeps_the_rest(exported: Path) -> None:
    trained, card = read_card(exported / "trained"), read_card(exported / "exported")
    assert card.parent_sha256 == card_sha256(trained)
    assert set(card.files) == set(trained.files) | MADE
    assert card == dataclasses.replace(trained, parent_sha256=card.parent_sha256, files=card.files)


def test_the_onnx_file_carries_the_contract_and_no_word_of_this_machine(exported: Path) -> None:
    import onnx

    path = exported / "exported/models/model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    (entry,) = model.metadata_props
    contract = codec.from_json(ModelContract, json.loads(entry.value), where="the metadata")
    assert (entry.key, contract) == ("medweave.contract", ModelContract.of_card(read_card(exported / "trained")))
    content = path.read_bytes()
    assert str(Path(onnx.__file__).parents[1]).encode() not in content  # torch's exporter writes stack traces
    assert str(exported).encode() not in content


def test_traces_inside_attributes_are_removed_too() -> None:
    import onnx
    from onnx import helper, numpy_helper

    path = "/home/someone/network.py"
    constant = helper.make_node("Constant", [], ["logits"], value=numpy_helper.from_array(np.zeros(1, np.float32)))
    (attribute,) = constant.attribute
    attribute.doc_string = attribute.t.doc_string = constant.doc_string = path
    inner = helper.make_graph([constant], "branch", [], [], doc_string=path)
    branches = helper.make_node("If", ["image"], ["logits"], then_branch=inner, else_branch=inner)
    model = helper.make_model(helper.make_graph([branches], "network", [], []), doc_string=path)
    model.graph.metadata_props.add(key="trace", value=path)
    remove_traces(model)
    assert path.encode() not in model.SerializeToString()
    assert onnx.numpy_helper.to_array(model.graph.node[0].attribute[0].g.node[0].attribute[0].t).tolist() == [0.0]


def test_the_openvino_files_have_nothing_of_the_onnx_metadata(exported: Path) -> None:
    assert "medweave" not in (exported / "exported/models/float32.xml").read_text()


def test_a_network_with_branches_on_the_values_of_the_image_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    class Branching(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image + 1 if image.mean() > 0 else image

    with pytest.raises(UserInputError, match="cannot be exported to ONNX") as caught:
        write_onnx(Branching().eval(), (4, 4, 4), tmp_path / "model.onnx")
    assert "Branching" in caught.value.seen
    assert not (tmp_path / "model.onnx").exists()
    assert capfd.readouterr() == ("", "")


def test_an_export_whose_output_has_another_shape_by_inference_is_refused(exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes((exported / "exported/models/model.onnx").read_bytes())
    contract = ModelContract.of_card(read_card(exported / "trained"))
    with pytest.raises(InternalError, match="the exported ONNX file is not valid") as caught:
        add_contract(copy, contract, output_shape=(1, 2, 8, 8, 8))
    assert "by shape inference" in caught.value.seen


def test_the_report_says_how_far_the_backends_are_from_torch(exported: Path) -> None:
    results = json.loads((exported / "report.json").read_text())["results"]
    assert [entry["backend"] for entry in results["parity"]] == ["OpenVINO", "ONNX Runtime"]
    for entry in results["parity"]:
        assert 0 < entry["max_logit_difference"] < 1e-4
        assert entry["num_voxels"] == 3 * 8**3
    assert results["bytes"]["float32.bin"] == (exported / "exported/models/float32.bin").stat().st_size


@pytest.mark.slow
def test_a_network_with_two_channels_is_exported_as_their_difference(tmp_path: Path, image: np.ndarray) -> None:
    import torch

    two = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "out_channels": 2}, "output": "softmax"}
    trained_model(tmp_path / "trained", architecture=two)
    assert export(tmp_path) == 0
    with torch.inference_mode():
        probability = torch.softmax(seeded_network(two)(torch.from_numpy(image[:1])), dim=1)[:, 1:].numpy()
    logits = openvino_logits(tmp_path / "exported/models/float32.xml", image[:1])
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), probability, atol=1e-6)


def test_parity_counts_decisions_at_the_cards_threshold() -> None:
    expected = np.array([-1.0, 0.5, 1.0, 3.0], np.float32).reshape(1, 1, 1, 1, 4)
    seen = np.array([-1.0, 0.5, 1.2, 3.0], np.float32).reshape(1, 1, 1, 1, 4)
    # A threshold of 0.75 is a logit of 1.0986: one voxel of four lies between 1.0 and 1.2.
    parity = compare("test", iter([(expected, seen)]), decide=at_threshold(0.75))
    assert parity.decision_share == 0.25
    assert parity.max_logit_difference == pytest.approx(0.2, abs=1e-6)
    assert parity.max_logit == 3.0
    assert compare("test", iter([(expected, seen)]), decide=at_threshold(0.5)).decision_share == 0.0


@pytest.mark.parametrize(
    ("output", "changed", "share"),
    [
        (SOFTMAX, (0, 2.0), 0.0),  # the most probable channel stays
        (SOFTMAX, (0, 4.0), 0.5),
        (REGIONS, (1, 1.0), 0.0),  # above its own threshold of 0.5, as before
        (REGIONS, (1, -1.0), 0.5),  # the inner region's decision, though the innermost region still holds the voxel
        (REGIONS, (2, 1.0), 0.5),  # below its threshold of 0.75
    ],
)
def test_parity_compares_labels_and_each_region(
    output: OutputContract, changed: tuple[int, float], share: float
) -> None:
    """Two voxels, of which one channel of the first differs."""
    filters = tuple(ComponentFilter(threshold=threshold) for threshold in (0.5, 0.5, 0.75))
    card = label_card(output, postprocessing=Postprocessing(by_output=filters))
    task = task_named("segmentation")
    expected = np.zeros((1, task.num_channels(card), 1, 1, 2), np.float32)
    expected[0, :3, 0, 0, 0] = (1, 2, 3)
    seen = expected.copy()
    seen[0, changed[0], 0, 0, 0] = changed[1]
    parity = compare("test", iter([(expected, seen)]), decide=functools.partial(task.decisions, card=card))
    assert (parity.decision_share, parity.num_voxels) == (share, 2)


def test_a_network_with_another_number_of_channels_than_its_card_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained_model(tmp_path / "trained", labels=LABELS, output=SOFTMAX)
    assert export(tmp_path) == 65
    error = capfd.readouterr().err
    assert "an output of shape (1, 1, 8, 8, 8)" in error
    assert "with 4 channels" in error


@pytest.mark.parametrize(
    ("logit_tolerance", "decision_tolerance", "is_good"), [(0.1, 0.3, True), (0.05, 0.3, False), (0.1, 0.2, False)]
)
def test_an_export_that_leaves_torch_is_refused(
    logit_tolerance: float, decision_tolerance: float, is_good: bool
) -> None:
    one, other = (np.array([first, 3.0, 0, 0], np.float32).reshape(1, 1, 1, 1, 4) for first in (1.0, 1.2))
    parity = compare("test", iter([(one, other)]), decide=at_threshold(0.75))
    if is_good:
        judge(parity, logit_tolerance=logit_tolerance, decision_tolerance=decision_tolerance)
        return
    with pytest.raises(InternalError, match="does not reproduce the outputs of torch"):
        judge(parity, logit_tolerance=logit_tolerance, decision_tolerance=decision_tolerance)


def test_logits_that_are_not_numbers_are_refused() -> None:
    pairs = iter([(np.zeros(2, np.float32), np.array([0, math.nan], np.float32))])
    parity = compare("test", pairs, decide=at_threshold(0.5))
    with pytest.raises(InternalError) as caught:
        judge(parity, logit_tolerance=1.0, decision_tolerance=1.0)
    assert "NaN or infinite" in caught.value.seen


@pytest.mark.slow
def test_a_parity_outside_the_tolerance_writes_nothing(
    exported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trained").symlink_to(exported / "trained")
    assert export(tmp_path, "--logit-tolerance", "0", "--decision-tolerance", "0") == 70
    assert "does not reproduce the outputs of torch" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_parity_windows_are_seeded_inputs_of_the_network() -> None:
    windows = list(parity_windows((12, 10, 8), num_windows=4, seed=1))
    again = list(parity_windows((12, 10, 8), num_windows=4, seed=1))
    for one, other in zip(windows, again, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.shape == (1, 1, 12, 10, 8)
        assert one.dtype == np.float32
        assert 0 <= one.min() < one.max() <= 1


def test_weights_of_another_architecture_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained_model(tmp_path / "trained")
    deeper = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "channels": [4, 8, 16], "strides": [2, 2]}}
    write_card(tmp_path / "trained", tiny_card(architecture=deeper))
    assert export(tmp_path) == 65
    message = capfd.readouterr().err
    assert "do not match its architecture" in message
    assert "first difference" in message
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_a_quantized_model_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained_model(tmp_path / "trained", precision="int8")
    assert export(tmp_path) == 65
    assert "precision int8" in capfd.readouterr().err


def test_a_folder_without_card_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trained").mkdir()
    assert export(tmp_path) == 65
    assert "no file model_card.json" in capfd.readouterr().err


def test_a_flipped_byte_in_the_weights_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained_model(tmp_path / "trained")
    weights = bytearray((tmp_path / "trained" / WEIGHTS_FILE).read_bytes())
    weights[-1] ^= 1
    (tmp_path / "trained" / WEIGHTS_FILE).write_bytes(weights)
    assert export(tmp_path) == 65
    assert "was modified after its model card was written" in capfd.readouterr().err


def test_truncated_weights_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained_model(tmp_path / "trained")
    whole = (tmp_path / "trained" / WEIGHTS_FILE).read_bytes()
    (tmp_path / "trained" / WEIGHTS_FILE).write_bytes(whole[: len(whole) // 2])
    write_card(tmp_path / "trained", tiny_card())
    assert export(tmp_path) == 65
    assert "the weights of the model 'tiny' cannot be read" in capfd.readouterr().err


def test_a_patch_that_the_network_does_not_take_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contract = InputContract(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=(9, 8, 8), patch_multiple=2
    )
    trained_model(tmp_path / "trained", input=contract)
    assert export(tmp_path) == 65
    assert "does not match the input definition" in capfd.readouterr().err


def test_a_machine_without_openvino_is_reported_the_extra(
    exported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trained").symlink_to(exported / "trained")
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert export(tmp_path) == 69
    assert "medweave[export]" in capfd.readouterr().err


def test_options_that_cannot_be_used_are_refused(exported: Path) -> None:
    assert export(exported, "--parity-windows", "0", output="none") == 2
    assert export(exported, "--logit-tolerance", "nan", output="none") == 2
    assert export(exported) == 2  # the output exists


def test_a_full_disk_is_reported_and_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in (exported / "exported/models").iterdir()}
    # The limit falls between the files that Python writes and OpenVINO's, whose writer knows no reason.
    largest = max(sizes["model.onnx"], sizes["model.pt"], sizes["model.safetensors"])
    assert largest < sizes["float32.xml"]
    words = ["export", "--trained-model", str(exported / "trained"), "--output", "exported"]
    with nearly_full_disk(tmp_path, largest) as output:
        code = main([*words, "--num-threads", "1"])
    assert (code, names_below(tmp_path)) == (74, [])
    assert "free space on the disk" in output.getvalue()


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    process = started(
        ["export", "--trained-model", str(exported / "trained"), "--output", str(tmp_path / "exported"),
         "--parity-windows", "1500"],
        folder=tmp_path,
    )  # fmt: skip
    wait_for_line(process, "OpenVINO IR written")
    assert any(CARD_FILE not in name for name in names_below(tmp_path))
    assert interrupted(process)[0] == 130
    assert names_below(tmp_path) == []
