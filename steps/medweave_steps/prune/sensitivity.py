"""Sensitivities: how much a network's loss or outputs depend on a weight or a neuron. A small sensitivity means removable.

Source: PAPERS.md 4.3(d) for the three formulas; Tartaglione et al. 2022, Neural Networks 146:230, "LOss-Based SensiTivity
rEgulaRization" (LOBSTER); Tartaglione et al. 2021, IEEE TNNLS, "SeReNe: Sensitivity-based regularization of neurons"; Tartaglione
et al. 2018, NeurIPS, "Learning sparse neural networks via sensitivity-driven regularization" (`generic`).

Of a network with an output per voxel, the output k of an image is the sum of channel k over all voxels.
For `generic` and `serene` the network must be in evaluation mode: an image's output must not depend on the other images of a batch.
Suffix legend: B batch, C channel, I J K voxel axes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from medweave_steps.runtime.imports import require

Sensitivities = dict[str, Any]
"""Name of a weight or layer to its tensor of sensitivities, 0 or more."""


def prunable_weights(network: Any) -> dict[str, Any]:
    """Return the weights of convolutions and dense layers by name; biases and norms are not pruned one by one."""
    return {name: weight for name, weight in network.named_parameters() if weight.dim() >= 2 and weight.requires_grad}


def lobster(network: Any) -> Sensitivities:
    """Return |dL/dw| of each prunable weight, in its shape, from the gradients of the last backward pass of the loss."""
    torch = require("torch", extra="train")
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.abs()
        for name, weight in prunable_weights(network).items()
    }


def generic(network: Any, image_BCIJK: Any) -> Sensitivities:
    """Return (1/C) sum over the C outputs of |dy_k/dw| for each prunable weight, in its shape; y_k is the mean over the batch."""
    weights = prunable_weights(network)
    outputs_C = _outputs(network(image_BCIJK)) / len(image_BCIJK)
    return _mean_magnitudes(outputs_C, weights, lambda gradient: gradient.abs())


def serene(network: Any, image_BCIJK: Any, layers: Collection[str]) -> Sensitivities:
    """Return (1/C) sum over the C outputs of |dy_k/dp_i| for each neuron i of some layers, averaged over batch and positions.

    Args:
        network: torch module.
        image_BCIJK: float32 batch.
        layers: names of convolutions and dense layers; p_i is their result, before any norm or activation.
    Returns:
        name to [channels of the layer].
    """
    activations: dict[str, Any] = {}

    def recorded(name: str) -> Callable[..., None]:
        return lambda _module, _inputs, output: activations.__setitem__(name, output)

    handles = [network.get_submodule(name).register_forward_hook(recorded(name)) for name in layers]
    try:
        outputs_C = _outputs(network(image_BCIJK))
    finally:
        for handle in handles:
            handle.remove()

    def per_neuron(gradient: Any) -> Any:
        return gradient.abs().flatten(2).mean((0, 2)) if gradient.dim() > 2 else gradient.abs().mean(0)

    return _mean_magnitudes(outputs_C, {name: activations[name] for name in layers if name in activations}, per_neuron)


def _outputs(logits: Any) -> Any:
    """Return each output [C], summed over the batch and over positions."""
    return logits.sum(0) if logits.dim() == 2 else logits.flatten(2).sum((0, 2))


def _mean_magnitudes(outputs_C: Any, tensors: Mapping[str, Any], reduced: Callable[[Any], Any]) -> Sensitivities:
    torch, count = require("torch", extra="train"), len(outputs_C)
    totals: Sensitivities = {}
    for k in range(count if tensors else 0):
        gradients = torch.autograd.grad(
            outputs_C[k], list(tensors.values()), retain_graph=k + 1 < count, allow_unused=True
        )
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            own = reduced(torch.zeros_like(tensor) if gradient is None else gradient) / count
            totals[name] = totals[name] + own if name in totals else own
    return totals
