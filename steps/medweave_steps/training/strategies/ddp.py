"""Data parallel: every rank has the whole network and its share of the patches; gradients are averaged at every step."""

from __future__ import annotations

import warnings
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.training.device import move_to_device
from medweave_steps.training.strategies import Strategy


class DdpStrategy(Strategy):
    """The strategy of torch's DistributedDataParallel, over gloo on CPUs and NCCL on GPUs.

    Batch norm normalises by the patches of a rank, not of all ranks: torch's SyncBatchNorm exists for GPUs only, and a result
    must not depend on that. The running statistics are averaged over the ranks by the loop.
    """

    def wrap(self, network: Any) -> Any:
        """Move the network to the device and wrap it; its buffers are not synchronized."""
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        self.gradient_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
        parallel = require("torch.nn.parallel", extra="train")
        on_gpu = self.device.type == "cuda"
        with warnings.catch_warnings():
            # torch 2.13 renamed the option; older versions do not have the new name.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            wrapped = parallel.DistributedDataParallel(
                move_to_device(network, self.device),
                device_ids=[self.device.index] if on_gpu else None,
                broadcast_buffers=False,
            )
        if not on_gpu:
            # torch rejects a hook whose annotations are not its own types.
            wrapped.register_comm_hook(self.group.world_size, lambda number, bucket: mean_in_order(number, bucket))
        return wrapped


STRATEGY = DdpStrategy


def mean_in_order(world_size: int, bucket: Any) -> Any:
    """Average gradients over the ranks, summed in order of rank; a communication hook of DistributedDataParallel.

    Gloo sums along a ring that starts at another rank in each part of a bucket, and after the first step torch redistributes the
    gradients over buckets: a resumed training would differ in the last bit. A rank receives `world_size` times its gradients.

    Args:
        bucket: torch's GradBucket.
    Returns:
        a future of the mean.
    """
    torch = require("torch", extra="train")
    own = bucket.buffer()
    parts = [torch.empty_like(own) for _ in range(world_size)]
    work = torch.distributed.all_gather(parts, own, async_op=True)

    def mean(_: Any) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total.div_(world_size)

    return work.get_future().then(mean)
