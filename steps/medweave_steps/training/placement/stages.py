"""The number of pipeline stages, and the partitions of each: the fewest stages that fit into the memory of the devices. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from medweave_core.contracts.placement import Device, Partition, Placement, PlacementMode
from medweave_core.errors import UserInputError
from medweave_steps.training.placement.gabra import place
from medweave_steps.training.placement.problem import PlacementProblem

_MIB = 2**20
_VALUE_BYTES = 4
"""Of a parameter in float32. Every rank has the values of all stages, to validate and to write checkpoints."""
_TRAINED_BYTES = 12
"""Of a parameter that a rank trains, in addition to its value: its gradient, and Adam's two moments."""


def place_stages(
    partitions: Sequence[Partition],
    numbers: Sequence[int],
    *,
    patches: Callable[[int], int],
    memory_mib: float | None,
    mode: PlacementMode = "contiguous",
    unit: str = "",
) -> Placement:
    """Return the placement with the smallest makespan on the first number of stages whose memory suffices.

    Args:
        partitions: of the network, measured with one patch.
        numbers: of stages to try, in this order.
        patches: returns the patches of a replica in one step, for a number of stages.
        memory_mib: of each device, MiB; None for no limit.
        unit: of the loads.
    Raises:
        UserInputError: there are more stages than partitions, or the memory does not suffice; of the last number that was tried.
    """
    values_mib = _VALUE_BYTES * sum(part.parameters or 0 for part in partitions) / _MIB
    if memory_mib is not None and memory_mib <= values_mib:
        raise UserInputError(
            "the weights of the network do not fit into the memory of a device.",
            seen=f"{values_mib:g} MiB of weights, {memory_mib:g} MiB of memory",
            expected="memory for the weights of all stages on each device, and for the training of one stage",
            do="use devices with more memory, or a smaller network",
        )
    device = Device(memory_mib=None if memory_mib is None else memory_mib - values_mib)
    refusal: UserInputError | None = None
    for stages in numbers:
        try:
            problem = PlacementProblem(
                partitions=tuple(_for_patches(part, patches(stages)) for part in partitions),
                devices=(device,) * stages,
                mode=mode,
            )
            return place(problem, fitness="makespan", unit=unit)
        except UserInputError as error:
            refusal = error
    assert refusal is not None, "there is a number to try"
    what = f"the network cannot be placed on {numbers[-1]} stage{'' if numbers[-1] == 1 else 's'}: {refusal.what}"
    if numbers[-1] > len(partitions):
        do = f"set --stages to at most {len(partitions)}, the number of partitions of the network"
        raise UserInputError(what, seen=refusal.seen, expected=refusal.expected, do=do)
    raise UserInputError(
        what,
        seen=f"{refusal.seen}; {values_mib:g} MiB of each device are for the weights of all stages"
        if values_mib
        else refusal.seen,
        expected=refusal.expected,
        do="use more --ranks and --stages, a smaller --batch-size or --patch-shape, or devices with more memory",
    )


def _for_patches(part: Partition, patches: int) -> Partition:
    """Return a partition with the memory for all patches that a replica has in flight, without the values of its weights."""
    trained, values = (number * (part.parameters or 0) / _MIB for number in (_TRAINED_BYTES, _VALUE_BYTES))
    activations = max(0.0, part.memory_mib - trained - values)
    return dataclasses.replace(part, memory_mib=trained + patches * activations)
