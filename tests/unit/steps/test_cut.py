"""A network that is cut into stages computes the outputs and gradients of the whole network, for every contiguous cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from medweave_core.errors import UserInputError
from medweave_steps.training.placement.cut import composed, cut, cut_example
from support.cut_networks import MOST_STAGES, NETWORKS, largest_differences, resenc


@pytest.mark.parametrize("name", NETWORKS)
def test_every_contiguous_cut_gives_the_outputs_and_gradients_of_the_whole_network(name: str) -> None:
    differences = largest_differences(name)
    assert list(differences) == list(range(1, min(MOST_STAGES, NETWORKS[name][1]) + 1))
    assert max(max(pair) for pair in differences.values()) <= 1e-5


def test_the_training_mode_stays() -> None:
    for mode in (True, False):
        network = resenc().train(mode)
        cut(network, torch.rand(1, 1, 8, 8, 8))
        assert network.training is mode


def test_deep_supervision_passes_all_logits_to_the_last_stage() -> None:
    network = resenc(4).train()
    image = torch.rand(1, 1, 16, 16, 16)
    modules = [module for _, module in cut(network, image)]
    assert [tuple(logits.shape[2:]) for logits in composed(modules, image)] == [(16,) * 3, (8,) * 3]
    assert composed([module for _, module in cut(network.eval(), image)], image).shape == (1, 2, 16, 16, 16)


class AddsItsInput(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A network whose partitions lack the last addition."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv3d(1, 1, 1)

    def forward(self, image: Any) -> Any:
        return self.layer(image) + image

    def partitions(self) -> Any:
        return [("layer", self.layer)]


def test_an_example_of_different_values_shows_what_partitions_lack() -> None:
    network = AddsItsInput()
    cut(network, torch.zeros(1, 1, 4, 4, 4))
    with pytest.raises(UserInputError, match="the partitions of the network cannot be used"):
        cut(network, cut_example(network, 1, (4, 4, 4)))


class Skipping(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A network with a skip that no partition passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv3d(1, 2, 1), torch.nn.Conv3d(2, 2, 1)
        self.last = torch.nn.Conv3d(4, 1, 1)

    def forward(self, image: Any) -> Any:
        features = self.first(image)
        return self.last(torch.cat([features, self.second(features)], 1))


def test_a_skip_that_cannot_be_passed_on_is_refused_with_its_layer() -> None:
    with pytest.raises(UserInputError, match="cannot be cut into stages") as caught:
        cut(Skipping(), torch.zeros(1, 1, 4, 4, 4))
    assert caught.value.seen == "the layer 'last' takes another tensor than the output of the layer 'second'"


@pytest.mark.parametrize(
    ("partitions", "seen"),
    [
        (lambda net: [("a", net.first), ("b", net.second)], "'last.weight' is in no partition"),
        (lambda net: [("a", net.first), ("b", net.first)], "'first.weight' is in 'b' and in 'a'"),
        (
            lambda net: [("a", net.first), ("b", net.second), ("c", torch.nn.Sequential(Doubled(), net.last))],
            "they compute something else than the network",
        ),
    ],
)
def test_partitions_that_are_not_the_network_are_refused(partitions: Any, seen: str) -> None:
    torch.manual_seed(0)
    network = Skipping()
    network.partitions = lambda: partitions(network)
    with pytest.raises(UserInputError, match="the partitions of the network cannot be used") as caught:
        cut(network, torch.rand(1, 1, 4, 4, 4))
    assert caught.value.seen == seen


class Doubled(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, features: Any) -> Any:
        return torch.cat([features, features], 1)
