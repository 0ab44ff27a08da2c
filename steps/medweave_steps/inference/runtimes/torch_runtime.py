"""torch on the CPU or on a CUDA device: the network of the card's architecture with `models/model.safetensors`.

Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.inference.runtimes.devices import EXTRAS, UsedDevice
from medweave_steps.inference.runtimes.failures import Shape, check_output, failed_on_gpu
from medweave_steps.io.model.folder import WEIGHTS_FILE, check_float32
from medweave_steps.io.model.network import load_network
from medweave_steps.networks import is_user_class
from medweave_steps.runtime.imports import require


class TorchEngine:
    """A network of torch; see `open_engine`."""

    def __init__(self, model_folder: Path, card: ModelCard, shape: Shape, num_threads: int, device: UsedDevice) -> None:
        self._torch = require("torch", extra=EXTRAS["torch"])
        check_float32(card, "run with torch", do="use the runtime that its model card names")
        name = str(card.architecture.get("class"))
        if is_user_class(name):
            raise UserInputError(
                f"the model '{card.name}' cannot run with torch.",
                seen=f"network {name}, code of a user (model_card.json)",
                expected="a network of MONAI, of medweave or of an installed package",
                do="use --backend openvino or --backend onnxruntime, which run the exported network",
            )
        self._torch.set_num_threads(num_threads)
        # TensorFloat-32 rounds inputs to 10 bits: the figures on the card are those of float32.
        self._torch.backends.cudnn.allow_tf32 = self._torch.backends.cuda.matmul.allow_tf32 = False
        self._network: Any = load_network(model_folder, card).to(device)
        self._card, self._device, self.batch_shape = card, device, shape

    def infer(self, batch_BCIJK: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Run the network once; see `Engine.infer`."""
        batch = np.ascontiguousarray(batch_BCIJK, dtype=np.float32)
        try:
            with self._torch.inference_mode():
                output = self._network(self._torch.from_numpy(batch).to(self._device)).float()
        except RuntimeError as error:
            if self._device == "cuda":
                raise failed_on_gpu(self._card, error) from error
            raise
        check_output(self._card, WEIGHTS_FILE, tuple(output.shape), self.batch_shape)
        logits: npt.NDArray[np.float32] = output.cpu().numpy()
        return logits

    def close(self) -> None:
        """Free the network's memory."""
        self._network = None
