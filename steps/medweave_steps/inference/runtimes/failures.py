"""The errors of a network: it does not fit its model card, cannot be opened, or fails on a GPU."""

from __future__ import annotations

from pathlib import Path

from medweave_core.contracts.model import ModelCard
from medweave_core.errors import InternalError, UserInputError
from medweave_steps.inference.head import OutputHead

Shape = tuple[int, int, int, int, int]


def check_output(card: ModelCard, name: str, seen: tuple[int, ...], shape: Shape) -> None:
    """Compare the shape of a network's output with the card.

    Args:
        name: path of the network inside the model folder, for the message.
        seen: shape of its output.
        shape: B, C, I, J, K of its input.
    Raises:
        UserInputError: the output has another number of channels or voxels.
    """
    of_voxels = (shape[0], OutputHead.of(card).num_channels, *shape[2:])
    if seen != ((shape[0], len(card.classes)) if card.classes else of_voxels):
        raise unusable(card, name, f"an output of shape {tuple(seen)} for an input of shape {shape}")


def failed_on_gpu(card: ModelCard, error: Exception) -> InternalError:
    """Return the error about a network that a GPU cannot run, such as one that is too large for its memory."""
    return InternalError(
        f"the network of model '{card.name}' failed on the GPU.",
        seen=" ".join(str(error).split())[:200],
        expected=f"a GPU with enough free memory for patches of {card.input.patch_shape}",
        do="free the memory of the GPU (nvidia-smi lists its processes), or use the CPU: --device cpu, and for gate "
        "CUDA_VISIBLE_DEVICES=-1",
    )


def not_opened(model_folder: Path, card: ModelCard, name: str, error: Exception) -> UserInputError:
    """Return the error about a file that a runtime cannot open: the last line of its message, without the path of the folder."""
    return unusable(card, name, str(error).replace(f"{model_folder}/", "").strip().splitlines()[-1][:200])


def unusable(card: ModelCard, name: str, seen: str) -> UserInputError:
    """Return the error about a file that holds no network of the card's contracts."""
    head = OutputHead.of(card)
    names = ", ".join(region.name for region in head.outputs)
    logits = "one channel (a logit)" if head.num_channels == 1 else f"{head.num_channels} channels ({names})"
    if head.output.activation == "softmax":
        logits = f"{head.num_channels} channels (background, {names})"
    if card.classes:
        logits = f"{len(card.classes)} logits ({', '.join(card.output_names)})"
    return UserInputError(
        f"{name} of the model '{card.name}' is not usable.",
        seen=seen,
        expected=f"a network with one input and one output of {logits}, for the patch shape of the model card, "
        f"{card.input.patch_shape}",
        do="run `medweave-step export` again",
    )
