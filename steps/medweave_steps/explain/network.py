"""The network that is explained, and the same network with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import UserInputError
from medweave_steps.inference.runtimes.devices import UsedDevice
from medweave_steps.io.model.folder import WEIGHTS_FILE, check_float32, check_torch_network
from medweave_steps.io.model.network import build_network, load_plain, with_card_output
from medweave_steps.networks.user_code import NetworkCode
from medweave_steps.runtime.imports import require

EXTRA = "explain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNetwork:
    """A network from images [B, C, I, J, K] to logits [B, classes], ready for gradients.

    Attributes:
        module: torch.nn.Module in evaluation mode.
        prefix: added to the name of a layer for its name in `module`: a network without an axis of slices is inside another module.
        device: where its weights are.
    """

    module: Any
    prefix: str
    device: UsedDevice

    def module_name(self, layer: str) -> str:
        """Return the name in `module` of a layer of the network."""
        return self.prefix + layer


def check_has_weights(card: ModelCard) -> None:
    """Refuse a model without the weights of a torch network, through which gradients flow.

    Raises:
        UserInputError: the model was imported from an ONNX file, is quantized, or has no torch weights.
    """
    check_torch_network(card)
    do = "use the float32 model folder that it was made from: of train, export, prune, or of gate with a float32 model"
    check_float32(card, "be explained", expected=f"precision float32, with {WEIGHTS_FILE}", do=do)
    if WEIGHTS_FILE not in card.files:
        raise UserInputError(
            f"the model '{card.name}' cannot be explained: it has no torch weights, and Grad-CAM needs gradients.",
            seen=f"a model folder with {', '.join(sorted(card.files)) or 'no file'}",
            expected=f"{WEIGHTS_FILE}, listed in its model card",
            do=do,
        )


def trained_network(folder: Path, card: ModelCard, *, code: NetworkCode | None, device: UsedDevice) -> ExplainedNetwork:
    """Return the network with the weights of the model folder.

    Args:
        code: as `io.model.network.network_code` returns it.
    Raises:
        UserInputError: the weights cannot be read, or belong to another architecture.
    """
    return _prepared(load_plain(folder, card, code=code), card, device)


def randomized_network(card: ModelCard, *, code: NetworkCode | None, device: UsedDevice, seed: int) -> ExplainedNetwork:
    """Return the same network with the weights that it has before a training, all layers random.

    Args:
        seed: of the weights; the random state of torch outside stays as it is.
    """
    torch = require("torch", extra=EXTRA)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(card.architecture, code=code)
    return _prepared(network, card, device)


def _prepared(network: Any, card: ModelCard, device: UsedDevice) -> ExplainedNetwork:
    module = with_card_output(network, card).eval().to(device)
    outer = next(name for name, inner in module.named_modules() if inner is network)
    # Gradients of activations only: those of weights would cost a third of the time.
    module.requires_grad_(False)
    for inner in module.modules():
        # An activation in place would overwrite the features whose gradients a hook has to see.
        if getattr(inner, "inplace", False):
            inner.inplace = False
    return ExplainedNetwork(module=module, prefix=f"{outer}." if outer else "", device=device)
