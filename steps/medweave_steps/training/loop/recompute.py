"""Activation checkpointing: activations are computed again in the backward pass, which takes less memory and more time.

Source: Chen, Xu, Zhang and Guestrin 2016, "Training Deep Nets with Sublinear Memory Cost"; torch.utils.checkpoint does it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from medweave_steps.runtime.imports import require


def recompute_activations(network: Any) -> None:
    """Store only the input of each block of a network in the forward pass, not its activations.

    A block is a chain of layers without a skip in it. Weights, gradients and running statistics are those of the same network
    without it, bit for bit on the CPU.
    """
    for block in list(_blocks(network)):
        first: Any = next((part for part in block.modules() if not any(part.children())), None)
        if getattr(first, "inplace", False):  # it would overwrite the stored input of the block
            first.inplace = False
        block.forward = _again(block, block.forward)


def _blocks(module: Any) -> Iterator[Any]:
    torch = require("torch", extra="train")
    skip = require("monai.networks.layers.simplelayers", extra="train").SkipConnection
    if isinstance(module, torch.nn.Sequential) and not any(isinstance(part, skip) for part in module.modules()):
        yield module
        return
    for child in module.children():
        yield from _blocks(child)


def _again(block: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    torch = require("torch", extra="train")
    checkpoint = require("torch.utils.checkpoint", extra="train").checkpoint
    normalisations = [part for part in block.modules() if getattr(part, "track_running_stats", False)]

    def computed(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs)
        contexts = contextlib.nullcontext(), _frozen_statistics(normalisations)
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=lambda: contexts)

    return computed


@contextlib.contextmanager
def _frozen_statistics(normalisations: list[Any]) -> Iterator[None]:
    """Run batch normalizations without updating their running statistics, which the forward pass has updated already."""
    before = [(part, part.momentum, part.num_batches_tracked) for part in normalisations]
    for part in normalisations:
        part.momentum, part.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for part, momentum, count in before:
            part.momentum, part.num_batches_tracked = momentum, count
