"""Grad-CAM by MONAI: the map of one class of one image, on the grid of the network's input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.explanations import ExplainedLayer
from medweave_core.contracts.model import ModelCard
from medweave_steps.explain.layers import no_gradient, not_finite
from medweave_steps.explain.network import EXTRA, ExplainedNetwork
from medweave_steps.runtime.imports import require

FloatArray = npt.NDArray[np.float32]


class MapMaker:
    """Computes the maps of one network at one layer.

    Source: Selvaraju et al. 2017, ICCV, "Grad-CAM"; `monai.visualize.GradCAM` weights the features of the layer with the means of
        their gradients, sets negative sums to 0, and interpolates linearly.
    """

    def __init__(self, network: ExplainedNetwork, card: ModelCard, layer: ExplainedLayer) -> None:
        visualize = require("monai.visualize", extra=EXTRA)
        self._torch = require("torch", extra=EXTRA)
        self._network, self._card, self._layer = network, card, layer
        # MONAI's own scaling turns the map around: its largest value becomes 0.
        self._gradcam = visualize.GradCAM(
            nn_module=network.module,
            target_layers=network.module_name(layer.name),
            upsampler=_interpolator,
            postprocessing=lambda values: values,
        )

    def logits(self, image_BCIJK: FloatArray) -> FloatArray:
        """Return the network's logits, float32 [B, classes].

        Args:
            image_BCIJK: float32, as `network_input` returns it.
        """
        with self._torch.inference_mode():
            image = self._torch.from_numpy(image_BCIJK).to(self._network.device)
            logits: FloatArray = self._network.module(image).float().cpu().numpy()
        return logits

    def map_IJK(self, image_BCIJK: FloatArray, place: int, *, case_id: str) -> FloatArray:
        """Return the map of one class, float32 [I, J, K] in [0, 1]: divided by its largest value, all 0 for an empty map.

        Args:
            image_BCIJK: float32 [1, C, I, J, K], as `network_input` returns it.
            place: of the class in the output of the network.
            case_id: for the error.
        Raises:
            UserInputError: no gradient flows from the class to the layer, or the network changes its output in place.
            InternalError: the map is not finite.
        """
        image = self._torch.from_numpy(image_BCIJK).to(self._network.device).requires_grad_(True)
        try:
            values = self._gradcam(x=image, class_idx=place)
        except IndexError as error:  # of the gradients, which MONAI collects by a hook
            raise no_gradient(self._card, self._layer, "no gradient") from error
        except RuntimeError as error:
            if isinstance(error, self._torch.OutOfMemoryError):
                raise
            seen = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            raise no_gradient(self._card, self._layer, seen) from error
        map_IJK: FloatArray = values[0, 0].detach().float().cpu().numpy()
        if not np.isfinite(map_IJK).all():
            raise not_finite(self._card, case_id)
        largest = map_IJK.max()
        return map_IJK / largest if largest > 0 else map_IJK


def _interpolator(shape: Sequence[int]) -> Callable[[Any], Any]:
    """Return MONAI's linear interpolation to the shape [I, J, K], also of a map [B, 1, I, J] without an axis of slices."""
    upsampler = require("monai.visualize.visualizer", extra=EXTRA).default_upsampler

    def interpolate(values: Any) -> Any:
        axes = values.ndim - 2
        larger = upsampler(tuple(shape[:axes]))(values)
        return larger.reshape(*larger.shape[:2], *shape)

    return interpolate
