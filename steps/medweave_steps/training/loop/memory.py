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
            f"--accumulate {more}, which reduces the activations in memory by {share:.0%}{saved}; the weights do not change"
        )
    if not recomputes:
        least, most = (1 - share for share in reversed(RECOMPUTED_SHARE))
        remedies.append(
            "--recompute, which stores only the inputs of each block and recomputes its activations: measured on the default "
            f"networks, this reduces the activations in memory by {least:.0%} to {most:.0%}"
        )
    if not uses_bfloat16:
        remedies.append(
            "--precision bfloat16, which halves the bytes of activations, except those that torch always computes in float32"
        )
    return _in_a_step("train", remedies, -(-patches // parts), num_weights, peak_bytes, on_a_gpu)


def exhausted_replica(*, patches: int, num_weights: int, peak_bytes: int | None, on_a_gpu: bool) -> TryAgainError:
    """Return the error for a replica of `train-distributed`; arguments as in `exhausted`."""
    remedies = []
    if patches > 1:
        share = 1 - (patches // 2) / patches
        saved = _saved(share, peak_bytes, num_weights)
        remedies.append(
            f"more --replicas, or a smaller --batch-size: with {patches // 2} instead of {patches} patches per replica, "
            f"the activations in memory are reduced by {share:.0%}{saved}"
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
        expected=f"a step that fits in memory, with {_COPIES * 4 * num_weights / _GIB:.2f} GiB of weights, gradients and "
        "Adam moments",
        remedies=[*remedies, "a smaller --patch-shape: half the size along one axis halves the activations"],
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
        "a smaller --window-shape: half the size along one axis halves the activations of a window; the model card stores "
        "it for segment"
    ]
    if not uses_bfloat16:
        remedies.append(
            "--precision bfloat16, which halves the bytes of activations, except those that torch always computes in float32"
        )
    return _error(
        "train",
        " during validation",
        seen=f"a window of {' x '.join(map(str, window_shape))} voxels at a time, in addition to a whole case and its result",
        expected="a window that fits in memory",
        remedies=remedies, peak_bytes=peak_bytes, on_a_gpu=on_a_gpu,
    )  # fmt: skip


def exhausted_at_start(*, num_weights: int, on_a_gpu: bool, peak_bytes: int | None) -> TryAgainError:
    """Return the error for a network that does not fit on its device."""
    return _error(
        "train",
        " before the first step",
        seen=f"{4 * num_weights / _GIB:.2f} GiB of weights in float32, and the same for the gradients of several ranks",
        expected=f"memory for {_COPIES * 4 * num_weights / _GIB:.2f} GiB of weights, gradients and Adam moments",
        remedies=["half of --channels, which needs a quarter of the weights (with --network unet)"],
        peak_bytes=peak_bytes, on_a_gpu=on_a_gpu,
    )  # fmt: skip


def _error(
    verb: str, when: str, *, seen: str, expected: str, remedies: Sequence[str], peak_bytes: int | None, on_a_gpu: bool
) -> TryAgainError:
    had = "" if peak_bytes is None else f"; {peak_bytes / _GIB:.1f} GiB were in use"
    more = (
        "; or stop other processes on this GPU"
        if on_a_gpu
        else "; or increase the memory of the step (ramMin in the workflow)"
    )
    return TryAgainError(
        f"{verb} ran out of {'GPU memory' if on_a_gpu else 'memory'}{when}.",
        seen=f"{seen}{had}",
        expected=expected,
        do=f"choose {'; or '.join(remedies)}{more}",
    )


def _activations(peak: int, num_weights: int) -> int:
    return max(peak - _COPIES * 4 * num_weights, 0)
