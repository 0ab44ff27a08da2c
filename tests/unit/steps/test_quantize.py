"""`medweave-step quantize`: calibration data, outputs and refusals."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import card_sha256, read_card
from medweave_steps.tasks.segmentation.calibration import calibration, calibration_sha256, choose_windows
from support.exported import export, openvino_logits, quantize
from support.label_models import LABELS, SOFTMAX, bright_label_set
from support.model_folders import TINY_UNET, tiny_card, trained_model
from support.processes import interrupted, names_below, nearly_full_disk, started, wait_for_line
from support.training_set import training_set

# More channels than elsewhere: below eight there is little that int8 could make smaller.
WIDER = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "channels": [16, 32], "act": "RELU"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trained/, exported/, data/ and int8/."""
    folder = tmp_path_factory.mktemp("quantize")
    trained_model(folder / "trained", architecture=WIDER)
    training_set(folder / "data")
    assert export(folder) == 0
    assert quantize(folder) == 0
    return folder


@pytest.mark.slow
def test_the_candidate_computes_nearly_the_same_in_int8(made: Path) -> None:
    import openvino

    image = choose_windows(open_prepared(made / "data").cases("validation"), tiny_card(), num_windows=1, seed=5)[
        0
    ].values_BCIJK
    exact = openvino_logits(made / "exported/models/float32.xml", image)
    rough = openvino_logits(made / "int8/models/int8.xml", image)
    assert 0 < np.abs(rough - exact).max() < 0.2 * np.ptp(exact)
    model = openvino.Core().read_model(made / "int8/models/int8.xml")
    stored = [op.get_element_type().to_string() for op in model.get_ops() if op.get_type_name() == "Constant"]
    assert "i8" in stored
    assert any(op.get_type_name() == "FakeQuantize" for op in model.get_ops())


def int8_layers(xml: Path) -> list[bool]:
    """For each convolution from input to output, whether its weights are stored in int8."""
    import openvino

    def is_int8(node: Any) -> bool:
        while node.get_type_name() in ("Convert", "Multiply", "Subtract", "Reshape"):
            node = node.input_value(0).get_node()
        return node.get_element_type().to_string() in ("i8", "u8")

    model = openvino.Core().read_model(xml)
    return [
        is_int8(op.input_value(1).get_node()) for op in model.get_ordered_ops() if "Convolution" in op.get_type_name()
    ]


@pytest.mark.slow
def test_the_layer_that_sees_hu_stays_in_float32(made: Path) -> None:
    layers = int8_layers(made / "int8/models/int8.xml")
    # The residual unit of the first level has two convolutions on the image.
    assert layers.count(False) == 2
    assert len(layers) > 3
    assert quantize(made, "--no-float-input-layer", output="all") == 0
    assert all(int8_layers(made / "all/models/int8.xml"))
    assert read_card(made / "all").notes["calibration"]["float_input_layer"] is False


def test_bias_correction_can_be_asked_for(made: Path) -> None:
    assert quantize(made, "--bias-correction", output="corrected") == 0
    assert read_card(made / "corrected").files["models/int8.bin"] != read_card(made / "int8").files["models/int8.bin"]


def test_the_candidate_is_smaller_and_names_its_parent(made: Path) -> None:
    exported, card = read_card(made / "exported"), read_card(made / "int8")
    assert card.parent_sha256 == card_sha256(exported)
    assert card.precision == "int8"
    assert set(card.files) == {"models/int8.xml", "models/int8.bin"}
    assert card.metrics == {}
    assert (card.input, card.postprocessing, card.labels) == (exported.input, exported.postprocessing, exported.labels)
    results = json.loads((made / "int8.json").read_text())["results"]
    assert (made / "int8/models/int8.bin").stat().st_size < 0.5 * (made / "exported/models/float32.bin").stat().st_size
    assert results["calibration"] == card.notes["calibration"]
    assert results["calibration"]["windows"] == 6
    assert results["calibration"]["lesion_windows"] == 3
    assert results["num_quantizers"] > 0


def test_the_same_inputs_give_the_same_candidate(made: Path) -> None:
    assert quantize(made, output="again") == 0
    assert card_sha256(made / "again") == card_sha256(made / "int8")


def test_another_seed_calibrates_on_other_windows(made: Path) -> None:
    assert quantize(made, "--seed", "1", output="other") == 0
    digests = {read_card(made / name).notes["calibration"]["sha256"] for name in ("int8", "other")}
    assert len(digests) == 2


def test_windows_come_from_training_cases_alternate_and_hit_lesions(tmp_path: Path) -> None:
    folders = open_prepared(training_set(tmp_path / "data")).cases("train")
    windows = choose_windows(folders, tiny_card(), num_windows=8, seed=0)
    assert [window.case_id for window in windows] == ["case-0", "case-1"] * 4
    assert [window.kind for window in windows] == ["lesion", "background", "background", "lesion"] * 2
    for window in windows:
        assert window.values_BCIJK.shape == (1, 1, 8, 8, 8)
        assert window.values_BCIJK.dtype == np.float32
        label = folders[int(window.case_id[-1])].label_IJK()
        part = label[tuple(slice(s, s + 8) for s in window.start)]
        volume = folders[int(window.case_id[-1])].volume_IJK()[tuple(slice(s, s + 8) for s in window.start)]
        np.testing.assert_allclose(window.values_BCIJK[0, 0], (np.clip(volume, -1000, 400) + 1000) / 1400, atol=1e-6)
        if window.kind == "lesion":
            assert part.any()
    assert calibration_sha256(windows) == calibration_sha256(
        choose_windows(folders, tiny_card(), num_windows=8, seed=0)
    )


def test_windows_are_cut_when_they_are_read_and_not_held_in_memory(tmp_path: Path) -> None:
    folders = open_prepared(training_set(tmp_path / "data")).cases("train")
    drawn = calibration(folders, tiny_card(), num_windows=4, seed=0).inputs_BCIJK
    windows = choose_windows(folders, tiny_card(), num_windows=4, seed=0)
    assert drawn[0] is not drawn[0]
    for values, window in zip(drawn, windows, strict=True):
        np.testing.assert_array_equal(values, window.values_BCIJK)


@pytest.mark.parametrize("num_cases", [1, 2, 3])
def test_every_case_gives_windows_of_both_kinds(tmp_path: Path, num_cases: int) -> None:
    folders = open_prepared(training_set(tmp_path / "data", ("train",) * num_cases)).cases("train")
    windows = choose_windows(folders, tiny_card(), num_windows=2 * num_cases, seed=0)
    assert len({(window.case_id, window.kind) for window in windows}) == 2 * num_cases


def test_lesions_of_every_label_are_drawn_in_turn(tmp_path: Path) -> None:
    folders = open_prepared(bright_label_set(tmp_path / "data", ("train", "train"))).cases("train")
    card = tiny_card(patch=2, labels=LABELS, output=SOFTMAX)
    windows = choose_windows(folders, card, num_windows=12, seed=0)
    lesions = [window for window in windows if window.label]
    assert [window.label for window in lesions] == [1, 2, 4] * 2
    # Both cases show all three labels, though they are drawn from in turn, too.
    assert len({(window.case_id, window.label) for window in lesions}) == 6
    for window in lesions:
        middle = tuple(start + 1 for start in window.start)
        assert folders[int(window.case_id[-1])].label_IJK()[middle] == window.label


def test_a_case_without_a_label_shows_the_others_and_ignored_voxels_are_no_lesion(tmp_path: Path) -> None:
    prepared = open_prepared(bright_label_set(tmp_path / "data", ("train",), ignore_value=255))
    path = tmp_path / "data/cases/case-0/label.npy"
    label = np.load(path)
    label[label == 1] = 255
    label[label == 2] = 0
    np.save(path, label)
    windows = choose_windows(prepared.cases("train"), tiny_card(labels=LABELS, output=SOFTMAX), num_windows=8, seed=0)
    assert [window.label for window in windows] == [4, 0] * 4
    np.save(path, np.where(label == 4, 0, label))
    one = choose_windows(prepared.cases("train"), tiny_card(), num_windows=2, seed=0)
    assert [window.kind for window in one] == ["background", "background"]


def test_validation_cases_cannot_reach_the_calibration(made: Path) -> None:
    # The same training cases with another validation case give the same candidate.
    shutil.copytree(made / "data", made / "changed")
    path = made / "changed/cases/case-2/volume.npy"
    np.save(path, np.load(path) + 300)
    assert quantize(made, output="unmoved", data="changed") == 0
    assert card_sha256(made / "unmoved") == card_sha256(made / "int8")
    path = made / "changed/cases/case-0/volume.npy"
    np.save(path, np.load(path) + 300)
    assert quantize(made, output="moved", data="changed") == 0
    assert card_sha256(made / "moved") != card_sha256(made / "int8")


def test_cases_without_lesions_and_volumes_below_the_patch_are_used(tmp_path: Path) -> None:
    folders = open_prepared(training_set(tmp_path / "data", ("train",), balls=(), shape=(5, 8, 8))).cases("train")
    (window,) = choose_windows(folders, tiny_card(), num_windows=1, seed=0)
    assert window.kind == "background"
    inside = window.values_BCIJK[0, 0]
    # Two of the eight planes lie before the five of the volume, one is too few for both sides: 1 before, 2 after.
    assert [bool(inside[i].any()) for i in range(8)] == [False] + [True] * 5 + [False] * 2


@pytest.mark.slow
def test_the_libraries_print_nothing_and_write_nothing_at_home(made: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    process = started(words_of(made, 2), folder=tmp_path, before=f"import os; os.environ['HOME'] = {str(home)!r}")
    out, message = process.communicate(timeout=120)
    assert process.returncode == 0, message
    assert list(home.iterdir()) == []
    assert out == ""
    assert all(line.startswith("quantize: ") for line in message.splitlines()), message


def test_a_training_set_without_training_cases_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training_set(tmp_path / "data", ("validation",))
    (tmp_path / "exported").symlink_to(made / "exported")
    assert quantize(tmp_path) == 65
    assert "no training case for calibration" in capfd.readouterr().err
    assert not (tmp_path / "int8").exists()


def test_a_training_set_on_another_grid_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = training_set(tmp_path / "data")
    document = json.loads((data / "cohort.json").read_text())
    (data / "cohort.json").write_text(json.dumps(document | {"spacing_mm": [1.0, 1.0, 1.0]}))
    (tmp_path / "exported").symlink_to(made / "exported")
    assert quantize(tmp_path) == 65
    error = capfd.readouterr().err
    assert "do not match the model" in error
    assert "(1.0, 1.0, 1.0) mm" in error


def test_a_training_set_with_other_labels_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bright_label_set(tmp_path / "data")
    (tmp_path / "exported").symlink_to(made / "exported")
    assert quantize(tmp_path) == 65
    error = capfd.readouterr().err
    assert "the labels of the preprocessed cases are not those of the model 'tiny'" in error
    assert "1 (edema), 2 (core), 4 (enhancing) (cohort.json)" in error


@pytest.mark.parametrize(
    ("model", "message"),
    [("trained", "has no models/float32.xml"), ("int8", "cannot be quantized"), ("data", "model_card")],
)
def test_a_model_that_was_not_exported_is_refused(
    made: Path, capfd: pytest.CaptureFixture[str], model: str, message: str
) -> None:
    assert quantize(made, model=model, output="none") == 65
    assert message in capfd.readouterr().err


def test_a_flipped_byte_in_the_graph_is_refused(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "exported", tmp_path / "exported")
    weights = bytearray((tmp_path / "exported/models/float32.bin").read_bytes())
    weights[10] ^= 1
    (tmp_path / "exported/models/float32.bin").write_bytes(weights)
    (tmp_path / "data").symlink_to(made / "data")
    assert quantize(tmp_path) == 65
    assert "models/float32.bin" in capfd.readouterr().err


def test_a_truncated_volume_names_the_case(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "data", tmp_path / "data")
    path = tmp_path / "data/cases/case-0/volume.npy"
    path.write_bytes(path.read_bytes()[:-50])
    (tmp_path / "exported").symlink_to(made / "exported")
    assert quantize(tmp_path) == 65
    assert "volume.npy of case-0" in capfd.readouterr().err


@pytest.mark.parametrize("library", ["openvino", "nncf"])
def test_a_machine_without_the_libraries_is_reported_the_extra(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in ("data", "exported"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.setitem(sys.modules, library, None)
    assert quantize(tmp_path) == 69
    assert "medweave[quantize]" in capfd.readouterr().err
    assert not (tmp_path / "int8").exists()


def test_options_that_cannot_be_used_are_refused(made: Path) -> None:
    assert quantize(made, "--windows", "0", output="none") == 2
    assert quantize(made, "--seed", "-1", output="none") == 2
    assert quantize(made) == 2  # the output exists


def words_of(made: Path, windows: int) -> list[str]:
    """A calibration whose output is `int8` in the working directory."""
    inputs = ["--exported-model", str(made / "exported"), "--training-set", str(made / "data")]
    return ["quantize", *inputs, "--output", "int8", "--windows", str(windows)]


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(made: Path, tmp_path: Path) -> None:
    # A line for each window: more than fit into the pipe, so the process cannot end before the signal.
    process = started(words_of(made, 2500), folder=tmp_path)
    wait_for_line(process, "window 3/")
    assert list(tmp_path.iterdir())
    assert interrupted(process)[0] == 130
    assert names_below(tmp_path) == []


def test_a_full_disk_is_reported_and_leaves_nothing(made: Path, tmp_path: Path) -> None:
    with nearly_full_disk(tmp_path, 2000) as output:
        code = main([*words_of(made, 2), "--num-threads", "1"])
    assert (code, names_below(tmp_path)) == (74, [])
    assert "free space on the disk" in output.getvalue()
