"""An exported model and candidates of it, as one convolution each: their masks and their sizes are known by design."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from medweave_core.contracts.model import InputContract, ModelCard
from medweave_steps.io.model.folder import card_sha256, read_card, write_card
from support.openvino_models import write_openvino, write_tiny_model

CONTRACT = InputContract(
    spacing_mm=(2.0, 2.0, 2.0), window_hu=(-1000.0, 400.0), patch_shape=(16, 16, 16), patch_multiple=1, crop="lungs"
)


def exported_model(folder: Path, *, side: int = 5, bias: float = -20.0, **changes: Any) -> ModelCard:
    """Return a model that says "lesion" where a voxel is brighter than about -300 HU.

    Args:
        side: of the kernel, whose middle alone is not 0: the file's size without another result.
        bias: less of it finds less.
    """
    return write_tiny_model(folder, kernel=point_kernel(side), bias=bias, **{"input": CONTRACT, **changes})


def candidate_of(
    exported: Path, folder: Path, *, side: int = 3, bias: float = -20.0, gain: float = 40.0, **changes: Any
) -> ModelCard:
    """Return a candidate named int8 whose graph is a different convolution."""
    card = read_card(exported)
    write_openvino(folder / "models/int8.xml", point_kernel(side, gain), bias, patch=card.input.patch_shape)
    values: dict[str, Any] = {"precision": "int8", "parent_sha256": card_sha256(card), "metrics": {}} | changes
    return write_card(folder, dataclasses.replace(card, **values))


def point_kernel(side: int, gain: float = 40.0) -> np.ndarray:
    """Return a kernel that is zero except in the middle."""
    kernel = np.zeros((side,) * 3, np.float32)
    kernel[(side // 2,) * 3] = gain
    return kernel
