"""Builds small model folders: a real MONAI U-Net, its weights and its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts.labels import PRESETS
from medweave_core.contracts.model import InputContract, ModelCard, Postprocessing
from medweave_steps.io.model.folder import write_card
from medweave_steps.io.model.network import build_network, save_weights

TINY_UNET: Mapping[str, Any] = {
    "class": "monai.networks.nets.UNet",
    "arguments": {
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 1,
        "channels": [4, 8],
        "strides": [2],
        "num_res_units": 1,
        "norm": "batch",
    },
}


def tiny_card(*, architecture: Mapping[str, Any] = TINY_UNET, patch: int = 8, **changes: Any) -> ModelCard:
    """Return a card for 2 mm voxels and the lung window; `files` is empty until the model is written."""
    values: dict[str, Any] = {
        "name": "tiny",
        "task": "lung nodule segmentation",
        "architecture": architecture,
        "labels": PRESETS["lung-nodule"],
        "input": InputContract(
            spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=(patch,) * 3, patch_multiple=2
        ),
        "postprocessing": Postprocessing(threshold=0.5, min_volume_mm3=0.0, overlap=0.25),
        "precision": "float32",
        "files": {},
        "parent_sha256": None,
        "data_sha256": "0" * 64,
        "synthetic_data": True,
        "code_version": "test",
        "metrics": {"validation_dice": 0.5},
        "training": {"strategy": "single", "seed": 0},
    }
    return ModelCard(**values | changes)


def seeded_network(architecture: Mapping[str, Any] = TINY_UNET, *, seed: int = 0) -> Any:
    """Return the network with random weights and batch statistics that are not 0 and 1, in evaluation mode."""
    import torch

    torch.manual_seed(seed)
    network = build_network(architecture)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def trained_model(folder: Path, *, seed: int = 0, **changes: Any) -> ModelCard:
    """Write a model folder as `train` does; return its card."""
    card = tiny_card(**changes)
    save_weights(folder, seeded_network(card.architecture, seed=seed))
    return write_card(folder, card)
