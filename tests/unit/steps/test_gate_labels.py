"""`medweave-step gate`, `quantize` and `export` on models with several labels or nested regions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

from medweave_core.contracts.gate import GateFigures, GateLabelFigures
from medweave_core.contracts.labels import LUNG_NODULE, Label, Region, distinct_names
from medweave_core.contracts.model import ComponentFilter, ModelCard, OutputContract, Postprocessing
from medweave_core.contracts.schema import schema_of
from medweave_steps.cli import main
from medweave_steps.io.model.folder import read_card, write_card
from medweave_steps.io.model.network import build_network, save_weights
from medweave_steps.tasks.segmentation.gate_judge import SegmentationJudge
from medweave_steps.tasks.segmentation.validation import SegmentationValidator
from medweave_steps.training.loop.deliver import metrics_of, results_of
from support.exported import export, openvino_logits
from support.label_models import (
    FROM,
    LABELS,
    REGIONS,
    SOFTMAX,
    bright_label_set,
    exported_label_model,
    label_candidate,
    label_card,
    label_case,
)
from support.model_folders import TINY_UNET

ANY_SPEED = ("--max-slowdown", "1000", "--min-speedup", "1000")
OUTPUTS = pytest.mark.parametrize("output", [SOFTMAX, REGIONS], ids=["softmax", "regions"])


def names_of(output: OutputContract) -> list[str]:
    """The names of the outputs, in the order of the channels."""
    return [region.name for region in output.regions] or [label.name for label in LABELS]


def gate(folder: Path, *options: str) -> int:
    """Runs the verb in this process."""
    words = ["gate", "--exported-model", str(folder / "exported"), "--training-set", str(folder / "data")]
    words += ["--candidates", str(folder / "int8"), "--output", str(folder / "accepted")]
    words += ["--decision", str(folder / "decision.json"), "--run-report", str(folder / "gate.json")]
    return main([*words, "--num-threads", "1", "--pairs", "1", *ANY_SPEED, *options])


def decision_of(folder: Path) -> dict[str, Any]:
    """The decision, checked against its published schema."""
    document: dict[str, Any] = json.loads((folder / "decision.json").read_text())
    jsonschema.validate(document, schema_of("gate-decision"))
    return document


def make(
    folder: Path, output: OutputContract = SOFTMAX, *, cohort: Mapping[str, Any] | None = None, **candidate: Any
) -> Path:
    """Writes data/, exported/ and int8/."""
    bright_label_set(folder / "data", ("train", "validation", "validation"), **(cohort or {}))
    exported_label_model(folder / "exported", output)
    label_candidate(folder / "exported", folder / "int8", **candidate)
    return folder


@OUTPUTS
def test_an_equal_candidate_is_accepted_with_the_figures_of_every_output(
    tmp_path: Path, output: OutputContract
) -> None:
    make(tmp_path, output)
    assert gate(tmp_path) == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "int8"
    assert list(decision["float32_validation"]["by_label"]) == names_of(output)
    for figures in decision["float32_validation"]["by_label"].values():
        assert figures == {"dice_mean": 1.0, "lesion_sensitivity": 1.0, "false_positives_per_scan": 0.0}
    metrics = read_card(tmp_path / "accepted").metrics
    assert {name: metrics[f"validation_dice_{name}"] for name in names_of(output)} == dict.fromkeys(
        names_of(output), 1.0
    )
    (case, _) = decision["float32_validation"]["cases"]
    assert (case["dice"], case["lesions"], case["lesions_hit"], case["false_positives"]) == (1.0, 6, 6, 0)
    (candidate,) = decision["candidates"]
    assert [reason.split(":")[0] for reason in candidate["reasons"] if ": Dice" in reason] == names_of(output)


@pytest.mark.parametrize(
    ("output", "bounds", "spoiled"),
    [
        # Voxels of the darkest label become background.
        (SOFTMAX, (0.55, *FROM[1:]), "edema"),
        # The middle region shrinks to the innermost one: half of a label is missed, and no other region.
        (REGIONS, (FROM[0], 0.8, FROM[2]), "inner"),
    ],
)
def test_a_candidate_that_spoils_one_output_is_refused_with_its_name(
    tmp_path: Path, output: OutputContract, bounds: tuple[float, ...], spoiled: str
) -> None:
    make(tmp_path, output, bounds=bounds)
    assert gate(tmp_path) == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "float32"
    (candidate,) = decision["candidates"]
    refused = [reason for reason in candidate["reasons"] if reason.startswith("refused")]
    assert refused[0].startswith(f"refused: {spoiled}: Dice −")
    assert all(reason.startswith(f"refused: {spoiled}: ") for reason in refused)
    assert f"refused: {spoiled}: Dice" in decision["reason"]
    by_label = candidate["validation"]["by_label"]
    assert by_label[spoiled]["dice"]["value"] < -0.1
    assert all(by_label[name]["dice"]["value"] == 0 for name in names_of(output) if name != spoiled)
    # The mean over the outputs alone would hide it behind the others.
    pooled = candidate["validation"]["dice"]["value"]
    assert pooled == pytest.approx(by_label[spoiled]["dice"]["value"] / 3)


def test_what_a_candidate_changes_in_voxels_without_annotation_has_no_effect(tmp_path: Path) -> None:
    make(tmp_path, bounds=(0.55, *FROM[1:]), cohort={"ignore_value": 255})
    for path in (tmp_path / "data").rglob("label.npy"):
        label = np.load(path)
        label[label == 1] = 255
        label[0, 0, 0] = 1  # one voxel of it is annotated, and dark in the image: both models miss it
        np.save(path, label)
    assert gate(tmp_path) == 0
    decision = decision_of(tmp_path)
    assert decision["precision"] == "int8"
    edema = decision["float32_validation"]["by_label"]["edema"]
    assert edema == {"dice_mean": 0.0, "lesion_sensitivity": 0.0, "false_positives_per_scan": 0.0}


@pytest.mark.parametrize(
    "labels",
    [(LUNG_NODULE,), (*LABELS[:2], Label(value=3, name="enhancing")), (*LABELS[:2], Label(value=4, name="cyst"))],
    ids=["one", "value", "name"],
)
def test_cases_with_other_labels_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], labels: tuple[Label, ...]
) -> None:
    make(tmp_path, cohort={"labels": labels})
    assert gate(tmp_path) == 65
    error = capfd.readouterr().err
    assert "the labels of the preprocessed cases are not those of the model" in error
    assert "1 (edema), 2 (core), 4 (enhancing) (model_card.json)" in error


def test_a_candidate_with_another_output_contract_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, REGIONS)
    other = OutputContract(regions=(REGIONS.regions[1], REGIONS.regions[0], REGIONS.regions[2]))
    write_card(tmp_path / "int8", dataclasses.replace(read_card(tmp_path / "int8"), output=other))
    assert gate(tmp_path) == 65
    assert "cannot replace the exported model" in capfd.readouterr().err


def test_the_card_has_the_figures_of_labels_under_the_names_of_train() -> None:
    outputs = [Region(name=name, values=(value,)) for value, name in ((1, "kidney"), (4, "kidney"), (5, "肿瘤"))]
    names = distinct_names(outputs)
    of_label = GateLabelFigures(dice_mean=0.5, lesion_sensitivity=None, false_positives_per_scan=0.0)
    figures = GateFigures(
        dice_mean=0.5,
        lesion_sensitivity=None,
        false_positives_per_scan=0.0,
        cases=(),
        by_label=dict.fromkeys(names, of_label),
    )
    keys = set(SegmentationJudge().metrics(figures))
    assert keys >= {"validation_dice_kidney_label_1", "validation_dice_kidney_label_4", "validation_dice_label"}
    own = {"dice": 0.5, "sensitivity": None, "false_positives_per_scan": 0.0}
    validator: Any = SimpleNamespace(targets=SimpleNamespace(outputs=outputs))
    assert keys == set(metrics_of(SegmentationValidator._joined(validator, [own] * 3)))


def test_the_run_report_has_the_filters_of_labels_with_one_name() -> None:
    labels = tuple(Label(value=value, name=name) for value, name in ((1, "kidney"), (2, "kidney"), (3, "cyst")))
    filters = tuple(ComponentFilter(min_volume_mm3=float(value)) for value in (1, 2, 3))
    card = dataclasses.replace(label_card(SOFTMAX), labels=labels, postprocessing=Postprocessing(by_output=filters))
    by_output = results_of(card)["postprocessing"]["by_output"]
    assert {name: own["min_volume_mm3"] for name, own in by_output.items()} == {
        "kidney (label 1)": 1.0, "kidney (label 2)": 2.0, "cyst": 3.0,
    }  # fmt: skip


def test_labels_with_one_name_keep_their_own_figures() -> None:
    kidneys = [Region(name="kidney", values=(value,)) for value in (1, 2)]
    cyst = Region(name="cyst", values=(3,))
    assert distinct_names([*kidneys, cyst]) == ("kidney (label 1)", "kidney (label 2)", "cyst")


def trained_label_model(folder: Path, output: OutputContract) -> ModelCard:
    """Writes a U-Net that learned the brightness of each label for about a second."""
    import torch

    channels = 4 if output.activation == "softmax" else 3
    # It sees one voxel at a time, so that it can learn the outlines in a moment.
    shape = {"channels": [64, 128], "strides": [1], "kernel_size": 1, "up_kernel_size": 1, "num_res_units": 0}
    shape |= {"out_channels": channels}
    architecture = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], **shape}}
    card = label_card(output, architecture=architecture)
    torch.manual_seed(0)
    network = build_network(architecture)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    volume, label = (array[2:12, 3:13, 2:12] for array in label_case(7))
    image = torch.from_numpy((np.clip(volume, -1000, 400) + 1000) / 1400)[None, None]
    place = torch.from_numpy(np.searchsorted([0, 1, 2, 4], label))[None]
    regions = torch.stack([place >= number for number in (1, 2, 3)], dim=1).float()
    for _ in range(60):
        logits = network(image)
        if output.activation == "softmax":
            loss = torch.nn.functional.cross_entropy(logits, place)
        else:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, regions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_weights(folder, network)
    return write_card(folder, card)


@pytest.mark.slow
@OUTPUTS
def test_three_labels_go_through_export_int8_and_the_gate(tmp_path: Path, output: OutputContract) -> None:
    """Real tools from the trained network to the decision; int8 keeps what float32 finds of each output."""
    bright_label_set(tmp_path / "data")
    card = trained_label_model(tmp_path / "trained", output)
    assert export(tmp_path) == 0
    words = ["quantize", "--exported-model", str(tmp_path / "exported"), "--training-set", str(tmp_path / "data")]
    words += ["--output", str(tmp_path / "int8"), "--run-report", str(tmp_path / "int8.json"), "--windows", "6"]
    assert main([*words, "--num-threads", "1"]) == 0
    notes = read_card(tmp_path / "int8").notes["calibration"]
    assert notes["lesion_windows_by_label"] == {"edema": 1, "core": 1, "enhancing": 1}
    assert (
        gate(tmp_path, "--dice-tolerance", "0.2", "--sensitivity-tolerance", "0.2", "--false-positive-tolerance", "9")
        == 0
    )
    decision = decision_of(tmp_path)
    assert decision["precision"] == "int8"
    for name in names_of(output):
        assert decision["float32_validation"]["by_label"][name]["dice_mean"] > 0.95
    image = np.random.default_rng(0).random((1, 1, 8, 8, 8), np.float32)
    channels = card.architecture["arguments"]["out_channels"]
    assert openvino_logits(tmp_path / "accepted/models/int8.xml", image).shape == (1, channels, 8, 8, 8)
    parity = json.loads((tmp_path / "report.json").read_text())["results"]["parity"]
    assert [entry["num_voxels"] for entry in parity] == [3 * 8**3] * 2
