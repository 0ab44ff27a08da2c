"""One process, one device: the case world_size = 1 of every other strategy."""

from __future__ import annotations

from typing import Any, Literal

from medweave_steps.contracts.errors import UsageError
from medweave_steps.runtime.imports import require


class SingleStrategy:
    """Trains in this process alone."""

    def __init__(self, *, device: Literal["auto", "cpu", "cuda"]) -> None:
        torch = require("torch", extra="train")
        has_gpu = torch.cuda.is_available()
        if device == "cuda" and not has_gpu:
            raise UsageError(
                "--device cuda cannot be used.",
                seen="no CUDA device that torch can use",
                expected="an NVIDIA GPU, its driver and a CUDA build of torch",
                do="leave --device at auto, or choose cpu",
            )
        self.rank, self.world_size = 0, 1
        self.device = torch.device("cuda" if has_gpu and device != "cpu" else "cpu")

    def wrap(self, network: Any) -> Any:
        """Moves the network to the device."""
        return network.to(self.device)

    def close(self) -> None:
        """Nothing to release."""
