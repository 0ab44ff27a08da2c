"""The errors of a training that runs out of memory: which options lower its memory use, and by how much."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from medweave_core.errors import TryAgainError
from medweave_steps.runtime.imports import require

_GIB = 2**30
_ON_A_CPU = ("DefaultCPUAllocator", "not enough memory")  # torch has no class for it
_COPIES = 4  # of each weight: itself, its gradient, and Adam's two means
RECOMPUTED_SHARE = (0.35, 0.5)
"""Share of the activations stored for the backward pass that --recompute still stores: bounds of the measured values (0.39 to 0.47)
on both networks at their defaults, in patches of 32 x 32 x 32 and 48 x 48 x 40 voxels."""


@contextlib.contextmanager
def wrap_oom(error_of: Callable[[], Exception]) -> Iterator[None]:
    """Raise another error if the code within the context runs out of memory.

    Args:
        error_of: makes that error when it is needed.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_exhausted(error):
            raise error_of() from error
        raise


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error means that torch or Python could not allocate memory."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    torch = require("torch", extra="train")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _ON_A_CPU)


def peak_bytes(device: Any) -> int | None:
    """Return the most memory that torch has allocated on a GPU in this process; None on other devices."""
    if device.type != "cuda":
        return None
    torch = require("torch", extra="train")
    return int(torch.cuda.max_memory_allocated(device))


def exhausted(
    *,
    patches: int,
    parts: int,
    recomputes: bool,
    uses_bfloat16: bool,
    num_weights: int,
    peak_bytes: int | None,
    on_a_gpu: bool,
) -> TryAgainError:
    """Return the error for a training step of `train`.

    Args:
        patches: of this rank in a step.
        parts: --accumulate, the number of parts of a rank's patches.
        recomputes: --recompute is used.
        uses_bfloat16: whether activations are in bfloat16.
        num_weights: numbers in the network.
        peak_bytes: the most memory allocated, of which each weight takes `4 * 4` bytes; None if unknown.
    """
    more, remedies = min(2 * parts, patches), []
    if more > parts:
        share = 1 - parts / more
        saved = _saved(share, peak_bytes, num_weights)
        remedies.append(
            f"--accumulate {more}, which keeps {share:.0%} less of activations at a time{saved}; the weights stay the same"
        )
    if not recomputes:
        least, most = (1 - share for share in reversed(RECOMPUTED_SHARE))
        remedies.append(
            "--recompute, which keeps what goes into each block of the network and computes the rest twice: measured on the "
            f"networks at their defaults, {least:.0%} to {most:.0%} less of activations"
        )
    if not uses_bfloat16:
        remedies.append(
            "--precision bfloat16, which keeps activations of half the bytes, but for what torch computes in float32 all the same"
        )
    return _in_a_step("train", remedies, -(-patches // parts), num_weights, peak_bytes, on_a_gpu)


def exhausted_replica(*, patches: int, num_weights: int, peak_bytes: int | None, on_a_gpu: bool) -> TryAgainError:
    """Return the error for a replica of `train-distributed`; arguments as in `exhausted`."""
    remedies = []
    if patches > 1:
        share = 1 - (patches // 2) / patches
        saved = _saved(share, peak_bytes, num_weights)
        remedies.append(
            f"more --replicas, or a smaller --batch-size: with {patches // 2} instead of {patches} patches each replica "
            f"keeps {share:.0%} less of activations{saved}"
        )
    return _in_a_step("train-distributed", remedies, patches, num_weights, peak_bytes, on_a_gpu)


def _saved(share: float, peak: int | None, num_weights: int) -> str:
    return "" if peak is None else f", about {share * _activations(peak, num_weights) / _GIB:.1f} GiB"


def _in_a_step(
    verb: str, remedies: Sequence[str], patches: int, num_weights: int, peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    return _error(
        verb,
        "",
        seen=f"{patches} patch{'es' if patches > 1 else ''} at a time",
        expected=f"a step that fits, with {_COPIES * 4 * num_weights / _GIB:.2f} GiB of weights, gradients and Adam's means",
        remedies=[*remedies, "smaller --patch-shape: half of a side is half of the activations"],
        peak_bytes=peak_bytes, on_a_gpu=on_a_gpu,
    )  # fmt: skip


def exhausted_in_validation(
    *, window_shape: Sequence[int], uses_bfloat16: bool, peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    """Return the error for a validation, which computes one window at a time and stores no activations.

    Args:
        window_shape: voxels along I, J, K.
    """
    remedies = [
        "smaller --window-shape: half of a side is half of a window's activations; the model card keeps it for segment"
    ]
    if not uses_bfloat16:
        remedies.append(
            "--precision bfloat16, which halves the bytes of what torch does not compute in float32 all the same"
        )
    return _error(
        "train",
        " in a validation",
        seen=f"a window of {' x '.join(map(str, window_shape))} voxels at a time, in addition to a whole case and its result",
        expected="a window that fits",
        remedies=remedies, peak_bytes=peak_bytes, on_a_gpu=on_a_gpu,
    )  # fmt: skip


def exhausted_at_start(*, num_weights: int, on_a_gpu: bool, peak_bytes: int | None) -> TryAgainError:
    """Return the error for a network that does not fit on its device."""
    return _error(
        "train",
        " before its first step",
        seen=f"{4 * num_weights / _GIB:.2f} GiB of weights in float32, and as much for the gradients of several ranks",
        expected=f"room for {_COPIES * 4 * num_weights / _GIB:.2f} GiB of weights, gradients and Adam's means",
        remedies=["half of --channels, which has a quarter of the weights (of --network unet)"],
        peak_bytes=peak_bytes, on_a_gpu=on_a_gpu,
    )  # fmt: skip


def _error(
    verb: str, when: str, *, seen: str, expected: str, remedies: Sequence[str], peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    had = "" if peak_bytes is None else f"; {peak_bytes / _GIB:.1f} GiB were in use"
    more = "; or end what else computes on this GPU" if on_a_gpu else "; or give the step more (ramMin in the workflow)"
    return TryAgainError(
        f"{verb} ran out of {'GPU memory' if on_a_gpu else 'memory'}{when}.",
        seen=f"{seen}{had}",
        expected=expected,
        do=f"choose {'; or '.join(remedies)}{more}",
    )


def _activations(peak: int, num_weights: int) -> int:
    return max(peak - _COPIES * 4 * num_weights, 0)
