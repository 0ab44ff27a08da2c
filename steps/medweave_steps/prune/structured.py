"""Structured pruning: which channels are removed, by the sensitivity of the outputs and by the time that each removal saves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave_steps.networks.channel_graph import ChannelGraph, ChannelGroup, trace_channels
from medweave_steps.networks.channels import sizes_of
from medweave_steps.prune.measure import paired_seconds
from medweave_steps.prune.sensitivity import Sensitivities
from medweave_steps.runtime.imports import require

MULTIPLE = 8
"""Kernels compute channels in vectors of this many: other numbers cost the time of the next multiple."""
LEAST_GAIN = 0.02
"""Time that half of a group's channels must save, as a fraction of the network's time. Less is not measurable: such channels would
cost accuracy for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Channels of one group that are removed together.

    Attributes:
        group: place of the group in `ChannelGraph.groups`.
        channels: numbers in the `ChannelGraph`.
        cost: sum of the channels' importance for each second that their removal saves.
    """

    group: int
    channels: tuple[int, ...]
    cost: float


def smaller_counts(count: int) -> list[int]:
    """Return the numbers of channels that a layer may have after pruning, largest first: multiples of 8 from 16 channels on.

    A layer with fewer may lose a quarter of its channels, or several.
    """
    step = MULTIPLE if count >= 2 * MULTIPLE else max(1, count // 4)
    return list(range((count - 1) // step * step, 0, -step))


def importance(network: Any, group: ChannelGroup, sensitivities: Sensitivities) -> dict[int, float]:
    """Return the importance of each channel of a group, relative to the mean of the group.

    It is the sum, over the layers that make the channel, of the neuron's sensitivity times the norm of its weights: how much the
    outputs change, to first order, without the neuron. A batch norm after the layer cancels a scale of the weights; the
    sensitivity before it is divided by the same scale.
    """
    values = dict.fromkeys(group.channels, 0.0)
    for name in group.layers:
        own = sensitivities.get(name)
        if own is None:  # a layer without part in the outputs
            continue
        norms = _row_norms(network.get_submodule(name))
        for number in group.channels:
            values[number] += sum(
                float(own[place] * norms[place]) for layer, place in group.made[number] if layer == name
            )
    mean = sum(values.values()) / len(values)
    return {number: value / mean if mean else 0.0 for number, value in values.items()}


def _row_norms(layer: Any) -> Any:
    weight = layer.weight.detach()
    is_transposed = type(layer).__name__.startswith("ConvTranspose")
    return (weight.transpose(0, 1) if is_transposed else weight).flatten(1).norm(dim=1)


def removals(
    network: Any, graph: ChannelGraph, scores: Sequence[Mapping[int, float]], input_shape: Sequence[int]
) -> list[Removal]:
    """Return removals of channels in the order in which they are tried: those that save most time for their cost first.

    The time that a group's channels take is measured with about half of them removed, on this machine, in alternation with the
    whole network: operations alone say little about time. Groups that save less than `LEAST_GAIN` keep their channels.

    Args:
        scores: importance of the channels of each group of the graph.
        input_shape: C and the sides of the input whose time is measured.
    """
    ranked = [sorted(own, key=own.__getitem__) for own in scores]
    halves = [_dropped_at_half(numbers) for numbers in ranked]
    trials = [
        graph.remove(network, numbers[:dropped], shares_weights=True).eval()
        for numbers, dropped in zip(ranked, halves, strict=True)
    ]
    whole, *seconds = paired_seconds([network, *trials], input_shape)
    steps: list[Removal] = []
    for group, (own, numbers, dropped, taken) in enumerate(zip(scores, ranked, halves, seconds, strict=True)):
        if not dropped or whole - taken < LEAST_GAIN * whole:
            continue
        saved_each = (whole - taken) / dropped
        ends = [len(numbers) - count for count in smaller_counts(len(numbers))]
        cost = 0.0
        for first, end in itertools.pairwise([0, *ends]):
            part = tuple(numbers[first:end])
            # Never less than before: the channels of a group go in the order of their importance.
            cost = max(cost, sum(own[number] for number in part) / (saved_each * len(part)))
            steps.append(Removal(group=group, channels=part, cost=cost))
    return sorted(steps, key=lambda step: step.cost)


def _dropped_at_half(numbers: Sequence[int]) -> int:
    counts = smaller_counts(len(numbers))
    if not counts:
        return 0
    return len(numbers) - min(counts, key=lambda count: (abs(count - len(numbers) / 2), count))


def largest_within(num: int, is_within: Callable[[int], bool]) -> int:
    """Return by bisection the largest number up to `num` that is within the tolerance, 0 if not even 1 is.

    Args:
        is_within: for a number of removals, or of steps of a threshold; True up to some number and False above it.
    """
    low, high = 0, num + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def without_channels(
    network: Any, input_shape: Sequence[int], *, sensitivities: Callable[[Sequence[str]], Sensitivities],
    is_within: Callable[[Any], bool],
) -> Any | None:  # fmt: skip
    """Return the network without the channels that the tolerance allows to remove; None where it allows none.

    Bisection finds how many of the removals stay within the tolerance. From the group of the first removal beyond the tolerance, no
    more channels are removed; the bisection continues with the removals of the other groups.

    Args:
        network: torch module in evaluation mode; it is not changed.
        input_shape: C and the sides of an input.
        sensitivities: from names of layers to those of their neurons.
        is_within: whether a network's validation loss is within the tolerance; it may set the network's running statistics.
    """
    graph = trace_channels(network, input_shape)
    groups = graph.groups()
    by_layer = sensitivities([name for group in groups for name in group.layers])
    scores = [importance(network, group, by_layer) for group in groups]
    waiting = removals(network, graph, scores, input_shape)
    removed: list[int] = []
    smallest = None

    def fits(number: int) -> bool:
        nonlocal smallest
        smaller = graph.remove(network, [*removed, *_channels(waiting[:number])]).eval()
        if not is_within(smaller):
            return False
        smallest = smaller  # a bisection only tries larger numbers after one that fits
        return True

    while waiting:
        number = largest_within(len(waiting), fits)
        removed += _channels(waiting[:number])
        waiting = [step for step in waiting[number + 1 :] if step.group != waiting[number].group]
    return smallest


def _channels(steps: Iterable[Removal]) -> list[int]:
    return [channel for step in steps for channel in step.channels]


def recalibrate(network: Any, images: Iterable[Any]) -> None:
    """Set the running statistics of a network's norms to those of some batches, in place, and leave it in evaluation mode.

    Without some of its channels, the layers after them have other means and variances than before.

    Args:
        images: float32 batches on the network's device.
    """
    torch = require("torch", extra="train")
    norms = [module for module in network.modules() if getattr(module, "running_mean", None) is not None]
    if norms:
        before = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over the batches
            norm.train()
        with torch.no_grad():
            for image in images:
                network(image)
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
    network.eval()


def shrink_rows(network: Any, sensitivities: Sensitivities, rate: float) -> None:
    """Reduce the rows of weights of insensitive neurons, in place: w by rate * w * relu(1 - S), with S of the row's neuron."""
    for name, own in sensitivities.items():
        layer = network.get_submodule(name)
        factor = 1 - rate * (1 - own).clamp(min=0)
        axis = 1 if type(layer).__name__.startswith("ConvTranspose") else 0
        layer.weight.data.mul_(factor.reshape([-1 if place == axis else 1 for place in range(layer.weight.dim())]))


def prunable_layers(network: Any, input_shape: Sequence[int]) -> tuple[list[str], Mapping[str, str]]:
    """Return the layers with channels that may be removed, and the reasons of those that have none."""
    graph = trace_channels(network, input_shape)
    names = [name for group in graph.groups() if smaller_counts(len(group.channels)) for name in group.layers]
    permanent = dict(graph.permanent)
    for name, layer in network.named_modules():
        if sizes_of(layer) is None and getattr(layer, "groups", 1) not in (1, None) and hasattr(layer, "kernel_size"):
            permanent.setdefault(name, "a grouped convolution")
    return names, permanent
