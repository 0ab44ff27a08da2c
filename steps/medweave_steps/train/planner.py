"""From the size of the cases and a memory limit to patch, batch and network, by nnU-Net's rules. Pure functions, without torch.

Sources: Isensee et al. 2021, Nat Methods 18:203, supplementary note 2 (rule-based parameters); Isensee et al. 2024, MICCAI,
"nnU-Net Revisited" (residual encoder); the program nnU-Net v2, `ExperimentPlanner` and `get_pool_and_conv_props`, for what the
papers leave open. Tests compare the results with those of nnU-Net 2.8.1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts.volume import Triple, Triple_mm, triple_of
from medweave_steps.networks import resenc_blocks

GIB = 2**30
SMALLEST_EDGE = 4
"""Fewest voxels along an axis of the lowest resolution, unless the patch itself is smaller."""
LARGEST_PATCH = 256**3
"""Voxels of the first patch that is tried."""
BASE_CHANNELS, MOST_CHANNELS = 32, 320
LEAST_BATCH, MOST_OF_DATA = 2, 0.05
"""Patches of a step: at least so many, and at most this share of all voxels of the training set."""
SMALLEST_PATCH = 16
"""Below this number of voxels the planner does not shorten an axis: the patch would show a lesion without its surroundings."""
MOST_STAGES = 16
"""More than any patch allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The stages of a U-Net for a patch.

    Attributes:
        patch_shape: padded so that the strides divide it.
        strides, kernels: I J K of each stage, from full resolution down.
    """

    patch_shape: Triple
    strides: tuple[Triple, ...]
    kernels: tuple[Triple, ...]

    @property
    def multiples(self) -> Triple:
        """Return the numbers that divide the sides of the patch."""
        i, j, k = (math.prod(axis) for axis in zip(*self.strides, strict=True))
        return (i, j, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """The memory of a training step: fixed bytes, bytes of each weight, and of each number that a convolution computes.

    Attributes:
        base_bytes: of the process without network.
        bytes_per_weight: weight, gradient and momentum, float32.
        bytes_per_feature: stored for the backward pass, with what the backward pass needs for a short time.
    """

    base_bytes: float
    bytes_per_weight: float
    bytes_per_feature: float

    def step_bytes(self, *, num_weights: int, num_features: int, batch_size: int) -> float:
        """Return the memory of a step.

        Args:
            num_features: numbers that the convolutions compute for one patch.
        """
        return (
            self.base_bytes + self.bytes_per_weight * num_weights + self.bytes_per_feature * num_features * batch_size
        )


MEMORY_MODELS = {
    ("cpu", False): MemoryModel(base_bytes=0.95 * GIB, bytes_per_weight=12, bytes_per_feature=10),
    ("cpu", True): MemoryModel(base_bytes=0.95 * GIB, bytes_per_weight=12, bytes_per_feature=8),
    ("cuda", False): MemoryModel(base_bytes=0.5 * GIB, bytes_per_weight=12, bytes_per_feature=13),
    ("cuda", True): MemoryModel(base_bytes=0.5 * GIB, bytes_per_weight=12, bytes_per_feature=6),
}
"""By the type of the device and whether activations are in bfloat16, with SGD and momentum; measured, see
docs/explanation/preset-auto.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """The facts that a plan depends on, and what is fixed in it.

    Attributes:
        spacing_mm: of the prepared cases.
        median_shape: median number of voxels of the training cases along I J K.
        num_voxels: of all training cases together.
        in_channels, out_channels: of the network.
        channels: of each stage, where the user has set them; the network then has at most so many stages.
        patch_shape, batch_size: where the user has set them.
    """

    spacing_mm: Triple_mm
    median_shape: Triple
    num_voxels: float
    in_channels: int = 1
    out_channels: int = 1
    channels: tuple[int, ...] | None = None
    patch_shape: Triple | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Patch, batch and network for a memory limit.

    Attributes:
        channels, blocks: of each stage of the encoder.
        num_weights: of the network.
        num_features: numbers that the convolutions compute for one patch.
        step_bytes: estimated memory of a step.
        batch_limit: what limits the batch: memory, data, or nothing where the user has set it.
    """

    topology: Topology
    channels: tuple[int, ...]
    blocks: tuple[int, ...]
    batch_size: int
    num_weights: int
    num_features: int
    step_bytes: float
    batch_limit: str


class DoesNotFitError(Exception):
    """No plan fits the memory.

    Attributes:
        smallest: the plan with the least memory that the rules and the user's options allow.
        fitting: the plan that fits without the user's patch; None if there is none.
    """

    def __init__(self, smallest: Plan, fitting: Plan | None) -> None:
        super().__init__("no plan fits the memory")
        self.smallest, self.fitting = smallest, fitting


def find_topology(spacing_mm: Triple_mm, patch_shape: Sequence[int], *, most_stages: int = MOST_STAGES) -> Topology:
    """Return the stages for a patch: an axis is halved while it has enough voxels and is among the finest ones.

    An axis whose spacing is at least twice the finest one waits until the others have become as coarse; until then its kernels have
    one voxel.
    """
    spacing, size = list(spacing_mm), [float(side) for side in patch_shape]
    strides, kernels, kernel = [[1, 1, 1]], [], [1, 1, 1]
    while len(strides) < most_stages:
        large = [axis for axis in range(3) if size[axis] >= 2 * SMALLEST_EDGE]
        if not large:
            break
        finest = min(spacing[axis] for axis in large)
        halved = [axis for axis in large if spacing[axis] / finest < 2]
        if len(halved) == 1 and size[halved[0]] < 3 * SMALLEST_EDGE:
            break
        kernel = [3 if spacing[axis] / min(spacing) < 2 else kernel[axis] for axis in range(3)]
        kernels.append(kernel)
        strides.append([2 if axis in halved else 1 for axis in range(3)])
        for axis in halved:
            spacing[axis], size[axis] = 2 * spacing[axis], math.ceil(size[axis] / 2)
    kernels.append([3, 3, 3])
    multiples = [math.prod(axis) for axis in zip(*strides, strict=True)]
    padded = [math.ceil(side / multiple) * multiple for side, multiple in zip(patch_shape, multiples, strict=True)]
    return Topology(
        patch_shape=triple_of(padded), strides=tuple(map(triple_of, strides)), kernels=tuple(map(triple_of, kernels))
    )


def first_patch(spacing_mm: Triple_mm, median_shape: Sequence[int]) -> list[int]:
    """Return a cube in mm of at most `LARGEST_PATCH` voxels, cut to the median case."""
    edge_mm = (LARGEST_PATCH * math.prod(spacing_mm)) ** (1 / 3)
    return [min(round(edge_mm / spacing), side) for spacing, side in zip(spacing_mm, median_shape, strict=True)]


def count_weights(
    topology: Topology, channels: Sequence[int], blocks: Sequence[int], *, in_channels: int, out_channels: int
) -> int:
    """Return the number of weights of `networks.resenc.ResEncUnet`."""

    def convolution(before: int, after: int, kernel: Triple) -> int:
        return before * after * math.prod(kernel) + 3 * after  # its bias and the two numbers of the norm

    strides, kernels = topology.strides, topology.kernels
    total = convolution(in_channels, channels[0], kernels[0])
    for (before, after), kernel, number in zip(
        itertools.pairwise((channels[0], *channels)), kernels, blocks, strict=True
    ):
        total += convolution(before, after, kernel) + (2 * number - 1) * convolution(after, after, kernel)
        total += before * after + 2 * after if before != after else 0
    for stage in range(len(channels) - 1):
        below, own = channels[stage + 1], channels[stage]
        total += below * own * math.prod(strides[stage + 1]) + own + convolution(2 * own, own, kernels[stage])
    return total + sum((own + 1) * out_channels for own in channels[: max(1, len(channels) - 2)])


def count_features(topology: Topology, channels: Sequence[int], blocks: Sequence[int], *, out_channels: int) -> int:
    """Return the numbers that the convolutions compute for one patch, as nnU-Net's `compute_conv_feature_map_size` counts them."""
    size, sizes = list(topology.patch_shape), []
    total, before = channels[0] * math.prod(size), channels[0]
    for stride, own, number in zip(topology.strides, channels, blocks, strict=True):
        size = [side // step for side, step in zip(size, stride, strict=True)]
        sizes.append(math.prod(size))
        has_shortcut = own != before or max(stride) > 1
        total, before = total + own * sizes[-1] * (2 * number + has_shortcut), own
    return total + sum((2 * own + out_channels) * voxels for own, voxels in zip(channels[:-1], sizes[:-1], strict=True))


def make_plan(task: PlanInput, model: MemoryModel, memory_bytes: float) -> Plan:
    """Return the plan with the largest patch that fits with two patches in a step; free memory makes the batch larger.

    Raises:
        DoesNotFitError: there is none.
    """
    least_batch = task.batch_size or LEAST_BATCH
    if task.patch_shape is not None:
        plan = _plan_for(task, model, _own_topology(task), least_batch)
        if plan.step_bytes > memory_bytes and task.batch_size is None:
            plan = _plan_for(task, model, plan.topology, 1)
        if plan.step_bytes > memory_bytes:
            raise DoesNotFitError(plan, _fitting(task, model, memory_bytes))
        return _with_batch(task, model, memory_bytes, plan)
    most_stages = len(task.channels) if task.channels else MOST_STAGES
    topology = find_topology(task.spacing_mm, first_patch(task.spacing_mm, task.median_shape), most_stages=most_stages)
    plan = _plan_for(task, model, topology, least_batch)
    while plan.step_bytes > memory_bytes:
        smaller = _smaller(task, plan.topology, most_stages)
        if smaller is None:
            raise DoesNotFitError(plan, None)
        plan = _plan_for(task, model, smaller, least_batch)
    return _with_batch(task, model, memory_bytes, plan)


def _own_topology(task: PlanInput) -> Topology:
    assert task.patch_shape is not None
    most_stages = len(task.channels) if task.channels else MOST_STAGES
    # The patch of the user is not padded: fewer stages divide it.
    while True:
        topology = find_topology(task.spacing_mm, task.patch_shape, most_stages=most_stages)
        if topology.patch_shape == task.patch_shape or len(topology.strides) <= 2:
            return topology
        most_stages = len(topology.strides) - 1


def _fitting(task: PlanInput, model: MemoryModel, memory_bytes: float) -> Plan | None:
    free = dataclasses.replace(task, patch_shape=None)
    try:
        return make_plan(free, model, memory_bytes)
    except DoesNotFitError:
        return None


def _smaller(task: PlanInput, topology: Topology, most_stages: int) -> Topology | None:
    """Return the stages for a patch with one shorter axis, the one that is largest relative to the median case."""
    patch, median = topology.patch_shape, task.median_shape
    for axis in sorted(range(3), key=lambda axis: (patch[axis] / median[axis], axis), reverse=True):
        # nnU-Net's step: the multiple that the shorter axis would have, so that no valid size is skipped.
        shorter = list(patch)
        shorter[axis] -= topology.multiples[axis]
        multiples = find_topology(task.spacing_mm, shorter, most_stages=most_stages).multiples
        shorter = list(patch)
        shorter[axis] -= multiples[axis]
        if shorter[axis] >= min(SMALLEST_PATCH, patch[axis] - 1):
            found = find_topology(task.spacing_mm, shorter, most_stages=most_stages)
            if found.patch_shape[axis] < patch[axis]:
                return found
    return None


def _plan_for(task: PlanInput, model: MemoryModel, topology: Topology, batch_size: int) -> Plan:
    stages = len(topology.strides)
    doubled = tuple(min(MOST_CHANNELS, BASE_CHANNELS * 2**stage) for stage in range(stages))
    channels = task.channels[:stages] if task.channels else doubled
    blocks = resenc_blocks(stages)
    num_weights = count_weights(
        topology, channels, blocks, in_channels=task.in_channels, out_channels=task.out_channels
    )
    num_features = count_features(topology, channels, blocks, out_channels=task.out_channels)
    step_bytes = model.step_bytes(num_weights=num_weights, num_features=num_features, batch_size=batch_size)
    return Plan(
        topology=topology, channels=channels, blocks=blocks, batch_size=batch_size, num_weights=num_weights,
        num_features=num_features, step_bytes=step_bytes, batch_limit="the user",
    )  # fmt: skip


def _with_batch(task: PlanInput, model: MemoryModel, memory_bytes: float, plan: Plan) -> Plan:
    if task.batch_size is not None:
        return plan
    per_patch = model.bytes_per_feature * plan.num_features
    by_memory = plan.batch_size + int((memory_bytes - plan.step_bytes) // per_patch)
    by_data = round(MOST_OF_DATA * task.num_voxels / math.prod(plan.topology.patch_shape))
    batch_size = max(min(by_memory, by_data), min(LEAST_BATCH, by_memory))
    limit = "memory" if by_memory <= max(by_data, LEAST_BATCH) else "data"
    larger = _plan_for(task, model, plan.topology, batch_size)
    return dataclasses.replace(larger, batch_limit=limit)
