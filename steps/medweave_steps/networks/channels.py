"""Networks with fewer channels than their class and arguments give them: the `channels` of a model card's architecture.

    "channels": {"model.0.conv.unit0.conv": [1, 16], "model.0.conv.unit0.adn.N": [16, 16]}

names the layers whose numbers of input and output channels differ from those of the class. Imports torch: `io.model.network`
imports this module when such a network is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def sizes_of(layer: Any) -> tuple[int, int] | None:
    """Return the numbers of input and output channels of a layer; None for a layer whose channels cannot be removed.

    Such layers are convolutions (plain and depthwise), dense layers, batch and instance norms, and PReLU with one slope for each
    channel.
    """
    if isinstance(layer, _ConvNd):
        is_plain, is_depthwise = layer.groups == 1, layer.groups == layer.in_channels == layer.out_channels
        is_depthwise = is_depthwise and not isinstance(layer, _ConvTransposeNd)
        return (layer.in_channels, layer.out_channels) if is_plain or is_depthwise else None
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, _NormBase):
        return layer.num_features, layer.num_features
    if isinstance(layer, torch.nn.PReLU):
        return layer.num_parameters, layer.num_parameters
    return None


def is_depthwise(layer: Any) -> bool:
    """Return True for a convolution that filters each channel alone."""
    return isinstance(layer, _ConvNd) and layer.groups > 1


def keep_channels(layer: Any, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Remove all channels of a layer but these, in place.

    Args:
        layer: one that `sizes_of` has sizes for.
        inputs, outputs: indices of the retained channels; of norms, depthwise convolutions and PReLU only `outputs` count.
    """
    if isinstance(layer, _ConvNd):
        _keep_in_convolution(layer, inputs, outputs)
    elif isinstance(layer, torch.nn.Linear):
        layer.weight = _kept(layer.weight, outputs, inputs)
        layer.in_features, layer.out_features = len(inputs), len(outputs)
    else:
        for name in _STATISTICS:
            if getattr(layer, name, None) is not None:
                setattr(layer, name, _kept(getattr(layer, name), outputs))
        name = "num_features" if isinstance(layer, _NormBase) else "num_parameters"
        setattr(layer, name, len(outputs))
        return
    if layer.bias is not None:
        layer.bias = _kept(layer.bias, outputs)


def _keep_in_convolution(layer: Any, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    if is_depthwise(layer):
        layer.weight = _kept(layer.weight, outputs)
        layer.in_channels = layer.out_channels = layer.groups = len(outputs)
        return
    axes = (inputs, outputs) if isinstance(layer, _ConvTransposeNd) else (outputs, inputs)
    layer.weight = _kept(layer.weight, *axes)
    layer.in_channels, layer.out_channels = len(inputs), len(outputs)


def _kept(tensor: Any, *indices: Sequence[int]) -> Any:
    """Return the tensor with the retained indices of its first axes, as a parameter where it is one."""
    result = tensor.detach()
    for axis, retained in enumerate(indices):
        result = result.index_select(axis, torch.tensor(list(retained), dtype=torch.int64, device=tensor.device))
    result = result.clone()
    return torch.nn.Parameter(result, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else result


def apply_channels(network: Any, channels: Mapping[str, Any]) -> Any:
    """Return the network with the numbers of channels of a model card, changed in place; which weights remain is arbitrary.

    Args:
        channels: layer to numbers of input and output channels.
    Raises:
        ValueError: there is no such layer, its channels cannot be removed, or it has fewer channels than the card.
    """
    for name, sizes in channels.items():
        try:
            layer = network.get_submodule(name)
        except AttributeError as error:
            raise ValueError(f"channels: the network has no layer '{name}'") from error
        own = sizes_of(layer)
        is_pair = isinstance(sizes, Sequence) and len(sizes) == 2 and all(isinstance(size, int) for size in sizes)
        if own is None or not is_pair or not all(1 <= size <= most for size, most in zip(sizes, own, strict=True)):
            raise ValueError(f"channels: {name} has {list(own) if own else 'no channels to remove'}, not {sizes!r}")
        keep_channels(layer, range(sizes[0]), range(sizes[1]))
    return network


def channels_of(network: Any, whole: Any) -> dict[str, list[int]]:
    """Return the `channels` of a model card: the layers of a network whose numbers differ from those of the whole network."""
    own = {name: sizes_of(layer) for name, layer in network.named_modules()}
    pairs = ((name, own.get(name), sizes_of(layer)) for name, layer in whole.named_modules())
    return {name: list(sizes) for name, sizes, before in pairs if sizes and sizes != before}
