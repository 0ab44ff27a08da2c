"""The network of a training, as its options describe it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.contracts.volume import Triple
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.initial_weights import WeightsSource, find_weights, freeze, load_matching, read_weights
from medweave_steps.io.model.network import build_network
from medweave_steps.networks import LAYER_STACK_NAME, is_user_class, names_for, network_type
from medweave_steps.networks.layers import check_shapes
from medweave_steps.networks.user_code import NetworkCode, failed, read_code
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.options import check_option
from medweave_steps.tasks import task_named
from medweave_steps.tasks.training import TrainingTask
from medweave_steps.train.config import TrainConfig
from medweave_steps.training.loop.cpu_kernels import replace_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The network that all processes of a training build.

    Attributes:
        architecture: class and arguments, as the model card and the Bundle have them.
        code: code of the user that the class is in.
        weights: where the initial weights are.
        identity: digests of the files that the network depends on, by name.
    """

    architecture: Mapping[str, Any]
    code: NetworkCode | None = None
    weights: WeightsSource | None = None
    identity: Mapping[str, str] = dataclasses.field(default_factory=dict)


def sized(config: TrainConfig, shape: Triple | None, *, options_set: frozenset[str] = frozenset()) -> TrainConfig:
    """Return the training with patches and windows of the shape that the data fix; unchanged where they fix none.

    Args:
        shape: `TrainingTask.input_shape`; K is 1 for images.
        options_set: options of the user.
    Raises:
        UsageError: the user set another shape.
        UsageError: the network takes images and the data are volumes, or the reverse.
        UserInputError: the data are smaller than the network needs.
    """
    if shape is None:
        return config
    network, kind = network_type(config.network), task_named(config.task).output_kind
    dims, what = (2, "images") if shape[2] == 1 else (3, "volumes")
    if dims not in network.spatial_dims:
        fitting = names_for(kind, dims)
        raise UsageError(
            f"the network '{config.network}' does not take {what}.",
            seen=f"{what} of {' x '.join(map(str, shape[:dims]))}",
            expected=f"a network for {what}: {', '.join(fitting)}",
            do="choose one of these with --network",
        )
    if min(shape[:dims]) < network.least_side:
        raise UserInputError(
            f"the {what} are too small for the network '{config.network}'.",
            seen=f"{what} of {' x '.join(map(str, shape[:dims]))}",
            expected=f"each side at least {network.least_side}",
            do=f"preprocess the cohort with larger {what}, or choose another --network",
        )
    for name in sorted({"patch_shape", "window_shape"} & options_set):
        text = f"{' '.join(map(str, shape))}, the size of the {what}, or no value"
        check_option(getattr(config, name) == shape, name, getattr(config, name), text)
    return dataclasses.replace(config, patch_shape=shape, window_shape=shape)


def plan_network(config: TrainConfig, task: TrainingTask, *, channels: int) -> NetworkPlan:
    """Return the network of a training; tries networks whose output is not known with an empty image.

    Args:
        task: what the network learns.
        channels: of an image.
    Raises:
        UsageError: the network has one output channel, and the task needs several.
        UserInputError: a file of the network cannot be used, or the network cannot be built or has another output.
    """
    built = architecture(config, channels=channels, out_channels=task.num_channels)
    code = read_code(config.network, config.network_code) if is_user_class(config.network) else None
    identity = {"network_code_sha256": code.sha256} if code else {}
    if config.network_file is not None:
        identity["network_file_sha256"] = sha256_of_file(config.network_file)
    weights = find_weights(config.initial_weights) if config.initial_weights else None
    if weights is not None:
        identity["initial_weights_sha256"] = weights.sha256
        built |= _pruned_channels(weights, built)
    plan = NetworkPlan(
        architecture={**built, "code": code.card_entry} if code else built,
        code=code,
        weights=weights,
        identity=identity,
    )
    if network_type(config.network).output_kind != "voxels":
        _check_output(plan, config, channels=channels, outputs=task.num_channels)
    return plan


def _pruned_channels(weights: WeightsSource, built: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `channels` of pruned initial weights, if the network is otherwise the one that they belong to."""
    own = weights.architecture
    is_equal = all(own.get(name) == built[name] for name in ("class", "arguments"))
    return {"channels": own["channels"]} if is_equal and "channels" in own else {}


def architecture(config: TrainConfig, *, channels: int = 1, out_channels: int = 1) -> dict[str, Any]:
    """Return class and arguments of the network.

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
            raise _one_output(config, out_channels)
        arguments |= {network.out_channels: out_channels}
    if config.network == LAYER_STACK_NAME:
        assert config.network_file is not None, "checked with the options"
        check_shapes(config.network_file, arguments)
    return {"class": network.class_name, "arguments": arguments}


def _one_output(config: TrainConfig, out_channels: int) -> UsageError:
    kind = task_named(config.task).output_kind
    able = [name for name in names_for(kind) if name != config.network and network_type(name).out_channels is not None]
    return UsageError(
        f"the network '{config.network}' has one output channel, and the labels of the training set need several.",
        seen=f"{out_channels} output channels",
        expected="1 output channel",
        do=f"choose --network {' or '.join(able)}, or merge the labels with check --merge-labels",
    )


def _check_output(plan: NetworkPlan, config: TrainConfig, *, channels: int, outputs: int) -> None:
    """Run a new network on an empty image, before the training.

    Raises:
        UserInputError: it cannot be built, does not take the image, or gives something else than the task needs.
    """
    torch = require("torch", extra="train")
    gives_classes = task_named(config.task).output_kind == "classes"
    network = build_network(plan.architecture, code=plan.code).eval()
    for shape in dict.fromkeys((config.patch_shape, config.window_shape)):
        image = torch.zeros((1, channels, *shape))
        expected = (1, outputs) if gives_classes else (1, outputs, *shape)
        try:
            with torch.inference_mode():
                output = network(image)
        except Exception as error:  # whatever a network raises, it does not take this image
            if plan.code is not None:
                raise failed(config.network, plan.code, "does not take the images of the task", error) from error
            raise _bad_output(config, image, f"{type(error).__name__}: {error}", expected) from error
        seen = f"shape {tuple(output.shape)}" if torch.is_tensor(output) else f"type {type(output).__name__}"
        if seen != f"shape {expected}":
            raise _bad_output(config, image, f"an output of {seen}", expected)


def _bad_output(config: TrainConfig, image: Any, seen: str, expected: tuple[int, ...]) -> UserInputError:
    what = "one logit per class" if len(expected) == 2 else "one logit per voxel and output"
    return UserInputError(
        f"the network '{config.network}' does not fit the task '{config.task}'.",
        seen=f"for an input of shape {tuple(image.shape)}: {' '.join(seen.split())[:200]}",
        expected=f"an output of shape {expected}: {what}",
        do="correct the network, or choose another --network",
    )


def seeded_network(
    config: TrainConfig, task: TrainingTask, *, channels: int = 1, plan: NetworkPlan | None = None
) -> Any:
    """Return the network with weights drawn from the seed, on the CPU, with its CPU kernels; sets torch's global random state.

    Args:
        task: what the network learns.
        channels: of an image.
        plan: of this training; made from the options where it is left out.
    """
    torch = require("torch", extra="train")
    plan = plan or plan_network(config, task, channels=channels)
    torch.manual_seed(config.seed)
    network = build_network(plan.architecture, code=plan.code)
    if config.network == "unet":  # the paper's network starts from a probability of one half
        network = task.initialized(network)
    replace_kernels(network, network_type(config.network).cpu_kernels)
    return network


def load_initial_weights(config: TrainConfig, plan: NetworkPlan, network: Any) -> tuple[str, Mapping[str, Any]]:
    """Load the weights of --initial-weights that match, and exclude the parameters of --freeze from training.

    Returns:
        a notice for people and facts for the model card; both empty without initial weights.
    """
    if plan.weights is None:
        return "", {}
    matched = load_matching(network, read_weights(plan.weights))
    frozen = freeze(network, config.freeze)
    notice = f"initial weights ({plan.weights.kind}): {matched.text}"
    if frozen:
        notice += f" {len(frozen)} of {len(list(network.parameters()))} parameters are frozen."
    return notice, {"initial_weights": {"source": plan.weights.kind, **matched.facts, "frozen": frozen}}
