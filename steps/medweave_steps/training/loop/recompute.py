"""Activations that are computed again in the backward pass, not kept from the forward pass: less memory for more time.

Source: Chen, Xu, Zhang and Guestrin 2016, "Training Deep Nets with Sublinear Memory Cost"; torch.utils.checkpoint does it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from medweave_steps.runtime.imports import require


def recompute_activations(network: Any) -> None:
    """Keeps of each block of a network what goes into it, and nothing that is made within.

    A block is a chain of layers without a skip in it. Weights, gradients and running statistics are those of the same network
    without it, bit for bit on the CPU.
    """
    for block in list(_blocks(network)):
        block.forward = _again(block, block.forward)


def _blocks(module: Any) -> Iterator[Any]:
    torch = require("torch", extra="train")
    skip = require("monai.networks.layers.simplelayers", extra="train").SkipConnection
    if isinstance(module, torch.nn.Sequential) and not any(isinstance(each, skip) for each in module.modules()):
        yield module
        return
    for child in module.children():
        yield from _blocks(child)


def _again(block: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    torch = require("torch", extra="train")
    checkpoint = require("torch.utils.checkpoint", extra="train").checkpoint
    normalisations = [each for each in block.modules() if getattr(each, "track_running_stats", False)]

    def computed(*given: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*given)
        contexts = contextlib.nullcontext(), _statistics_kept(normalisations)
        return checkpoint(forward, *given, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts)

    return computed


@contextlib.contextmanager
def _statistics_kept(normalisations: list[Any]) -> Iterator[None]:
    """Normalisations by the batch, whose running statistics have seen it already: it is weighed with zero, and not counted."""
    before = [(each, each.momentum, each.num_batches_tracked) for each in normalisations]
    for each in normalisations:
        each.momentum, each.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for each, momentum, count in before:
            each.momentum, each.num_batches_tracked = momentum, count
