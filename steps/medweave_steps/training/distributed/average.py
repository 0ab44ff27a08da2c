"""Serialized weights, and their average: the same bits in every process, in whatever order the weights arrive."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.aggregation import weighted_mean

State = Mapping[str, Any]


def packed(content: Mapping[str, Any]) -> bytes:
    """Return tensors, numbers and nested dicts of these as bytes."""
    torch = require("torch", extra="train")
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Return the content of `packed` bytes, on the CPU; only data is read, never code."""
    torch = require("torch", extra="train")
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def num_bytes_of(state: State) -> int:
    """Return the bytes of the tensors that one rank or replica contributes to an average, however they are transferred."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def averaged(states: Sequence[State], samples: Sequence[int]) -> dict[str, Any]:
    """Return the mean of weights and running statistics, weighted by the samples that each replica trained on.

    Sums are taken in the order of the replicas. Batch counters are equal in all replicas and are copied.

    Args:
        states: state dicts of one network, float32 and int64 tensors.
        samples: for each, > 0.
    """
    torch = require("torch", extra="train")
    assert len(states) == len(samples) >= 1
    assert min(samples) > 0
    mean = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            mean[name] = first
            continue
        mean[name] = torch.from_numpy(weighted_mean([state[name].numpy() for state in states], samples))
    return mean


def mean_state(states: Sequence[Any]) -> Any:
    """Return the mean of optimizer and schedule states: of each floating-point tensor; everything else is that of the first."""
    torch = require("torch", extra="train")
    first = states[0]
    if isinstance(first, Mapping):
        return {key: mean_state([state[key] for state in states]) for key in first}
    if isinstance(first, list):
        return [mean_state(parts) for parts in zip(*states, strict=True)]
    if torch.is_tensor(first) and first.is_floating_point():
        return averaged([{"": state} for state in states], [1] * len(states))[""]
    return first
