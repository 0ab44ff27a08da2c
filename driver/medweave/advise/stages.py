"""Derive advice on `train --strategy hybrid` from a placement: its stages, the bound of the speed-up, and whether ddp is better."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from medweave.advise.document import Stage, StageAdvice
from medweave_core.contracts import codec
from medweave_core.contracts.placement import Placement
from medweave_core.contracts.schema import schema_of
from medweave_core.documents.field_errors import check
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import UserInputError


def read_placement(path: Path) -> Placement | None:
    """Return the placement of a file; None for a file of another kind.

    Raises:
        UserInputError: the file is no mapping, or a placement whose devices do not have consecutive partitions.
    """
    document = read_mapping(path, "measurements file, run report or placement")
    if "assignment" not in document:
        return None
    check(document, schema_of("placement"), path, ())
    placement = codec.from_json(Placement, document, where=shown(path))
    in_order = [device for device, _ in itertools.groupby(placement.assignment)]
    is_whole = len(placement.assignment) == len(placement.partitions) > 0
    if not is_whole or sorted(in_order) != list(range(len(placement.devices))):
        raise UserInputError(
            f"{shown(path)}: a stage needs consecutive partitions of the network.",
            seen=f"mode {placement.mode}, partitions on devices {' '.join(map(str, placement.assignment))}",
            expected="each partition on a device, and on each device partitions that follow one another",
            do="run medweave-step place-layers with --mode contiguous",
        )
    return placement


def stage_advice(placement: Placement, *, gpu_memory_mib: float | None) -> StageAdvice:
    """Return what the stages of a placement bring.

    Args:
        placement: one that `read_placement` has checked.
        gpu_memory_mib: memory of one GPU where the placement has no limits, MiB; None if unknown.
    """
    limits = [device.memory_mib for device in placement.devices if device.memory_mib is not None]
    memory = min(limits, default=gpu_memory_mib)
    needed = math.fsum(part.memory_mib for part in placement.partitions)
    speeds = [device.speed for device in placement.devices]
    return StageAdvice(
        stages=tuple(_stage(placement, device) for device in dict.fromkeys(placement.assignment)),
        unit=placement.unit,
        speed_up_bound=placement.speed_up_bound,
        ddp_speed_up_bound=len(speeds) * min(speeds) / max(speeds),
        memory_mib=needed,
        gpu_memory_mib=memory,
        fits_one_gpu=needed <= memory if needed and memory is not None else None,
    )


def _stage(placement: Placement, device: int) -> Stage:
    parts = [part for part, place in zip(placement.partitions, placement.assignment, strict=True) if place == device]
    load = math.fsum(part.load for part in parts)
    return Stage(
        gpu=device,
        partitions=tuple(part.name for part in parts),
        load=load,
        share=load / placement.load if placement.load else 0.0,
        memory_mib=math.fsum(part.memory_mib for part in parts),
    )


def verdict(advice: StageAdvice) -> str:
    """Return whether hybrid or ddp is the better choice, as far as it is known."""
    gpus = len(advice.stages)
    ddp = f"ddp on {gpus} GPUs is at most {advice.ddp_speed_up_bound:.2f} times as fast as one GPU"
    is_better = advice.ddp_speed_up_bound >= advice.speed_up_bound
    choice = (
        f"ddp is the better choice: {ddp}" if is_better else f"compare both: {ddp}, because it waits for the slowest"
    )
    if advice.fits_one_gpu is None:
        return (
            "Unknown whether the network fits one GPU: give --memory-mib to place-layers, or gpu_memory_mib in a "
            f"measurements file. If it fits, {choice}."
        )
    sizes = f"{advice.memory_mib:,.0f} of {advice.gpu_memory_mib:,.0f} MiB"
    if advice.fits_one_gpu:
        return f"The network fits one GPU ({sizes}), so {choice}."
    return f"The network does not fit one GPU ({sizes}), so single and ddp cannot train it; stages divide this memory."
