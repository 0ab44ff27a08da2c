"""Which channels of a network's layers belong together, found by running the network once.

Each channel that a layer makes gets a number, which the functions between the layers pass on: a concatenation joins lists of
numbers, a sum makes the numbers of both sides equal, a depthwise convolution keeps them, flattening repeats them. A channel can
be removed if every layer that makes, normalizes or reads its number can do without. A function that this module does not
follow makes the channels of its inputs permanent, and is recorded with the layer that calls it.

Imports torch. Suffix legend: B batch, C channel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from medweave_steps.networks.channels import is_depthwise, keep_channels, sizes_of

_EACH_CHANNEL = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "sigmoid", "sigmoid_", "tanh", "softplus", "dropout", "dropout2d", "dropout3d", "dropout_", "contiguous", "clone",
    "detach", "float", "to", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "interpolate", "pad", "boolean_dispatch", "fn",
    "_max_pool2d", "_max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
}  # fmt: skip
_TWO_INPUTS = {
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "mul", "mul_", "__mul__", "__rmul__", "div", "__truediv__",
}  # fmt: skip
_NO_CHANNELS = {"size", "dim", "__get__", "numel", "is_floating_point", "stride", "is_contiguous", "__len__", "item"}


@dataclass(slots=True)
class _Layer:
    inputs: list[int]
    outputs: list[int]


@dataclass(frozen=True, slots=True)
class _Labels:
    """The numbers of a tensor's channels, which lie along one of its axes."""

    axis: int
    numbers: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGroup:
    """Channels that are removed together: those of the layers that make them, channel by channel.

    Attributes:
        layers: that make these channels, in order of their names.
        channels: numbers of the channels; removing one removes it from every layer.
        made: for each channel, the layers that make it, each with the index of the channel there.
    """

    layers: tuple[str, ...]
    channels: tuple[int, ...]
    made: Mapping[int, Sequence[tuple[str, int]]]


class ChannelGraph:
    """The channels of a network.

    Attributes:
        macs: multiplications with weights of one input, batch size 1.
        permanent: layer to the reason why its channels cannot be removed.
    """

    def __init__(self) -> None:
        self.layers: dict[str, _Layer] = {}
        self.macs = 0
        self.permanent: dict[str, str] = {}
        self._makers: dict[int, list[tuple[str, int]]] = {}
        self._parent: list[int] = []
        self._fixed: dict[int, str] = {}

    def root(self, number: int) -> int:
        """Return the number that represents all channels equal to this one."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def groups(self) -> list[ChannelGroup]:
        """Return the groups with channels that can be removed, in the order in which the network makes them."""
        fixed = {self.root(number) for number in self._fixed}
        made: dict[int, list[tuple[str, int]]] = {}
        for number, makers in self._makers.items():
            made.setdefault(self.root(number), []).extend(makers)
        together: list[tuple[set[str], list[int]]] = []
        for root, makers in made.items():
            names = {name for name, _ in makers}
            joined = [group for group in together if group[0] & names]
            together = [group for group in together if not group[0] & names]
            roots = [number for group in joined for number in group[1]]
            together.append((names.union(*(group[0] for group in joined)), [*roots, root]))
        order = list(self.layers)
        groups = [
            ChannelGroup(
                layers=tuple(sorted(names, key=order.index)),
                channels=tuple(root for root in roots if root not in fixed),
                made={root: tuple(made[root]) for root in roots},
            )
            for names, roots in together
        ]
        return sorted((group for group in groups if group.channels), key=lambda group: order.index(group.layers[0]))

    def remove(self, network: Any, channels: Sequence[int], *, shares_weights: bool = False) -> Any:
        """Return a copy of the network without these channels.

        Args:
            network: the one that was traced.
            channels: numbers of `ChannelGroup.channels`.
            shares_weights: layers that lose no channel share weights and statistics with those of the network.
        """
        shared = [*network.parameters(), *network.buffers()] if shares_weights else []
        removed, smaller = set(channels), copy.deepcopy(network, {id(tensor): tensor for tensor in shared})
        for name, layer in self.layers.items():
            remaining = [
                [place for place, number in enumerate(numbers) if self.root(number) not in removed]
                for numbers in (layer.inputs, layer.outputs)
            ]
            if [len(remaining[0]), len(remaining[1])] != [len(layer.inputs), len(layer.outputs)]:
                keep_channels(smaller.get_submodule(name), *remaining)
        return smaller

    # -- while the network runs -----------------------------------------------------------------------------------

    def new(self, count: int) -> list[int]:
        """Return numbers of new channels."""
        first = len(self._parent)
        self._parent += range(first, first + count)
        return list(range(first, first + count))

    def tie(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Make channels equal, one to one."""
        for a, b in zip(one, other, strict=True):
            self._parent[self.root(b)] = self.root(a)

    def fix(self, numbers: Sequence[int], reason: str) -> None:
        """Make channels permanent."""
        for number in numbers:
            self._fixed.setdefault(number, reason)

    def made_by(self, name: str, numbers: Sequence[int]) -> None:
        """Record the layer that makes these channels."""
        for place, number in enumerate(numbers):
            self._makers.setdefault(number, []).append((name, place))

    def explain(self) -> None:
        """Fill `permanent` when the network has run."""
        reasons = {self.root(number): reason for number, reason in self._fixed.items()}
        for number, makers in self._makers.items():
            if (reason := reasons.get(self.root(number))) is not None:
                for name, _ in makers:
                    self.permanent.setdefault(name, reason)


def trace_channels(network: Any, input_shape: Sequence[int]) -> ChannelGraph:
    """Run a copy of a network once, in training mode, and return its channels.

    In training mode also the outputs for deep supervision are seen.

    Args:
        network: a torch module of one input.
        input_shape: C and the sides of an input.
    """
    own = copy.deepcopy(network).cpu().train()
    image = torch.zeros(2, *input_shape)  # a batch norm needs more than one value of each channel
    follower = _Follower(own)
    for name, module in own.named_modules():
        module.register_forward_pre_hook(follower.enter(name), prepend=True)
        module.register_forward_hook(lambda *_: follower.leave())
    follower.label(image, _Labels(1, follower.fixed_new(input_shape[0], "a channel of the image")))
    with torch.no_grad(), follower:
        outputs = own(image)
    follower.fix_all(outputs, "an output of the network")
    follower.graph.explain()
    return follower.graph


class _Follower(TorchFunctionMode):  # type: ignore[misc]  # torch is not imported for types
    """Follows the channels through the functions of a network that runs."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.graph = ChannelGraph()
        self._modules = dict(network.named_modules())
        self._names: dict[int, str] = {}
        for name, module in self._modules.items():
            for weight in module.parameters(recurse=False):  # of two layers, a weight is the weight of none
                self._names[id(weight)] = "" if id(weight) in self._names else name
        self._labels = WeakIdKeyDictionary()  # tensors are freed as soon as the network does not use them
        self._stack: list[str] = []

    def enter(self, name: str) -> Callable[..., None]:
        """Return a hook that records the layer which is running."""
        return lambda *_: self._stack.append(name)

    def leave(self) -> None:
        """End the layer which is running."""
        self._stack.pop()

    def label(self, tensor: Any, labels: _Labels | None) -> None:
        """Record the channels of a tensor."""
        if labels is not None:
            self._labels[tensor] = labels

    def of(self, tensor: Any) -> _Labels | None:
        """Return the channels of a tensor; None if its channels are not followed."""
        labels: _Labels | None = self._labels.get(tensor)
        return labels

    def fixed_new(self, count: int, reason: str) -> list[int]:
        """Return numbers of new permanent channels."""
        numbers = self.graph.new(count)
        self.graph.fix(numbers, reason)
        return numbers

    def fix_all(self, values: Any, reason: str) -> None:
        """Make the channels of all tensors in these values permanent."""
        for tensor in _tensors(values):
            if (labels := self.of(tensor)) is not None:
                self.graph.fix(labels.numbers, reason)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch and record the channels of its result."""
        kwargs = kwargs or {}
        before = tuple(args[0].shape) if args and isinstance(args[0], torch.Tensor) else ()
        result = func(*args, **kwargs)
        name, results = getattr(func, "__name__", str(func)), _tensors(result)
        if (name in _NO_CHANNELS and not results) or not self._has_labels((args, kwargs)):
            return result
        labels = None
        if isinstance(result, torch.Tensor) and not self._has_labels(kwargs):
            labels = self._labels_after(name, result, before, args, kwargs)
        if labels is not None and result.shape[labels.axis] == len(labels.numbers):
            self.label(result, labels)
        else:
            self._give_up(name, (args, kwargs), results)
        return result

    def _labels_after(self, name: str, result: Any, before: Any, args: Any, kwargs: Any) -> _Labels | None:
        """Return the channels of a function's result, None for a function that is not followed."""
        if name in _EACH_CHANNEL:
            return self._passed(args[0], result)
        if name in _TWO_INPUTS:
            return self._joined(args, result)
        rule = _RULES.get(name)
        labels: _Labels | None = rule(self, result, before, *args, **kwargs) if rule else None
        return labels

    def _has_labels(self, values: Any) -> bool:
        return any(self.of(tensor) is not None for tensor in _tensors(values))

    def _give_up(self, function: str, inputs: Any, results: Sequence[Any]) -> None:
        """Make the channels of a function's inputs permanent, and those of its results, too."""
        layer = self._stack[-1] if self._stack and self._stack[-1] else "the network"
        reason = f"{layer} calls {function}, through which channels are not followed"
        self.fix_all(inputs, reason)
        for result in results:
            if result.dim() > 1:
                self.label(result, _Labels(1, self.fixed_new(result.shape[1], reason)))

    def _passed(self, tensor: Any, result: Any) -> _Labels | None:
        return self.of(tensor) if result.dim() == tensor.dim() else None

    def _joined(self, args: Any, result: Any) -> _Labels | None:
        tensors = [value for value in args[:2] if isinstance(value, torch.Tensor) and value.dim()]
        labels = [self.of(tensor) for tensor in tensors]
        first = labels[0] if labels else None
        for tensor, own in zip(tensors, labels, strict=True):
            if first is None or own is None or own.axis != first.axis or tensor.dim() != result.dim():
                return None
            if len(own.numbers) != result.shape[own.axis]:
                return None
            self.graph.tie(first.numbers, own.numbers)
        return first

    # -- layers ---------------------------------------------------------------------------------------------------

    def linear_layer(self, tensor: Any, weight: Any, axis: int, per_output: int, result: Any) -> _Labels | None:
        """Record a convolution or dense layer, and return the channels that it makes.

        Args:
            axis: of the channels, in the input and in the output.
            per_output: multiplications for each value of the output.
        """
        self.graph.macs += per_output * result.numel() // len(result)
        name, labels = self._names.get(id(weight)), self.of(tensor)
        if not name or labels is None or labels.axis != axis or sizes_of(self._modules[name]) is None:
            return None
        module = self._modules[name]
        numbers = labels.numbers if is_depthwise(module) else self.graph.new(result.shape[axis])
        self._record(name, labels.numbers, numbers)
        if not is_depthwise(module):
            self.graph.made_by(name, numbers)
        return _Labels(axis, numbers)

    def norm_layer(self, tensor: Any) -> _Labels | None:
        """Record the layer that is running, which has values for each channel, and return the channels of its input."""
        labels, name = self.of(tensor), self._stack[-1] if self._stack else ""
        if labels is None or labels.axis != 1:  # it normalizes another axis
            return labels
        if sizes_of(self._modules[name]) is None:
            return None
        self._record(name, labels.numbers, labels.numbers)
        return labels

    def _record(self, name: str, inputs: list[int], outputs: list[int]) -> None:
        before = self.graph.layers.setdefault(name, _Layer(inputs, outputs))
        self.graph.tie(before.inputs, inputs)  # a layer that is called twice
        self.graph.tie(before.outputs, outputs)


def _tensors(values: Any) -> list[Any]:
    """Return all tensors in a value, or in the lists, tuples and mappings in it."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, Mapping):
        values = list(values.values())
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, list | tuple) else []


def _convolution(follower: _Follower, result: Any, before: Any, tensor: Any, weight: Any, *_: Any, **__: Any) -> Any:
    return follower.linear_layer(tensor, weight, 1, math.prod(weight.shape[1:]), result)


def _transposed(follower: _Follower, result: Any, before: Any, tensor: Any, weight: Any, *_: Any, **__: Any) -> Any:
    products = tensor.numel() * math.prod(weight.shape[1:])
    return follower.linear_layer(tensor, weight, 1, products // max(1, result.numel()), result)


def _dense(follower: _Follower, result: Any, before: Any, tensor: Any, weight: Any, *_: Any, **__: Any) -> Any:
    return follower.linear_layer(tensor, weight, tensor.dim() - 1, weight.shape[1], result)


def _norm(follower: _Follower, result: Any, before: Any, tensor: Any, *_: Any, **__: Any) -> Any:
    return follower.norm_layer(tensor)


def _prelu(follower: _Follower, result: Any, before: Any, tensor: Any, weight: Any, *_: Any, **__: Any) -> Any:
    return follower.of(tensor) if weight.numel() == 1 else follower.norm_layer(tensor)


def _cat(follower: _Follower, result: Any, before: Any, tensors: Any, dim: int = 0, axis: int | None = None) -> Any:
    labels = [own for own in map(follower.of, tensors) if own is not None]
    axis = (dim if axis is None else axis) % result.dim()
    if len(labels) < len(tensors) or any(own.axis != labels[0].axis for own in labels):
        return None
    if axis == labels[0].axis:
        return _Labels(axis, [number for own in labels for number in own.numbers])
    for own in labels[1:]:
        follower.graph.tie(labels[0].numbers, own.numbers)
    return labels[0]


def _reshaped(follower: _Follower, result: Any, before: Any, tensor: Any, *_: Any, **__: Any) -> Any:
    """Follow channels that stay on their axis, or are flattened together with all axes after them."""
    labels, shape = follower.of(tensor), tuple(result.shape)
    if labels is None:
        return None
    axis, count = labels.axis, len(labels.numbers)
    if shape[: axis + 1] == before[: axis + 1]:
        return labels
    if shape[:axis] == before[:axis] and len(shape) == axis + 1:
        return _Labels(axis, [number for number in labels.numbers for _ in range(shape[axis] // count)])
    return None


def _mean(
    follower: _Follower, result: Any, before: Any, tensor: Any, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    labels = follower.of(tensor)
    axes = {axis % tensor.dim() for axis in ([dim] if isinstance(dim, int) else dim or range(tensor.dim()))}
    if labels is None or labels.axis in axes:
        return None
    return _Labels(labels.axis - sum(axis < labels.axis for axis in axes if not keepdim), labels.numbers)


def _transpose(follower: _Follower, result: Any, before: Any, tensor: Any, dim0: int, dim1: int) -> Any:
    labels, one, other = follower.of(tensor), dim0 % tensor.dim(), dim1 % tensor.dim()
    return None if labels is None else _Labels({one: other, other: one}.get(labels.axis, labels.axis), labels.numbers)


_RULES: Mapping[str, Callable[..., Any]] = {
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution, "conv_transpose2d": _transposed,
    "conv_transpose3d": _transposed, "linear": _dense, "batch_norm": _norm, "instance_norm": _norm,
    "prelu": _prelu, "cat": _cat, "concat": _cat, "flatten": _reshaped, "view": _reshaped, "reshape": _reshaped,
    "squeeze": _reshaped, "unsqueeze": _reshaped, "mean": _mean, "transpose": _transpose,
}  # fmt: skip
"""Functions of torch by name, besides those that treat each channel alone."""
