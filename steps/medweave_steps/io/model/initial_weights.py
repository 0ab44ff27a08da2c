"""Weights to begin a training with: of a model folder, a MONAI Bundle or a file with a state dict. No code of these is run."""

from __future__ import annotations

import fnmatch
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_core.errors import UserInputError
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import (
    BUNDLE_WEIGHTS_FILE,
    CARD_FILE,
    WEIGHTS_FILE,
    card_sha256,
    check_torch_network,
    listed_file,
    read_card,
)
from medweave_steps.runtime.imports import require

_SHOWN = 5
_OF_DATA_PARALLEL = "module."
"""Prefix of all names in a state dict of torch's DataParallel and DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """A place with weights.

    Attributes:
        kind: `model folder`, `MONAI Bundle` or `state dict`.
        file: the file that has the weights.
        sha256: of that file.
        parent_sha256: digest of the model card of a model folder.
        architecture: of that card; empty for other sources.
    """

    kind: str
    file: Path
    sha256: str
    parent_sha256: str | None = None
    architecture: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedWeights:
    """Which weights were loaded.

    Attributes:
        loaded: names that both have, with equal shapes.
        mismatched: names that both have, with the shapes of the source and of the network.
        new: names of the network only, which keep their random weights.
        unused: names of the source only.
    """

    loaded: tuple[str, ...]
    mismatched: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    new: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the outcome for people."""
        total = len(self.loaded) + len(self.mismatched) + len(self.new)
        parts = [f"{len(self.loaded)} of the network's {total} weights and statistics loaded"]
        if self.mismatched:
            shapes = [f"{name} {list(seen)} instead of {list(own)}" for name, (seen, own) in self.mismatched.items()]
            parts.append(f"{len(shapes)} left out because the shapes differ: {_some(shapes)}")
        if self.new:
            parts.append(f"{len(self.new)} not in the initial weights: {_some(self.new)}")
        if self.unused:
            parts.append(f"{len(self.unused)} of the initial weights not in the network: {_some(self.unused)}")
        return "; ".join(parts) + "."

    @property
    def facts(self) -> dict[str, Any]:
        """Return the outcome for the model card, as JSON values."""
        return {
            "num_loaded": len(self.loaded),
            "shapes_differ": {name: [list(seen), list(own)] for name, (seen, own) in self.mismatched.items()},
            "not_in_source": list(self.new),
            "not_in_network": list(self.unused),
        }


def find_weights(path: Path) -> WeightsSource:
    """Return where the weights of a model folder, a Bundle or a file are.

    Raises:
        UserInputError: the path is no model folder, Bundle or file of weights; the weights of the model folder are not in its card
            or were changed; or the model is an imported ONNX file.
    """
    if path.is_dir() and (path / CARD_FILE).is_file():
        card = read_card(path)
        check_torch_network(card)
        file = listed_file(path, card, WEIGHTS_FILE, made_by="train")
        kind, parent, architecture = "model folder", card_sha256(card), card.architecture
    elif path.is_dir():
        files = [path / name for name in (WEIGHTS_FILE, BUNDLE_WEIGHTS_FILE)]
        file = next((one for one in files if one.is_file()), files[-1])
        kind, parent, architecture = "MONAI Bundle", None, {}
    else:
        file, kind, parent, architecture = path, "state dict", None, {}
    if not file.is_file():
        raise _unreadable(file.name, "no such file")
    return WeightsSource(
        kind=kind, file=file, sha256=sha256_of_file(file), parent_sha256=parent, architecture=architecture
    )


def read_weights(source: WeightsSource) -> Mapping[str, Any]:
    """Return the tensors of a source by name, on the CPU.

    Raises:
        UserInputError: the file has another format.
    """
    try:
        if source.file.suffix == ".safetensors":
            loaded: Mapping[str, Any] = require("safetensors.torch", extra="train").load(source.file.read_bytes())
        else:
            loaded = state_dict_of(source.file.read_bytes())
    except Exception as error:  # torch, pickle and safetensors raise many kinds
        text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())  # torch's messages have colors
        raise _unreadable(source.file.name, text[:160]) from error
    if loaded and all(name.startswith(_OF_DATA_PARALLEL) for name in loaded):
        return {name.removeprefix(_OF_DATA_PARALLEL): tensor for name, tensor in loaded.items()}
    return loaded


def state_dict_of(content: bytes) -> Mapping[str, Any]:
    """Return the state dict of a file written by torch.save, plain or below the key `model` or `state_dict`.

    Raises:
        Exception: of whatever kind torch or pickle raise for another file; a ValueError for values that are not tensors.
    """
    torch = require("torch", extra="export")
    # weights_only: a pickle of another kind could run code. From memory: a truncated file is no storage error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for key in ("model", "state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(item, torch.Tensor) for item in loaded.values()):
        raise ValueError("the file contains values that are not named tensors")
    return loaded


def load_matching(network: Any, weights: Mapping[str, Any]) -> MatchedWeights:
    """Load the weights whose name and shape are those of the network, and return which ones they are.

    Raises:
        UserInputError: none matches.
    """
    own = network.state_dict()
    shapes = {name: (tuple(weights[name].shape), tuple(own[name].shape)) for name in own if name in weights}
    matched = MatchedWeights(
        loaded=tuple(name for name, (seen, expected) in shapes.items() if seen == expected),
        mismatched={name: pair for name, pair in shapes.items() if pair[0] != pair[1]},
        new=tuple(name for name in own if name not in weights),
        unused=tuple(sorted(name for name in weights if name not in own)),
    )
    parameters = {name for name, _ in network.named_parameters()}
    if not parameters & set(matched.loaded):
        raise UserInputError(
            "the initial weights do not match the network.",
            seen=f"{_some(matched.unused)}" if not shapes else matched.text,
            expected=f"weights with names and shapes of the network: {_some(sorted(parameters))}",
            do="choose the --network and the options that these weights were trained with, or other --initial-weights",
        )
    network.load_state_dict({name: weights[name] for name in matched.loaded}, strict=False)
    return matched


def freeze(network: Any, patterns: Sequence[str]) -> list[str]:
    """Exclude the parameters whose name matches a pattern from training; return their names.

    Args:
        patterns: shell patterns, such as `features.*`.
    Raises:
        UserInputError: a pattern matches no parameter, or no parameter is left to train.
    """
    names = [name for name, _ in network.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise _bad_freeze(f"--freeze {pattern}, which matches no parameter", f"such as {_some(names)}")
    frozen = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if len(frozen) == len(names):
        raise _bad_freeze(f"all {len(names)} parameters frozen", "at least one parameter that is trained")
    for name, parameter in network.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return frozen


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _bad_freeze(seen: str, expected: str) -> UserInputError:
    return UserInputError(
        "the parameters of --freeze do not fit the network.",
        seen=seen,
        expected=f"patterns of parameter names, {expected}",
        do="correct --freeze",
    )


def _unreadable(name: str, seen: str) -> UserInputError:
    return UserInputError(
        "the initial weights cannot be read.",
        seen=f"{name}: {seen}",
        expected="a model folder, a MONAI Bundle with models/model.pt, or a state dict (.safetensors, or .pt of torch.save)",
        do="set --initial-weights to one of these; files that need code to be unpickled are not read",
    )
