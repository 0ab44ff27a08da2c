"""Runs the verb `explain` with tiny networks on small images and volumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.explanations import RECORD_FILE, Explanations
from medweave_core.contracts.model import InputContract, ModelCard, OutputContract, Postprocessing
from medweave_core.contracts.volume import COLOR_CHANNELS, CT_CHANNELS, Triple, modality_of
from medweave_steps.cli import main
from medweave_steps.inference.intensity import scaled
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import write_card
from medweave_steps.io.model.network import build_network, save_weights
from support.image_set import CLASSES, SHAPE
from support.model_folders import tiny_card
from support.prepared_builder import SPACING_MM, WINDOW_HU, Scan, prepare, with_balls

SOURCE_SHAPE, VOLUME_SHAPE = (32, 48, 21), (24, 24, 24)
# Towards left, in steps of another size than the prepared grid's 2 mm.
SOURCE_AFFINE = np.array([[-1.5, 0, 0, 20], [0, 1.0, 0, -30], [0, 0, 2.3, 7], [0, 0, 0, 1]])
BALL, NO_BALL = "ball", "no ball"
RADIUS_MM = 6.0


def resnet(*, spatial_dims: int, in_channels: int, num_classes: int) -> dict[str, Any]:
    """Return the architecture of a residual network with one block in each stage, so that each stage ends with a shortcut."""
    arguments = {
        "spatial_dims": spatial_dims, "in_channels": in_channels, "num_classes": num_classes, "block": "basic",
        "layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8],
    }  # fmt: skip
    return {"class": "medweave_steps.networks.monai_classifiers.ResNet", "arguments": arguments}


def classifier_card(
    architecture: Mapping[str, Any],
    *,
    classes: Sequence[str],
    channels: tuple[str, ...],
    shape: Triple,
    is_multi_label: bool = False,
    **changes: Any,
) -> ModelCard:
    """Return the card of a classifier of 2-D images, or of CT volumes of 2 mm."""
    is_ct = channels == CT_CHANNELS
    contract = InputContract(
        spacing_mm=SPACING_MM if is_ct else (1.0, 1.0, 1.0), window_hu=WINDOW_HU if is_ct else None, patch_shape=shape,
        patch_multiple=1, crop="none", unit="HU" if is_ct else "1", channels=len(channels), channel_names=channels,
        modality=modality_of(channels),
    )  # fmt: skip
    values: dict[str, Any] = {
        "name": "tiny-classes", "task": "classification", "task_name": "classification", "labels": (),
        "classes": tuple(ImageClass(name=name) for name in classes), "input": contract,
        "output": OutputContract(activation="sigmoid" if is_multi_label else "softmax"),
        "postprocessing": Postprocessing(temperature=2.0),
    }  # fmt: skip
    return tiny_card(architecture=architecture, **(values | changes))


def stack(shape: Triple) -> dict[str, Any]:
    """Return the architecture of three convolutions whose features have half the resolution of the input."""
    layers = [
        {"kind": "conv", "channels": 6, "kernel": 3, "stride": 2}, {"kind": "activation", "function": "relu"},
        {"kind": "conv", "channels": 6, "kernel": 3}, {"kind": "activation", "function": "relu"},
        {"kind": "pool", "type": "average", "size": "all"}, {"kind": "dense", "units": "outputs"},
    ]  # fmt: skip
    arguments = {"in_channels": 1, "outputs": 2, "input_shape": list(shape), "layers": layers}
    return {"class": "medweave_steps.networks.layer_stack.LayerStack", "arguments": arguments}


def volume_card(**changes: Any) -> ModelCard:
    """Return the card of a small network that finds balls."""
    values = {"classes": (BALL, NO_BALL), "channels": CT_CHANNELS, "shape": VOLUME_SHAPE}
    return classifier_card(**({"architecture": stack(VOLUME_SHAPE)} | values | changes))


def image_card(**changes: Any) -> ModelCard:
    """Return the card of a residual network for the images of `support.image_set`."""
    values = {"classes": CLASSES, "channels": COLOR_CHANNELS, "shape": SHAPE}
    return classifier_card(resnet(spatial_dims=2, in_channels=3, num_classes=3), **(values | changes))


def write_model(folder: Path, card: ModelCard, network: Any = None) -> ModelCard:
    """Write a model folder with torch weights, random ones without a network."""
    if network is None:
        import torch

        torch.manual_seed(1)
        network = build_network(card.architecture)
    save_weights(folder, network)
    return write_card(folder, card)


def center_of(place: int) -> tuple[float, float, float]:
    """Return the center of the ball of a volume, as an index of its source array."""
    rng = np.random.default_rng(place)
    return tuple(float(rng.uniform(0.3, 0.7) * n) for n in SOURCE_SHAPE)  # type: ignore[return-value]


def volumes(folder: Path, number: int) -> Path:
    """Write a folder of prepared volumes `case-00`, …; the even ones have a ball. Return it."""
    scans = []
    for place in range(number):
        balls = [(center_of(place), RADIUS_MM)] if place % 2 == 0 else []
        hu = with_balls(SOURCE_SHAPE, SOURCE_AFFINE, balls)
        hu += np.random.default_rng(place).normal(0, 60, hu.shape).astype(np.float32)
        scans.append(Scan(case_id=f"case-{place:02}", hu=hu, affine_ras=SOURCE_AFFINE, source_format="nifti"))
    return prepare(folder, scans, labels=(), classes=(ImageClass(name=BALL), ImageClass(name=NO_BALL)))


def trained_network(batch: Path, card: ModelCard, *, steps: int = 60) -> Any:
    """Return a network that has learned to find the balls of a batch of `volumes`."""
    import torch

    cases = open_prepared(batch).cases()
    images = np.stack([scaled(case.volume_CIJK(), card.input.window_hu) for case in cases])
    x, y = torch.from_numpy(images), torch.tensor([place % 2 for place in range(len(cases))])
    torch.manual_seed(0)
    network = build_network(card.architecture).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval()


@dataclass
class Run:
    """A finished run of the verb."""

    exit_code: int
    output: Path
    report: Path

    @property
    def record(self) -> Explanations:
        """Return the record that was written."""
        document = json.loads((self.output / RECORD_FILE).read_text())
        return codec.from_json(Explanations, document, where="the record")


def explain(folder: Path, model: Path, batch: Path, *extra: str, output: str = "explanations") -> Run:
    """Run `medweave-step explain` in this process, with one thread on the CPU."""
    report = folder / f"{output}_report.json"
    words = ["--model", str(model), "--case-batch", str(batch), "--output", str(folder / output), "--device", "cpu"]
    code = main(["explain", *words, "--run-report", str(report), "--num-threads", "1", *extra])
    return Run(code, folder / output, report)
