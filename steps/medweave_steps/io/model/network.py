"""From a model card and its weights to a torch network, and back. Imports torch and MONAI inside its functions."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.io.model.folder import BUNDLE_WEIGHTS_FILE, WEIGHTS_FILE, check_torch_network, listed_file
from medweave_steps.networks import is_user_class, type_of_class
from medweave_steps.networks.user_code import NetworkCode, check_unchanged, failed, load_class, no_consent, read_code
from medweave_steps.runtime.imports import require, require_lean, skip_torch_compiler

FLAT_INPUT = "2-D"
"""`input` of the architecture of a network that takes images without an axis of slices."""

# A card may come from another institution: it may select MONAI's networks, medweave's and those of installed packages that register
# them as networks of medweave; it must never name other code to run.
_ALLOWED_CLASS = re.compile(r"(monai\.networks\.nets|medweave_steps\.networks\.distmis)\.[A-Za-z][A-Za-z0-9_]*")


def build_network(architecture: Mapping[str, Any], *, code: NetworkCode | None = None) -> Any:
    """Return the torch network that a card's `architecture` describes, with fresh weights, on the CPU.

    Args:
        architecture: `{"class": "monai.networks.nets.UNet", "arguments": {...}}`, with `channels` for a network that was pruned;
            see `networks.channels`.
        code: code of the user that may be run, for a class `module:Class`; see `network_code`.
    Returns:
        a torch.nn.Module.
    Raises:
        UserInputError: the class is none of MONAI, medweave or an installed package, or does not take these arguments.
        BackendMissingError: torch or MONAI is not installed.
    """
    name, arguments = architecture.get("class"), architecture.get("arguments")
    if isinstance(name, str) and is_user_class(name) and isinstance(arguments, Mapping):
        return _with_channels(_build_user_network(name, arguments, code), architecture)
    known = type_of_class(name) if isinstance(name, str) else None
    allowed = isinstance(name, str) and (known or _ALLOWED_CLASS.fullmatch(name))
    if not isinstance(name, str) or not allowed or not isinstance(arguments, Mapping):
        raise _bad_architecture(f"class {name!r}, arguments of type {type(arguments).__name__}")
    torch = require("torch", extra="export")
    if known and known.has_lean_imports:
        skip_torch_compiler()
        require_lean("monai", extra="export")
    else:
        require("monai", extra="export")
    module, _, word = name.rpartition(".")
    network_class = getattr(importlib.import_module(module), word, None)
    if not isinstance(network_class, type) or not issubclass(network_class, torch.nn.Module):
        raise _bad_architecture(f"class {name!r}, which the installed {module.partition('.')[0]} does not have")
    try:
        network = network_class(**arguments)
    except (TypeError, ValueError, KeyError) as error:
        raise _bad_architecture(f"{name}: {error}") from error
    return _with_channels(network, architecture)


def _with_channels(network: Any, architecture: Mapping[str, Any]) -> Any:
    """Return the network with the channels that pruning left, if its architecture has any.

    Raises:
        UserInputError: the layers of the architecture are not those of the network.
    """
    channels = architecture.get("channels", {})
    if not channels:
        return network
    from medweave_steps.networks.channels import apply_channels

    try:
        return apply_channels(network, channels)
    except (ValueError, TypeError, AttributeError) as error:
        raise _bad_architecture(f"{architecture['class']}: {error}") from error


def _build_user_network(name: str, arguments: Mapping[str, Any], code: NetworkCode | None) -> Any:
    if code is None:
        raise no_consent(name)
    torch = require("torch", extra="export")
    network_class = load_class(name, code)
    try:
        network = network_class(**arguments)
        if not isinstance(network, torch.nn.Module):
            raise TypeError(f"{name} is not derived from torch.nn.Module")
    except Exception as error:  # code of the user may raise anything
        raise failed(name, code, "does not build", error) from error
    return network


def network_code(folder: Path, card: ModelCard, *, allow_code: bool) -> NetworkCode | None:
    """Return the code of the user that a model's network is in, None for a network of medweave, MONAI or an installed package.

    Nothing is imported. The code of a file is the model folder's copy of it.

    Args:
        allow_code: consent of the user to run it.
    Raises:
        UsageError: the network is code of the user, without consent to run it.
        UserInputError: the code is missing, or was changed after the model was trained.
    """
    name, entry = card.architecture.get("class"), card.architecture.get("code")
    if not isinstance(name, str) or not is_user_class(name):
        return None
    if not allow_code:
        raise no_consent(name)
    if not isinstance(entry, Mapping):
        raise _bad_architecture(f"class {name!r} without the digest of its code")
    file = entry.get("file")
    code = read_code(name, listed_file(folder, card, str(file), made_by="train") if file else None)
    check_unchanged(code, entry, name=name)
    return code


def load_network(folder: Path, card: ModelCard, *, code: NetworkCode | None = None) -> Any:
    """Return the card's network with the folder's weights (`models/model.safetensors`), in evaluation mode, float32, on the CPU.

    Args:
        code: as `network_code` returns it.
    Returns:
        a torch.nn.Module from images [B, C, I, J, K] to logits [B, outputs, I, J, K], or [B, classes]; with `one_logit` for a
        Bundle's network that ends in two channels.
    Raises:
        UserInputError: as `load_plain`.
    """
    return with_card_output(load_plain(folder, card, code=code), card).eval()


def with_card_output(network: Any, card: ModelCard) -> Any:
    """Return a network from images [B, C, I, J, K] to the card's outputs: the network of `load_plain`, or modules around it."""
    network = takes_slices(network, card.architecture)
    return network if card.output.activation == "softmax" else one_logit(network, card.architecture)


def load_plain(folder: Path, card: ModelCard, *, code: NetworkCode | None = None) -> Any:
    """Return the network as its architecture has it, with the folder's weights; it can be trained further and saved again.

    Raises:
        UserInputError: the weights cannot be read, or belong to another architecture (names the first key that differs), or the
            model was imported from an ONNX file.
    """
    safetensors = require("safetensors.torch", extra="export")
    check_torch_network(card)
    path = listed_file(folder, card, WEIGHTS_FILE, made_by="train")
    network = build_network(card.architecture, code=code)
    try:
        weights = safetensors.load_file(str(path))
    except FileNotFoundError as error:
        raise _bad_weights(card, "no such file") from error
    except Exception as error:  # safetensors raises its own class, which is no public name in every version
        raise _bad_weights(card, str(error)) from error
    check_weights(weights, network, model=card.name)
    network.load_state_dict(weights)
    return network


def takes_slices(network: Any, architecture: Mapping[str, Any]) -> Any:
    """Return a network that takes images [B, C, I, J, 1], where its own input [B, C, I, J] has no axis of slices.

    Such a network says so in its architecture, `"input": "2-D"`.

    Returns:
        the network itself, or a module around it.
    """
    if architecture.get("input") != FLAT_INPUT:
        return network
    torch = require("torch", extra="export")
    module: Any = torch.nn.Module

    class Slice(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, image_BCIJK: Any) -> Any:
            return self.network(image_BCIJK.squeeze(-1))

    return Slice()


def one_logit(network: Any, architecture: Mapping[str, Any]) -> Any:
    """Return a network whose single output channel is the logit of the lesion's probability.

    A network that ends in softmax over (background, lesion) says so in its architecture, `"output": "softmax"`. Its lesion
    probability exp(b) / (exp(a) + exp(b)) is sigmoid(b - a), so the difference of the two channels takes their place.

    Returns:
        the network itself, or a module around it.
    """
    if architecture.get("output", "sigmoid") == "sigmoid":
        return network
    torch = require("torch", extra="export")

    module: Any = torch.nn.Module

    class Difference(module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, image_BCIJK: Any) -> Any:
            logits = self.network(image_BCIJK)
            return logits[:, 1:2] - logits[:, 0:1]

    return Difference()


def save_weights(folder: Path, network: Any) -> None:
    """Write a network's weights into a model folder: safetensors, which we read, and `model.pt`, which Bundle users read."""
    torch = require("torch", extra="train")
    safetensors = require("safetensors.torch", extra="train")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    (folder / WEIGHTS_FILE).parent.mkdir(parents=True, exist_ok=True)
    # By plain writes: the errors of the libraries' own functions hide the cause, such as a full disk.
    (folder / WEIGHTS_FILE).write_bytes(safetensors.save(state))
    buffer = io.BytesIO()
    torch.save(state, buffer)
    (folder / BUNDLE_WEIGHTS_FILE).write_bytes(buffer.getbuffer())


def check_weights(weights: Mapping[str, Any], network: Any, *, model: str) -> None:
    """Compare the names and shapes of weights with those of a network.

    Raises:
        UserInputError: they differ; the message names the first differing key in order of name.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    seen = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if expected == seen:
        return
    key = min(name for name in expected.keys() | seen.keys() if expected.get(name) != seen.get(name))
    say = {
        name: f"'{key}' of shape {shapes[key]}" if key in shapes else f"no key '{key}'"
        for name, shapes in (("seen", seen), ("expected", expected))
    }
    raise UserInputError(
        f"the weights of '{model}' do not match its architecture.",
        seen=f"{say['seen']} (first difference of {sum(expected.get(k) != seen.get(k) for k in expected | seen)})",
        expected=f"{say['expected']}, as {type(network).__name__} with the arguments of the model card",
        do="use weights and model card of the same training run",
    )


def _bad_architecture(seen: str) -> UserInputError:
    return UserInputError(
        "the network of the model card cannot be built.",
        seen=seen,
        expected="a class of monai.networks.nets or medweave_steps.networks, with valid arguments",
        do="correct `architecture` in the model card, or train the model with this version of medweave",
    )


def _bad_weights(card: ModelCard, seen: str) -> UserInputError:
    return UserInputError(
        f"the weights of the model '{card.name}' cannot be read.",
        seen=seen,
        expected=f"a complete {WEIGHTS_FILE}",
        do="copy the complete model folder again, or create it again",
    )
