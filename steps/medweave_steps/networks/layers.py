"""Networks declared as a stack of layers in a YAML file: reading, checking, and the shape after each layer. No torch here.

layers:
  - {kind: conv, channels: 16, kernel: 3}
  - {kind: norm, type: batch}
  - {kind: activation, function: relu}
  - {kind: pool, type: max, size: 2}
  - {kind: dropout, rate: 0.2}
  - {kind: dense, units: outputs}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError
from medweave_steps.networks.types import NetworkOptions, NetworkType
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option, option

NAME = "layer-stack"
OUTPUTS = "outputs"
"""In place of a number: as many as the task has outputs."""
ALL = "all"
"""Size of a pool over the whole image."""
ACTIVATIONS = ("relu", "leaky-relu", "gelu", "silu", "sigmoid", "tanh")
NORMS = ("batch", "group", "instance")
POOLS = ("max", "average")

_MISSING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """One key of a layer; `default` is missing for a required one."""

    expected: str
    is_valid: Callable[[Any], bool]
    default: Any = _MISSING


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_sides(value: Any) -> bool:
    return _is_count(value) or (isinstance(value, list) and len(value) in (2, 3) and all(map(_is_count, value)))


def _is_kernel(value: Any) -> bool:
    return _is_sides(value) and all(side % 2 for side in (value if isinstance(value, list) else [value]))


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _one_of(values: Sequence[str], default: Any = _MISSING) -> _Key:
    return _Key(expected=f"one of {', '.join(values)}", is_valid=lambda value: value in values, default=default)


_COUNT = f"an integer of at least 1, or {OUTPUTS}"
_SIDES = "an integer of at least 1, or a list of one for each axis"

KEYS: Mapping[str, Mapping[str, _Key]] = {
    "conv": {
        "channels": _Key(expected=_COUNT, is_valid=lambda value: value == OUTPUTS or _is_count(value)),
        "kernel": _Key(
            expected="an odd integer, or a list of one for each axis (the image is padded)",
            is_valid=_is_kernel,
            default=3,
        ),
        "stride": _Key(expected=_SIDES, is_valid=_is_sides, default=1),
        "groups": _Key(expected="an integer that divides the channels before and after", is_valid=_is_count, default=1),
    },
    "norm": {
        "type": _one_of(NORMS, "batch"),
        "groups": _Key(expected="with type group, an integer that divides the channels", is_valid=_is_count, default=1),
    },
    "activation": {"function": _one_of(ACTIVATIONS)},
    "pool": {
        "type": _one_of(POOLS),
        "size": _Key(expected=f"{_SIDES}, or {ALL}", is_valid=lambda value: value == ALL or _is_sides(value)),
    },
    "dropout": {"rate": _Key(expected="a number of at least 0 and below 1", is_valid=_is_rate)},
    "dense": {"units": _Key(expected=_COUNT, is_valid=lambda value: value == OUTPUTS or _is_count(value))},
}
"""The keys of each kind of layer, besides `kind`."""


class LayerError(ValueError):
    """Raised for a layer that cannot be built; `place` is its number, from 0."""

    def __init__(self, place: int, seen: str, expected: str, do: str = "") -> None:
        super().__init__(f"layer {place + 1}: {seen}; expected {expected}")
        self.place, self.seen, self.expected, self.do = place, seen, expected, do


def read_layers(path: Path) -> list[dict[str, Any]]:
    """Return the layers of a file, each with all keys of its kind.

    Raises:
        UserInputError: the file cannot be read, or a layer has another form; names the entry and its line.
    """
    entries, nodes = _entries(path)
    try:
        for place, node in enumerate(nodes):
            _check_repeated(place, node)
        layers = [checked_layer(place, entry) for place, entry in enumerate(entries)]
        _check_outputs(layers)
    except LayerError as error:
        raise _located(error, path, nodes) from error
    return layers


def check_shapes(path: Path, arguments: Mapping[str, Any]) -> None:
    """Check that the layers of a file fit one after the other.

    Args:
        arguments: of the network, as the model card has them.
    Raises:
        UserInputError: a layer does not fit; names the entry and its line.
    """
    shape = arguments["input_shape"]
    sides = shape[:2] if shape[2] == 1 else shape
    numbers = {"in_channels": arguments["in_channels"], "outputs": arguments[OUTPUTS]}
    try:
        shapes_after(arguments["layers"], sides=sides, **numbers)
    except LayerError as error:
        raise _located(error, path, _entries(path)[1]) from error


def _entries(path: Path) -> tuple[list[Any], list[Any]]:
    """Return the layers of a file as they are written, and their YAML nodes, which have the lines."""
    yaml = require("yaml", extra="train")
    try:
        text = path.read_text(encoding="utf-8")
        document, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise _bad_file(path, "no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _bad_file(path, " ".join(str(error).split())[:160]) from error
    entries = document.get("layers") if isinstance(document, Mapping) else None
    # Of the node: the document has a repeated key once, and the keys of a merge (<<) as its own.
    keys = [str(key.value) for key, _ in root.value] if isinstance(document, Mapping) else []
    if not isinstance(entries, list) or not entries or keys != ["layers"]:
        named = f"the keys {', '.join(keys)}" if isinstance(document, Mapping) else "no keys"
        raise _bad_file(path, f"{named}; `layers` is {'an empty list' if entries == [] else type(entries).__name__}")
    return entries, list(root.value[0][1].value)


def checked_layer(place: int, entry: Any) -> dict[str, Any]:
    """Return a layer with all keys of its kind.

    Raises:
        LayerError: it has no known kind, an unknown or missing key, or a value that the key cannot have.
    """
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    if not isinstance(kind, str) or kind not in KEYS:
        match = closest(kind, tuple(KEYS)) if isinstance(kind, str) else ""
        seen = f"kind {kind!r}" if isinstance(entry, Mapping) else f"an entry of type {type(entry).__name__}"
        raise LayerError(place, seen, f"kind: one of {', '.join(KEYS)}", match)
    keys = KEYS[kind]
    for key in entry:
        if key != "kind" and key not in keys:
            match = closest(str(key), tuple(keys))
            raise LayerError(place, f"the key {key!r} of {kind}", f"kind, {', '.join(keys)}", match)
    layer = {"kind": kind} | {key: entry.get(key, rule.default) for key, rule in keys.items()}
    for key, rule in keys.items():
        if layer[key] is _MISSING:
            raise LayerError(place, f"{kind} without {key}", f"{key}: {rule.expected}")
        if not rule.is_valid(layer[key]):
            raise LayerError(place, f"{key}: {layer[key]!r}", f"{key}: {rule.expected}")
    return layer


def _check_repeated(place: int, node: Any) -> None:
    """Refuse a key that an entry has twice; YAML would keep the last one."""
    names = [key.value for key, _ in node.value] if node.id == "mapping" else []
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise LayerError(place, f"the key {twice[0]!r} twice", "every key once")


def _check_outputs(layers: Sequence[Mapping[str, Any]]) -> None:
    sized = {"conv": "channels", "dense": "units"}
    for place, layer in enumerate(layers):
        is_last = place == len(layers) - 1
        has_outputs = layer.get(sized.get(layer["kind"], "")) == OUTPUTS
        if is_last != has_outputs:
            seen = f"{layer['kind']} as the last layer" if is_last else f"{OUTPUTS} before the last layer"
            raise LayerError(
                place, seen,
                f"a last layer `dense` with units: {OUTPUTS} (one logit per class) or `conv` with channels: {OUTPUTS} (one logit "
                "per voxel), and no other one",
            )  # fmt: skip


def shapes_after(
    layers: Sequence[Mapping[str, Any]], *, in_channels: int, outputs: int, sides: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the shape after each layer: channels and sides, or units alone after a dense layer.

    Args:
        outputs: number of outputs of the task.
        sides: of an input, two for images and three for volumes.
    Raises:
        LayerError: a layer does not fit the shape before it.
    """
    shape: tuple[int, ...] = (in_channels, *sides)
    shapes = []
    for place, layer in enumerate(layers):
        shape = _shape_after(place, layer, shape, outputs)
        shapes.append(shape)
    return shapes


def sides_of(value: int | str | Sequence[int], sides: Sequence[int]) -> list[int]:
    """Return a key's number for each axis: one number is that of all axes, and `all` the sides themselves."""
    if value == ALL:
        return list(sides)
    return [value] * len(sides) if isinstance(value, int) else [int(side) for side in value]


def _shape_after(place: int, layer: Mapping[str, Any], shape: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    kind, (channels, *sides) = layer["kind"], shape
    if kind == "dense":
        return (outputs if layer["units"] == OUTPUTS else layer["units"],)
    if kind in ("conv", "pool", "norm") and not sides:
        raise LayerError(place, f"{kind} after a dense layer", f"{kind} before the first dense layer")
    if kind == "norm" and layer["type"] == "group" and channels % layer["groups"]:
        raise LayerError(place, f"groups: {layer['groups']} of {channels} channels", "a divisor of the channels")
    if kind == "norm" and layer["type"] == "instance" and math.prod(sides) == 1:
        raise LayerError(
            place, "an instance norm of one value in each channel", "at least two voxels or pixels: one has no variance",
            "put the norm before the pool or stride that leaves one voxel, or use the type batch or group",
        )  # fmt: skip
    if kind not in ("conv", "pool"):
        return shape
    for key in ("kernel", "stride", "size"):
        if isinstance(layer.get(key), list) and len(layer[key]) != len(sides):
            raise LayerError(place, f"{key}: {layer[key]}", f"{len(sides)} numbers, one for each axis of the data")
    if kind == "pool":
        sizes = sides_of(layer["size"], sides)
        if any(size > side for size, side in zip(sizes, sides, strict=True)):
            raise LayerError(
                place, f"a pool of {_by(sizes)} on {_by(sides)}", "an image or volume of at least the pool's size",
                "leave out a pool or a stride before, or preprocess the data with larger images",
            )  # fmt: skip
        return (channels, *(side // size for side, size in zip(sides, sizes, strict=True)))
    out = outputs if layer["channels"] == OUTPUTS else layer["channels"]
    if channels % layer["groups"] or out % layer["groups"]:
        raise LayerError(
            place, f"groups: {layer['groups']} from {channels} to {out} channels", "a divisor of both numbers"
        )
    strides = sides_of(layer["stride"], sides)
    return (out, *(math.ceil(side / stride) for side, stride in zip(sides, strides, strict=True)))


def _located(error: LayerError, path: Path, nodes: Sequence[Any]) -> UserInputError:
    """Return the error of a layer with its entry and line in the file."""
    line = nodes[error.place].start_mark.line + 1
    return UserInputError(
        f"the layer stack of --network-file cannot be used: {path.name}, line {line}, entry {error.place + 1}.",
        seen=error.seen,
        expected=error.expected,
        do=error.do or "correct this entry of the file",
    )


def _bad_file(path: Path, seen: str) -> UserInputError:
    return UserInputError(
        "the file of --network-file cannot be read.",
        seen=f"{path.name}: {seen}",
        expected="a YAML document with the one key `layers`: a list of layers, each with its `kind`",
        do="correct the file; docs/how-to/bring-a-network.md has an example",
    )


def _by(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))


def _arguments(config: Any, channels: int) -> dict[str, Any]:
    return {
        "in_channels": channels, "outputs": 1, "input_shape": list(config.patch_shape),
        "layers": read_layers(config.network_file),
    }  # fmt: skip


def _check(config: Any) -> None:
    has_file = config.network_file is not None
    check_option(has_file, "network_file", config.network_file, f"a YAML file of layers, with --network {NAME}")


LAYER_STACK = NetworkType(
    class_name="medweave_steps.networks.layer_stack.LayerStack",
    arguments=_arguments,
    output_kind=None,
    spatial_dims=(2, 3),
    out_channels=OUTPUTS,
    check=_check,
    has_lean_imports=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpOptions(NetworkOptions):
    """Options of the multi-layer perceptron; the defaults are García Henao et al. 2020, ICITCS, scalability model."""

    units: int = option("units of each hidden layer of mlp", default=512)
    hidden_layers: int = option("hidden layers of mlp", default=4)
    hidden_dropout: float = option("dropout rate after each hidden layer of mlp, in training", default=0.2)


def _mlp_arguments(config: Any, channels: int) -> dict[str, Any]:
    options = config.network_options
    hidden = [
        {"kind": "dense", "units": options.units},
        {"kind": "activation", "function": "relu"},
        {"kind": "dropout", "rate": options.hidden_dropout},
    ]
    layers = [*hidden * options.hidden_layers, {"kind": "dense", "units": OUTPUTS}]
    return {"in_channels": channels, "outputs": 1, "input_shape": list(config.patch_shape), "layers": layers}


def _check_mlp(config: Any) -> None:
    options = config.network_options
    for name in ("units", "hidden_layers"):
        check_option(getattr(options, name) >= 1, name, getattr(options, name), "at least 1")
    check_option(0 <= options.hidden_dropout < 1, "hidden_dropout", options.hidden_dropout, "0 or more, less than 1")


MLP = NetworkType(
    class_name=LAYER_STACK.class_name,
    arguments=_mlp_arguments,
    output_kind="classes",
    spatial_dims=(2,),
    out_channels=OUTPUTS,
    check=_check_mlp,
    Options=MlpOptions,
    has_lean_imports=True,
)
"""A layer stack of equal hidden layers with ReLU and dropout."""
