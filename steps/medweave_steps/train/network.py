"""The network of a training, as its options describe it."""

from __future__ import annotations

from typing import Any

from medweave_core.errors import StepError, UsageError
from medweave_steps.io.model.network import build_network
from medweave_steps.networks import network_names, network_type
from medweave_steps.runtime.imports import require
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.loop.cpu_kernels import replace_kernels


def architecture(config: TrainConfig, *, channels: int = 1, out_channels: int = 1) -> dict[str, Any]:
    """Return class and arguments of the network, as the model card and the Bundle have them.

    Args:
        channels: of an image.
        out_channels: of the network's output.
    Raises:
        UsageError: the network has one output channel, and the task needs several.
    """
    network = network_type(config.network)
    arguments = network.arguments(config, channels)
    if out_channels > 1:
        if network.out_channels is None:
            able = [name for name in network_names() if name != config.network and _has_outputs(name)]
            raise UsageError(
                f"the network '{config.network}' has one output channel, and the labels of the training set need several.",
                seen=f"{out_channels} output channels",
                expected="1 output channel",
                do=f"choose --network {' or '.join(able)}, or merge the labels with check --merge-labels",
            )
        arguments |= {network.out_channels: out_channels}
    return {"class": network.class_name, "arguments": arguments}


def _has_outputs(name: str) -> bool:
    try:
        return network_type(name).out_channels is not None
    except StepError:
        return False


def seeded_network(config: TrainConfig, task: TrainingTask, *, channels: int = 1) -> Any:
    """Return the network with weights drawn from the seed, on the CPU, with its CPU kernels; sets torch's global random state.

    Args:
        task: what the network learns.
        channels: of an image.
    """
    torch = require("torch", extra="train")
    torch.manual_seed(config.seed)
    network = build_network(architecture(config, channels=channels, out_channels=task.num_channels))
    if config.network == "unet":  # the paper's network starts from a probability of one half
        network = task.initialized(network)
    replace_kernels(network, network_type(config.network).cpu_kernels)
    return network
