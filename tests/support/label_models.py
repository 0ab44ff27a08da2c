"""Cases and networks with several labels whose masks are known by design: the brightness of a voxel is its label."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.labels import Label, Region
from medweave_core.contracts.model import ModelCard, OutputContract
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from support.openvino_models import tiny_card, write_openvino
from support.training_set import training_set

LABELS = (Label(value=1, name="edema"), Label(value=2, name="core"), Label(value=4, name="enhancing"))
SOFTMAX = OutputContract(activation="softmax")
REGIONS = OutputContract(
    regions=(
        Region(name="whole", values=(1, 2, 4)),
        Region(name="inner", values=(2, 4)),
        Region(name="innermost", values=(4,)),
    )
)
HU = {0: -850.0, 1: -300.0, 2: 0.0, 4: 300.0}
# Scaled brightness from which a voxel belongs to each label or, of nested regions, to each region.
FROM = (0.3, 0.6, 0.82)
SHAPE = (24, 20, 16)
_GAIN = 40.0
# Two lesions, each of three nested boxes: first corner, and width of the outermost.
_LESIONS = (((3, 4, 3), 8), ((14, 5, 4), 7))


def label_case(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a volume in HU with a little noise, and its labels."""
    label = np.zeros(SHAPE, np.uint8)
    for (i, j, k), width in _LESIONS:
        for value, inset in zip((1, 2, 4), (0, 1, 2), strict=True):
            low, high = inset, width - inset
            label[i + low : i + high, j + low : j + high, k + low : k + high] = value
    levels = np.zeros(256)
    levels[list(HU)] = list(HU.values())
    noise = np.random.default_rng(seed).normal(0, 5, SHAPE)
    return (levels[label] + noise).astype(np.float32), label


def bright_label_set(
    folder: Path, splits: Sequence[str] = ("train", "train", "validation", "validation"), **cohort: Any
) -> Path:
    """Write a folder of prepared cases with three labels; return it.

    Args:
        cohort: other values for `cohort.json`.
    """
    training_set(folder, splits)
    for place in range(len(splits)):
        volume, label = label_case(place)
        np.save(folder / f"cases/case-{place}/volume.npy", volume)
        np.save(folder / f"cases/case-{place}/label.npy", label)
    changed = dataclasses.replace(open_prepared(folder).cohort, **({"labels": LABELS} | cohort))
    (folder / "cohort.json").write_text(json.dumps(codec.to_json(changed)), encoding="utf-8")
    return folder


def label_card(output: OutputContract = SOFTMAX, **changes: Any) -> ModelCard:
    """Return a card for these cases, without files."""
    from support.candidates import CONTRACT

    contract = dataclasses.replace(CONTRACT, patch_shape=(8, 8, 8))
    return tiny_card(**({"labels": LABELS, "output": output, "input": contract} | changes))


def weights_of(output: OutputContract, bounds: Sequence[float] = FROM) -> tuple[np.ndarray, np.ndarray]:
    """Return gain and bias of each channel of a network that labels by brightness.

    With softmax each channel's line crosses the line of the channel before it at one of the bounds.
    """
    if output.activation == "sigmoid":
        return np.full(3, _GAIN), -_GAIN * np.asarray(bounds)
    return _GAIN * np.arange(4), -_GAIN * np.concatenate([[0], np.cumsum(bounds)])


def exported_label_model(folder: Path, output: OutputContract = SOFTMAX, **changes: Any) -> ModelCard:
    """Write an exported model that finds every label of these cases."""
    card = label_card(output, **changes)
    _write_pointwise(folder / "models/float32.xml", *weights_of(output), side=5, patch=card.input.patch_shape)
    return write_card(folder, card)


def label_candidate(exported: Path, folder: Path, bounds: Sequence[float] = FROM, **changes: Any) -> ModelCard:
    """Write a smaller candidate named int8 with other bounds."""
    card = read_card(exported)
    _write_pointwise(folder / "models/int8.xml", *weights_of(card.output, bounds), side=3, patch=card.input.patch_shape)
    values: dict[str, Any] = {"precision": "int8", "parent_sha256": card_sha256(card), "metrics": {}} | changes
    return write_card(folder, dataclasses.replace(card, **values))


def _write_pointwise(path: Path, gain: np.ndarray, bias: np.ndarray, *, side: int, patch: Sequence[int]) -> None:
    """Write a convolution whose kernels are zero except in the middle, as OpenVINO IR."""
    kernels = np.zeros((len(gain), side, side, side), np.float32)
    kernels[:, side // 2, side // 2, side // 2] = gain
    write_openvino(path, kernels, bias, patch=patch)
