"""Data parallel: every rank holds the whole network and takes its share of the patches; gradients are averaged at every step."""

from __future__ import annotations

import warnings
from typing import Any

from medweave_steps.runtime.imports import require
from medweave_steps.train.strategies import Strategy
from medweave_steps.training.loop.convolutions import on_device


class DdpStrategy(Strategy):
    """torch's DistributedDataParallel, over gloo on CPUs and NCCL on GPUs.

    Batch norm normalises by the patches of a rank, not of all ranks: torch's SyncBatchNorm exists for GPUs only, and a result
    must not depend on that. The running statistics are averaged over the ranks by the loop.
    """

    def wrap(self, network: Any) -> Any:
        """Moves the network to the device; its buffers are left alone."""
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        self.gradient_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
        parallel = require("torch.nn.parallel", extra="train")
        on_gpu = self.device.type == "cuda"
        with warnings.catch_warnings():
            # torch 2.13 and later have a new name for the option, which older ones do not know.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            wrapped = parallel.DistributedDataParallel(
                on_device(network, self.device),
                device_ids=[self.device.index] if on_gpu else None,
                broadcast_buffers=False,
            )
        if not on_gpu:
            # torch refuses a hook whose annotations are not its own types.
            wrapped.register_comm_hook(self.group.world_size, lambda number, bucket: mean_in_order(number, bucket))
        return wrapped


STRATEGY = DdpStrategy


def mean_in_order(world_size: int, bucket: Any) -> Any:
    """Averages some gradients over the ranks, summed in their order; a hook of DistributedDataParallel.

    Gloo's own sum goes round a ring that begins elsewhere in each part of a bucket, and after the first step torch deals the
    gradients to buckets anew: a resumed training would differ in the last bit. A rank receives `world_size` times its gradients.

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
