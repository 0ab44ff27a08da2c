"""The cut of a network into consecutive partitions that exchange only tensors, and their composition. Imports torch inside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.runtime.imports import require
from medweave_steps.training.placement.loads import Modules
from medweave_steps.training.placement.partitions import named_blocks

RTOL, ATOL = 1e-3, 1e-4
"""Tolerance between the outputs of a network and of its partitions; kernels may sum in another order."""


class NotAChain(UserInputError):
    """A network without a method `partitions()` is no chain of layers."""


def cut(network: Any, example: Any) -> Modules:
    """Return the consecutive partitions of a network: names and modules, each of which takes the output of the one before.

    A network declares its partitions by a method `partitions()` (see `networks.partitions`). Any other network must be a chain of
    layers; a layer without parameters belongs to the partition before it. Parameters are shared with the network.

    Args:
        network: a torch module; its training mode is restored.
        example: input of the network, on its device.
    Raises:
        NotAChain: a layer takes another tensor than the output of the layer before it (names the layer).
        UserInputError: a parameter is in no partition or in two; or the partitions compute something else than the network.
    """
    from medweave_steps.networks.partitions import declared_partitions

    torch = require("torch", extra="train")
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            declared = declared_partitions(network)
            partitions = _chain(network, example) if declared is None else declared
            _check_parameters(network, partitions)
            if declared is not None:
                _check_output(network(example), composed((module for _, module in partitions), example))
    finally:
        network.train(was_training)
    return partitions


def cut_example(
    network: Any, channels: int, patch_shape: Sequence[int], *, patches: int = 1, device: Any = None
) -> Any:
    """Return an input for `cut`, whose values differ: with equal ones, wrong partitions may compute the same as the network.

    Args:
        device: of the input; the CPU by default.
    """
    torch = require("torch", extra="train")
    shape = (patches, channels, *patch_shape)
    dtype = next(network.parameters()).dtype
    return torch.linspace(0, 1, math.prod(shape), dtype=dtype, device=device).reshape(shape)


def composed(modules: Iterable[Any], value: Any) -> Any:
    """Return the output of modules one after the other; a tuple is passed on as several arguments."""
    for module in modules:
        value = module(*value) if isinstance(value, tuple) else module(value)
    return value


def _chain(network: Any, example: Any) -> Modules:
    """Return the layers of a network, after a run has shown that each takes the output of the one before and nothing else."""
    nn = require("torch.nn", extra="train")
    blocks = named_blocks(network)
    calls: list[
        tuple[str, tuple[Any, ...], Any]
    ] = []  # keeps the tensors, so that none has the address of an earlier one
    handles = [
        module.register_forward_hook(lambda _, inputs, output, name=name: calls.append((name, inputs, output)))
        for name, module in blocks.items()
    ]
    try:
        result = network(example)
    finally:
        for handle in handles:
            handle.remove()
    before, value = "the input", example
    for name, inputs, output in calls:
        if len(inputs) != 1 or inputs[0] is not value:
            raise _not_a_chain(f"the layer '{name}' takes another tensor than {before}")
        before, value = f"the output of the layer '{name}'", output
    if result is not value:
        raise _not_a_chain(f"the network returns another tensor than {before}")
    groups: list[list[str]] = []
    for name, _, _ in calls:
        has_parameters = any(True for _ in blocks[name].parameters())
        if groups and not (has_parameters and any(True for own in groups[-1] for _ in blocks[own].parameters())):
            groups[-1].append(name)
        else:
            groups.append([name])
    return [(names[0], nn.Sequential(*(blocks[name] for name in names))) for names in groups]


def _check_parameters(network: Any, partitions: Modules) -> None:
    """Check that every parameter is in exactly one partition: one rank trains it."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    owners: dict[int, str] = {}
    for partition, module in partitions:
        for parameter in module.parameters():
            if id(parameter) not in names or id(parameter) in owners:
                shared = f"'{names.get(id(parameter), 'a parameter')}' is in '{partition}'"
                raise _bad_partitions(f"{shared} and in {owners.get(id(parameter), 'no layer of the network')!r}")
        owners |= {id(parameter): partition for parameter in module.parameters()}
    if missing := [name for key, name in names.items() if key not in owners]:
        raise _bad_partitions(f"'{missing[0]}' is in no partition")


def _check_output(whole: Any, parts: Any) -> None:
    torch = require("torch", extra="train")
    ones, others = ([value] if torch.is_tensor(value) else list(value) for value in (whole, parts))
    is_equal = len(ones) == len(others) and all(
        one.shape == other.shape and torch.allclose(one, other, RTOL, ATOL)
        for one, other in zip(ones, others, strict=True)
    )
    if not is_equal:
        raise _bad_partitions("they compute something else than the network")


def _not_a_chain(seen: str) -> NotAChain:
    return NotAChain(
        "the network cannot be cut into stages.",
        seen=seen,
        expected="a chain of layers, or a network that declares its partitions: unet, distmis-as-described, distmis-as-published, "
        "resenc-unet, resattnet18 and resattnet34, or your own class with a method partitions()",
        do="choose another --network, or another --strategy",
    )


def _bad_partitions(seen: str) -> UserInputError:
    return UserInputError(
        "the partitions of the network cannot be used.",
        seen=seen,
        expected="partitions that have each parameter of the network once, and whose composition is the network's forward",
        do="correct the method partitions() of the network",
    )
