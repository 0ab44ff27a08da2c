"""What a training says that has run out of memory: which setting lowers what it needs, and by how much."""

from __future__ import annotations

from typing import Any

from medweave_steps.contracts.errors import TryAgainError
from medweave_steps.runtime.imports import require

_GIB = 2**30
_ON_A_CPU = ("DefaultCPUAllocator", "not enough memory")  # torch has no class for it
_COPIES = 4  # of each weight: itself, its gradient, and Adam's two means


def is_exhausted(error: BaseException) -> bool:
    """Whether torch, or Python, could not get the memory that it wanted."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    torch = require("torch", extra="train")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _ON_A_CPU)


def peak_bytes(device: Any) -> int | None:
    """The most that torch has had on a GPU in this process; None elsewhere."""
    if device.type != "cuda":
        return None
    torch = require("torch", extra="train")
    return int(torch.cuda.max_memory_allocated(device))


def exhausted(
    *, patches: int, parts: int, recomputes: bool, num_weights: int, peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    """The error of `train`.

    Args:
        patches: of this rank in a step.
        parts: --accumulate: it takes them in so many parts.
        recomputes: whether --recompute is given.
        num_weights: numbers in the network.
        peak_bytes: what it has had at the most, of which the weights need `4 * 4` bytes each; None where that is not known.
    """
    more, ways = min(2 * parts, patches), []
    if more > parts:
        share = 1 - parts / more
        saved = _saved(share, peak_bytes, num_weights)
        ways.append(
            f"--accumulate {more}, which keeps {share:.0%} less of activations at a time{saved}; the weights stay the same"
        )
    if not recomputes:
        ways.append("--recompute, which keeps what goes into each block of the network and computes the rest twice")
    return _error("train", ways, -(-patches // parts), num_weights, peak_bytes, on_a_gpu)


def exhausted_replica(*, patches: int, num_weights: int, peak_bytes: int | None, on_a_gpu: bool) -> TryAgainError:
    """The error of `train-distributed`; arguments as in `exhausted`, of a replica."""
    ways = []
    if patches > 1:
        share = 1 - (patches // 2) / patches
        saved = _saved(share, peak_bytes, num_weights)
        ways.append(
            f"more --replicas, or a smaller --batch-size: with {patches // 2} instead of {patches} patches each replica "
            f"keeps {share:.0%} less of activations{saved}"
        )
    return _error("train-distributed", ways, patches, num_weights, peak_bytes, on_a_gpu)


def _saved(share: float, peak: int | None, num_weights: int) -> str:
    return "" if peak is None else f", about {share * _activations(peak, num_weights) / _GIB:.1f} GiB"


def _error(
    verb: str, ways: list[str], patches: int, num_weights: int, peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    ways = [*ways, "smaller --patch-shape: half of a side is half of the activations"]
    kind = "GPU memory" if on_a_gpu else "memory"
    had = "" if peak_bytes is None else f"; {peak_bytes / _GIB:.1f} GiB were in use"
    return TryAgainError(
        f"{verb} ran out of {kind}.",
        seen=f"{patches} patch{'es' if patches > 1 else ''} at a time{had}",
        expected=f"a step that fits, with {_COPIES * 4 * num_weights / _GIB:.2f} GiB of weights, gradients and Adam's means",
        do=f"choose {'; or '.join(ways)}" + ("" if on_a_gpu else "; or give the step more (ramMin in the workflow)"),
    )


def _activations(peak: int, num_weights: int) -> int:
    return max(peak - _COPIES * 4 * num_weights, 0)
