"""The sensitivities are derivatives, small ones mark removable weights, and thresholds stay within the tolerance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from medweave_steps.networks.channel_graph import trace_channels  # noqa: E402
from medweave_steps.prune import structured  # noqa: E402
from medweave_steps.prune.sensitivity import generic, lobster, prunable_weights, serene  # noqa: E402
from medweave_steps.prune.structured import (  # noqa: E402
    MULTIPLE,
    importance,
    largest_within,
    recalibrate,
    removals,
    shrink_rows,
    smaller_counts,
    without_channels,
)
from medweave_steps.prune.unstructured import apply_masks, masks_below, masks_within, shrink_weights  # noqa: E402


@pytest.fixture(autouse=True)
def _every_removal_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group saves half of the time: the networks of these tests are too small for measured differences."""
    monkeypatch.setattr(structured, "paired_seconds", lambda networks, _: [1.0, *(0.5 for _ in networks[1:])])


EPSILON = 1e-6


def classifier(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers = [
        torch.nn.Conv2d(1, 6, 3),
        torch.nn.BatchNorm2d(6),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 3),
    ]
    network = torch.nn.Sequential(*layers).double()
    network[1].running_var.uniform_(0.5, 2)
    return network.eval()


def images(count: int = 4) -> Any:
    return torch.randn(count, 1, 6, 6, dtype=torch.float64)


def loss_of(logits: Any, label: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits, label)


def moved(network: Any, name: str, place: int, by: float, value: Any) -> Any:
    """Return a value after one weight was moved."""
    flat = dict(network.named_parameters())[name].data.view(-1)
    before = float(flat[place])
    flat[place] += by
    with torch.no_grad():
        result = value()
    flat[place] = before
    return result


def difference(network: Any, name: str, place: int, value: Any) -> Any:
    """Return the derivative of a value by one weight, by finite differences."""
    above, below = (moved(network, name, place, by, value) for by in (EPSILON, -EPSILON))
    return (above - below) / (2 * EPSILON)


@pytest.mark.parametrize("name", ["0.weight", "4.weight"])
def test_lobster_and_generic_equal_finite_differences(name: str) -> None:
    network, image, label = classifier(), images(), torch.tensor([0, 2, 1, 1])
    loss_of(network(image), label).backward()
    by_loss = lobster(network)[name].view(-1)
    by_outputs = generic(network, image)[name].view(-1)
    for place in range(0, len(by_loss), 7):
        expected = difference(network, name, place, lambda: loss_of(network(image), label)).abs()
        assert float(by_loss[place]) == pytest.approx(float(expected), rel=1e-3, abs=1e-9)
        expected = difference(network, name, place, lambda: network(image).mean(0)).abs().mean()
        assert float(by_outputs[place]) == pytest.approx(float(expected), rel=1e-3, abs=1e-9)


def test_serene_equals_finite_differences_of_the_pre_activations() -> None:
    network, image = classifier(), images(2)
    sensitivity = serene(network, image, ["0", "4"])
    assert torch.allclose(sensitivity["4"], torch.full((3,), 1 / 3, dtype=torch.float64))
    pre_activation = network[0](image).detach()
    neuron = 2
    totals = []
    for sample in range(2):
        for row in range(4):
            for column in range(4):
                outputs = []
                for by in (EPSILON, -EPSILON):
                    changed = pre_activation.clone()
                    changed[sample, neuron, row, column] += by
                    outputs.append(network[1:](changed).sum(0).detach())
                totals.append(((outputs[0] - outputs[1]) / (2 * EPSILON)).abs().mean())
    expected = sum(totals) / len(totals)
    assert float(sensitivity["0"][neuron]) == pytest.approx(float(expected), rel=1e-3)


def test_outputs_per_voxel_are_summed_over_the_voxels() -> None:
    layer = torch.nn.Conv3d(1, 2, 1)
    sensitivity = serene(torch.nn.Sequential(layer), torch.randn(3, 1, 4, 4, 4), ["0"])["0"]
    assert torch.allclose(sensitivity, torch.full((2,), 0.5))


def trained(seed: int) -> tuple[Any, Any, Any]:
    """Return a small network that was trained, with images and labels."""
    torch.manual_seed(seed)
    image = torch.randn(256, 12)
    label = (image[:, 0] * image[:, 1] > 0).long() + (image[:, 2] > 0.5).long()
    network = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss_of(network(image), label).backward()
        optimizer.step()
    return network.eval(), image, label


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", ["lobster", "generic", "serene"])
def test_removing_the_lowest_sensitivities_harms_less_than_removing_at_random(method: str, seed: int) -> None:
    network, image, label = trained(seed)
    if method == "serene":  # whole rows of neurons
        rows = serene(network, image, ["0"])["0"]
        values = rows[:, None].expand(32, 12)
    else:
        network.zero_grad()
        loss_of(network(image), label).backward()
        values = (lobster(network) if method == "lobster" else generic(network, image))["0.weight"]
    count = int(0.3 * values.numel()) // 12 * 12

    def loss_without(places: Any) -> float:
        mask = torch.ones(32 * 12)
        mask[places] = 0
        before = network[0].weight.data.clone()
        network[0].weight.data *= mask.view(32, 12)
        with torch.no_grad():
            result = float(loss_of(network(image), label))
        network[0].weight.data = before
        return result

    lowest = values.flatten().sort(stable=True).indices[:count]
    generator = torch.Generator().manual_seed(seed)
    if method == "serene":
        chosen = torch.randperm(32, generator=generator)[: count // 12]
        at_random = (chosen[:, None] * 12 + torch.arange(12)).flatten()
    else:
        at_random = torch.randperm(32 * 12, generator=generator)[:count]
    assert loss_without(lowest) < loss_without(at_random)


@given(st.integers(1, 600))
def test_layers_keep_multiples_of_eight_from_sixteen_channels_on(count: int) -> None:
    counts = smaller_counts(count)
    assert counts == sorted(set(counts), reverse=True)
    assert all(0 < smaller < count for smaller in counts)
    assert count < 2 * MULTIPLE or (counts and not any(smaller % MULTIPLE for smaller in counts))


def test_networks_that_are_only_timed_share_the_weights_of_layers_without_removed_channels() -> None:
    layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)]
    network = torch.nn.Sequential(*layers).eval()
    graph = trace_channels(network, (4,))
    channels = graph.groups()[1].channels[:4]
    shared, own = (graph.remove(network, channels, shares_weights=shares) for shares in (True, False))
    assert shared[0].weight is network[0].weight
    assert own[0].weight is not network[0].weight
    assert shared[2].weight.shape == own[2].weight.shape == (4, 8)
    assert network[2].weight.shape == (8, 8)


@given(st.integers(0, 300), st.integers(0, 300))
def test_bisection_finds_the_largest_number_and_never_exceeds_the_tolerance(num: int, limit: int) -> None:
    tried = []

    def is_within(number: int) -> bool:
        tried.append(number)
        return number <= limit

    assert largest_within(num, is_within) == min(num, limit)
    assert len(tried) <= 9
    assert all(1 <= number <= num for number in tried)


def test_the_threshold_of_weights_keeps_the_loss_within_the_tolerance() -> None:
    network, image, label = trained(0)

    def loss(own: Any) -> float:
        with torch.no_grad():
            return float(loss_of(own(image), label))

    limit = 1.05 * loss(network)
    masks = masks_within(network, is_within=lambda own: loss(own) <= limit)
    assert masks is not None
    apply_masks(network, masks)
    assert loss(network) <= limit
    assert sum(int((mask == 0).sum()) for mask in masks.values()) > 10
    assert masks_within(network, is_within=lambda _: False) is None


def test_masks_retain_weights_from_the_threshold_on_and_no_zeros() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    network[0].weight.data = torch.tensor([[0.0, 0.1], [-0.3, 0.2]])
    assert masks_below(network, 0.2)["0.weight"].tolist() == [[False, False], [True, True]]
    assert masks_below(network, 0.0)["0.weight"].tolist() == [[False, True], [True, True]]


def test_insensitive_weights_shrink_and_sensitive_ones_stay() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ConvTranspose2d(1, 2, 2))
    for weight in prunable_weights(network).values():
        weight.data.fill_(1)
    by_weight = {name: torch.zeros_like(weight) for name, weight in prunable_weights(network).items()}
    by_weight["0.weight"][0, 1] = 2
    shrink_weights(network, by_weight, 0.1)
    assert network[0].weight.tolist() == [[pytest.approx(0.9), 1.0]]
    shrink_rows(network, {"1": torch.tensor([0.5, 1.0])}, 0.2)
    assert network[1].weight[0, 0].flatten().tolist() == [pytest.approx(0.9 * 0.9)] * 4
    assert network[1].weight[0, 1].flatten().tolist() == [pytest.approx(0.9)] * 4


def test_channels_go_in_the_order_of_importance_and_leave_multiples_of_eight() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 24, 3), torch.nn.BatchNorm2d(24), torch.nn.ReLU(), torch.nn.Conv2d(24, 16, 3)]
    network = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Conv2d(16, 1, 3)).eval()
    network[0].weight.data[:8] *= 1e-3
    graph = trace_channels(network, (1, 12, 12))
    sensitivity = serene(network, torch.randn(2, 1, 12, 12), ["0", "3"])
    scores = [importance(network, group, sensitivity) for group in graph.groups()]
    assert all(sum(own.values()) == pytest.approx(len(own)) for own in scores)
    steps = removals(network, graph, scores, (1, 12, 12))
    assert [len(step.channels) for step in steps] == [8, 8, 8]
    first = next(step for step in steps if step.group == 0)
    assert set(first.channels) == set(graph.groups()[0].channels[:8])
    assert [step.cost for step in steps] == sorted(step.cost for step in steps)


def test_channels_that_save_no_time_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured, "paired_seconds", lambda networks, shape: [1.0, 0.985, 0.9][: len(networks)])
    layers = [torch.nn.Conv2d(1, 24, 3), torch.nn.ReLU(), torch.nn.Conv2d(24, 16, 3), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Conv2d(16, 1, 3)).eval()
    graph = trace_channels(network, (1, 12, 12))
    scores = [dict.fromkeys(group.channels, 1.0) for group in graph.groups()]
    assert {step.group for step in removals(network, graph, scores, (1, 12, 12))} == {1}


def test_recalibration_gives_the_norms_the_statistics_of_the_batches() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2)).eval()
    batches = [torch.randn(8, 1, 5, 5) * 3 + 1 for _ in range(4)]
    recalibrate(network, batches)
    features = network[0](torch.cat(batches)).detach()
    assert torch.allclose(network[1].running_mean, features.mean((0, 2, 3)), atol=1e-5)
    assert not network.training
    assert network[1].momentum == pytest.approx(0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_single_weights_reach_a_higher_sparsity_than_channels_at_the_same_tolerance(seed: int) -> None:
    network, image, label = trained(seed)

    def loss(own: Any) -> float:
        with torch.no_grad():
            return float(loss_of(own(image), label))

    limit = 1.05 * loss(network)

    def is_within(own: Any) -> bool:
        return loss(own) <= limit

    whole = sum(weight.numel() for weight in prunable_weights(network).values())
    smaller = without_channels(
        network, (12,), sensitivities=lambda layers: serene(network, image, layers), is_within=is_within
    )
    assert smaller is None or is_within(smaller)
    left = sum(weight.numel() for weight in prunable_weights(smaller or network).values())
    masks = masks_within(network, is_within=is_within)
    assert masks is not None
    assert sum(int(mask.sum()) for mask in masks.values()) < left <= whole
