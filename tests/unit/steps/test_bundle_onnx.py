"""`medweave-step bundle --from-onnx`: ONNX files of other programs, imported, run and refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_core.contracts import codec
from medweave_core.contracts.model import InputContract, ModelContract
from medweave_core.contracts.schema import schema_of
from medweave_core.errors import UserInputError
from medweave_steps.bundle.onnx_graph import check_graph, read_onnx
from medweave_steps.cli import main
from medweave_steps.io.hashing import digests_below
from medweave_steps.io.model.folder import card_sha256, read_card
from support import onnx_files
from support.classified import classify, write_classifier
from support.exported import export
from support.image_set import image_set
from support.model_folders import trained_model
from support.onnx_files import CLASSIFICATION, SEGMENTATION, brightest, convolution, node, value
from support.openvino_models import write_tiny_model
from support.prepared_builder import prepare
from support.segmented import scan_of, segment, series_with
from support.training_set import TINY, training_set


def take(folder: Path, *options: str, output: str = "model", file: str = "network.onnx", contract: bool = True) -> int:
    """Run the verb in this process on `folder`/network.onnx, with `folder`/contract.yml."""
    words = ["bundle", "--from-onnx", str(folder / file), "--output", str(folder / output), "--num-threads", "1"]
    words += ["--contract", str(folder / "contract.yml")] if contract else []
    return main([*words, "--run-report", str(folder / "report.json"), *options])


def refused(folder: Path, capfd: pytest.CaptureFixture[str], *words: str, exit_code: int = 65, **options: Any) -> str:
    """Check that the verb fails, says these words and leaves nothing; return the message."""
    assert take(folder, **options) == exit_code
    message = capfd.readouterr().err
    for word in words:
        assert word in message
    assert str(folder) not in message
    assert not (folder / "model").exists()
    assert not list(folder.glob(".*model*"))
    return message


def changed(contract: str, **changes: Any) -> str:
    """Return a contract with other values; those of `input` are merged, None removes a key."""
    document = yaml.safe_load(contract)
    for key, new in changes.items():
        merged = {**document[key], **new} if key == "input" and isinstance(new, dict) else new
        document[key] = merged
    return yaml.safe_dump({key: item for key, item in document.items() if item is not None})


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with network.onnx, contract.yml, model/ and report.json of a segmentation."""
    folder = tmp_path_factory.mktemp("imported")
    onnx_files.write(folder, convolution())
    assert take(folder) == 0
    return folder


def test_the_model_folder_has_the_file_itself_and_openvino_ir(imported: Path) -> None:
    card = read_card(imported / "model")
    assert set(card.files) == {"models/model.onnx", "models/float32.xml", "models/float32.bin"}
    assert (imported / "model/models/model.onnx").read_bytes() == (imported / "network.onnx").read_bytes()
    assert (card.name, card.task, card.task_name) == ("Third-party nodules", "Lung nodules in CT", "segmentation")
    assert (card.input.spacing_mm, card.input.window_hu) == ((2.0, 2.0, 2.0), (-1000.0, 400.0))
    assert (card.precision, card.parent_sha256, card.metrics) == ("float32", None, {})
    assert card.notes["source_sha256"] == card.files["models/model.onnx"]
    assert card.notes["opset"] == 17


def test_the_report_has_the_difference_of_openvino_and_onnx_runtime(imported: Path) -> None:
    results = json.loads((imported / "report.json").read_text())["results"]
    (parity,) = results["parity"]
    assert parity["backend"] == "ONNX Runtime"
    assert parity["max_logit_difference"] < 1e-4
    assert parity["num_voxels"] == 3 * 16**3
    assert results["operators"] == {"Conv": 1}
    assert results["card_sha256"] == card_sha256(imported / "model")
    assert set(results["bytes"]) == {"model.onnx", "float32.xml", "float32.bin"}


def test_the_same_file_gives_the_same_folder(imported: Path) -> None:
    assert take(imported, output="again") == 0
    assert digests_below(imported / "again", leave_out=()) == digests_below(imported / "model", leave_out=())


def test_segment_finds_the_same_with_either_runtime(imported: Path, tmp_path: Path) -> None:
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    write_tiny_model(tmp_path / "tiny", labels=read_card(imported / "model").labels)
    masks = []
    for name, model, backend in (
        ("a", imported / "model", "openvino"),
        ("b", imported / "model", "onnxruntime"),
        ("c", tmp_path / "tiny", "openvino"),  # the same convolution, written for OpenVINO
    ):
        run = segment(tmp_path, model, batch, "--backend", backend, output=name)
        assert run.exit_code == 0
        masks.append(run.case("lesion_mask.nii.gz").read_bytes())
    assert masks[0] == masks[1] == masks[2]


def test_classify_finds_the_same_with_either_runtime(tmp_path: Path) -> None:
    batch = image_set(tmp_path / "batch", of_split={"test": 6})
    write_classifier(tmp_path / "tiny")
    own = read_card(tmp_path / "tiny")
    contract = changed(
        CLASSIFICATION,
        input={"patch_shape": list(own.input.patch_shape)},
        classes=[{"name": one.name} for one in own.classes],
        postprocessing={"temperature": 2.0},
    )
    shutil.copy(tmp_path / "tiny/models/model.onnx", tmp_path / "network.onnx")
    (tmp_path / "contract.yml").write_text(contract)
    assert take(tmp_path) == 0
    tables = []
    for name, model, backend in (
        ("a", "model", "openvino"),
        ("b", "model", "onnxruntime"),
        ("c", "tiny", "openvino"),
    ):
        run = classify(tmp_path, tmp_path / model, batch, "--backend", backend, output=name)
        assert run.exit_code == 0
        tables.append((run.output / "classifications.csv").read_text())
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.slow
def test_quantize_and_gate_take_an_imported_model(imported: Path, tmp_path: Path) -> None:
    data = training_set(tmp_path / "data", ("train", "train", "validation", "validation"))
    cohort = json.loads((data / "cohort.json").read_text()) | {"crop": "none"}
    (data / "cohort.json").write_text(json.dumps(cohort))
    last = [node("Conv", ["features", "second", "offset"], ["logits"], pads=[1] * 6)]
    model = convolution(last=last)
    from onnx import numpy_helper

    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.full((1, 1, 3, 3, 3), 1 / 27, np.float32), "second"),
            numpy_helper.from_array(np.zeros(1, np.float32), "offset"),
        ]
    )
    onnx_files.write(tmp_path, model)
    assert take(tmp_path) == 0
    words = ["--exported-model", str(tmp_path / "model"), "--training-set", str(data), "--num-threads", "1"]
    int8 = ["--output", str(tmp_path / "int8"), "--windows", "4", "--run-report", str(tmp_path / "q.json")]
    assert main(["quantize", *words, *int8]) == 0
    out = ["--output", str(tmp_path / "accepted"), "--decision", str(tmp_path / "d.json"), "--pairs", "2"]
    report = ["--run-report", str(tmp_path / "g.json")]
    assert main(["gate", *words, "--candidates", str(tmp_path / "int8"), *out, *report]) == 0
    card = read_card(tmp_path / "accepted")
    assert card.parent_sha256 == card_sha256(tmp_path / "model")
    assert "models/model.onnx" in card.files


@pytest.mark.parametrize("verb", ["export", "train"])
def test_steps_that_need_the_torch_network_refuse_an_imported_model(
    imported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], verb: str
) -> None:
    words = ["--run-report", str(tmp_path / "report.json"), "--num-threads", "1", "--output", str(tmp_path / "out")]
    if verb == "export":
        words += ["--trained-model", str(imported / "model")]
    else:
        data = training_set(tmp_path / "data")
        log = ["--training-log", str(tmp_path / "log"), *TINY]
        words += ["--training-set", str(data), "--initial-weights", str(imported / "model"), *log]
    assert main([verb, *words]) == 65
    message = capfd.readouterr().err
    assert "the model 'Third-party nodules' has no torch network." in message
    assert "it cannot be trained, pruned or exported" in message


@pytest.mark.slow
def test_the_onnx_file_of_an_export_comes_back_by_its_metadata(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "trained", name="nodules at 2 mm")
    assert export(tmp_path) == 0
    shutil.copy(tmp_path / "exported/models/model.onnx", tmp_path / "network.onnx")
    assert take(tmp_path, contract=False) == 0
    card, exported = read_card(tmp_path / "model"), read_card(tmp_path / "exported")
    assert ModelContract.of_card(card) == ModelContract.of_card(trained)
    for name in ("models/model.onnx", "models/float32.xml", "models/float32.bin"):
        assert card.files[name] == exported.files[name]


@pytest.mark.slow
def test_an_exported_segmentation_and_its_onnx_file_alone_give_equal_masks(tmp_path: Path) -> None:
    contract = InputContract(
        spacing_mm=(2.0,) * 3, window_hu=(-1000.0, 400.0), patch_shape=(16,) * 3, patch_multiple=2, crop="none"
    )
    trained_model(tmp_path / "trained", input=contract)
    batch = prepare(tmp_path / "batch", [scan_of(series_with())])
    for model in exported_and_imported(tmp_path):
        for backend in ("openvino", "onnxruntime"):
            run = segment(tmp_path, tmp_path / model, batch, "--backend", backend, output=f"{model}-{backend}")
            assert run.exit_code == 0
    for backend in ("openvino", "onnxruntime"):
        masks = [tmp_path / f"{model}-{backend}/case-0000000a/lesion_mask.nii.gz" for model in ("exported", "model")]
        assert masks[0].read_bytes() == masks[1].read_bytes()


@pytest.mark.slow
def test_an_exported_classification_and_its_onnx_file_alone_give_equal_tables(tmp_path: Path) -> None:
    write_classifier(tmp_path / "tiny")
    tiny = read_card(tmp_path / "tiny")
    arguments = {"spatial_dims": 2, "n_input_channels": 3, "num_classes": len(tiny.classes), "block": "basic"}
    network = {
        "class": "monai.networks.nets.ResNet",
        "arguments": {**arguments, "layers": [1, 1, 1, 1], "block_inplanes": [4, 4, 4, 4]},
        "input": "2-D",
    }
    of_task = {"task_name": "classification", "labels": (), "classes": tiny.classes, "output": tiny.output}
    trained_model(tmp_path / "trained", architecture=network, input=tiny.input, **of_task)
    batch = image_set(tmp_path / "batch", of_split={"test": 6})
    for model in exported_and_imported(tmp_path):
        assert classify(tmp_path, tmp_path / model, batch, output=f"{model}-classes").exit_code == 0
    tables = [(tmp_path / f"{model}-classes/classifications.csv").read_text() for model in ("exported", "model")]
    assert tables[0] == tables[1]
    assert len(set(tables[0].splitlines())) > 2


def exported_and_imported(folder: Path) -> tuple[str, str]:
    """Export `folder`/trained, import the ONNX file alone; return the names of both model folders."""
    assert export(folder) == 0
    shutil.copy(folder / "exported/models/model.onnx", folder / "network.onnx")
    assert take(folder, contract=False) == 0
    return "exported", "model"


def test_the_contract_of_the_user_counts_before_that_of_the_metadata(tmp_path: Path) -> None:
    model = convolution()
    model.metadata_props.add(key="medweave.contract", value="{}")
    onnx_files.write(tmp_path, model)
    assert take(tmp_path) == 0


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_contract_in_the_metadata_that_is_none_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    model = convolution()
    model.metadata_props.add(key="medweave.contract", value=content)
    onnx_files.write(tmp_path, model, contract=None)
    refused(tmp_path, capfd, "medweave.contract", "medweave schema model-contract", contract=False)


def test_a_file_without_contract_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = convolution()
    model.metadata_props.add(key="author", value="Jane Doe")
    onnx_files.write(tmp_path, model)
    message = refused(tmp_path, capfd, "does not define the input", "--contract", "author", contract=False)
    assert "Jane" not in message


@pytest.mark.parametrize("contract", [SEGMENTATION, CLASSIFICATION])
def test_contracts_of_the_tests_follow_the_published_schema(contract: str) -> None:
    jsonschema.validate(yaml.safe_load(contract), schema_of("model-contract"))


OF_TWO = "an output of shape (1, 2, 16, 16, 16)"
SIGMOID = node("Sigmoid", ["features"], ["logits"])
CUSTOM = [node("MagicConv", ["features"], ["logits"], domain="com.example")]
QUANTIZED = [
    node("QuantizeLinear", ["features", "scale"], ["small"]),
    node("DequantizeLinear", ["small", "scale"], ["logits"]),
]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: convolution(last=CUSTOM, domains=["com.example"]), ("not supported", "com.example.MagicConv")),
        (lambda: convolution(last=[node("Foo", ["features"], ["logits"])]), ("not supported", "Foo", "opset 17")),
        (lambda: convolution(last=QUANTIZED), ("is quantized", "DequantizeLinear, QuantizeLinear")),
        (
            lambda: convolution(shape=("batch", 1, "depth", 16, "width")),
            ("dynamic axes", "depth, width", "--dim_param depth"),
        ),
        (
            lambda: convolution(inputs=[value("lung", (1, 1, 16, 16, 16))]),
            ("2 inputs", "image [batch, 1, 16, 16, 16], lung [1, 1, 16, 16, 16]"),
        ),
        (
            lambda: convolution(
                last=[node("Identity", ["features"], [name]) for name in ("logits", "aux")],
                outputs=[value("aux", ("batch", 1, 16, 16, 16))],
            ),
            ("2 outputs", "aux [batch, 1, 16, 16, 16]"),
        ),
        (lambda: convolution(kind="FLOAT16"), ("type FLOAT16", "float32")),
        (lambda: convolution(last=[SIGMOID]), ("the operator Sigmoid: probabilities", "without its last Sigmoid")),
        (lambda: convolution(shape=("batch", 2, 16, 16, 16)), ("image [batch, 2, 16, 16, 16]", "[batch or 1, 1,")),
        (lambda: convolution(shape=("batch", 1, 8, 16, 16)), ("image [batch, 1, 8, 16, 16]", "16, 16, 16]")),
        (lambda: convolution(shape=(4, 1, 16, 16, 16)), ("image [4, 1, 16, 16, 16]", "batch or 1")),
        (lambda: brightest(shape=("batch", 3, 16, 12, 1)), ("image [batch, 3, 16, 12, 1]", "does not fit")),
        (lambda: convolution(out_channels=2), (OF_TWO, "shape (1, 1, 16, 16, 16), for nodule")),
        (
            lambda: convolution(last=[node("Log", ["features"], ["logits"])]),
            ("no reliable outputs", "NaN or infinite"),
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], model: Callable[[], Any], words: tuple[str, ...]
) -> None:
    made = model()
    if any(one.op_type == "QuantizeLinear" for one in made.graph.node):
        from onnx import numpy_helper

        made.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "scale"))
    onnx_files.write(tmp_path, made)
    refused(tmp_path, capfd, *words)


def test_an_image_without_slices_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [node("ReduceMax", ["image"], ["logits"], axes=[2, 3], keepdims=0)]
    model = onnx_files.model_of(nodes, [value("image", (1, 3, 16, 12))], [value("logits", (1, 3))], {})
    onnx_files.write(tmp_path, model, CLASSIFICATION)
    refused(tmp_path, capfd, "image [1, 3, 16, 12]", "[batch or 1, 3, 16, 12, 1]", "K is 1")


def test_a_graph_that_contradicts_itself_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = convolution()
    model.graph.node[0].input[0] = "nowhere"
    onnx_files.write(tmp_path, model)
    refused(tmp_path, capfd, "the ONNX file is not valid", "nowhere")


def test_operators_that_openvino_does_not_have_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx_files.write(tmp_path, convolution(last=[node("Bernoulli", ["features"], ["logits"])]))
    refused(tmp_path, capfd, "operators that are not supported", "seen:     Bernoulli\n", "OpenVINO can convert")


def test_a_network_that_openvino_does_not_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    last = [node("Cast", ["features"], ["text"], to=8), node("Cast", ["text"], ["logits"], to=1)]
    onnx_files.write(tmp_path, convolution(last=last))
    refused(tmp_path, capfd, "OpenVINO cannot run the ONNX file", "standard ONNX operators")


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (changed(SEGMENTATION, name=None), ("the key 'name'",)),
        (changed(SEGMENTATION, labels=[{"value": 0, "name": "nothing"}]), ("value 0", "1 to 255")),
        (changed(SEGMENTATION, labels=[]), ("labels none",)),
        (changed(SEGMENTATION, colour="blue"), ("colour", "only the keys")),
        (changed(SEGMENTATION, input={"patch_shape": [16, 16]}), ("$.input.patch_shape", "a list of 3")),
        (changed(SEGMENTATION, input={"patch_multiple": 5}), ("patch_multiple 5",)),
        (changed(SEGMENTATION, input={"spacing_mm": [0, 1, 1]}), ("voxel sizes above 0 mm",)),
        (changed(SEGMENTATION, input={"window_hu": [400, -1000]}), ("ascending order",)),
        (changed(SEGMENTATION, input={"window_hu": None}), ("a window in HU for CT",)),
        (changed(SEGMENTATION, input={"channels": 2}), ("2 channels, named CT",)),
        (changed(SEGMENTATION, input={"modality": "MR"}), ("modality CT and unit HU",)),
        (changed(SEGMENTATION, classes=[{"name": "a"}]), ("classes only for a classification",)),
        (changed(SEGMENTATION, output={"regions": [{"name": "a", "values": [2]}]}), ("labels 1, 2",)),
        (
            changed(SEGMENTATION, labels=[{"value": 1, "name": "a"}, {"value": 2, "name": "b"}]),
            ("sigmoid and 2 labels",),
        ),
        (changed(SEGMENTATION, postprocessing={"threshold": 1.5}), ("threshold 1.5",)),
        (changed(SEGMENTATION, postprocessing={"by_output": [{}, {}]}), ("by_output with 2 entries",)),
        (changed(SEGMENTATION, postprocessing={"overlap": 1.0}), ("overlap 1.0",)),
        (changed(CLASSIFICATION, classes=None), ("0 classes",)),
        (changed(CLASSIFICATION, classes=[{"name": "a"}, {"name": "a"}]), ("different names",)),
        ("- a\n- b\n", ("an object",)),
        ("{", ("not YAML",)),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], contract: str, words: tuple[str, ...]
) -> None:
    onnx_files.write(tmp_path, convolution(), contract)
    refused(tmp_path, capfd, *words, "medweave schema model-contract")


def test_labels_of_a_softmax_need_a_channel_each_and_the_background(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    labels = [{"value": 1, "name": "edema"}, {"value": 2, "name": "core"}]
    contract = changed(SEGMENTATION, labels=labels, output={"activation": "softmax"})
    onnx_files.write(tmp_path, convolution(out_channels=2), contract)
    refused(tmp_path, capfd, OF_TWO, "shape (1, 3, 16, 16, 16), for background, edema, core")
    onnx_files.write(tmp_path, convolution(out_channels=3), contract)
    assert take(tmp_path) == 0


def test_an_input_of_several_mr_channels_is_imported(tmp_path: Path) -> None:
    names = ["T1", "FLAIR"]
    contract = changed(SEGMENTATION, input={"channel_names": names, "window_hu": None})
    onnx_files.write(tmp_path, convolution(shape=(1, 2, 16, 16, 16)), contract)
    assert take(tmp_path) == 0
    own = read_card(tmp_path / "model").input
    assert (own.modality, own.unit, own.channels, own.channel_names) == ("MR", "SD", 2, ("T1", "FLAIR"))


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], fraction: float) -> None:
    onnx_files.write(tmp_path, convolution())
    content = (tmp_path / "network.onnx").read_bytes()
    (tmp_path / "network.onnx").write_bytes(content[: int(fraction * len(content))])
    refused(tmp_path, capfd, "not a complete ONNX file", "network.onnx")


CONTENT = convolution().SerializeToString()


def checked(content: bytes) -> None:
    """Read and check a file with this content, as the verb does before it runs the network."""
    contract = codec.from_json(ModelContract, yaml.safe_load(SEGMENTATION), where="the contract")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(content)
        model, _ = read_onnx(path)
        check_graph(model, contract)


@given(st.integers(min_value=0, max_value=len(CONTENT) - 1))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(UserInputError):
        checked(CONTENT[:length])


@given(st.integers(min_value=0, max_value=len(CONTENT) - 1), st.integers(min_value=1, max_value=255))
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_has_only_other_values(place: int, change: int) -> None:
    content = bytearray(CONTENT)
    content[place] ^= change
    with contextlib.suppress(UserInputError):
        checked(bytes(content))


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"PK\x03\x04zip", bytes(64)])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes) -> None:
    onnx_files.write(tmp_path, convolution())
    (tmp_path / "network.onnx").write_bytes(content)
    refused(tmp_path, capfd, "not a complete ONNX file")


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx_files.write(tmp_path, convolution())
    refused(tmp_path, capfd, "no such file", file="nothing.onnx")
    (tmp_path / "folder").mkdir()
    refused(tmp_path, capfd, "a folder", file="folder")


def external(folder: Path, name: str = "weights.bin") -> Path:
    """Write the network with its weights in a separate file; return that file."""
    import onnx

    onnx_files.write(folder, convolution())
    model = onnx.load(folder / "network.onnx")
    onnx.save(model, folder / "network.onnx", save_as_external_data=True, location=name, size_threshold=0)
    return folder / name


def test_external_data_become_part_of_the_file(tmp_path: Path) -> None:
    path = external(tmp_path)
    assert take(tmp_path) == 0
    path.unlink()
    import onnx

    model = onnx.load(tmp_path / "model/models/model.onnx")
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer)
    assert set(read_card(tmp_path / "model").files) == {"models/model.onnx", "models/float32.xml", "models/float32.bin"}


def test_missing_or_short_external_data_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = external(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused(tmp_path, capfd, "weights.bin", "bytes of at least")
    path.unlink()
    refused(tmp_path, capfd, "weights.bin", "no such file next to the ONNX file")


@pytest.mark.parametrize(("key", "value"), [("offset", "abc"), ("offset", "-1"), ("length", "-4")])
def test_external_data_at_no_possible_place_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    external(tmp_path)
    import onnx

    model = onnx.load(tmp_path / "network.onnx", load_external_data=False)
    entries = model.graph.initializer[0].external_data
    del entries[:]
    for name, text in (("location", "weights.bin"), (key, value)):
        entries.add(key=name, value=text)
    (tmp_path / "network.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path, capfd, "the weights of the ONNX file cannot be read", "'weights'")


def test_external_data_outside_of_the_folder_are_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    external(tmp_path / "inside")
    import onnx

    model = onnx.load(tmp_path / "inside/network.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../secret.bin" if entry.key == "location" else entry.value
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    (tmp_path / "inside/network.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path / "inside", capfd, "a path outside the folder of the ONNX file")


def test_a_machine_without_onnx_runtime_imports_with_a_notice(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("medweave_steps.io.model.parity.onnxruntime_runner", lambda *_: None)
    onnx_files.write(tmp_path, convolution())
    assert take(tmp_path) == 0
    assert "was not checked: ONNX Runtime is not installed" in capfd.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["results"]["parity"] == []


def test_wrong_combinations_of_options_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx_files.write(tmp_path, convolution())
    output = ["--output", str(tmp_path / "model"), "--run-report", str(tmp_path / "report.json")]
    assert main(["bundle", *output]) == 2
    assert "set either --bundle or --from-onnx" in capfd.readouterr().err
    assert take(tmp_path, "--bundle", str(tmp_path)) == 2
    assert take(tmp_path, "--threshold", "0.3") == 2
    assert "belongs into the contract" in capfd.readouterr().err
    assert main(["bundle", "--bundle", str(tmp_path), "--contract", str(tmp_path / "contract.yml"), *output]) == 2
    (tmp_path / "contract.yml").unlink()
    assert take(tmp_path) == 2
    assert "--contract is not a file" in capfd.readouterr().err
