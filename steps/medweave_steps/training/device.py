"""The device that a process computes on, and how a network lies in its memory."""

from __future__ import annotations

from typing import Any, Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.environment import available_memory_bytes
from medweave_steps.runtime.imports import require


def choose_device(wanted: Literal["auto", "cpu", "cuda"], *, local_rank: int = 0) -> Any:
    """Return the torch.device of a process: the GPU of its local rank, or the CPU.

    Raises:
        UsageError: `cuda` is wanted and torch can use no GPU, or the node has more ranks than GPUs.
    """
    torch = require("torch", extra="train")
    number = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and not number:
        raise UsageError(
            "--device cuda is not available on this machine.",
            seen="no CUDA device that torch can use",
            expected="an NVIDIA GPU, its driver and a CUDA build of torch",
            do="use --device auto or --device cpu",
        )
    if not number or wanted == "cpu":
        return torch.device("cpu")
    if local_rank >= number:
        raise UsageError(
            "there are more ranks on this node than GPUs.",
            seen=f"rank {local_rank + 1} of the node, {number} GPU{'s' if number > 1 else ''}",
            expected="at most one rank per GPU",
            do="start fewer ranks or more nodes, or choose --device cpu",
        )
    return torch.device("cuda", local_rank)


def free_bytes(device: Any) -> int:
    """Return the free memory of a device, that of the CPU within the limit of its cgroup."""
    torch = require("torch", extra="train")
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory_bytes()


def move_to_device(network: Any, device: Any) -> Any:
    """Move a network to a device and return it; on a GPU its weights get the memory format `channels_last_3d`.

    In torch's default format batch norm on a GPU runs one block of threads per channel. With the 8 channels of a U-Net's first
    level most of the GPU is idle then, for more than half of a step.
    """
    torch = require("torch", extra="train")
    network = network.to(device)
    for weight in network.parameters() if device.type == "cuda" else ():
        if weight.dim() == 5:
            # Not `contiguous`: it keeps the strides of a single channel, and the layer's result would get its format from those.
            weight.data = weight.data.to(memory_format=torch.channels_last_3d)
    return network
