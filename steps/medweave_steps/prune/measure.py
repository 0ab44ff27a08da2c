"""Measurements of networks: parameters, operations, bytes, and seconds in alternating order on the same input."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medweave_steps.networks.channel_graph import trace_channels
from medweave_steps.prune.sensitivity import prunable_weights
from medweave_steps.runtime.imports import require

REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """The size of a network and the time that it takes.

    Attributes:
        parameters: weights and biases.
        sparsity: fraction of the weights of convolutions and dense layers that are zero.
        flops: operations for one input of the model card's shape, two for each multiplication with a weight, zero or not.
        bytes: of weights and statistics, float32.
        seconds: of one input in torch, median of runs that alternate with those of the other networks, s.
    """

    parameters: int
    sparsity: float
    flops: int
    bytes: int
    seconds: float


def facts_of(networks: Sequence[Any], input_shape: Sequence[int]) -> list[dict[str, Any]]:
    """Return the facts of networks, as JSON values.

    Args:
        networks: torch modules in evaluation mode.
        input_shape: C and the sides of an input.
    """
    seconds = paired_seconds(networks, input_shape)
    return [dataclasses.asdict(_facts(*pair, input_shape)) for pair in zip(networks, seconds, strict=True)]


def _facts(network: Any, seconds: float, input_shape: Sequence[int]) -> NetworkFacts:
    weights = list(prunable_weights(network).values())
    tensors = network.state_dict().values()
    return NetworkFacts(
        parameters=sum(weight.numel() for weight in network.parameters()),
        sparsity=round(sum(int((w == 0).sum()) for w in weights) / max(1, sum(w.numel() for w in weights)), 4),
        flops=2 * trace_channels(network, input_shape).macs,
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        seconds=seconds,
    )


def paired_seconds(networks: Sequence[Any], input_shape: Sequence[int], *, repeats: int = REPEATS) -> list[float]:
    """Return the median time of each network for one input, s.

    In every repeat all networks compute the same input in an order that turns, so that a machine that grows slower favors none.
    """
    torch = require("torch", extra="train")
    device = next(networks[0].parameters()).device
    image = torch.rand(1, *input_shape, device=device)
    seconds: list[list[float]] = [[] for _ in networks]
    with torch.inference_mode():
        for repeat in range(-1, repeats):  # the first one warms up
            for place in range(len(networks)):
                number = (place + repeat) % len(networks)
                taken = _seconds_of(networks[number], image)
                if repeat >= 0:
                    seconds[number].append(taken)
    return [statistics.median(own) for own in seconds]


def _seconds_of(network: Any, image: Any) -> float:
    torch = require("torch", extra="train")
    started = time.perf_counter()
    network(image)
    if image.device.type == "cuda":
        torch.cuda.synchronize(image.device)
    return time.perf_counter() - started
