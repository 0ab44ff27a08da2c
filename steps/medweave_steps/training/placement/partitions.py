"""The consecutive partitions of a network: its blocks in the order in which they run, light ones joined. Imports torch inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from medweave_core.contracts.placement import Partition
from medweave_steps.runtime.imports import require
from medweave_steps.training.placement.loads import LIGHT_SHARE, Modules

_SKIP_CONNECTION = "SkipConnection"  # MONAI's module around the lower levels of its U-Net


def blocks_of(network: Any, example: Any) -> Modules:
    """Return the top-level blocks of a network: names and modules, in the order in which they run.

    Blocks are the children of the network, of its sequences and lists of modules, and of MONAI's skip connections. Blocks that do
    not run are left out.

    Args:
        network: a torch module in evaluation mode.
        example: an input of the network.
    """
    torch = require("torch", extra="train")
    blocks = named_blocks(network)
    names = {module: name for name, module in blocks.items()}
    order: dict[str, None] = {}

    def record(module: Any, _: Any) -> None:
        order.setdefault(names[module])

    handles = [module.register_forward_pre_hook(record) for module in names]
    try:
        with torch.no_grad():
            network(example)
    finally:
        for handle in handles:
            handle.remove()
    return [(name, blocks[name]) for name in order]


def named_blocks(network: Any) -> dict[str, Any]:
    """Return the top-level blocks of a network by name, as `blocks_of` divides it, in the order of their definition."""
    return dict(_blocks(network, "", is_root=True))


def _blocks(module: Any, name: str, *, is_root: bool = False) -> Iterator[tuple[str, Any]]:
    nn = require("torch.nn", extra="train")
    children = list(module.named_children())
    is_container = type(module) in (nn.Sequential, nn.ModuleList) or type(module).__name__ == _SKIP_CONNECTION
    if not children or not (is_root or is_container):
        yield name, module
        return
    for own, child in children:
        yield from _blocks(child, f"{name}.{own}" if name else own)


def join_light(partitions: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return the partitions with light ones joined to a neighbor.

    A partition without multiply-adds joins the one before it, such as an activation its convolution. A partition with less than
    1 % of the total load takes the next ones until it has that much; the last one joins the one before.

    Source: Akintoye et al. 2021, section 4.2: heavy layers are partitions of their own, light ones are merged.
    """
    least = LIGHT_SHARE * sum(part.load for part in partitions)
    groups: list[list[Partition]] = []
    for part in partitions:
        if groups and (part.gmac == 0 or _load(groups[-1]) < least):
            groups[-1].append(part)
        else:
            groups.append([part])
    if len(groups) > 1 and _load(groups[-1]) < least:
        last = groups.pop()
        groups[-1] += last
    return tuple(map(_joined, groups))


def _load(group: Sequence[Partition]) -> float:
    return sum(part.load for part in group)


def _joined(group: Sequence[Partition]) -> Partition:
    return Partition(
        name=group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}",
        load=_load(group),
        memory_mib=sum(part.memory_mib for part in group),
        parameters=sum(part.parameters or 0 for part in group),
        gmac=sum(part.gmac or 0.0 for part in group),
        seconds=sum(part.seconds or 0.0 for part in group),
    )
