"""The description of a kind of network: its class, its options, its inputs and its output. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

OutputKind = Literal["voxels", "classes"]
"""What a network gives: one logit per voxel and output [B, outputs, I, J, K], or one per class [B, classes]."""

CpuKernel = Literal["one-channel", "transposed"]
"""Kernels that `training.loop.cpu_kernels` can replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The options of a network; a network with options has a subclass, with one `option` per field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkType:
    """A kind of network: a torch module from images [B, C, I, J, K] to logits; a 2-D image has K = 1.

    `config` in the functions below is the configuration of `train`; `config.network_options` are the network's own options.

    Attributes:
        class_name: full name of the class, as the model card has it.
        arguments: returns the keyword arguments of the class as JSON values, for a config, the number of image channels, and one
            output channel.
        output_kind: logits per voxel, or per class; None for a network that is tried with the data before the training.
        spatial_dims: which inputs it takes: 2 for images (K = 1), 3 for volumes.
        least_side: smallest side of an input, in voxels or pixels.
        out_channels: name of the argument for the number of output channels; None where the network has one.
        patch_multiple: returns the number that every side of a patch must be a multiple of.
        axis_multiples: returns those numbers along I J K, for the arguments of the class; None where they are all `patch_multiple`.
        check: raises UsageError where the options do not fit the network.
        Options: class of the network's own options.
        cpu_kernels: kernels of PyTorch that are replaced in training on a CPU; see `training.loop.cpu_kernels` for the gain.
        has_lean_imports: MONAI's optional libraries and torch's compiler are not imported; see `runtime.imports` for the gain.
    """

    class_name: str
    arguments: Callable[[Any, int], dict[str, Any]]
    output_kind: OutputKind | None = "voxels"
    spatial_dims: tuple[int, ...] = (3,)
    least_side: int = 1
    out_channels: str | None = None
    patch_multiple: Callable[[Any], int] = lambda config: 1
    axis_multiples: Callable[[Mapping[str, Any]], Sequence[int]] | None = None
    check: Callable[[Any], None] = lambda config: None
    Options: type[NetworkOptions] = NetworkOptions
    cpu_kernels: tuple[CpuKernel, ...] = ()
    has_lean_imports: bool = False
