"""The weights of model folders, and whether two have the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import load_network


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a model."""
    network = load_network(folder, read_card(folder))
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def assert_equal_weights(one: Path, other: Path) -> None:
    """Assert that two models have equal weights, bit for bit."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
