"""Models with several labels or regions as MONAI Bundles: what MONAI makes of them, and what `bundle` says of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.model import ComponentFilter, ModelCard, OutputContract, Postprocessing
from medweave_steps.cli import main
from medweave_steps.inference.head import OutputHead
from medweave_steps.io.model.bundle_files import inference_config, metadata, write_bundle_configs
from medweave_steps.io.model.folder import read_card
from support.label_models import LABELS, REGIONS, SOFTMAX
from support.model_folders import TINY_UNET, tiny_card, trained_model
from support.monai_bundle import write_bundle

FILTERS = tuple(ComponentFilter(threshold=threshold) for threshold in (0.3, 0.5, 0.8))


def card_of(output: OutputContract) -> ModelCard:
    """A card whose outputs have different thresholds."""
    return tiny_card(labels=LABELS, output=output, postprocessing=Postprocessing(by_output=FILTERS))


def monai_mask(card: ModelCard, logits_CIJK: np.ndarray) -> np.ndarray:
    """What the Bundle's postprocessing makes of logits, on the network's grid."""
    import torch
    from monai.bundle import ConfigParser
    from monai.data import MetaTensor

    post = inference_config(card)["postprocessing"]
    post["transforms"] = [t for t in post["transforms"] if t["_target_"] not in ("Invertd", "SaveImaged")]
    transforms: Any = ConfigParser({"post": post}).get_parsed_content("post")
    return np.asarray(transforms({"pred": MetaTensor(torch.from_numpy(logits_CIJK))})["pred"])


@pytest.mark.slow
@pytest.mark.parametrize("output", [SOFTMAX, REGIONS], ids=["softmax", "regions"])
def test_monai_decides_as_segment(output: OutputContract) -> None:
    card = card_of(output)
    head = OutputHead.of(card)
    logits = np.random.default_rng(0).normal(0, 2, (head.num_channels, 4, 5, 6)).astype(np.float32)
    masks = head.masks(head.probabilities(logits.copy()), FILTERS)
    expected = head.label_map(masks)[None] if output is SOFTMAX else np.stack(masks)
    np.testing.assert_array_equal(monai_mask(card, logits), expected)
    assert len(np.unique(expected)) == (4 if output is SOFTMAX else 2)


def test_the_metadata_name_every_channel() -> None:
    def channels(output: OutputContract) -> dict[str, Any]:
        return metadata(card_of(output))["network_data_format"]["outputs"]["pred"]

    assert list(channels(SOFTMAX)["channel_def"].values()) == ["background", "edema", "core", "enhancing"]
    assert channels(SOFTMAX)["num_channels"] == 4
    assert list(channels(REGIONS)["channel_def"].values()) == ["whole", "inner", "innermost"]


def take(folder: Path, *options: str) -> int:
    """Runs the verb in this process."""
    words = ["bundle", "--bundle", str(folder / "bundle"), "--output", str(folder / "trained"), "--num-threads", "1"]
    return main([*words, "--run-report", str(folder / "report.json"), *options])


def test_a_trained_model_with_several_labels_comes_back(tmp_path: Path) -> None:
    architecture = {**TINY_UNET, "arguments": {**TINY_UNET["arguments"], "out_channels": 4}}
    card = trained_model(tmp_path / "bundle", architecture=architecture, labels=LABELS, output=SOFTMAX)
    write_bundle_configs(tmp_path / "bundle", card)
    assert take(tmp_path, "--crop", "lungs") == 0
    again = read_card(tmp_path / "trained")
    assert (again.labels, again.output, again.input) == (card.labels, card.output, card.input)


def test_several_labels_for_a_bundle_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_bundle(tmp_path / "bundle")
    declared = [dataclasses.asdict(label) for label in LABELS[:2]]
    (tmp_path / "labels.json").write_text(json.dumps(declared))
    assert take(tmp_path, "--labels", str(tmp_path / "labels.json")) == 65
    error = capfd.readouterr().err
    assert "2 labels are declared for the Bundle" in error
    assert "1 (edema), 2 (core)" in error
    assert "--merge-labels" not in error
