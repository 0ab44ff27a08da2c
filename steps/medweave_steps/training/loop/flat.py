"""A network as one flat vector: its trained weights or their gradient, followed by its running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medweave_steps.runtime.imports import require
from medweave_steps.training.distributed.aggregation import Vector


class FlatNetwork:
    """A network whose weights, gradient and running statistics are read and set as vectors in main memory.

    Attributes:
        num_weights: trained weights, at the start of each vector.
    """

    def __init__(self, network: Any) -> None:
        self._torch = require("torch", extra="train")
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._statistics = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        self.num_weights = sum(weight.numel() for weight in self._weights)

    def weights(self) -> Vector:
        """Return a copy of weights and statistics."""
        return self._joined([weight.detach() for weight in self._weights])

    def gradient(self) -> Vector:
        """Return a copy of the gradient, 0 where there is none, and the statistics."""
        zeros = self._torch.zeros_like
        return self._joined([zeros(w) if w.grad is None else w.grad for w in self._weights])

    def statistics(self) -> Vector:
        """Return a copy of the running statistics."""
        return self._joined([])

    def set_weights(self, vector: Vector) -> None:
        """Replace the weights by the start of a vector."""
        with self._torch.no_grad():
            for weight, part in zip(self._weights, self._parts(vector, self._weights), strict=True):
                weight.copy_(part)

    def set_gradient(self, vector: Vector) -> None:
        """Replace the gradient by the start of a vector."""
        for weight, part in zip(self._weights, self._parts(vector, self._weights), strict=True):
            weight.grad = self._torch.empty_like(weight).copy_(part)

    def set_statistics(self, vector: Vector) -> None:
        """Replace the running statistics by the end of a vector."""
        number = sum(buffer.numel() for buffer in self._statistics)
        for buffer, part in zip(
            self._statistics, self._parts(vector[len(vector) - number :], self._statistics), strict=True
        ):
            buffer.copy_(part)

    def _joined(self, tensors: Sequence[Any]) -> Vector:
        dtype = self._weights[0].dtype
        parts = [tensor.reshape(-1).to(dtype) for tensor in (*tensors, *self._statistics)]
        if not parts:
            return np.zeros(0, np.float32)
        vector: Vector = self._torch.cat(parts).cpu().numpy()
        return vector

    def _parts(self, vector: Vector, like: Sequence[Any]) -> list[Any]:
        together = self._torch.from_numpy(vector[: sum(tensor.numel() for tensor in like)])
        parts = together.split([tensor.numel() for tensor in like])
        return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
