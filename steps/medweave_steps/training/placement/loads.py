"""Measured loads of a network's partitions: multiply-adds, seconds, and memory in training. Torch is imported where it is used."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from medweave_core.contracts.placement import Partition
from medweave_steps.runtime.imports import require

REPEATS = 5
LIGHT_SHARE = 0.01
"""Layers with less of the total load join a neighbor."""
_MIB = 2**20
_COPIES = 4  # of each weight: itself, its gradient, and Adam's two moments

Measure = Literal["gmac", "seconds"]
Modules = Sequence[tuple[str, Any]]
"""Names and torch modules, in the order in which they run."""


def measure_loads(
    partitions: Modules, example: Any, *, measure: Measure = "gmac", network: Callable[[Any], Any] | None = None
) -> tuple[Partition, ...]:
    """Return the loads of partitions, measured by hooks on their modules while the network computes an example.

    Multiply-adds are those of convolutions, dense layers and matrix products, by torch's counter, for the whole example. Seconds
    are the median of several forward passes without gradients, after one that warms up. The memory is what a training needs:
    weights, gradients, Adam's two moments, and the tensors that the backward pass reads.

    Args:
        partitions: modules in evaluation mode; no two share a module.
        example: input of the network, such as a tensor [B, C, I, J, K], on the device of the modules.
        measure: the quantity that is the load: gmac in billions of multiply-adds, or seconds.
        network: computes the example with these modules; by default each one takes the output of the one before, a tuple as
            several arguments.
    Raises:
        BackendMissingError: torch is not installed.
    Source: Akintoye et al. 2021, section 4.2, which counts the multiply-adds of convolutions.
    """
    run = network or (lambda value: _chain(partitions, value))
    modules = [module for _, module in partitions]
    gmac = _gmac(modules, run, example)
    seconds = _seconds(modules, run, example)
    memory_mib = _memory_mib(modules, run, example)
    loads = gmac if measure == "gmac" else seconds
    return tuple(
        Partition(
            name=name, load=loads[place], memory_mib=memory_mib[place], parameters=_num_parameters(module), gmac=gmac[place],
            seconds=seconds[place],
        )
        for place, (name, module) in enumerate(partitions)
    )  # fmt: skip


def _chain(partitions: Modules, value: Any) -> Any:
    for _, module in partitions:
        value = module(*value) if isinstance(value, tuple) else module(value)
    return value


def _num_parameters(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


@contextmanager
def _measured(modules: Sequence[Any], read: Callable[[], float]) -> Iterator[list[float]]:
    """Yield a list that gets for each module how much a counter rises while the module computes."""
    totals, starts, handles = [0.0] * len(modules), [0.0] * len(modules), []

    def enter(place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            starts[place] = read()

        return hook

    def leave(place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            totals[place] += read() - starts[place]

        return hook

    try:
        for place, module in enumerate(modules):
            handles += [module.register_forward_pre_hook(enter(place)), module.register_forward_hook(leave(place))]
        yield totals
    finally:
        for handle in handles:
            handle.remove()


def _gmac(modules: Sequence[Any], run: Callable[[Any], Any], example: Any) -> list[float]:
    torch, flop_counter = require("torch", extra="train"), require("torch.utils.flop_counter", extra="train")
    counter = flop_counter.FlopCounterMode(display=False)
    with torch.no_grad(), counter, _measured(modules, counter.get_total_flops) as flops:
        run(example)
    return [count / 2 / 1e9 for count in flops]


def _seconds(modules: Sequence[Any], run: Callable[[Any], Any], example: Any) -> list[float]:
    torch = require("torch", extra="train")

    def clock() -> float:
        if example.device.type == "cuda":
            torch.cuda.synchronize(example.device)
        return time.perf_counter()

    passes = []
    with torch.no_grad():
        run(example)
        for _ in range(REPEATS):
            with _measured(modules, clock) as seconds:
                run(example)
            passes.append(seconds)
    return [statistics.median(own) for own in zip(*passes, strict=True)]


def _memory_mib(modules: Sequence[Any], run: Callable[[Any], Any], example: Any) -> list[float]:
    torch = require("torch", extra="train")
    weights = {weight.untyped_storage().data_ptr() for module in modules for weight in module.parameters()}
    stored: dict[int, int] = {}  # address to bytes; the tensors live until the end of the pass, so addresses differ

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with torch.enable_grad(), hooks, _measured(modules, lambda: sum(stored.values())) as activations:
        run(example)
    pairs = zip(modules, activations, strict=True)
    return [(_COPIES * _bytes_of(module) + activation) / _MIB for module, activation in pairs]


def _bytes_of(module: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())
